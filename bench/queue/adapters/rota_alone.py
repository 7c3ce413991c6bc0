"""Rota with each end a commit of its own."""

from bench.queue.adapters import rota
from bench.queue.adapters.rota import DONE, PENDING, bulks, close, enqueue_one, open, setup
from bench.queue.meter import Meter

__all__ = ["DONE", "PENDING", "bulks", "close", "enqueue_one", "open", "setup", "worker"]


async def worker(dsn: str, meter: Meter) -> None:
    """One worker process."""
    await rota.worker(dsn, meter, ends_alone=True)
