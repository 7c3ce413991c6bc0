"""What handlers did, and when: written by the workers' processes as they run, read by the test when they are gone.

Each process appends to a file of its own, one line for each step, so a process that is killed leaves what it had done
by then. Times are of the system's monotonic clock, which all processes of a machine share.

`Run` is one try of one job. `faults_of` looks for what may never be: two runs of one job at the same time (I2), a step
under an older epoch after a newer one has begun (I3).
"""

import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from rota.queue.job import ClaimedJob

START, MOVE, END, STOPPED = "start", "move", "end", "stopped"
"""The handler began; it did a piece of its work; it came to its end; it was told to stop (its clean-up, no work)."""

SUFFIX = ".steps"
PULSE = ".pulse"
"""The name of a file ends so in which a run that lets nobody else run leaves the time, again and again."""


class Recorder:
    """Writes the steps of this process.

    Args:
        folder: where the files of all processes lie.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / f"{os.getpid()}-{os.urandom(3).hex()}{SUFFIX}"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)

    def note(self, what: str, job: ClaimedJob) -> None:
        """Writes one step. The clock is read first: it is the step's time, however long the write takes."""
        at_ns = time.monotonic_ns()
        line = f"{at_ns} {what} {job.id} {job.lease.epoch} {job.tries} {threading.get_native_id()}\n"
        os.write(self._file, line.encode())


@dataclass(slots=True)
class Step:
    """One line.

    Attributes:
        taken_ns: when it was taken, as far as it may be held against the process; see `excuse_steps_under_way`.
    """

    at_ns: int
    what: str
    job_id: UUID
    epoch: int
    tries: int
    pid: int
    thread: int
    taken_ns: int


@dataclass(frozen=True, slots=True)
class Pause:
    """A process stood still (SIGSTOP) from before `from_ns` until after `to_ns`."""

    pid: int
    from_ns: int
    to_ns: int


@dataclass(slots=True)
class Faults:
    """What the test did to processes, by their ids."""

    pauses: list[Pause] = field(default_factory=list)
    killed_ns: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Run:
    """One try of one job, in the order of its steps."""

    job_id: UUID
    epoch: int
    pid: int
    steps: list[Step]

    @property
    def start_ns(self) -> int:
        return self.steps[0].at_ns

    @property
    def ended(self) -> bool:
        """Whether its handler came to its end."""
        return any(step.what == END for step in self.steps)

    def until_ns(self, faults: Faults) -> int:
        """Until when it certainly ran: its last step, or, if it had none at its end, when its process was killed."""
        last = max(step.taken_ns for step in self.steps if step.what != STOPPED)
        if self.ended:
            return last
        end = next((step.at_ns for step in self.steps if step.what == STOPPED), faults.killed_ns.get(self.pid, last))
        # What stood still did not run, and may have found its lease over when it went on.
        return max(last, min([end, *(p.from_ns for p in faults.pauses if p.pid == self.pid and last < p.to_ns)]))


def read_steps(folder: Path) -> list[Step]:
    """All whole lines of all processes, by time."""
    steps = []
    for path in folder.glob(f"*{SUFFIX}"):
        pid = int(path.name.partition("-")[0])
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                at_ns, what, job_id, epoch, tries, thread = line.split()
                when = int(at_ns)
                steps.append(Step(when, what, UUID(job_id), int(epoch), int(tries), pid, int(thread), when))
    return sorted(steps, key=lambda step: step.at_ns)


def excuse_steps_under_way(steps: Iterable[Step], pauses: Iterable[Pause]) -> None:
    """Dates back the first step that a thread took after a pause, if there is one: to the pause's beginning.

    A process can be stopped between its look at the lease and the step that it then takes; nobody outside can tell,
    and nothing inside can help it. But it is one step for each thread, and before the next one it looks again.
    """
    by_process: dict[int, list[Step]] = defaultdict(list)
    for step in steps:
        by_process[step.pid].append(step)
    for pause in pauses:
        seen = set()
        for step in by_process[pause.pid]:
            if step.at_ns > pause.to_ns and step.thread not in seen:
                seen.add(step.thread)
                step.taken_ns = pause.from_ns


def runs_of(steps: Iterable[Step]) -> Mapping[UUID, list[Run]]:
    """The runs of each job, by their epochs."""
    found: dict[tuple[UUID, int, int], list[Step]] = defaultdict(list)
    for step in steps:
        found[step.job_id, step.epoch, step.pid].append(step)
    runs: dict[UUID, list[Run]] = defaultdict(list)
    for (job_id, epoch, pid), own in found.items():
        runs[job_id].append(Run(job_id, epoch, pid, sorted(own, key=lambda step: step.at_ns)))
    for each in runs.values():
        each.sort(key=lambda run: (run.epoch, run.start_ns))
    return runs


def faults_of(runs: Mapping[UUID, list[Run]], faults: Faults) -> list[str]:
    """What may never be, in words; empty if all is well."""
    found = []
    for job_id, tries in runs.items():
        for run in tries:
            starts = sum(step.what == START for step in run.steps)
            if starts != 1 or run.steps[0].what != START:
                found.append(f"job {job_id}: {starts} starts under one epoch: {_shown(run)}")
        before = tries[0]
        for run in tries[1:]:
            if run.epoch == before.epoch:
                found.append(f"job {job_id}: one epoch in two processes: {_shown(before)} and {_shown(run)}")
            over_ms = (before.until_ns(faults) - run.start_ns) / 1e6
            if over_ms > 0:
                found.append(f"job {job_id}: two runs at once for {over_ms:.3f} ms: {_shown(before)} and {_shown(run)}")
            if run.until_ns(faults) > before.until_ns(faults):
                before = run
    return found


def _shown(run: Run) -> str:
    steps = ", ".join(f"{step.what} {step.at_ns / 1e9:.6f} (thread {step.thread})" for step in run.steps)
    return f"[epoch {run.epoch}, process {run.pid}: {steps}]"
