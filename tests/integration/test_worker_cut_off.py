"""A worker in somebody's own program that is cancelled twice while a thread of a job goes on: its lease holds (I2)."""

import asyncio
import sys
import textwrap

from rota.io.postgres import Database, Target
from rota.queue.io.heart import FENCE_EXIT
from rota.queue.io.store import Store
from rota.queue.job import NewJob
from tests.integration.programs import clean_environment

PROGRAM = """
import asyncio, contextlib, sys, threading
import rota

app = rota.App(dsn=sys.argv[1])
began = threading.Event()

@app.job(lease_s=2, heartbeat_s=0.5)
def deaf(ctx):
    began.set()
    threading.Event().wait(600)

async def main():
    await app.start()
    running = asyncio.create_task(app.worker().run())
    await asyncio.to_thread(began.wait)
    print("began", flush=True)
    while not running.done():
        running.cancel()
        await asyncio.sleep(0.01)
    print("cut off", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_the_process_ends_before_the_lease_of_a_thread_that_goes_on(migrated_dsn: str) -> None:
    database = Database(Target(migrated_dsn), size=1)
    (added,) = await Store(database).enqueue_many([NewJob("deaf", "null")])
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(PROGRAM), migrated_dsn, env=clean_environment(),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(60):
            said, warned = await process.communicate()
        assert said.split(b"\n") == [b"began", b"cut off", b""]
        assert b"its heart stays with them" in warned
        # The thread was ended by the heart or, on a busy machine, by the system's timer.
        assert process.returncode in (FENCE_EXIT, -9)
        (row,) = await Store(database).show(added.id)
        assert row.lease_epoch == 1, "nobody else has run it meanwhile"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await database.stop()
