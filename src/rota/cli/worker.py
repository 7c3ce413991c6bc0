"""`rota worker`: runs a program's handlers, in this process or in several."""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated

import typer

from rota.app import App
from rota.cli.options import Dsn, Schema, load_app, read_settings
from rota.io import log
from rota.io.processes import Command, ProcessTree
from rota.queue.io.metering import Metering
from rota.queue.io.metrics import MeterFolder, QueueMetrics, Standing
from rota.queue.io.watch import Watch
from rota.queue.meters import Meters

KILL_AFTER_S = 20.0
"""Beyond the jobs' own grace, what a worker process may take to give back its jobs before it is killed."""


def worker(  # noqa: PLR0917 - the options of a command
    program: Annotated[str, typer.Argument(help="module:attribute of your rota.App, such as shop:app", metavar="APP")],
    processes: Annotated[int, typer.Option("--processes", min=1, max=64, help="Worker processes.")] = 1,
    alone: Annotated[
        bool, typer.Option("--alone", help="One worker in this very process, for a supervisor of your own.")
    ] = False,
    supervised: Annotated[bool, typer.Option("--supervised", hidden=True)] = False,
    meters: Annotated[Path | None, typer.Option("--meters", hidden=True)] = None,
    dsn: Dsn = None,
    schema: Schema = None,
) -> None:
    """Run the jobs of a program until a signal stops it: SIGTERM lets jobs end, a second one gives them back at once.

    Each worker is a process of its own that is started again when it ends by itself: it does so, before a lease of its
    can run out, when a thread or a blocked event loop cannot be stopped in any other way.
    """
    if supervised:
        # What the parent runs on, also where the program names another database; a command line would show passwords.
        told = read_settings()
        dsn, schema = told.dsn, told.schema
    app = load_app(program, dsn=dsn, schema=schema)
    log.setup(app.settings)
    if alone or supervised:
        status = run(work(app, meters=meters, scraped=alone and app.settings.metrics_port is not None))
    else:
        # Bad settings show here, once, and not in every child.
        app.handlers  # noqa: B018
        status = run(supervise(app, program, processes=processes, dsn=app.settings.require_dsn()))
    sys.stdout.flush()
    sys.stderr.flush()
    # A thread that does not stop must not keep the process, whose jobs may start elsewhere in a moment.
    os._exit(status)


def worker_commands(program: str, *, count: int, dsn: str, schema: str, meters: Path | None = None) -> list[Command]:
    """The commands of `count` worker processes of one program, for this database and this schema, which write what they
    count to the folder `meters`."""
    environ = {"ROTA_DSN": dsn, "ROTA_SCHEMA": schema}
    argv = [sys.executable, "-P", "-m", "rota.cli.main", "worker", "--supervised", program]
    if meters is not None:
        argv += ["--meters", str(meters)]
    return [Command(f"worker {number}", argv, environ) for number in range(1, count + 1)]


async def work(app: App, *, meters: Path | None = None, scraped: bool = False) -> int:
    """Runs one worker in this process until a signal stops it.

    Args:
        app: the program.
        meters: the folder where its parent reads what it counts.
        scraped: whether this process answers scrapes itself.
    """
    await app.start()
    file = None if meters is None else MeterFolder.file(meters, os.getpid())
    metering = Metering(file) if scraped or meters is not None else None
    running = app.worker(ends_process=True, metering=metering)
    on_signals(running.stop)
    async with contextlib.AsyncExitStack() as stack:
        if scraped and metering is not None:
            await stack.enter_async_context(answering_scrapes(app, metering.snapshot))
        await running.run()
    await app.stop()
    return 0


async def supervise(app: App, program: str, *, processes: int, dsn: str) -> int:
    """Runs worker processes of a program until a signal stops them, and answers scrapes for them all."""
    async with contextlib.AsyncExitStack() as stack:
        folder = None
        if app.settings.metrics_port is not None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rota-meters-")))
        commands = worker_commands(program, count=processes, dsn=dsn, schema=app.settings.schema, meters=folder)
        tree = ProcessTree(commands, grace_s=app.settings.stop_grace_s + KILL_AFTER_S)
        on_signals(tree.stop)
        if folder is not None:
            meters = MeterFolder(folder, living=lambda: tree.pids)
            await stack.enter_async_context(answering_scrapes(app, meters.read))
        return await tree.run()


@contextlib.asynccontextmanager
async def answering_scrapes(app: App, meters: Callable[[], Meters]) -> AsyncIterator[None]:
    """Answers scrapes for as long as the block runs.

    Args:
        app: the program, whose database is counted when somebody scrapes.
        meters: gives what its workers counted.
    """
    # A web server takes a moment to import, and most commands need none.
    from rota.io.metrics import MetricsServer  # noqa: PLC0415

    async def standing() -> Standing:
        return Standing(await Watch(await app.database()).counts(ended=True))

    settings = app.settings
    server = MetricsServer(
        QueueMetrics(meters, standing).families,
        prefix=settings.metrics_prefix, host=settings.metrics_host, port=settings.metrics_port or 0,
        token=settings.metrics_token,
    )  # fmt: skip
    await server.start()
    log.get_logger("rota.metrics").info("metrics are served", port=server.port)
    try:
        yield
    finally:
        await server.stop()
        await app.stop()


def on_signals(stop: Callable[[], None]) -> None:
    """Calls `stop` on SIGTERM and on Ctrl-C."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


def run(work: "asyncio._CoroutineLike[int]") -> int:
    """Runs on uvloop where it is, and returns the exit status."""
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        return asyncio.run(work)  # type: ignore[arg-type]
    status: int = uvloop.run(work)  # type: ignore[arg-type]
    return status
