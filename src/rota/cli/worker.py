"""`rota worker`: runs a program's handlers, in this process or in several."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from rota.app import App
from rota.cli.options import Dsn, Schema, load_app, read_settings
from rota.cli.scrapes import metering_of, meters_folder, meters_of, scraped
from rota.io import forks, log
from rota.io.processes import READY_OPTION, Command, ProcessTree
from rota.queue.io.metering import Metering
from rota.queue.io.warden import PROGRAM
from rota.queue.io.worker import Worker
from rota.settings import Settings

HURRY = signal.SIGINT
"""What a parent sends its workers for a second signal. They are in sessions of their own, so no Ctrl-C reaches them."""
KILL_AFTER_S = 20.0
"""Beyond the jobs' own grace, what a worker process may take to give back its jobs before it is killed."""


def worker(  # noqa: PLR0917 - the options of a command
    program: Annotated[str, typer.Argument(help="module:attribute of your rota.App, such as shop:app", metavar="APP")],
    processes: Annotated[int, typer.Option("--processes", min=1, max=64, help="Worker processes.", metavar="N")] = 1,
    alone: Annotated[
        bool, typer.Option("--alone", help="One worker in this very process, for a supervisor of your own.")
    ] = False,
    role: Annotated[
        list[str] | None,
        typer.Option(
            "--role", help="Take only kinds of this role; may be repeated. Else ROTA_ROLE, else all.", metavar="ROLE"
        ),
    ] = None,
    supervised: Annotated[bool, typer.Option("--supervised", hidden=True)] = False,
    meters: Annotated[Path | None, typer.Option("--meters", hidden=True)] = None,
    ready_to: Annotated[int | None, typer.Option(READY_OPTION, hidden=True)] = None,
    dsn: Dsn = None,
    schema: Schema = None,
) -> None:
    """Run the jobs of a program until a signal stops it: SIGTERM lets jobs end, a second one gives them back at once.

    So does Ctrl-C; a closed terminal (SIGHUP) lets jobs end, too.

    Each worker is a process of its own that is started again when it ends by itself: it does so, before a lease of its
    can run out, when a thread or a blocked event loop cannot be stopped in any other way.
    """
    if supervised:
        # What the parent runs on, also where the program names another database; a command line would show passwords.
        told = read_settings()
        dsn, schema, role = told.dsn, told.schema, list(told.role)
    app = load_app(program, dsn=dsn, schema=schema, role=role or None)
    log.setup(app.settings)
    if alone or supervised:
        metering = metering_of(app.settings, folder=meters, alone=alone)
        run(_to_the_end(work(app, supervised=supervised, ready_to=ready_to, metering=metering)))
    else:
        # Bad settings show here, once, and not in every child.
        app.taken()
        app.settings.require_dsn()
        with meters_folder(app.settings) as folder:
            commands = worker_commands(program, count=processes, settings=app.settings, meters=folder)
            status = run(supervise(app, commands, meters=folder))
        _end(status)


async def _to_the_end(working: Awaitable[int]) -> int:
    """Ends this process with what `working` gives, while the event loop is still there: its own end would wait for
    every thread that a handler began (`asyncio.to_thread`), however long that takes."""
    return _end(await working)


def _end(status: int) -> NoReturn:
    """Ends this process: a thread that does not stop must not keep it, as its jobs may start elsewhere in a moment."""
    for stream in (sys.stdout, sys.stderr):
        # A handler may have closed them, or taken them away.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(status)


def worker_commands(program: str, *, count: int, settings: Settings, meters: Path | None = None) -> list[Command]:
    """The commands of `count` worker processes of one program, for the database, schema and role of these settings;
    `meters`: the folder for their numbers."""
    environ = {"ROTA_DSN": settings.dsn or "", "ROTA_SCHEMA": settings.schema, "ROTA_ROLE": ",".join(settings.role)}
    argv = [sys.executable, "-P", "-m", "rota.cli.main", "worker", "--supervised", program]
    argv += [] if meters is None else ["--meters", str(meters)]
    return [Command(f"worker {number}", argv, environ, ready_s=settings.start_s) for number in range(1, count + 1)]


async def work(
    app: App, *, supervised: bool = False, ready_to: int | None = None, metering: Metering | None = None
) -> int:
    """Runs one worker in this process until a signal stops it.

    Args:
        app: the program.
        supervised: a parent passes signals on.
        ready_to: where to say that the worker has looked for work: a file descriptor of the parent.
        metering: counts; what counts for itself and not for a parent answers scrapes, too.
    """
    await app.start()
    running = app.worker(ends_process=True, metering=metering)
    forks.hear_for_themselves()
    (on_signals_of_parent if supervised else on_signals)(running.stop)
    says = asyncio.create_task(_say_ready(running, ready_to)) if ready_to is not None else None
    async with scraped(app, None if metering is None or metering.is_for_parent else metering.snapshot):
        await running.run()
    if says is not None:
        says.cancel()
    await app.stop()
    return 0


async def _say_ready(worker: Worker, ready_to: int) -> None:
    await worker.ready.wait()
    with contextlib.suppress(OSError):
        os.write(ready_to, b"ready")
        os.close(ready_to)


async def supervise(app: App, commands: list[Command], *, meters: Path | None) -> int:
    """Runs worker processes of a program until a signal stops them, and answers scrapes for them all."""
    tree = ProcessTree(commands, grace_s=app.settings.stop_grace_s + KILL_AFTER_S, hurry=HURRY, outlives=PROGRAM)
    on_signals(tree.stop)
    async with scraped(app, meters_of(tree, meters)):
        return await tree.run()


def on_signals(stop: Callable[[], None]) -> None:
    """Calls `stop` on SIGTERM and on Ctrl-C, each time, and on SIGHUP where it is the first of all.

    A terminal that closes often sends SIGHUP twice, and service managers send it together with SIGTERM, in no order
    that shows here: it never means impatience. Who started this with SIGHUP ignored (nohup) wants it to outlive the
    terminal.
    """
    loop, heard = asyncio.get_running_loop(), set[signal.Signals]()

    def on_signal(number: signal.Signals) -> None:
        if not heard or (number is not signal.SIGHUP and heard != {signal.SIGHUP}):
            stop()
        heard.add(number)

    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    for number in (signal.SIGTERM, signal.SIGINT, *hangup):
        loop.add_signal_handler(number, on_signal, number)


def on_signals_of_parent(stop: Callable[..., None]) -> None:
    """Calls `stop` on the first SIGTERM, and `stop(now=True)` on HURRY, which the parent alone sends.

    A service manager may signal every process of a service, so a child is told to stop from two sides; its parent
    knows what a SIGHUP means.
    """
    loop, asked = asyncio.get_running_loop(), asyncio.Event()

    def on_sigterm() -> None:
        if not asked.is_set():
            asked.set()
            stop()

    loop.add_signal_handler(signal.SIGTERM, on_sigterm)
    loop.add_signal_handler(HURRY, lambda: stop(now=True))
    loop.add_signal_handler(signal.SIGHUP, lambda: None)


def run(work: "asyncio._CoroutineLike[int]") -> int:
    """Runs on uvloop where it is, and returns the exit status."""
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        return asyncio.run(work)  # type: ignore[arg-type]
    status: int = uvloop.run(work)  # type: ignore[arg-type]
    return status
