"""What a worker decides: which kinds to ask for, and what becomes of a job when its handler returns. Pure.

No clock, no database, no asyncio. The shells (`claim_loop` and `crew` in `rota.queue.io`) report what happened and do
what they are told.

Spec: job queue, "How a server takes a job", "Limits".
"""

import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from random import Random
from typing import Any, Final

from msgspec import structs

from rota.errors import ExecRefused, NotNow, PayloadError
from rota.ids import JobId
from rota.lease import Loss
from rota.queue import outcomes
from rota.queue.child_messages import Ended, outcome_of
from rota.queue.history import TryEnd
from rota.queue.job import Ask, ClaimedJob, Finish, NewJob, Outcome, Release, Scope
from rota.queue.kind import Kind
from rota.queue.pause import NOTHING_PAUSED, Paused
from rota.queue.payload import TEXT_BYTES_MAX, cut_text, encode
from rota.queue.retry import WAIT_S_MAX

CLAIM_MAX: Final = 1000
"""Jobs in one claim. Larger batches gain nothing and hold row locks for longer."""

START_SHARE: Final = 0.5
"""A job begins only while so much of its lease is left."""

STALLED: Final = "The job made no progress for the lease time ({lease_s:g} s); its worker stopped it"
NOT_COMMITTED: Final = "The transaction of ctx.finish_with was not committed"
UNWRITTEN: Final = "The job's heartbeat could not be written for the lease time; its worker stopped it"


@dataclass(frozen=True, slots=True)
class Room:
    """Free slots of a kind; with a lowest priority where only urgent jobs may take them."""

    free: int
    lowest: int | None = None


@dataclass(slots=True)
class Slots:
    """How many jobs of each kind run here, and which kinds have room.

    Kinds that are bound by the CPU share `cpus` slots, whatever kinds they are. Where one of them has urgent jobs, a
    quarter of these is kept for them.
    """

    kinds: Mapping[str, Kind]
    cpus: int = 1
    running: dict[str, int] = field(default_factory=dict)
    open: bool = True
    """False once the worker takes no new work."""
    allowances: dict[str, Callable[[], int]] = field(default_factory=dict)
    """For kinds that need more than a slot: how many of their jobs may run here now. It may change at any time."""
    _calm: set[str] = field(default_factory=set)
    """Kinds of which no urgent job was due the last time that only those were asked for."""
    _asked: int = 0
    paused: Paused | None = NOTHING_PAUSED
    """What nobody may claim for now; None while that is not known."""
    _crowded: dict[str, int] = field(init=False)
    """With more running jobs than this a kind is not roomy, whatever else holds."""

    def __post_init__(self) -> None:
        self._crowded = {name: kind.limit - (min(kind.limit, CLAIM_MAX) + 1) // 2 for name, kind in self.kinds.items()}

    def asks(self, among: Collection[str] | None = None) -> list[Ask]:
        """What to claim now: each kind with a free slot, in all about CLAIM_MAX jobs.

        Where the free slots are more than that, kinds with few get all of theirs and the others share the rest, so
        that a kind with a thousand slots never keeps another out.

        Args:
            among: kinds to ask for; None for all.
        """
        rooms = [(name, room) for name in self.kinds if (among is None or name in among) and (room := self._room(name))]
        rooms.sort(key=lambda entry: (entry[1].free, entry[0]))
        rooms = self._with_cpus(rooms)
        asks, left = [], CLAIM_MAX
        for number, (name, room) in enumerate(rooms):
            share = max(1, min(room.free, left // (len(rooms) - number)))
            kind = self.kinds[name]
            asks.append(Ask(name, share, kind.lease_s, kind.max_tries, lowest=room.lowest, limits=kind.limits))
            left = max(0, left - share)
        return asks

    def _with_cpus(self, rooms: list[tuple[str, Room]]) -> list[tuple[str, Room]]:
        """The same, but kinds that are bound by the CPU get no more than is left of it; who gets first, changes."""
        bound = [entry for entry in rooms if self.kinds[entry[0]].cpu_bound]
        if not bound:
            return rooms
        self._asked += 1
        first = self._asked % len(bound)
        left = self._cpus_left - (self.cpus_kept if bound[0][1].lowest is None else 0)
        shares: dict[str, int] = {}
        for number, (name, room) in enumerate(bound[first:] + bound[:first]):
            shares[name] = min(room.free, -(-left // (len(bound) - number)))
            left -= shares[name]
        given = [(name, Room(shares.get(name, room.free), room.lowest)) for name, room in rooms]
        return [(name, room) for name, room in given if room.free > 0]

    def free_kinds(self) -> list[str]:
        """The kinds with a free slot."""
        return [name for name in self.kinds if self._free(name) > 0]

    def answered(self, ask: Ask, count: int) -> None:
        """Notes how many jobs an ask brought."""
        if ask.lowest is not None and count < ask.free:
            self._calm.add(ask.kind)

    def heard(self, kinds: Iterable[str]) -> None:
        """Notes that jobs of these kinds may be due, urgent ones too."""
        self._calm.difference_update(kinds)

    def paused_kinds(self) -> list[str]:
        """The kinds of which nothing may be claimed for now."""
        return [name for name in self.kinds if self.paused is not None and self.paused.holds(name)]

    def _free(self, name: str) -> int:
        room = self._room(name)
        return 0 if room is None else room.free

    def _free_but_for_cpus(self, name: str) -> int:
        if not self.open or self.paused is None or self.paused.holds(name):
            return 0
        running = self.running.get(name, 0)
        free = self.kinds[name].limit - running
        if free > 0 and name in self.allowances:
            free = min(free, self.allowances[name]() - running)
        return free

    def _room(self, name: str) -> Room | None:
        kind, free = self.kinds[name], self._free_but_for_cpus(name)
        if not kind.cpu_bound:
            return Room(free) if free > 0 else None
        general = min(free, self._cpus_left - self.cpus_kept)
        if general > 0:
            return Room(general)
        urgent = min(free, self._cpus_left)
        if urgent <= 0 or kind.urgent_priority is None or name in self._calm:
            return None
        return Room(urgent, kind.urgent_priority)

    @property
    def _cpus_left(self) -> int:
        return self.cpus - sum(self.running.get(name, 0) for name, kind in self.kinds.items() if kind.cpu_bound)

    @property
    def cpus_kept(self) -> int:
        """Slots for the CPU that only urgent jobs may take."""
        urgent = any(kind.cpu_bound and kind.urgent_priority is not None for kind in self.kinds.values())
        return max(1, self.cpus // 4) if urgent and self.cpus > 1 else 0

    def roomy(self, kind: str) -> bool:
        """Whether at least half of a whole claim of this kind has room: smaller claims cost more for each job."""
        # It is asked at the end of every job.
        if self.running.get(kind, 0) > self._crowded[kind]:
            return False
        settings = self.kinds[kind]
        free = self._free(kind) if settings.cpu_bound else self._free_but_for_cpus(kind)
        return 2 * free >= min(settings.limit, CLAIM_MAX)

    def took(self, claimed: Iterable[ClaimedJob]) -> None:
        """Notes jobs that start."""
        for job in claimed:
            self.running[job.kind] = self.running.get(job.kind, 0) + 1

    def left(self, kind: str) -> None:
        """Notes that a job of this kind has ended or was given back."""
        assert self.running.get(kind, 0) > 0, f"a slot of {kind} is freed that was not taken"
        self.running[kind] -= 1

    @property
    def count(self) -> int:
        """Jobs that run now."""
        return sum(self.running.values())


def settle(job: ClaimedJob, *, kind: Kind, returned: Any, random: Random) -> Finish | Release:
    """Decides what becomes of a job whose handler returned.

    Args:
        job: the claimed job.
        kind: its settings.
        returned: an outcome such as `Retry(…)`, or any other value: the job's result.
        random: for the jitter of waits.

    Returns: what to write.
    """
    if returned is None:
        return Finish(job.lease, Outcome.DONE)
    keyed = job.dedupe_scope is Scope.QUEUED
    match returned:
        case outcomes.Retry(after_s, error):
            return failed_try(
                job, kind=kind, error=error or "The handler asked for a retry", random=random, after_s=after_s
            )
        case outcomes.Snooze(after_s, reason):
            return Release(job.lease, wait_s=_bounded(after_s), reason=_clean(reason), keyed=keyed, how=TryEnd.SNOOZED)
        case outcomes.Again(after_s):
            return Finish(job.lease, Outcome.AGAIN, wait_s=_bounded(after_s), keyed=keyed)
        case outcomes.Yield():
            return Release(job.lease, keyed=keyed, how=TryEnd.YIELDED)
        case outcomes.GiveBack(reason, after_s):
            return Release(job.lease, wait_s=_bounded(after_s), reason=_clean(reason), keyed=keyed)
        case outcomes.Fail(reason):
            return Finish(job.lease, Outcome.FAILED, error=cut_text(reason))
        case outcomes.Cancelled(reason):
            return Finish(job.lease, Outcome.CANCELLED, error=_clean(reason))
        case _:
            try:
                return Finish(job.lease, Outcome.DONE, result=encode(returned, what="result"))
            except PayloadError as error:
                # Trying again would do the work again and end the same way.
                return Finish(job.lease, Outcome.FAILED, error=cut_text(str(error)))


def settle_child(job: ClaimedJob, *, kind: Kind, ended: Ended, random: Random) -> Finish | Release:
    """Decides what becomes of a job that a child process ran, from what the child said at its end."""
    if ended.final:
        return Finish(job.lease, Outcome.FAILED, error=cut_text(ended.error or ""))
    if ended.error is not None:
        return failed_try(job, kind=kind, error=ended.error, random=random)
    if ended.outcome is not None:
        return settle(job, kind=kind, returned=outcome_of(ended), random=random)
    return Finish(job.lease, Outcome.DONE, result=ended.result)


def failed_try(
    job: ClaimedJob,
    *,
    kind: Kind,
    error: str,
    random: Random,
    after_s: float | None = None,
    how: TryEnd | None = None,
) -> Finish:
    """A try that failed: again after a wait, or failed for good on the last one."""
    if job.tries >= job.max_tries:
        return Finish(job.lease, Outcome.FAILED, error=cut_text(error), how=how)
    wait_s = kind.retry.wait_s(job.tries, random=random) if after_s is None else after_s
    return Finish(
        job.lease,
        Outcome.RETRY,
        error=cut_text(error),
        wait_s=_bounded(wait_s),
        keyed=job.dedupe_scope is Scope.QUEUED,
        how=how,
    )


def raised(job: ClaimedJob, *, kind: Kind, error: BaseException, random: Random) -> Finish | Release:
    """Decides what becomes of a job whose handler raised."""
    match error:
        case NotNow():
            return settle(job, kind=kind, returned=outcomes.GiveBack(str(error), error.after_s), random=random)
        case ExecRefused():
            return Finish(job.lease, Outcome.FAILED, error=cut_text(describe_error(error)))
        case _:
            return failed_try(job, kind=kind, error=describe_error(error), random=random)


def unfit(job: ClaimedJob, error: PayloadError) -> Finish:
    """A payload that does not fit the handler's type fails the job at once: no later try could end otherwise."""
    return Finish(job.lease, Outcome.FAILED, error=cut_text(str(error)))


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a handler ended that did not end by itself; several may be true."""

    loss: Loss | None = None
    cancel_asked: bool = False
    given_back: bool = False
    over: bool = False
    """Its lease has ended by the holder's clock."""
    started: bool = True
    """Its handler had been called."""
    killed: bool = False
    """Its child process was killed."""


def stopped(job: ClaimedJob, *, kind: Kind, why: Stop, random: Random) -> Finish | Release | None:
    """A job that was stopped. None where the lease is gone and nothing may be written."""
    how = TryEnd.KILLED if why.killed else TryEnd.STOPPED
    if why.loss is Loss.TAKEN:
        return None
    if why.given_back and not why.started:
        return give_back_unbegun(job, kind=kind)
    if why.cancel_asked:
        return Finish(job.lease, Outcome.CANCELLED, how=how)
    if why.loss is Loss.STALLED:
        return failed_try(job, kind=kind, error=STALLED.format(lease_s=kind.lease_s), random=random, how=how)
    if why.loss is Loss.UNWRITTEN or why.over:
        return failed_try(job, kind=kind, error=UNWRITTEN, random=random, how=how)
    if why.given_back:
        return give_back(job)
    return failed_try(job, kind=kind, error="The handler was cancelled by its own code", random=random)


def could_not_stop(job: ClaimedJob, *, kind: Kind, random: Random, gone_in_s: float = 0.0) -> Finish:
    """A stalled job whose thread or blocked loop could not be stopped: its process ends, and only then may it go on.

    `gone_in_s`: how long the process may still be there; the next try does not start before.
    """
    error = STALLED.format(lease_s=kind.lease_s) + " by ending the process"
    ended = failed_try(job, kind=kind, error=error, random=random, how=TryEnd.FENCED)
    return structs.replace(ended, wait_s=max(ended.wait_s, gone_in_s)) if ended.outcome is Outcome.RETRY else ended


def give_back(job: ClaimedJob, *, wait_s: float | None = None) -> Release:
    """A job that a stopping server returns; it counts no try and keeps its place in line unless it has to wait."""
    return Release(job.lease, wait_s=wait_s, keyed=job.dedupe_scope is Scope.QUEUED)


def begins_too_late(*, left_s: float, lease_s: float) -> bool:
    """Whether so little of a lease is left that its job should not begin: it would soon be stopped, as if it had made
    no progress. Its claim was answered late, or the jobs before it kept the event loop."""
    return left_s < START_SHARE * lease_s


def give_back_unbegun(job: ClaimedJob, *, kind: Kind) -> Release:
    """A job that goes back although nobody stopped it: it has not begun, and does not count as started."""
    rate = kind.limits.rate
    return structs.replace(give_back(job), unstart_s=None if rate is None else rate.per_s)


def completed(
    write: Finish | Release, *, kind: Kind, progress: Any | None, follow_ups: Sequence[NewJob]
) -> Finish | Release:
    """The same, with all that a run and its kind add to an end.

    Args:
        write: what became of the job.
        kind: its settings.
        progress: its last progress, if that is not stored yet.
        follow_ups: the jobs that are added with a success.
    """
    if progress is None and not follow_ups and not kind.ends_alone and not kind.runs_pass:
        # Almost every end is like this.
        return write
    write = of_pass(with_follow_ups(with_progress(write, progress), follow_ups), kind)
    return structs.replace(write, alone=True) if kind.ends_alone else write


def with_progress(write: Finish | Release, progress: Any | None) -> Finish | Release:
    """The same, with the job's last progress if that is not stored yet."""
    if progress is None:
        return write
    return structs.replace(write, progress=encode(progress, what="progress"))


def of_pass(write: Finish | Release, kind: Kind) -> Finish | Release:
    """The same, with the next run of the pass if it ends a run of one, however it ended."""
    if not kind.runs_pass or not isinstance(write, Finish) or write.outcome in (Outcome.RETRY, Outcome.AGAIN):
        return write
    return structs.replace(write, follows=kind.name, keyed=True)


def with_follow_ups(write: Finish | Release, follow_ups: Sequence[NewJob]) -> Finish | Release:
    """The same, with the jobs that are added with a success; what is no success has none."""
    if not follow_ups or not isinstance(write, Finish) or write.outcome not in (Outcome.DONE, Outcome.AGAIN):
        return write
    return structs.replace(write, follow_ups=tuple(follow_ups))


def not_committed(job: ClaimedJob, *, kind: Kind, write: Finish | Release | None, random: Random) -> Finish | Release:
    """A job whose success its handler wrote, in a transaction that was not committed: the try has failed."""
    if write is not None and not (isinstance(write, Finish) and write.outcome in (Outcome.DONE, Outcome.AGAIN)):
        return write
    return failed_try(job, kind=kind, error=NOT_COMMITTED, random=random)


def yielding(waiting: Sequence[int], running: Iterable[ClaimedJob]) -> set[JobId]:
    """Which jobs make room for more urgent ones of their kind: the least urgent, and of those the ones begun last.

    Args:
        waiting: the priorities of due jobs, the highest first.
        running: the jobs that fill the kind's slots, in the order in which they began.
    """
    least_urgent = sorted(reversed(list(running)), key=lambda job: job.priority)
    return {job.id for job, priority in zip(least_urgent, waiting, strict=False) if job.priority < priority}


def describe_error(error: BaseException) -> str:
    """One line for last_error: the type, the message and the place, such as `ValueError: no frame (shop.py:12)`.

    It is cut to what a job keeps, and never raises, whatever the error does that a program has made.
    """
    try:
        frames = traceback.extract_tb(error.__traceback__)
        place = f" ({PurePath(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    except BaseException:
        place = ""
    try:
        message = " ".join(str(error)[:TEXT_BYTES_MAX].split())
    except BaseException as unsayable:
        message = f"its message cannot be read, because that raises {type(unsayable).__name__}"
    return cut_text(f"{type(error).__name__}{': ' if message else ''}{message}{place}")


def _bounded(wait_s: float) -> float:
    # In this order NaN becomes 0.
    return min(max(0.0, wait_s), WAIT_S_MAX)


def _clean(text: str | None) -> str | None:
    return None if text is None else cut_text(text)
