"""The program of the fault test with bad jobs: among many good ones, some that nothing stops in a friendly way.

Each handler records its steps in the folder that FAULTS_RECORDS names.
"""

import asyncio
import os
import subprocess
import time
from pathlib import Path
from typing import Final

import rota
from tests.faults.records import END, MOVE, START, Recorder

LEASE_S: Final = 4.0
"""Long enough for a busy machine to give back what is innocent in the last part of it."""
HEARTBEAT_S: Final = 1.0
SOON: Final = rota.Fixed(0.1)
STEP_S: Final = 0.05
OFTEN: Final = 100

app = rota.App()
recorder = Recorder(Path(os.environ["FAULTS_RECORDS"]))


@app.job(limit=16, lease_s=LEASE_S, heartbeat_s=HEARTBEAT_S, max_tries=OFTEN, retry=SOON)
async def good(ctx: rota.Context) -> None:
    """A moment in two steps."""
    recorder.note(START, ctx.job)
    await asyncio.sleep(0.002)
    recorder.note(END, ctx.job)


@app.job(limit=4, lease_s=LEASE_S, heartbeat_s=HEARTBEAT_S, max_tries=OFTEN, retry=SOON)
def good_thread(ctx: rota.Context) -> None:
    """The same in a thread."""
    recorder.note(START, ctx.job)
    time.sleep(0.002)
    ctx.progress()
    recorder.note(END, ctx.job)


@app.job(limit=1, lease_s=LEASE_S, heartbeat_s=HEARTBEAT_S, retry=SOON)
async def blocker(ctx: rota.Context) -> None:
    """Blocks the event loop."""
    recorder.note(START, ctx.job)
    while True:
        time.sleep(STEP_S)
        recorder.note(MOVE, ctx.job)


@app.job(limit=1, lease_s=LEASE_S, heartbeat_s=HEARTBEAT_S, retry=SOON)
def endless(ctx: rota.Context) -> None:
    """A thread that hears nothing."""
    recorder.note(START, ctx.job)
    while True:
        time.sleep(STEP_S)
        recorder.note(MOVE, ctx.job)


@app.job(limit=2, lease_s=2 * LEASE_S, heartbeat_s=HEARTBEAT_S, retry=SOON, isolation="process")
def parent(ctx: rota.Context) -> None:
    """A child process that hears nothing, SIGTERM neither, and has a grandchild like it in a session of its own."""
    recorder.note(START, ctx.job)
    subprocess.Popen(["sleep", "3600"], start_new_session=True)
    while True:
        time.sleep(STEP_S)
        recorder.note(MOVE, ctx.job)
