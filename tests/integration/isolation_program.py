"""Handlers for child processes; a child imports them from here by name."""

import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import rota


class Leaves(Exception):
    """An error whose message ends the process of whoever asks for it."""

    def __str__(self) -> str:
        raise SystemExit(3)


class Bare(Exception):
    """An error that nobody can look into."""

    @property
    def __traceback__(self) -> NoReturn:  # type: ignore[override]
        raise RuntimeError("nothing here")


ERRORS: dict[str, Exception] = {
    "plain": ValueError("as it was told"),
    "book": ValueError("word " * 10_000_000),
    "leaves": Leaves(),
    "bare": Bare("b"),
    "badly": OSError("for \udcff good"),
}


def follow_with_too_much(ctx: rota.Context) -> None:
    for _ in range(5):
        ctx.enqueue("sink", "x" * (15 << 20))


def garble(_ctx: rota.Context) -> None:
    """Writes to the line of its own process, as who has mistaken one open file for another."""
    for fd in range(3, 64):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                os.write(fd, b"garbage " * 8)


ENDS: dict[str, Callable[[rota.Context], object]] = {
    "plain": lambda _: rota.Fail("for good"),
    "badly": lambda _: rota.Fail("for \udcff good"),
    "at length": lambda _: rota.Fail("for good " * 10_000_000),
    "by a wait without end": lambda _: rota.Snooze(10**400),
    "by too much": follow_with_too_much,
    "garbling": garble,
}


@dataclass
class Order:
    """What a handler should do."""

    do: str
    path: str = ""


def obey(ctx: rota.Context, order: Order) -> object:
    match order.do:
        case "answer":
            return {"pid": os.getpid(), "tries": ctx.job.tries}
        case "raise":
            raise ERRORS[order.path]
        case "snooze":
            return rota.Snooze(600, reason="later")
        case "fail":
            return ENDS[order.path](ctx)
        case "not-json":
            return object()
        case "die":
            os._exit(9)
        case "wait-until-stopped":
            with open(order.path, "w") as file:
                file.write("begun")
            while not ctx.should_stop:
                time.sleep(0.01)
            return {"stopped": True}
        case "progress":
            # Longer than the lease.
            for step in range(75):
                time.sleep(0.1)
                ctx.progress(step / 75)
            return "long"
        case "stubborn":
            # A grandchild in a session of its own, deaf to SIGTERM, that writes its process id.
            code = "import os, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            code += "open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
            subprocess.Popen([sys.executable, "-c", code, order.path], start_new_session=True)
            while True:
                time.sleep(1)
    return None


def calls(ctx: rota.Context, order: Order) -> object:
    """Runs commands from a child process."""
    match order.do:
        case "many":
            with ThreadPoolExecutor(4) as threads:
                parts = list(
                    threads.map(lambda part: ctx.run_sync("cat", input=part).output, [b"a", b"b" * 3000, b"c"])
                )
            return b"".join(parts).decode()
        case "large":
            # More than a socket takes at once, both ways.
            return len(ctx.run_sync("cat", input=b"x" * (3 << 20)).output)
        case "file":
            return ctx.run_sync("cat", input=Path(order.path)).output.decode()
        case "hang":
            try:
                ctx.run_sync("hang")
            except rota.LeaseLost:
                Path(order.path).write_text("told")
                raise
        case "caught":
            try:
                ctx.run_sync("fail")
            except rota.ExecFailed as error:
                return [error.receipt.exit, error.receipt.stderr_line, str(error)]
        case "no-slot":
            ctx.run_sync("cat", wait_s=0.2)
        case other:
            ctx.run_sync(other)
    return None
