"""The corpus of command lines is part of the gate's specification: each line as a test (S67, S68, S70, S71)."""

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from rota.errors import ArgvNotAllowed
from rota.runners.argv import Listing, compile_argv


class Line(msgspec.Struct, frozen=True):
    """One line of the corpus."""

    id: str
    tool: str
    argv: list[str]
    files: list[str]
    expect: str
    why: str
    contents: dict[str, str] = msgspec.field(default_factory=dict)
    symlinks: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def session(self) -> Listing:
        return Listing(self.files, self.contents, self.symlinks)


CORPUS = [
    msgspec.convert(json.loads(line), Line)
    for line in (Path(__file__).parent / "argv-corpus.jsonl").read_text().splitlines()
]
ALLOWED = [line for line in CORPUS if line.expect == "allow"]
REFUSED = [line for line in CORPUS if line.expect == "reject"]


def pins_before(argv: Sequence[str], at: int) -> dict[str, str]:
    """The last pins before an element, in the group of options that belongs to it."""
    found: dict[str, str] = {}
    start = max((index for index in range(at) if argv[index] == "-i"), default=-2) + 2
    for index in range(start, at):
        if argv[index] in {"-protocol_whitelist", "-format_whitelist", "-f", "-safe"}:
            found[argv[index]] = argv[index + 1]
    return found


def unpinned(argv: Sequence[str]) -> list[str]:
    """What a caller could have written for a compiled command line: without what only the runner may say."""
    out: list[str] = []
    skip = False
    for element in argv:
        if skip:
            skip = False
        elif element in {"-protocol_whitelist", "-format_whitelist"}:
            skip = True
        else:
            out.append(element)
    return out


def test_the_corpus_is_whole() -> None:
    assert len(ALLOWED) == 107
    assert len(REFUSED) == 135


@pytest.mark.parametrize("line", ALLOWED, ids=lambda line: line.id)
def test_work_that_people_do_is_allowed(line: Line) -> None:
    compiled = compile_argv(line.tool, line.argv, line.session)
    argv = compiled.argv
    inputs = [index for index, element in enumerate(argv) if element == "-i"]
    assert inputs
    for index in inputs:
        # S67: ffmpeg applies the whitelist to the next input only, so each has its own.
        pins = pins_before(argv, index)
        assert pins["-protocol_whitelist"] == "file,pipe"
        assert pins["-format_whitelist"]
        assert pins["-f"] in pins["-format_whitelist"].split(",")
    if line.tool == "ffmpeg":
        assert argv[-5:-2] == ("-protocol_whitelist", "file,pipe", "-f")


@pytest.mark.parametrize("line", [line for line in ALLOWED if "movie" not in str(line.argv)], ids=lambda line: line.id)
def test_a_compiled_command_compiles_to_itself(line: Line) -> None:
    compiled = compile_argv(line.tool, line.argv, line.session)
    again = compile_argv(line.tool, unpinned(compiled.argv), line.session)
    assert sorted(again.argv) == sorted(compiled.argv)
    assert compile_argv(line.tool, unpinned(again.argv), line.session).argv == again.argv


@pytest.mark.parametrize("line", REFUSED, ids=lambda line: line.id)
def test_what_could_leave_the_session_is_refused(line: Line) -> None:
    with pytest.raises(ArgvNotAllowed) as refused:
        compile_argv(line.tool, line.argv, line.session)
    assert refused.value.argument
    assert refused.value.reason


@pytest.mark.parametrize("tool", ["ffmpeg", "ffprobe"])
def test_the_runners_own_pins_are_refused_from_a_caller(tool: str) -> None:
    for option in ("-protocol_whitelist", "-format_whitelist", "-codec_whitelist", "-protocol_blacklist"):
        with pytest.raises(ArgvNotAllowed, match="decided by the runner"):
            compile_argv(tool, [option, "file,pipe", "-i", "in.mp4"], Listing(["in.mp4"]))
