"""Handlers for child processes; a child imports them from here by name."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg

import rota


def follow(ctx: rota.Context) -> str:
    ctx.enqueue("next", {"n": 1}, child=True)
    return "done"


def make_room(ctx: rota.Context, path: str) -> str:
    Path(path).write_text("begun")
    give_up_at = time.monotonic() + 60
    while ctx.job.priority == 0 and ctx.job.lease.epoch == 1 and time.monotonic() < give_up_at:
        time.sleep(0.01)
        ctx.yield_if_waiting()
    return "done"


def write_own(ctx: rota.Context, dsn: str) -> str:
    ctx.enqueue("next")
    with psycopg.connect(dsn) as conn, ctx.finish_with(conn, result="own"):
        conn.execute("INSERT INTO data VALUES ('child')")
    return "not used"


def stubborn(ctx: rota.Context, path: str) -> None:
    """S28: children of children, deaf to SIGTERM, in sessions of their own."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    code = (
        "import os, signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if len(sys.argv) > 2: subprocess.Popen([sys.executable, '-c', sys.argv[2], sys.argv[1]])\n"
        "open(sys.argv[1], 'a').write(f'{os.getpid()}\\n'); time.sleep(600)"
    )
    subprocess.Popen([sys.executable, "-c", code, path, code], start_new_session=True)
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\n")
    while True:
        time.sleep(1)
