"""The argv gate: a command line for ffmpeg or ffprobe becomes another one that can do less, or is refused.

The gate is a compiler, not a filter. The command line is parsed into typed parts, every part is judged by tables of
what is allowed, every path is resolved in the session, and a new command line is written from the parts. What is
not understood is refused. Before every input and every output stand the protocols and the format that it may have.

Spec: runners, "Media session ops and argv validation"; the op's error is `argv_not_allowed`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rota.errors import ArgvNotAllowed
from rota.runners.argv.codecs import DECODERS, ENCODER_OF_CODEC, ENCODERS
from rota.runners.argv.commandline import CommandLine, File, Given, check_elements, parse
from rota.runners.argv.encoders import KINDS, compile_parameters
from rota.runners.argv.files import SessionFiles, Touched
from rota.runners.argv.filters import compile_graph
from rota.runners.argv.inputs import pinned_input
from rota.runners.argv.options import INFORMATION
from rota.runners.argv.outputs import pinned_output
from rota.runners.argv.probe import compile_ffprobe
from rota.runners.argv.tee import inside_format
from rota.runners.argv.values import check_value
from rota.runners.argv.written import beside, check_older_playlist, written_pattern

Tool = Literal["ffmpeg", "ffprobe"]

_FRAME_MODES = {
    "0": "passthrough", "1": "cfr", "2": "vfr", "-1": "auto",
    "passthrough": "passthrough", "cfr": "cfr", "vfr": "vfr", "auto": "auto",
}  # fmt: skip

_ON_ANYWAY = frozenset({"autorotate", "autoscale"})
"""Switches that are on if nobody says anything; ffmpeg 5.1 takes a value for them, later ones take none."""

_TOPIC = re.compile(r"long|full|(?:decoder|encoder|demuxer|muxer|filter|bsf)=[\w-]+", re.ASCII)

FILES_MAX = 256
"""Inputs and outputs of one command: each is an open file."""

ELEMENT_BYTES_MAX = 128 * 1024 - 1
"""Linux starts no program with a longer argument."""

COMMAND_BYTES_MAX = 1024 * 1024
"""macOS gives a program a MiB for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A command line that may run, and what it touches."""

    argv: tuple[str, ...]
    """Without the program. It runs in the session's folder, with an empty environment."""
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    """Names that it writes, as they are given; the folders that hold them have to be there."""


def compile_argv(tool: str, argv: Sequence[str], files: SessionFiles) -> Compiled:
    """Judge a command line and write it anew.

    Args:
        tool: `ffmpeg` or `ffprobe`.
        argv: The elements, without the program.
        files: The session's files.

    Returns:
        The command line to run instead.

    Raises:
        ArgvNotAllowed: It is refused; the error names the argument and says why.
    """
    check_elements(argv)
    touched = Touched(files)
    if _asks_only(argv):
        compiled = [*argv]
    elif tool == "ffmpeg":
        compiled = _compile_ffmpeg(parse(argv), touched)
    elif tool == "ffprobe":
        compiled = compile_ffprobe(argv, touched)
    else:
        raise ArgvNotAllowed(tool[:40], "there is no such tool: ffmpeg or ffprobe")
    touched.check_apart()
    _check_startable(compiled)
    return Compiled(argv=tuple(compiled), reads=_once(touched.reads), writes=_once([*touched.writes, *touched.made]))


def _asks_only(argv: Sequence[str]) -> bool:
    """Whether a command line only asks what the program can do."""
    asked = [element for element in argv if element != "-hide_banner"]
    if len(asked) == 1 and asked[0].startswith("-") and asked[0][1:] in INFORMATION:
        return True
    return len(asked) in {1, 2} and asked[0] in {"-h", "-help"} and all(map(_TOPIC.fullmatch, asked[1:]))


def _once(paths: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(paths))


def _check_startable(argv: Sequence[str]) -> None:
    if any(len(element.encode()) > ELEMENT_BYTES_MAX for element in argv):
        raise ArgvNotAllowed("the command line", f"an argument has more than {ELEMENT_BYTES_MAX:,} bytes")
    if sum(len(element.encode()) + 1 for element in argv) > COMMAND_BYTES_MAX:
        raise ArgvNotAllowed("the command line", f"it has more than {COMMAND_BYTES_MAX:,} bytes")


def _compile_ffmpeg(line: CommandLine, touched: Touched) -> list[str]:
    if not line.inputs and not any(
        given.rule.value in {"graph_complex", "script_complex"} for given in line.everywhere
    ):
        raise ArgvNotAllowed("the command line", "there is no input")
    if len(line.inputs) + len(line.outputs) > FILES_MAX:
        raise ArgvNotAllowed("the command line", f"there are more than {FILES_MAX} inputs and outputs")
    out = ["-nostdin"]
    frames: list[str] = []
    for given in line.everywhere:
        if given.name == "vsync":
            frames = ["-fps_mode", _frame_mode(given)]
        elif given.name != "stdin":
            out += _option(given, touched, codecs=ENCODERS, output="")
    for index, file in enumerate(line.inputs):
        out += _input(file, index, touched)
    for index, file in enumerate(line.outputs):
        out += [*frames, *_output(file, index, touched)]
    return out


def _frame_mode(given: Given) -> str:
    """ffmpeg 9 knows -vsync no more; -fps_mode is there since 5.1, and belongs to an output."""
    mode = _FRAME_MODES.get(given.value or "")
    if mode is None:
        raise ArgvNotAllowed(f"-vsync {given.value}", "its value is passthrough, cfr, vfr or auto")
    return mode


def _input(file: File, index: int, touched: Touched) -> list[str]:
    argument = f"-i {file.name[:80]!r}" if index == 0 else f"-i {file.name[:80]!r} (input {index})"
    wanted = _last(file.options, "format")
    pattern_type = _last(file.options, "pattern_type")
    if pattern_type not in {None, "glob", "sequence", "none"}:
        raise ArgvNotAllowed(f"-pattern_type {pattern_type}", "the type is glob, sequence or none")
    for given in file.options:
        if given.rule.value == "safe" and given.value not in {"0", "1", "-1"}:
            raise ArgvNotAllowed("-safe", "its value is 0 or 1")
    out: list[str] = []
    for given in file.options:
        if given.rule.value not in {"format", "pattern_type", "safe"}:
            out += _option(given, touched, codecs=DECODERS, output="")
    pins, name = pinned_input(file.name, argument=argument, wanted=wanted, pattern_type=pattern_type, touched=touched)
    return [*out, *pins, "-i", name]


def _output(file: File, index: int, touched: Touched) -> list[str]:
    argument = f"output {file.name[:80]!r}"
    pins, name = pinned_output(file.name, argument=argument, options=file.options, touched=touched)
    out: list[str] = []
    for given in file.options:
        if given.rule.value != "format":
            out += _option(given, touched, codecs=ENCODERS, output=name)
    names = {given.name for given in file.options}
    if "pass" in names and "passlogfile" not in names:
        touched.write_pattern("-pass", "ffmpeg2pass", _pass_logs("ffmpeg2pass"))
    return [*out, *pins, name]


def _last(options: Sequence[Given], value: str) -> str | None:
    found = [given.value for given in options if given.rule.value == value]
    return found[-1] if found else None


def _option(given: Given, touched: Touched, *, codecs: frozenset[str], output: str) -> list[str]:
    """Write one option anew."""
    name = given.name + (f":{given.specifier}" if given.specifier else "")
    if given.name == "hwaccel" and given.value == "auto":
        return []  # "auto" falls back to software, which is what there is without devices
    if given.name in _ON_ANYWAY and not given.negated:
        return []
    if given.value is None:
        return ["-no" + name if given.negated else "-" + name]
    kind = given.rule.value
    if kind in {"script", "script_complex"}:
        # The script is judged and put in its place: ffmpeg reads no file, and ffmpeg 9 has no such option any more.
        path, _ = touched.read(given.argument, given.value)
        text = touched.text(given.argument, path)
        graph = compile_graph(text, argument=f"{given.argument} {path!r}", touched=touched)
        whole = "filter_complex" if kind == "script_complex" else "filter"
        return [f"-{whole}" + (f":{given.specifier}" if given.specifier else ""), graph]
    return ["-" + name, _value(kind, given, given.value, touched, codecs=codecs, output=output)]


def _value(kind: str, given: Given, value: str, touched: Touched, *, codecs: frozenset[str], output: str) -> str:
    argument = given.argument
    if kind in {"graph", "graph_complex"}:
        return compile_graph(value, argument=argument, touched=touched)
    if kind == "codec":
        return _codec(value, argument, codecs)
    if kind in KINDS:
        return compile_parameters(kind, value, argument=argument, touched=touched)
    if kind in {"write", "read_attached"}:
        if value == "-":
            raise ArgvNotAllowed(argument, "it needs a file of the session")
        return "./" + touched.write(argument, value)
    if kind == "attach":
        return "./" + touched.read(argument, value)[0]
    if kind == "passlog":
        touched.write_pattern(argument, value, _pass_logs(value))
        return "./" + touched.resolve(argument, value)[0]
    if kind == "format_inside":
        return inside_format(value, argument)
    if kind == "name_pattern":
        return "./" + written_pattern(value, argument=argument, touched=touched)
    if kind == "name_beside":
        return beside(value, output.removeprefix("./"), argument=argument, touched=touched)
    if kind == "hls_flags" and "append_list" in value:
        check_older_playlist(output.removeprefix("./"), argument=argument, touched=touched)
    if kind == "key_info":
        return _key_info(value, argument, touched)
    return check_value(kind, value, argument=argument)


def _codec(value: str, argument: str, codecs: frozenset[str]) -> str:
    name = ENCODER_OF_CODEC.get(value, value) if codecs is ENCODERS else value
    if name != "copy" and name not in codecs:
        raise ArgvNotAllowed(f"{argument} {value[:40]}", "this codec is not allowed")
    return name


def _pass_logs(prefix: str) -> str:
    return re.escape(prefix.rpartition("/")[2]) + r"-\d+\.log(?:\.mbtree|\.cutree)?(?:\.temp)?"


def _key_info(value: str, argument: str, touched: Touched) -> str:
    """A key-info file: a text for the playlist, the file of the key, a vector."""
    path, _ = touched.read(argument, value)
    text = touched.text(argument, path).replace("\r\n", "\n")
    # Only what ends a line for ffmpeg and for nobody else: whoever counts otherwise takes another line for the file.
    lines = text.split("\n")
    if len(lines) < 2 or "\0" in text or "\r" in text:
        raise ArgvNotAllowed(argument, f"{path!r} holds no two lines: the key's address and its file")
    touched.read(f"{argument}, line 2 of {path!r}", lines[1])
    return "./" + path
