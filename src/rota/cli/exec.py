"""`rota exec`: runs one declared command in a slot of an exec server, with streams in and out, like a local one."""

import asyncio
import contextlib
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, TYPE_CHECKING, Annotated, BinaryIO, Final

import typer

from rota.cli.options import read_settings
from rota.cli.worker import run as run_loop
from rota.commands import Call, Place, Run, Stdin
from rota.durations import span
from rota.errors import NoSlot, RotaError, SettingsError
from rota.io import log, terminal
from rota.io.visible import visible
from rota.settings import Settings
from rota.slots.io.client import SlotClient
from rota.slots.io.from_settings import client_of

if TYPE_CHECKING:
    from rota.cli.unclaimed import Above

NO_SLOT_STATUS: Final = 75
"""Try again later (EX_TEMPFAIL of sysexits.h)."""
BY_SIGNAL: Final = 128
"""What shells add to the number of the signal that ended a command."""
READER_LEFT: Final = BY_SIGNAL + 13
"""As SIGPIPE ends a filter whose reader has enough (`| head`)."""
LOOK_S: Final = 1.0
"""How often the place in line is asked for, and only where somebody sees it."""
LOOKS_SILENT: Final = 5
"""After so many looks without anything that could run the command, it is said also where no terminal is."""
READ_BYTES: Final = 256 * 1024


def exec_command(  # noqa: PLR0917 - the options of a command
    service: Annotated[str, typer.Argument(help="The declared command.", metavar="SERVICE")],
    args: Annotated[
        list[str] | None,
        typer.Argument(
            help="Its arguments. The last one, if it names a file here and there is no -i, is the input.",
            metavar="ARGS…",
        ),
    ] = None,
    source: Annotated[
        str | None, typer.Option("-i", "--input", help="The input: a file; - is standard input.", metavar="FILE")
    ] = None,
    target: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where its output goes, whole or not at all.", metavar="FILE")
    ] = None,
    priority: Annotated[int, typer.Option("--priority", help="Higher is served first.", metavar="N")] = 0,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", help="Seconds that it may run.", min=0, metavar="SECONDS")
    ] = None,
    wait_s: Annotated[
        float | None, typer.Option("--wait", help="Seconds to wait for a slot.", min=0, metavar="SECONDS")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", help="A variable that the service declares.", metavar="NAME=VALUE")
    ] = None,
    exec_addresses: Annotated[
        str | None,
        typer.Option("--exec-addresses", help="The exec servers. Else ROTA_EXEC_ADDRESSES.", metavar="HOST:PORT,…"),
    ] = None,
) -> None:
    """Run a declared command in a slot of an exec server: `cat in.wav | rota exec transcribe > out.txt`.

    It ends with the command's own status. While it waits for a slot, a terminal shows its place in line. Ctrl-C stops
    the command.
    """
    settings = read_settings(exec_addresses=exec_addresses)
    log.setup_as(settings.log_format, "error")
    words = list(args or ())
    if source is None and words and Path(words[-1]).is_file():
        source = words.pop()
    above = _more_urgent(settings)
    call = Call(
        service, words, stdin=_input(source), env=_variables(env or []), priority=priority, timeout_s=timeout_s,
        wait_s=wait_s, check=False, unclaimed=lambda: above(call),
    )  # fmt: skip
    status = run_loop(_exec(client_of(settings), call, _target(target)))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # a full disk does not change how the command ended
            stream.flush()
    # A thread that reads the input may wait for ever.
    os._exit(status)


def _variables(given: list[str]) -> dict[str, str]:
    for text in given:
        if "=" not in text.lstrip("="):
            raise SettingsError(f"--env {text!r} is no good: give NAME=VALUE.")
    return dict(text.split("=", 1) for text in given)


def _input(source: str | None) -> Stdin | None:
    if source is not None and source != "-":
        path = Path(source)
        if not path.is_file():
            what = "is no regular file: let a pipe be standard input" if path.exists() else "is not there"
            raise SettingsError(f"The input {source!r} {what}.")
        return path
    if source is None and sys.stdin.isatty():
        return None
    mode = os.fstat(0).st_mode
    return _piped() if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else sys.stdin.buffer


def _target(path: Path | None) -> Path | None:
    """The output's file, of which is known before the command runs that it can be one."""
    if path is None:
        return None
    if path.is_dir():
        raise SettingsError(f"The output {str(path)!r} is a folder: name a file.")
    if not path.parent.is_dir():
        raise SettingsError(f"There is no folder {str(path.parent)!r} for the output: make it first.")
    # Through a link, as any program writes; a pipe or a device has no other name.
    return path if _is_special(path) else path.resolve()


def _is_special(path: Path) -> bool:
    """Whether it is a pipe or a device, in whose place nothing can be put."""
    return path.exists() and not path.is_file()


async def _piped() -> AsyncIterator[bytes]:
    """Standard input as it comes, without a thread that would hold up the end."""
    reader = asyncio.StreamReader(limit=READ_BYTES)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        while chunk := await reader.read(READ_BYTES):
            yield chunk
    finally:
        transport.close()


def _more_urgent(settings: Settings) -> Callable[[Call], Awaitable[int]]:
    """What counts the jobs of the database that are more urgent than a call and that nobody has claimed."""

    @cache
    def loaded() -> "Above":
        # Most calls wait for no slot, and need no database.
        from rota.cli.unclaimed import Above  # noqa: PLC0415

        return Above(settings)

    return lambda call: loaded().count(call)


class _Stop:
    """Whether something here stopped the command, and the exit status that is for it; the first thing counts."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.status: int | None = None

    def now(self, status: int) -> None:
        """Stops it."""
        if self.status is None:
            self.status = status
            self._run.cancel()

    def on_signal(self, number: int) -> None:
        """Stops it at the first signal. At a second one, nobody waits for the exec server's word any more."""
        if self.status is not None:
            os._exit(self.status)
        self.now(BY_SIGNAL + number)


async def _exec(client: SlotClient, call: Call, target: Path | None) -> int:
    stop: _Stop | None = None
    loop = asyncio.get_running_loop()
    try:
        async with client.exec(call) as run:
            stop = _Stop(run)
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, stop.on_signal, number)
            watching = asyncio.create_task(_show_wait(client, call.service, run))
            try:
                await _copy(run, target)
            except BrokenPipeError:
                terminal.discard()
                stop.now(READER_LEFT)
            finally:
                watching.cancel()
                await asyncio.wait([watching])
        return _status(call, run) if stop.status is None else stop.status
    except RotaError as error:
        if stop is not None and stop.status is not None:
            return stop.status
        return _say(str(error), NO_SLOT_STATUS if isinstance(error, NoSlot) else 1)
    finally:
        await client.stop()


async def _copy(run: Run, target: Path | None) -> None:
    """Output to where it goes. A file appears when the command went well, and not before (I9).

    Raises: BrokenPipeError if whoever reads it has enough.
    """
    if target is None:
        async for chunk in run.stdout:
            await asyncio.to_thread(_write, sys.stdout.buffer, chunk)
        return
    if _is_special(target):
        with await asyncio.to_thread(target.open, "wb") as stream:
            async for chunk in run.stdout:
                await asyncio.to_thread(_write, stream, chunk)
        return
    with _beside(target) as file:
        async for chunk in run.stdout:
            await asyncio.to_thread(file.write, chunk)
        if run.receipt.ok:
            _keep(file, target)


@contextlib.contextmanager
def _beside(target: Path) -> Iterator[IO[bytes]]:
    """A file in the same folder, gone at the end unless it was given its name."""
    with NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as made:
        try:
            yield made
        finally:
            Path(made.name).unlink(missing_ok=True)


def _keep(file: IO[bytes], target: Path) -> None:
    file.flush()
    # Temporary files are private; this one is now what any program would have made.
    mask = os.umask(0)
    os.umask(mask)
    os.fchmod(file.fileno(), 0o666 & ~mask)
    Path(file.name).replace(target)


def _write(stream: BinaryIO, chunk: bytes) -> None:
    stream.write(chunk)
    stream.flush()


async def _show_wait(client: SlotClient, service: str, run: Run) -> None:
    """On a terminal one line that changes until there is a slot. Elsewhere a sentence, once, if nothing is there that
    could run it: a slip would be told of only when the wait is over."""
    seen = sys.stderr.isatty()
    looks = 0
    try:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await run.started()
                    return
            looks += 1
            hindrance = client.hindrance(service)
            if seen:
                place = None if hindrance is not None else await run.position()
                _line(f"waiting: {hindrance or 'for a slot'}" if place is None else describe_place(place))
            elif hindrance is not None and looks == LOOKS_SILENT:
                _tell(f"rota: waiting: {hindrance}.")
    except RotaError:
        return
    finally:
        if seen:
            _line("")


def describe_place(place: Place) -> str:
    """A place in line, in words: `number 3 in line, 2 run now; its turn comes in 40 s to 3 min`."""
    words = f"number {place.ahead + 1:,} in line"
    if place.unclaimed:
        words += f" ({place.unclaimed:,} unclaimed job{'s' if place.unclaimed > 1 else ''} before it)"
    if place.running:
        words += f", {place.running} run{'s' if place.running == 1 else ''} now"
    if place.eta_low_s is None or place.eta_high_s is None:
        return f"{words}; nobody knows yet for how long"
    return f"{words}; its turn comes in {span(place.eta_low_s, place.eta_high_s)}"


def _line(text: str) -> None:
    """In place of the line before; cut where the terminal ends, or its rest would stay."""
    width = os.get_terminal_size(sys.stderr.fileno()).columns or 80
    sys.stderr.write(f"\r\x1b[K{visible(text)[: width - 1]}")
    sys.stderr.flush()


def _status(call: Call, run: Run) -> int:
    receipt = run.receipt
    if receipt.ok:
        return 0
    if receipt.stdout_prefix and receipt.bytes_out:
        # What it wrote before it failed, as a local command would have. If nobody takes it, it has failed yet.
        with contextlib.suppress(OSError):
            _write(sys.stdout.buffer, receipt.stdout_prefix.encode())
    if receipt.stderr_line:
        _tell(receipt.stderr_line)
    if receipt.ended_by == "exit" and receipt.signal is None:
        return receipt.exit or 1
    number = getattr(signal, receipt.signal or "", None)
    if receipt.ended_by == "exit" and isinstance(number, signal.Signals):
        return BY_SIGNAL + number
    handed_back = receipt.retryable and receipt.ended_by in ("stopped", "refused")
    return _say(
        f"{call.service}: {receipt.error or f'it ended by {receipt.ended_by}'}", NO_SLOT_STATUS if handed_back else 1
    )


def _say(message: str, status: int) -> int:
    _tell(f"rota: {message}")
    return status


def _tell(line: str) -> None:
    with contextlib.suppress(OSError):  # where it cannot be told, the status is told still
        # The line may be a command's own, and what that says must not drive this terminal.
        sys.stderr.write(visible(line) + "\n")
