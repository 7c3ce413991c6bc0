"""Real programs as tests use them: started with a clean environment, waited for, and never left running.

What a program prints goes to files, so that it can be read while the program runs.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil

WAIT_S = 120.0
"""Generous: only a failing test waits that long."""
ROTA = (sys.executable, "-P", "-m", "rota.cli.main")


def until(condition: Callable[[], Any], what: str, *, timeout_s: float = WAIT_S) -> Any:
    """Waits until a condition gives something true, and gives that; fails with `what` if it takes too long."""
    give_up_at = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < give_up_at, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.02)
    return found


def clean_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of the tests without what Rota or PostgreSQL would read there; warnings are errors.

    A file of certificates would be read whole by each process that imports aiohttp: a tenth of a second of CPU.
    """
    left = ("ROTA_", "PG", "PYTHON", "SSL_CERT_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left)}
    # Some libraries leave sockets and files to the garbage collector when a process ends.
    return {**kept, "PYTHONWARNINGS": "error,ignore::ResourceWarning", **(more or {})}


@dataclass(slots=True)
class Program:
    """A program that runs, or ran."""

    popen: subprocess.Popen[bytes]
    output: Path
    errors: Path

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def out(self) -> str:
        """What it printed so far."""
        return self.output.read_text(encoding="utf-8", errors="replace")

    @property
    def err(self) -> str:
        """What it said on standard error so far."""
        return self.errors.read_text(encoding="utf-8", errors="replace")

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to this process alone."""
        self.popen.send_signal(number)

    def says(self, text: str, *, count: int = 1) -> str:
        """Waits until it has said this so many times, and gives all that it said."""

        def said() -> bool:
            if self.popen.poll() is not None and (self.out + self.err).count(text) < count:
                raise AssertionError(
                    f"it ended with {self.popen.returncode} before it said {text!r}: {self.out}{self.err}"
                )
            return (self.out + self.err).count(text) >= count

        until(said, f"{text!r} in {self.output.parent}")
        return self.out + self.err

    def status(self, *, timeout_s: float = WAIT_S) -> int:
        """Waits for its end, and gives its exit status."""
        return self.popen.wait(timeout_s)


@contextmanager
def running(
    argv: Sequence[str | Path], *, folder: Path, environ: Mapping[str, str] | None = None, name: str = "program"
) -> Iterator[Program]:
    """Runs a program in a folder; at the end it is killed if it still runs, with all that it started.

    Args:
        argv: what to run.
        folder: its working folder.
        environ: added to a clean environment.
        name: of the files beside the folder that take what it prints.
    """
    output, errors = (folder.with_name(f"{folder.name}-{name}.{end}") for end in ("out", "err"))
    with output.open("wb") as out, errors.open("wb") as err:
        popen = subprocess.Popen(
            argv, cwd=folder, env=clean_environment(environ), stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield Program(popen, output, errors)
    finally:
        if popen.poll() is None:
            below = psutil.Process(popen.pid).children(recursive=True)
            popen.kill()
            for process in below:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        popen.wait()


@dataclass(frozen=True, slots=True)
class Done:
    """How a program ended."""

    status: int
    out: str
    err: str


def run(
    argv: Sequence[str | Path],
    *,
    folder: Path,
    environ: Mapping[str, str] | None = None,
    timeout_s: float = WAIT_S,
    stdin: str = "",
) -> Done:
    """Runs a program to its end; its output goes through a pipe. `stdin`: what a person types."""
    done = subprocess.run(
        argv, cwd=folder, env=clean_environment(environ), input=stdin.encode(), capture_output=True, check=False,
        timeout=timeout_s,
    )  # fmt: skip
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def lives(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not looked after by its parent does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def mentioning(folder: Path) -> list[str]:
    """The processes that have to do with a folder: by their command, their environment or their working folder."""
    names = {str(folder), quote(str(folder), safe="")}
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            told = [*process.cmdline(), process.cwd()]
            with suppress(psutil.AccessDenied):
                told += process.environ().values()
            if any(name in text for text in told for name in names):
                found.append(f"{process.pid} {' '.join(process.cmdline())}")
    return found


def nothing_runs(folder: Path, *, timeout_s: float = WAIT_S) -> None:
    """Waits until no process has to do with a folder."""
    left: list[str] = []

    def gone() -> bool:
        left[:] = mentioning(folder)
        return not left

    try:
        until(gone, "all is gone", timeout_s=timeout_s)
    except AssertionError:
        raise AssertionError(f"left running for {folder}: {left}") from None
