"""Metrics of a command that runs workers: where its processes put their numbers, and who answers scrapes."""

import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from rota.app import App
from rota.io import log
from rota.io.processes import ProcessTree
from rota.queue.io.metering import Metering
from rota.queue.io.metrics import MeterFolder, QueueMetrics, Standing
from rota.queue.io.store import Store
from rota.queue.io.watch import Watch
from rota.queue.meters import Meters
from rota.settings import Settings


@contextlib.contextmanager
def meters_folder(settings: Settings) -> Iterator[Path | None]:
    """A folder for the numbers of worker processes, for as long as the block runs; None where nobody scrapes."""
    if settings.metrics_port is None:
        yield None
    else:
        with tempfile.TemporaryDirectory(prefix="rota-meters-") as folder:
            yield Path(folder)


def metering_of(settings: Settings, *, folder: Path | None, alone: bool) -> Metering | None:
    """What counts in this worker process: for its parent, for itself if it is alone, or nothing."""
    if folder is not None:
        return Metering(MeterFolder.file(folder, os.getpid()))
    return Metering() if alone and settings.metrics_port is not None else None


@contextlib.asynccontextmanager
async def scraped(app: App, meters: Callable[[], Meters] | None) -> AsyncIterator[None]:
    """Answers scrapes for as long as the block runs.

    Args:
        app: the program, whose database is counted when somebody scrapes.
        meters: gives what its workers counted; None answers nobody.
    """
    if meters is None:
        yield
        return
    # A web server takes a moment to import, and most commands need none.
    from rota.io.metrics import MetricsServer  # noqa: PLC0415

    async def standing() -> Standing:
        database = await app.database()
        orphans = await Store(database).orphan_kinds()
        return Standing(await Watch(database).counts(ended=True), [orphan.kind for orphan in orphans])

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


def meters_of(tree: ProcessTree, folder: Path | None) -> Callable[[], Meters] | None:
    """What gives the numbers of a tree of worker processes."""
    return None if folder is None else MeterFolder(folder, living=lambda: tree.pids).read
