"""The warden's own program: `python warden_process.py PIPE SLATE WORKER json|text`. It imports nothing of Rota.

It reads from the pipe by when the worker's heart looks again, and kills the worker if that has passed and nothing came.
Then it reads from the slate whose fault that may have been, and has the other jobs given back without a try, by a
program that does import Rota. What that is told, the warden was told through its standard input.
It ends when the worker does.
"""

import contextlib
import json
import mmap
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from struct import Struct
from typing import Any, Final

FORM: Final = Struct("d")
"""What the worker says: a time of the clock of leases, which is that of `rota.io.clock`."""
CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
STEP_S: Final = 1.0
"""How often it looks whether the worker is still its parent: what a handler forked may hold the pipe open."""
LATE_S: Final = 0.1
"""A wait that takes so much longer than it should shows a machine that slept, or that has no time for anybody."""
GRACE_S: Final = 0.5
GRACE_CPU_S: Final = 0.05
"""What the heart gets to look, where it could not before: after such a wait, and once its process goes on. It needs
hardly any time of the CPU, and a handler that keeps it from looking takes all there is."""
SHORT_STEP_S: Final = 0.02
READ_BYTES: Final = 4096 * FORM.size
GONE_S: Final = 5.0
"""How long a killed process may take to be gone; its memory may be large."""
PROGRAM_S: Final = 15.0
"""How long giving back may take, with the start of its program."""
SAMPLE_S: Final = 1.0
"""How long before the worker has to end the warden looks what each of its threads has taken of the CPU by then."""
BUSY_TICKS: Final = 5
"""A thread that took so much since, of the system's ticks, a hundredth of a second each, held the interpreter."""
ID_BYTES: Final = 16
PLACE: Final = Struct("16sq")
"""A job apart: its id, and the system's number of its thread; 0 in a child process."""
APART_MAX: Final = 1024
"""Jobs in threads and child processes that the slate has room for."""
UNNOTED_AT: Final = ID_BYTES + APART_MAX * PLACE.size
UNNOTED: Final = Struct("q")
SLATE_BYTES: Final = UNNOTED_AT + UNNOTED.size
"""The slate: the id of the job whose step runs, the jobs apart, and how many of these had no room. Zeros: none."""
PROGRAM: Final = """
import json, sys
told = json.load(sys.stdin)
sys.path[:] = told.pop("path")
from rota.queue.io.orphans import main
main(told)
"""
EVENT: Final = "a handler held the interpreter until its lease was about to end; its process is killed"


@dataclass(frozen=True)
class Process:
    """How the worker's process is: whether it stands still (SIGSTOP, a debugger), and what it took of the CPU."""

    still: bool
    cpu_s: float


@dataclass
class Watch:
    """What the warden knows of its worker. Pure; times are of the clock of leases."""

    look_by: float = inf
    """By when its heart looks again."""
    _stood: bool = False
    _excused_until: float = 0.0
    _excused_cpu_s: float = inf

    def wait_s(self, *, now: float) -> float:
        """How long to wait for a word from it, until it is time to take a sample or to act."""
        if now < self.look_by - SAMPLE_S:
            return min(STEP_S, self.look_by - SAMPLE_S - now)
        if now < self.look_by:
            return self.look_by - now
        return SHORT_STEP_S

    def must_sample(self, *, now: float) -> bool:
        """Whether the worker will soon have to end: if it is held, it is by now."""
        return self.look_by - SAMPLE_S <= now < self.look_by

    def must_end(self, process: Process, *, now: float, late: bool) -> bool:
        """Whether the worker has to end, for no word has come.

        Args:
            process: how it is.
            now: the clock.
            late: the wait for the word took longer than it should.
        """
        if now < self.look_by:
            return False
        if process.still:
            self._stood = True
            return False
        if self._stood or late:
            self._stood, self._excused_until = False, now + GRACE_S
            self._excused_cpu_s = process.cpu_s + GRACE_CPU_S
            return False
        return now >= self._excused_until or process.cpu_s >= self._excused_cpu_s

    def heard(self, look_by: float) -> None:
        """Notes its word."""
        self.look_by, self._excused_until = look_by, 0.0


def main(pipe: int, slate: int, worker: int, log_format: str) -> None:
    """Watches until the worker ends, or has to."""
    said_at_start = sys.stdin.read()
    if not said_at_start:
        return  # the worker was killed before it could say anything
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watch, sample = Watch(), dict[int, int]()
    while os.getppid() == worker:
        asked_at = time.clock_gettime(CLOCK)
        wait_s = watch.wait_s(now=asked_at)
        told, _, _ = select.select([pipe], [], [], wait_s)
        now = time.clock_gettime(CLOCK)
        if told:
            said = os.read(pipe, READ_BYTES)
            if not said:
                return
            watch.heard(FORM.unpack(said[-FORM.size :])[0])
            sample = ticks_of(worker) if watch.must_sample(now=now) else {}
        elif watch.must_sample(now=now):
            sample = ticks_of(worker)
        elif now >= watch.look_by and watch.must_end(
            process_of(worker), now=now, late=now - asked_at > wait_s + LATE_S
        ):
            say(worker, log_format)
            busy = busy_of(sample, ticks_of(worker))
            os.kill(worker, signal.SIGKILL)
            with mmap.mmap(slate, SLATE_BYTES, access=mmap.ACCESS_READ) as memory:
                noted = Noted.of(memory[:])
            suspects = noted.suspects(busy, main=worker)
            if suspects and is_gone(worker):
                give_back({**json.loads(said_at_start), "suspects": sorted(suspects), "apart": noted.children})
            return


@dataclass(frozen=True)
class Noted:
    """What stands on the slate; ids are hexadecimal digits.

    Attributes:
        step: the job whose step the event loop ran.
        threads: the jobs in threads, by the system's numbers of these.
        children: the jobs in child processes, which may go on for a moment.
        whole: whether everybody had room.
    """

    step: str | None
    threads: dict[int, str]
    children: list[str]
    whole: bool

    @classmethod
    def of(cls, slate: bytes) -> "Noted":
        """Reads it."""
        places = PLACE.iter_unpack(slate[ID_BYTES:UNNOTED_AT])
        apart = [(one.hex(), thread) for one, thread in places if any(one)]
        return cls(
            # The first eight bytes of an id are never all zeros, and are what is wiped when a step ends.
            slate[:ID_BYTES].hex() if any(slate[:8]) else None,
            {thread: one for one, thread in apart if thread},
            [one for one, thread in apart if not thread],
            UNNOTED.unpack(slate[UNNOTED_AT:])[0] == 0,
        )

    def suspects(self, busy: set[int], *, main: int) -> set[str]:
        """The jobs one of which held the interpreter; none if that is not known: it may have been a task or a thread
        that a job has started, and which job is not known then.

        Args:
            busy: the threads that took the time of the CPU.
            main: the thread with the event loop.
        """
        if not self.whole:
            return set()
        if not busy:
            # Whoever it is waits in C code without letting go.
            return set() if self.step is None else {self.step, *self.threads.values()}
        found = {self.step if thread == main else self.threads.get(thread) for thread in busy}
        return set() if None in found else {one for one in found if one is not None}


def ticks_of(worker: int) -> dict[int, int]:
    """What each thread of a process has taken of the CPU, in ticks; nothing where the system does not say."""
    found = {}
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{worker}/task"):
            with contextlib.suppress(OSError):
                stat = Path(f"/proc/{worker}/task/{thread}/stat").read_text(errors="replace").rpartition(")")[2].split()
                found[int(thread)] = int(stat[11]) + int(stat[12])
    return found


def busy_of(before: dict[int, int], after: dict[int, int]) -> set[int]:
    """The threads that computed between two samples."""
    return {thread for thread, ticks in after.items() if ticks - before.get(thread, ticks) >= BUSY_TICKS}


def is_gone(worker: int) -> bool:
    """Waits until the worker is no more: only then does none of its jobs run."""
    gives_up_at = time.clock_gettime(CLOCK) + GONE_S
    while os.getppid() == worker:
        if time.clock_gettime(CLOCK) > gives_up_at:
            return False
        time.sleep(SHORT_STEP_S)
    return True


def give_back(told: dict[str, Any]) -> None:
    """Has the jobs given back that are neither suspects nor apart. If that cannot be done, their leases run out."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(  # noqa: S603 - this very Python
            [sys.executable, "-I", "-c", PROGRAM],
            input=json.dumps(told).encode(), stdout=subprocess.DEVNULL, timeout=PROGRAM_S, check=False,
        )  # fmt: skip


def process_of(pid: int) -> Process:
    """How a process is."""
    try:
        # What comes after the name of its program, which may hold anything: state, …, utime and stime.
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except FileNotFoundError:
        argv = ["/bin/ps", "-o", "state=", "-p", str(pid)]
        state = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False).stdout.strip()  # noqa: S603
        return Process(state[:1] == "T", 0.0)
    return Process(stat[0] in ("T", "t"), (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"))


def say(worker: int, log_format: str) -> None:
    """Writes a line of the log."""
    now = datetime.now(UTC)
    if log_format == "json":
        fields = {"pid": worker, "logger_name": "rota.warden", "event": EVENT, "level": "critical"}
        line = json.dumps({**fields, "timestamp": now.isoformat().replace("+00:00", "Z")})
    else:
        line = f"{now.astimezone():%H:%M:%S} [critical ] {EVENT} pid={worker}"
    # A log that cannot be written is no reason to let the worker go on.
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
