"""The program of `test_worker_faults.py`: each kind is one sort of work or of trouble.

Handlers record their steps in the folder that FAULTS_RECORDS names, where a test also puts files that they wait for.
"""

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from mmap import mmap
from pathlib import Path

import rota
from rota.io import clock, postgres
from rota.queue.io import crew, heart
from rota.queue.io.store import Store
from tests.faults.records import END, MOVE, PULSE, START, STOPPED, Recorder

LEASE_S = 2.0
HEARTBEAT_S = 0.5
FENCED_S = 6.0
"""A lease with half a second at its end for last words, on a busy machine."""
CALM_S = 20.0
"""A lease with time at its end to give back what else ran in its process."""
LONG_S = 60.0
"""A lease that outlasts a test."""
SLEPT_S = 3 * 3600.0
SOON = rota.Fixed(0.1)
STEP_S = 0.03

app = rota.App()
folder = Path(os.environ["FAULTS_RECORDS"])
recorder = Recorder(folder)

if "FAULTS_TIMEOUT_S" in os.environ:
    # How long a line may be dead before a worker gives it up: a test does not wait for the real time.
    postgres.COMMAND_TIMEOUT_S = float(os.environ["FAULTS_TIMEOUT_S"])
    postgres.CONNECT_TIMEOUT_S = float(os.environ["FAULTS_TIMEOUT_S"])

if "FAULTS_GRACE_S" in os.environ:
    # How long a job may take to stop, beside what somebody may set.
    crew.KILL_GRACE_S = heart.TAKEN_GRACE_S = float(os.environ["FAULTS_GRACE_S"])  # type: ignore[attr-defined, misc]

if "FAULTS_STAND_STILL" in os.environ:
    # A process that is stopped (SIGSTOP) between its last words and its end, and goes on before it ends. The clock of
    # the database is the last thing that its heart asks for.
    ask_clock = Store.clock

    async def stand_still(store: Store) -> object:
        if threading.current_thread().name == "rota-heart":
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(10 * STEP_S)
        return await ask_clock(store)

    Store.clock = stand_still  # type: ignore[assignment, method-assign]

if "FAULTS_SLEEPER" in os.environ:
    # A machine that slept for hours: once the file `slept` is there, the clock for leases has counted them, and no
    # other clock has.
    true_clock = clock.lease_clock

    def slept_clock() -> float:
        return true_clock() + (SLEPT_S if (folder / "slept").exists() else 0.0)

    for module in list(sys.modules.values()):
        if getattr(module, "lease_clock", None) is true_clock:
            module.lease_clock = slept_clock  # type: ignore[attr-defined]


@dataclass
class Work:
    """How long to work: for some seconds, or until a file of this name is there."""

    seconds: float = 60.0
    until: str | None = None
    progress: bool = True
    deaf: bool = False
    """Does not look whether it should stop, and swallows what tells it so."""

    def done(self, began: float) -> bool:
        """Whether the work is done."""
        return time.monotonic() - began > self.seconds or (self.until is not None and (folder / self.until).exists())


def hold(ctx: rota.Context) -> None:
    """Holds the interpreter for ever: a loop in C, which never asks whether another thread wants to run. It leaves a
    pulse in a file: the time of the system's monotonic clock, again and again."""
    path = folder / f"{ctx.id}-{ctx.job.lease.epoch}{PULSE}"
    path.write_bytes(bytes(8))
    # A view writes its eight bytes at once: a struct would clear them first, and leave none if it is killed in between.
    with path.open("r+b") as file, mmap(file.fileno(), 8) as pulse, memoryview(pulse).cast("d") as beat:
        deque(map(beat.__setitem__, repeat(0), iter(time.monotonic, None)), maxlen=0)


@app.job(limit=20, lease_s=LEASE_S, heartbeat_s=HEARTBEAT_S, max_tries=5, retry=SOON)
async def work(ctx: rota.Context, job: Work) -> str:
    """Works in small steps."""
    recorder.note(START, ctx.job)
    began = time.monotonic()
    try:
        while not job.done(began):
            await asyncio.sleep(STEP_S)
            recorder.note(MOVE, ctx.job)
            if job.progress:
                ctx.progress()
    except BaseException:
        recorder.note(STOPPED, ctx.job)
        raise
    recorder.note(END, ctx.job)
    return f"by {os.getpid()}"


@app.job(limit=20, lease_s=LEASE_S, heartbeat_s=HEARTBEAT_S, max_tries=5, retry=SOON)
def plain(ctx: rota.Context, job: Work) -> str | None:
    """The same in a thread."""
    recorder.note(START, ctx.job)
    began = time.monotonic()
    while not job.done(began):
        time.sleep(STEP_S)
        if ctx.should_stop and not job.deaf:
            recorder.note(STOPPED, ctx.job)
            return None
        recorder.note(MOVE, ctx.job)
        if job.progress and not job.deaf:
            ctx.progress()
    recorder.note(END, ctx.job)
    return f"by {os.getpid()}"


@app.job(limit=2, lease_s=LEASE_S, heartbeat_s=HEARTBEAT_S, max_tries=5, retry=SOON, isolation="process")
def apart(ctx: rota.Context, job: Work) -> str | None:
    """The same in a child process."""
    return plain(ctx, job)


@app.job(limit=2, lease_s=LONG_S, heartbeat_s=HEARTBEAT_S, max_tries=5, retry=SOON)
async def long_work(ctx: rota.Context, job: Work) -> str:
    """As `work`, with a lease that outlasts the test."""
    return await work(ctx, job)


@app.job(limit=2, lease_s=LONG_S, heartbeat_s=HEARTBEAT_S, max_tries=5, retry=SOON)
def long_plain(ctx: rota.Context, job: Work) -> str | None:
    """The same in a thread."""
    return plain(ctx, job)


@app.job(limit=2, lease_s=LONG_S, heartbeat_s=HEARTBEAT_S, max_tries=5, retry=SOON, isolation="process")
def long_apart(ctx: rota.Context, job: Work) -> str | None:
    """The same in a child process."""
    return plain(ctx, job)


@app.job(limit=2, lease_s=LONG_S, heartbeat_s=HEARTBEAT_S, max_tries=5, retry=SOON)
async def long_blocker(ctx: rota.Context) -> None:
    """Blocks the event loop, and moves."""
    recorder.note(START, ctx.job)
    while True:
        time.sleep(STEP_S)
        with suppress(rota.LeaseLost):
            ctx.progress()


@app.job(limit=2, lease_s=LONG_S, heartbeat_s=HEARTBEAT_S, max_tries=5, retry=SOON)
def long_deaf(ctx: rota.Context) -> None:
    """A thread that moves, and hears nothing."""
    recorder.note(START, ctx.job)
    while True:
        time.sleep(STEP_S)
        with suppress(rota.LeaseLost):
            ctx.progress()
        recorder.note(MOVE, ctx.job)


@app.job(limit=20, lease_s=30, heartbeat_s=1, max_tries=5, retry=SOON)
async def patient(ctx: rota.Context, job: Work) -> None:
    """Works like `work`, with a lease that outlasts a restart of the database."""
    recorder.note(START, ctx.job)
    began = time.monotonic()
    while not job.done(began):
        await asyncio.sleep(STEP_S)
        ctx.progress()
    recorder.note(END, ctx.job)


@app.job(limit=2, lease_s=30, heartbeat_s=1, max_tries=5, retry=SOON)
def endless(ctx: rota.Context) -> None:
    """A thread that hears nothing, with a lease that is longer than a worker's patience at its stop."""
    recorder.note(START, ctx.job)
    while True:
        time.sleep(STEP_S)
        recorder.note(MOVE, ctx.job)


@app.job(limit=2, lease_s=LEASE_S, heartbeat_s=HEARTBEAT_S, max_tries=3, retry=SOON)
async def deadly(ctx: rota.Context) -> None:
    """Kills its own process, as the kernel does where memory runs out."""
    recorder.note(START, ctx.job)
    os.kill(os.getpid(), signal.SIGKILL)


@app.job(limit=2, lease_s=FENCED_S, heartbeat_s=HEARTBEAT_S, max_tries=1, retry=SOON)
def deaf(ctx: rota.Context) -> None:
    """A thread that hears nothing."""
    recorder.note(START, ctx.job)
    while True:
        time.sleep(STEP_S)


@app.job(limit=2, lease_s=FENCED_S, heartbeat_s=HEARTBEAT_S, max_tries=1, retry=SOON)
async def blocker(ctx: rota.Context) -> None:
    """Blocks the event loop, busily: the clock and a lock are all that others get of the interpreter."""
    recorder.note(START, ctx.job)
    while True:
        time.monotonic()


@app.job(limit=2, lease_s=LEASE_S, heartbeat_s=HEARTBEAT_S, max_tries=2, retry=SOON)
async def hog(ctx: rota.Context) -> None:
    """Holds the interpreter."""
    recorder.note(START, ctx.job)
    hold(ctx)


@app.job(limit=2, lease_s=LEASE_S, heartbeat_s=HEARTBEAT_S, max_tries=2, retry=SOON)
def plain_hog(ctx: rota.Context) -> None:
    """The same in a thread."""
    recorder.note(START, ctx.job)
    hold(ctx)


@app.job(limit=2, lease_s=LEASE_S, heartbeat_s=HEARTBEAT_S, max_tries=2, retry=SOON, isolation="process")
def apart_hog(ctx: rota.Context) -> None:
    """The same in a child process."""
    recorder.note(START, ctx.job)
    hold(ctx)


@app.job(limit=2, lease_s=30, heartbeat_s=1, max_tries=2, retry=SOON)
def late_hog(ctx: rota.Context) -> None:
    """The same, once the file `hold` is there."""
    recorder.note(START, ctx.job)
    while not (folder / "hold").exists():
        time.sleep(STEP_S)
    hold(ctx)


@app.job(limit=2, lease_s=CALM_S, heartbeat_s=CALM_S / 2.5, max_tries=2, retry=SOON)
async def calm_hog(ctx: rota.Context) -> None:
    """Holds the interpreter under a longer lease."""
    recorder.note(START, ctx.job)
    hold(ctx)


@app.job(limit=2, lease_s=CALM_S, heartbeat_s=CALM_S / 2.5, max_tries=2, retry=SOON)
def plain_calm_hog(ctx: rota.Context) -> None:
    """The same in a thread."""
    recorder.note(START, ctx.job)
    hold(ctx)


@app.job(limit=5, lease_s=CALM_S, heartbeat_s=CALM_S / 2.5, max_tries=5, retry=SOON)
async def calm(ctx: rota.Context, job: Work) -> None:
    """Waits under such a lease."""
    recorder.note(START, ctx.job)
    began = time.monotonic()
    while not job.done(began):
        await asyncio.sleep(STEP_S)


@app.job(limit=5, lease_s=CALM_S, heartbeat_s=CALM_S / 2.5, max_tries=5, retry=SOON)
def plain_calm(ctx: rota.Context, job: Work) -> None:
    """The same in a thread."""
    recorder.note(START, ctx.job)
    began = time.monotonic()
    while not job.done(began) and not ctx.should_stop:
        time.sleep(STEP_S)


@app.job(limit=2, lease_s=LEASE_S, heartbeat_s=HEARTBEAT_S, max_tries=2, retry=SOON)
async def idler(ctx: rota.Context) -> None:
    """Waits, and never says that it made progress."""
    recorder.note(START, ctx.job)
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        recorder.note(STOPPED, ctx.job)
        raise


@app.job(limit=2, lease_s=LEASE_S, heartbeat_s=HEARTBEAT_S, max_tries=1, retry=SOON)
async def stubborn(ctx: rota.Context) -> None:
    """Swallows whatever tells it to stop."""
    recorder.note(START, ctx.job)
    while True:
        try:
            await asyncio.sleep(STEP_S)
            recorder.note(MOVE, ctx.job)
        except BaseException:
            recorder.note(STOPPED, ctx.job)


@app.job(limit=5, lease_s=LEASE_S, heartbeat_s=HEARTBEAT_S, max_tries=100, retry=SOON)
async def tiny(ctx: rota.Context) -> None:
    """Hardly anything."""
    recorder.note(START, ctx.job)
    await asyncio.sleep(0)
    recorder.note(END, ctx.job)


@app.job(limit=40, lease_s=LONG_S, heartbeat_s=HEARTBEAT_S, max_tries=5, retry=SOON)
async def waits_for_a_thread(ctx: rota.Context) -> None:
    """A coroutine that waits for a thread of its event loop, of which there are few."""
    recorder.note(START, ctx.job)
    await asyncio.to_thread(time.sleep, LONG_S)


@dataclass(frozen=True)
class Call:
    """What to stop."""

    how: str


@app.job(limit=2, lease_s=LONG_S, heartbeat_s=HEARTBEAT_S, max_tries=1)
async def loses_streams(ctx: rota.Context, payload: Call) -> None:
    """Closes the streams of its process, or takes them away."""
    if payload.how == "closed":
        sys.stdout.close()
        sys.stderr.close()
    else:
        sys.stdout = sys.stderr = None  # type: ignore[assignment]


def start_and_stop(how: str) -> object:
    """Tells a program to stop, or a forked process, and gives its exit status; or uses a pool, which does the same."""
    if how == "program":
        with subprocess.Popen(["sleep", "60"]) as program:
            program.terminate()
            return program.wait()
    forking = multiprocessing.get_context("fork")
    if how == "forked":
        forked = forking.Process(target=time.sleep, args=(60,))
        forked.start()
        forked.terminate()
        forked.join()
        return forked.exitcode
    with forking.Pool(2) as pool:
        return pool.map(abs, [-1, -2, -3])


@app.job(limit=2, lease_s=LONG_S, heartbeat_s=HEARTBEAT_S, max_tries=1)
def stops_others(ctx: rota.Context, payload: Call) -> object:
    """In a thread."""
    return start_and_stop(payload.how)


@app.job(limit=2, lease_s=LONG_S, heartbeat_s=HEARTBEAT_S, max_tries=1, isolation="process")
def stops_others_in_a_child(ctx: rota.Context, payload: Call) -> object:
    """The same in a child process."""
    return start_and_stop(payload.how)


@app.job(limit=2, lease_s=LONG_S, heartbeat_s=HEARTBEAT_S, max_tries=1)
async def stops_others_in_the_loop(ctx: rota.Context, payload: Call) -> object:
    """The same in a coroutine."""
    return start_and_stop(payload.how)
