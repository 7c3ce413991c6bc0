"""`rota exec`: runs one declared command in a slot of an exec server, with streams in and out, like a local one."""

import asyncio
import contextlib
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Annotated, BinaryIO, Final

import typer

from rota.cli.options import read_settings
from rota.cli.worker import run as run_loop
from rota.commands import Call, Place, Run, Stdin
from rota.errors import NoSlot, RotaError, SettingsError
from rota.io import log, terminal
from rota.io.visible import visible
from rota.slots.io.client import SlotClient
from rota.slots.io.from_settings import client_of

NO_SLOT_STATUS: Final = 75
"""Try again later (EX_TEMPFAIL of sysexits.h)."""
INTERRUPTED: Final = 130
LOOK_S: Final = 1.0
"""How often the place in line is asked for, and only where somebody sees it."""
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
    call = Call(
        service, words, stdin=_input(source), env=_variables(env or []), priority=priority, timeout_s=timeout_s,
        wait_s=wait_s, check=False,
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


async def _exec(client: SlotClient, call: Call, target: Path | None) -> int:
    interrupted = asyncio.Event()
    loop = asyncio.get_running_loop()
    try:
        async with client.exec(call) as run:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, _interrupt, run, interrupted)
            watching = asyncio.create_task(_show_place(run, why_not=lambda: client.absence(call.service)))
            try:
                await _copy(run, target)
            finally:
                watching.cancel()
                await asyncio.wait([watching])
        return _status(call, run, interrupted=interrupted.is_set())
    except NoSlot as error:
        return _say(str(error), NO_SLOT_STATUS)
    except RotaError as error:
        return INTERRUPTED if interrupted.is_set() else _say(str(error), 1)
    finally:
        await client.stop()


def _interrupt(run: Run, interrupted: asyncio.Event) -> None:
    if interrupted.is_set():
        # Asked twice: nobody waits for the exec server's word any more.
        os._exit(INTERRUPTED)
    interrupted.set()
    run.cancel()


async def _copy(run: Run, target: Path | None) -> None:
    """Output to where it goes. A file appears when the command went well, and not before (I9)."""
    if target is None:
        try:
            async for chunk in run.stdout:
                await asyncio.to_thread(_write, sys.stdout.buffer, chunk)
        except BrokenPipeError:
            terminal.discard()
            run.cancel()
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


async def _show_place(run: Run, *, why_not: Callable[[], str]) -> None:
    """One line on the terminal that changes until there is a slot."""
    if not sys.stderr.isatty():
        return
    try:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await run.started()
                    return
            place = await run.position()
            _line(f"waiting: {why_not()}" if place is None else describe_place(place))
    except RotaError:
        return
    finally:
        _line("")


def describe_place(place: Place) -> str:
    """A place in line, in words: `number 3 in line, 2 run now; its turn comes in 1 to 3 min`."""
    words = f"number {place.ahead + 1} in line"
    if place.running:
        words += f", {place.running} run{'s' if place.running == 1 else ''} now"
    if place.eta_low_s is not None and place.eta_high_s is not None:
        words += f"; perhaps {terminal.duration(place.eta_low_s)} to {terminal.duration(place.eta_high_s)}"
    return words


def _line(text: str) -> None:
    # What would go on in the next line could not be written over. A terminal may not know how wide it is.
    columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80
    shown = visible(text)[: columns - 1]
    sys.stderr.write(f"\r\x1b[K{shown}")
    sys.stderr.flush()


def _status(call: Call, run: Run, *, interrupted: bool) -> int:
    receipt = run.receipt
    if interrupted:
        return INTERRUPTED
    if receipt.ok:
        return 0
    if receipt.stdout_prefix and receipt.bytes_out:
        # What it wrote before it failed, as a local command would have.
        terminal.write(receipt.stdout_prefix)
    if receipt.stderr_line:
        _tell(receipt.stderr_line)
    if receipt.ended_by == "exit" and receipt.signal is None:
        return receipt.exit or 1
    number = getattr(signal, receipt.signal or "", None)
    if receipt.ended_by == "exit" and isinstance(number, signal.Signals):
        return 128 + number
    return _say(f"{call.service}: {receipt.error or f'it ended by {receipt.ended_by}'}", 1)


def _say(message: str, status: int) -> int:
    _tell(f"rota: {message}")
    return status


def _tell(line: str) -> None:
    with contextlib.suppress(OSError):  # where it cannot be told, the status is told still
        sys.stderr.write(line + "\n")
