"""Rota with a thousand tenants that take turns."""

from functools import partial

from bench.queue.adapters import rota
from bench.queue.adapters.rota import DONE, PENDING, close, enqueue_one, open, setup
from bench.queue.meter import Meter

__all__ = ["DONE", "PENDING", "bulks", "close", "enqueue_one", "open", "setup", "worker"]

TENANTS = 1000
bulks = {"described": partial(rota.described, tenants=TENANTS)}


async def worker(dsn: str, meter: Meter) -> None:
    """One worker process."""
    await rota.worker(dsn, meter, fair=True)
