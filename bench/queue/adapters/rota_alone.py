"""Rota with each end a commit of its own, with twelve connections to write them: of its pool, two are for the rest."""

from bench.queue.adapters import rota
from bench.queue.adapters.rota import DONE, PENDING, bulks, close, enqueue_one, open, setup
from bench.queue.meter import Meter

__all__ = ["DONE", "PENDING", "bulks", "close", "enqueue_one", "open", "setup", "worker"]

POOL = 14


async def worker(dsn: str, meter: Meter) -> None:
    """One worker process."""
    await rota.worker(dsn, meter, job_pool_size=POOL, ends_alone=True)
