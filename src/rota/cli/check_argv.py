"""`rota runner check-argv`: what a runner would make of a command line."""

import json
import shlex
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
import typer

from rota.errors import ArgvNotAllowed, SettingsError
from rota.io.terminal import fail, write
from rota.runners.argv import Compiled, Listing, compile_argv
from rota.runners.io.session_folder import SessionFolder

LINE_BYTES_MAX = 16 * 1024 * 1024
"""Four times what one op may hold."""


class CheckLine(msgspec.Struct, frozen=True):
    """One command line to judge, with the session it would run in; unknown fields are ignored."""

    tool: str
    argv: list[str]
    id: str | int | None = None
    files: list[str] | None = None
    contents: dict[str, str] | None = None
    symlinks: dict[str, str] | None = None

    @property
    def session(self) -> Listing:
        """The session's files; what is null is not there."""
        return Listing(
            [_plain(name) for name in self.files or ()],
            {_plain(name): text for name, text in (self.contents or {}).items()},
            {_plain(name): target for name, target in (self.symlinks or {}).items()},
        )


def check_argv(
    source: Annotated[
        str,
        typer.Argument(
            help="ffmpeg or ffprobe, then -- and its arguments; or a file of JSON lines, - for stdin.",
            metavar="TOOL|FILE",
        ),
    ] = "-",
    arguments: Annotated[list[str] | None, typer.Argument(help="The arguments, after --.", metavar="ARGS…")] = None,
    folder: Annotated[
        Path,
        typer.Option(
            "--folder", exists=True, file_okay=False, help="The session's folder, for a command line.", metavar="DIR"
        ),
    ] = Path(),
) -> None:
    """Show what the argv gate makes of a command line, or of many as JSON lines.

    A JSON line is {id, tool, argv, files, contents?, symlinks?}; the answer is {id, verdict, argv?, reason?}. The exit
    status is 0 if every line could be read, whatever the verdicts are, and 2 if not; blank lines are passed over. With
    a command line of one's own the files are those of a folder, and the exit status is 1 if it is refused.
    """
    if source in {"ffmpeg", "ffprobe"}:
        _check_one(source, arguments or [], folder)
    elif arguments:
        raise SettingsError(f"{source!r} is no tool: write `rota runner check-argv ffmpeg -- ARGS`.")
    elif source == "-":
        _check_lines(sys.stdin.buffer)
    else:
        try:
            file = open(source, "rb")  # noqa: SIM115 - only the opening is caught
        except OSError as error:
            raise SettingsError(f"{source!r} cannot be read: {error.strerror}. It is a file of JSON lines.") from None
        with file:
            _check_lines(file)


def _check_one(tool: str, argv: list[str], folder: Path) -> None:
    try:
        compiled = compile_argv(tool, argv, SessionFolder(folder))
    except ArgvNotAllowed as error:
        fail(f"argv_not_allowed: {error}", status=1)
    write(shlex.join([tool, *compiled.argv]) + "\n")


def _lines(file: BinaryIO) -> Iterator[str | None]:
    """The lines of a file, None for one that is too long.

    Whatever the terminal's encoding is, JSON is UTF-8, with a byte order mark or without.
    """
    first = True
    while raw := file.readline(LINE_BYTES_MAX + 1):
        # The rest of a line that is too long is passed over, a piece at a time.
        piece = raw
        while len(piece) > LINE_BYTES_MAX and not piece.endswith(b"\n"):
            piece = file.readline(LINE_BYTES_MAX + 1)
        if len(raw) > LINE_BYTES_MAX:
            yield None
        else:
            yield (raw.removeprefix(b"\xef\xbb\xbf") if first else raw).decode(errors="surrogateescape")
        first = False


def _check_lines(file: BinaryIO) -> None:
    broken = 0
    for number, line in enumerate(_lines(file), start=1):
        if line is not None and not line.strip():
            continue
        answer = _judged(line, number)
        broken += "broken" in answer
        answer.pop("broken", None)
        write(json.dumps(answer) + "\n")
    if broken:
        fail(
            f"{broken} of the lines could not be read: {{id, tool, argv, files, contents?, symlinks?}} each.", status=2
        )


def _judged(line: str | None, number: int) -> dict[str, Any]:
    raw: object = None
    try:
        if line is None:
            raise ValueError(f"it has more than {LINE_BYTES_MAX:,} bytes")
        # By json, because msgspec refuses half a surrogate pair, which a command line may hold: it is answered for.
        raw = json.loads(line)
        case = msgspec.convert(raw, CheckLine)
    except (ValueError, RecursionError) as error:
        given = raw.get("id") if isinstance(raw, dict) else None
        known = given if isinstance(given, str | int) else None
        return {"id": known, "verdict": "reject", "reason": f"line {number} cannot be read: {error}", "broken": True}
    try:
        compiled: Compiled = compile_argv(case.tool, case.argv, case.session)
    except ArgvNotAllowed as error:
        return {"id": case.id, "verdict": "reject", "reason": f"argv_not_allowed: {error}"}
    return {"id": case.id, "verdict": "allow", "argv": list(compiled.argv)}


def _plain(name: str) -> str:
    """A name as a session holds it: what is staged is named by its composed form."""
    return unicodedata.normalize("NFC", name.removeprefix("./"))
