"""A second corpus, of work that people do and of ways out, and mutants of both corpora.

The lines have the form of the first corpus. Those that are allowed were run on ffmpeg 5.1.9 and 9.0.2, as far as the
builds have what they ask for.
"""

import json
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from rota.errors import ArgvNotAllowed
from rota.runners.argv import Compiled, Listing, compile_argv
from rota.runners.io.session_folder import SessionFolder
from tests.runners.sessions import SECRET, Samples, found_tools, listener, run, stage
from tests.runners.test_argv_corpus import CORPUS, Line, pins_before, unpinned

MORE = [
    msgspec.convert(json.loads(line), Line)
    for line in (Path(__file__).parent / "argv-corpus-more.jsonl").read_text().splitlines()
]
ALLOWED = [line for line in MORE if line.expect == "allow"]
TOOLS = found_tools()
media = pytest.mark.skipif(not TOOLS, reason="no ffmpeg is here: pip install 'rota[media]'")

LACKING = re.compile(
    rb"No such filter|Unknown encoder|Unrecognized option|Error selecting an encoder|Option not found|Unknown decoder"
    rb"|could not find an? (?:encoder|decoder)|Decoder not found|Error binding an input stream",
    re.IGNORECASE,
)
"""What a build says that lacks a filter or a codec: the one of the media package is small."""


def judged(line: Line, session: Listing | None = None) -> Compiled | None:
    try:
        return compile_argv(line.tool, line.argv, session or line.session)
    except ArgvNotAllowed:
        return None


def test_the_corpus_is_whole() -> None:
    assert len(ALLOWED) == 1009
    assert len(MORE) - len(ALLOWED) == 823


def test_each_line_is_judged_as_it_says() -> None:
    wrong = [(line.id, line.argv) for line in MORE if (judged(line) is not None) != (line.expect == "allow")]
    assert not wrong


def test_each_input_and_output_has_its_pins() -> None:
    for line in ALLOWED:
        compiled = judged(line)
        assert compiled is not None
        assert not escapes(compiled), line.id
        argv = compiled.argv
        for index in (index for index, element in enumerate(argv) if element == "-i"):
            pins = pins_before(argv, index)
            assert pins["-protocol_whitelist"] in {"file,pipe", "concat,file,pipe"}, line.id
            assert pins["-format_whitelist"], line.id


def test_a_compiled_command_compiles_to_itself() -> None:
    for line in ALLOWED:
        compiled = judged(line)
        # `movie` and joined playlists are written with what only the runner may say.
        if compiled is None or re.search(r"movie=|concat:", " ".join(compiled.argv)) or len(line.argv) < 3:
            continue
        again = compile_argv(line.tool, unpinned(compiled.argv), line.session)
        once_more = compile_argv(line.tool, unpinned(again.argv), line.session)
        assert once_more.argv == again.argv, line.id
        assert set(again.writes) == set(compiled.writes), line.id


# Lines whose commands differ in what the gate writes, and that a small build can run.
UNUSUAL = re.compile(
    r"-f tee|sendcmd=c|setts|key_info|nullsink|%v|-f dash|-f concat|-strftime|stats_enc|x264-params pass"
    r"|metadata=print:file=s|-f segment -segment_times"
)
LATER = {f"more-ok-{number}" for number in (235, 238, 240, 245, 246, 251, 254, 255, 273, 656, 949)}
RUN = [
    line
    for line in ALLOWED
    if line.id in LATER
    or (
        int(line.id.rpartition("-")[2]) < 235
        and UNUSUAL.search(" ".join(line.argv))
        and not re.search(r"png|fonts|opus|out\.mkv\|", str(line))
    )
]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    return Samples(TOOLS[0][1], tmp_path_factory.mktemp("samples"))


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """A session's folder; a secret lies above it."""
    (tmp_path / "secret.mp4").write_text(SECRET)
    (tmp_path / "session").mkdir()
    return tmp_path / "session"


@media
@pytest.mark.parametrize(("name", "ffmpeg", "ffprobe"), TOOLS, ids=[name for name, _, _ in TOOLS])
def test_commands_of_unusual_shape_run(name: str, ffmpeg: Path, ffprobe: Path, samples: Samples, session: Path) -> None:
    done: list[str] = []
    for line in RUN:
        folder = session / line.id
        folder.mkdir()
        stage(folder, samples, files=line.files, contents=line.contents, links=line.symlinks)
        compiled = compile_argv(line.tool, line.argv, SessionFolder(folder))
        for written in compiled.writes:
            (folder / written).parent.mkdir(parents=True, exist_ok=True)
        ended = run(ffmpeg if line.tool == "ffmpeg" else ffprobe, compiled.argv, folder)
        said = ended.stderr.decode(errors="replace")[-1500:]
        assert ended.returncode == 0 or LACKING.search(ended.stderr), (line.id, compiled.argv, said)
        done += [line.id] if ended.returncode == 0 else []
    assert len(done) > len(RUN) // 2
    assert (session.parent / "secret.mp4").read_text() == SECRET
    assert {path.name for path in session.parent.iterdir()} == {"session", "secret.mp4"}


PATHS = [
    "../secret.mp4", "/etc/passwd", "./../secret.mp4", "a/../../secret.mp4", "http://127.0.0.1:{port}/x",
    "tcp://127.0.0.1:{port}", "file:../secret.mp4", "concat:in.mp4|../secret.mp4",
    "subfile,,start,0,end,0,,:../secret.mp4", "crypto:../secret.mp4", "data:,x", "pipe:0", "~/x",
    "in.mp4|../secret.mp4", "..\\secret.mp4", "%2e%2e/secret.mp4",
]  # fmt: skip
SPECIAL = [*"\\':=,;[]@/.%|~# \n\t\"*?{}$&-+()<>!`", "\\\\", "\\\\\\", "''", "'\\''", "..", "/..", "../", "\0", "é"]
_NAME = re.compile(r"[\w./%-]{3,}")


def mutants(seed: int, *, port: int) -> Iterator[Line]:
    """Lines of both corpora with a few changes, for ever; the same ones for a seed."""
    dice = random.Random(seed)
    lines = [*CORPUS, *MORE]
    work = [line for line in lines if line.expect == "allow"]
    paths = [path.replace("{port}", str(port)) for path in PATHS]
    while True:
        line = dice.choice(work if dice.random() < 0.8 else lines)
        argv, contents = list(line.argv), dict(line.contents)
        for _ in range(dice.choice([1, 1, 2, 3])):
            if contents and dice.random() < 0.3:
                name = dice.choice(sorted(contents))
                contents[name] = changed(contents[name], dice, paths)
            elif argv:
                at = dice.randrange(len(argv))
                other = dice.choice(lines).argv
                turn = dice.random()
                if turn < 0.6:
                    argv[at] = changed(argv[at], dice, paths)
                elif turn < 0.85 and other:
                    start = dice.randrange(len(other))
                    argv[at : at + dice.choice([0, 0, 1, 2])] = other[start : start + dice.choice([1, 2, 3])]
                else:
                    argv[at:at] = [argv[dice.randrange(len(argv))]]
        yield msgspec.structs.replace(line, argv=argv, contents=contents)


def changed(text: str, dice: random.Random, paths: Sequence[str]) -> str:
    """A text with a path put into it in some spelling, or with a character more or less."""
    found = list(_NAME.finditer(text))
    turn = dice.random()
    if found and turn < 0.5:
        name = dice.choice(found)
        path = "".join(
            character if dice.random() < 0.7 else dice.choice(["\\", "\\\\"]) + character
            for character in dice.choice(paths)
        )
        return text[: name.start()] + dice.choice([path, f"'{path}'"]) + text[name.end() :]
    at = dice.randrange(len(text) + 1)
    return text[:at] + ("" if turn > 0.9 else dice.choice(SPECIAL)) + text[at + (turn > 0.8) :]


def escapes(compiled: Compiled) -> list[str]:
    """What of a compiled command names something outside, looked at without the gate's own rules."""
    found = [path for path in (*compiled.reads, *compiled.writes) if path.startswith("/") or ".." in path.split("/")]
    argv = compiled.argv
    for index, element in enumerate(argv):
        # A word `-i` may be the value of an option; an input has its pins before it.
        if element == "-i" and argv[max(index - 2, 0)] in {"-f", "-safe", "-pattern_type", "-format_whitelist"}:
            pinned = pins_before(argv, index).get("-f")
            named = argv[index + 1]
            parts = named.removeprefix("concat:").split("|") if named.startswith("concat:") else [named]
            found += [] if pinned == "lavfi" else [part for part in parts if not part.startswith("./")]
    return found + [argument for argument in argv if "\0" in argument]


def test_mutants_are_refused_or_stay_inside() -> None:
    allowed = 0
    for _, line in zip(range(8000), mutants(26, port=9), strict=False):
        compiled = judged(line)
        if compiled is not None:
            allowed += 1
            assert not escapes(compiled), line.argv
    assert allowed > 300


@media
def test_mutants_that_pass_touch_nothing_outside(samples: Samples, session: Path) -> None:
    _, ffmpeg, ffprobe = TOOLS[0]
    ran = 0
    with listener() as (port, calls):
        for line in mutants(27, port=port):
            # Those that take long to run or to stage say nothing more.
            if re.search(r"-re\b|readrate|-loop|mandelbrot|stream_loop", str(line.argv)) or not line.contents:
                continue
            if judged(line) is None:
                continue
            folder = session / str(ran)
            folder.mkdir()
            stage(folder, samples, files=line.files, contents=line.contents, links=line.symlinks)
            try:
                compiled = compile_argv(line.tool, line.argv, SessionFolder(folder))
            except ArgvNotAllowed:
                continue
            ended = run(ffmpeg if line.tool == "ffmpeg" else ffprobe, [*compiled.argv], folder)
            ran += 1
            assert SECRET.encode() not in ended.stdout + ended.stderr, line.argv
            assert {path.name for path in session.parent.iterdir()} == {"session", "secret.mp4"}, line.argv
            assert calls == [], line.argv
            if ran == 15:
                break
