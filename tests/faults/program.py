"""The program of the fault tests: its workers are killed, stopped and cut off while these handlers run.

Each handler records its steps in the folder that FAULTS_RECORDS names. How long one works is drawn from its job's id,
so that a job does the same thing in each of its tries.
"""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import rota
from tests.faults.records import END, MOVE, START, STOPPED, Recorder

LEASE_S = 2.0
HEARTBEAT_S = 0.5
OFTEN = 100
"""Tries of a job that must not fail, however often the test kills its worker."""
SOON = rota.Fixed(0.1)

if "FAULTS_CLOCK_S" in os.environ:
    # A machine whose clock is off: all that Python code is told of the time of day is moved.
    true_time, off_s = time.time, float(os.environ["FAULTS_CLOCK_S"])
    time.time = lambda: true_time() + off_s

app = rota.App()
recorder = Recorder(Path(os.environ["FAULTS_RECORDS"]))


@contextmanager
def recorded(ctx: rota.Context) -> Iterator[Random]:
    """Notes the start, and either the end or that the handler was stopped."""
    recorder.note(START, ctx.job)
    try:
        yield Random(ctx.id.int)
    except BaseException:
        recorder.note(STOPPED, ctx.job)
        raise
    recorder.note(END, ctx.job)


@app.job(limit=8, lease_s=LEASE_S, heartbeat_s=HEARTBEAT_S, max_tries=OFTEN, retry=SOON)
async def quick(ctx: rota.Context) -> None:
    """A few milliseconds in three steps."""
    with recorded(ctx) as random:
        await asyncio.sleep(random.uniform(0.001, 0.01))
        recorder.note(MOVE, ctx.job)
        await asyncio.sleep(random.uniform(0.001, 0.01))


@app.job(limit=10, lease_s=LEASE_S, heartbeat_s=HEARTBEAT_S, max_tries=OFTEN, retry=SOON)
async def steady(ctx: rota.Context) -> dict[str, int]:
    """Some hundred milliseconds with progress."""
    with recorded(ctx) as random:
        pieces = random.randint(2, 6)
        for piece in range(pieces):
            await asyncio.sleep(0.07)
            ctx.progress(piece / pieces, text=f"piece {piece}")
            recorder.note(MOVE, ctx.job)
    return {"pieces": pieces}


@app.job(limit=4, lease_s=LEASE_S, heartbeat_s=HEARTBEAT_S, max_tries=OFTEN, retry=SOON)
def plain(ctx: rota.Context) -> None:
    """A plain function in a thread."""
    with recorded(ctx) as random:
        for _ in range(2):
            time.sleep(random.uniform(0.001, 0.01))
            ctx.progress()
            recorder.note(MOVE, ctx.job)
        if ctx.should_stop:
            raise rota.LeaseLost("told to stop")


@app.job(limit=8, lease_s=LEASE_S, heartbeat_s=HEARTBEAT_S, max_tries=OFTEN, retry=rota.Exponential(0.05, 0.5))
async def shaky(ctx: rota.Context) -> rota.Retry | None:
    """Fails a few times first, by an exception or by its answer."""
    with recorded(ctx) as random:
        await asyncio.sleep(random.uniform(0.001, 0.01))
    if ctx.job.tries > random.randint(1, 2):
        return None
    if random.random() < 0.5:
        return rota.Retry(after_s=0.05, error="not yet")
    raise ValueError("not yet")


@app.job(limit=8, lease_s=LEASE_S, heartbeat_s=HEARTBEAT_S, max_tries=2, retry=SOON)
async def doomed(ctx: rota.Context) -> None:
    """Never works."""
    with recorded(ctx) as random:
        await asyncio.sleep(random.uniform(0.001, 0.01))
    raise ValueError("never")
