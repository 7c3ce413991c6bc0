"""Rota with a limit for the fleet and a rate, neither of which is ever reached: what counting costs."""

from bench.queue.adapters import rota
from bench.queue.adapters.rota import DONE, PENDING, bulks, close, enqueue_one, open, setup
from bench.queue.meter import Meter
from rota import Rate

__all__ = ["DONE", "PENDING", "bulks", "close", "enqueue_one", "open", "setup", "worker"]


async def worker(dsn: str, meter: Meter) -> None:
    """One worker process."""
    await rota.worker(dsn, meter, fleet_limit=50_000, rate=Rate(1_000_000, per_s=60))
