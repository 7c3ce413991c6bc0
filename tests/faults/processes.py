"""Worker processes as the fault tests use them: started from the command line, signalled, looked after, never left.

Each writes its log (JSON lines) to a file of its own.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
RECORDS = "FAULTS_RECORDS"
"""The environment variable that tells handlers where to record; every process of a test has its own folder there."""
WAIT_S = 60.0
"""Generous: only a failing test waits that long."""


def until(
    condition: Callable[[], Any], *, what: str | Callable[[], str], timeout_s: float = WAIT_S, every_s: float = 0.02
) -> Any:
    """Waits until a condition gives something true, and gives that; fails with `what` if it takes too long."""
    give_up_at = time.monotonic() + timeout_s
    while not (found := condition()):
        if time.monotonic() > give_up_at:
            raise AssertionError(f"not within {timeout_s:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(every_s)
    return found


@dataclass(slots=True)
class WorkerProcess:
    """One `rota worker`, and what was done to it."""

    popen: subprocess.Popen[bytes]
    log: Path
    stopped: bool = False

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def lives(self) -> bool:
        return self.popen.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal."""
        self.popen.send_signal(number)

    def stop(self) -> None:
        """Makes it stand still (SIGSTOP), and returns when all of its threads do."""
        self.signal(signal.SIGSTOP)
        self.stopped = True
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def go_on(self) -> None:
        """Ends what `stop` began (SIGCONT)."""
        self.stopped = False
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """Ends it with SIGKILL, and returns when it is gone."""
        self.signal(signal.SIGKILL)
        self.popen.wait(WAIT_S)

    def wait(self, *, timeout_s: float = WAIT_S) -> int:
        """Waits for its end and gives its exit status."""
        return self.popen.wait(timeout_s)

    def events(self) -> list[dict[str, Any]]:
        """The lines of its log that are events."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            if line.startswith("{") and line.endswith("}"):
                found.append(json.loads(line))
        return found

    def said(self, event: str) -> list[dict[str, Any]]:
        """The events of its log whose text contains this."""
        return [each for each in self.events() if event in each["event"]]

    def tail(self) -> str:
        """The end of its log, for messages."""
        return f"--- {self.log.name}\n" + "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])


def ready(worker: WorkerProcess) -> WorkerProcess:
    """Waits until a worker has started."""
    until(lambda: worker.said("worker started") or not worker.lives, what="a worker starts")
    assert worker.lives, worker.tail()
    return worker


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended may wait for its parent to take note."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def stands_still(pid: int) -> bool:
    """Whether a process is stopped."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


@dataclass(slots=True)
class Workers:
    """Starts worker processes of one program on one database.

    Args:
        program: module:attribute.
        folder: where logs and records lie.
        environ: what all of them get, beside what a process needs.
    """

    program: str
    folder: Path
    environ: Mapping[str, str]
    started: list[WorkerProcess] = field(default_factory=list)

    def start(self, *options: str, **environ: str) -> WorkerProcess:
        """Starts one, by default one process that is the worker itself.

        Args:
            options: of `rota worker`; `--alone` if none is given.
            environ: more of its environment.
        """
        log = self.folder / f"worker-{len(self.started) + 1}.log"
        command = [sys.executable, "-m", "rota.cli.main", "worker", *(options or ("--alone",)), self.program]
        plain = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "PYTHONPATH") if name in os.environ}
        with log.open("wb") as file:
            popen = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**plain, "ROTA_LOG_FORMAT": "json", **self.environ, **environ},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        made = WorkerProcess(popen, log)
        self.started.append(made)
        return made

    def end(self) -> None:
        """Ends all of them and whatever they started, also what has lost its parent."""
        for worker in self.started:
            if worker.lives:
                worker.kill()
        while left := [process for process in psutil.process_iter() if self._is_ours(process)]:
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, timeout=WAIT_S)

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(RECORDS) == self.environ[RECORDS]
        except psutil.Error:
            return False

    def tails(self) -> str:
        """The ends of all logs."""
        return "\n".join(worker.tail() for worker in self.started)


@contextmanager
def workers(program: str, folder: Path, *, dsn: str, **environ: str) -> Iterator[Workers]:
    """Workers of a program that end with the block."""
    records = folder / "records"
    records.mkdir(exist_ok=True)
    made = Workers(program, folder, {"ROTA_DSN": dsn, RECORDS: str(records), **environ})
    try:
        yield made
    finally:
        made.end()
