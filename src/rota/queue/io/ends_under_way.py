"""The ends of jobs that are on their way to the database: what follows when one begins its way, and when it arrived.

Effects only: what becomes of a job is decided in `rota.queue.dispatcher`, and the completer writes it. An end stands
here until its answer has come, so that the heart can write it once more should the event loop stand still.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from rota.ids import JobId
from rota.io.log import get_logger
from rota.lease import Lease, Loss
from rota.queue.dispatcher import Slots
from rota.queue.handler import Handler
from rota.queue.history import TryEnd
from rota.queue.io.claim_loop import ClaimLoop
from rota.queue.io.claims import Claims
from rota.queue.io.completer import Completer, Write
from rota.queue.io.heart import Last
from rota.queue.io.leases import GuardedBook
from rota.queue.io.metering import Metering
from rota.queue.io.stops import Stops
from rota.queue.job import Finish, Release, State

UNKNOWN: Final = ("", None)

log = get_logger("rota.worker")


class EndsUnderWay:
    """The ends of one worker's jobs that are not known to be written.

    Args:
        handlers: by kind.
        slots: told of slots that are free.
        claims: told of jobs that go back.
        claiming: told where others may start.
        completer: writes the ends.
        leases: where the leases of written ends are dropped.
        stops: told when runs really stopped whose ends the database refused.
        metering: counts, if anybody does.

    Attributes:
        counts: how many tries ended how that did not end by themselves.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        slots: Slots,
        claims: Claims,
        claiming: ClaimLoop,
        completer: Completer,
        leases: GuardedBook,
        stops: Stops,
        metering: Metering | None,
    ) -> None:
        self._handlers = handlers
        self._slots = slots
        self._claims = claims
        self._claiming = claiming
        self._completer = completer
        self._leases = leases
        self._stops = stops
        self._metering = metering
        self.counts: Counter[TryEnd] = Counter()
        self._ending: dict[Lease, tuple[str, Write]] = {}
        """With the kind of the job. By lease: a job that went back may end once more before the first answer is here.
        The heart reads it."""
        self._after_ends: set[str] = set()
        """Kinds with limits beyond one server of which jobs have ended that may not be written yet."""

    def begins(self, kind: str, write: Write | None) -> None:
        """Takes a job that has ended: its kind, and what to write; None where its lease is gone."""
        self._slots.left(kind)
        if write is not None:
            self._ending[write.lease] = (kind, write)
            self._completer.add(write)
            if isinstance(write, Release) and write.wait_s is None:
                self._claims.returned([kind])
        settings = self._handlers[kind].kind
        if settings.limits.ends_make_room:
            self._after_ends.add(kind)
        self._claiming.freed(kind, cpu=settings.cpu_bound)

    def arrived(self, written: list[tuple[Write, State | None]]) -> None:
        """Takes the new states of ends; None where the database refused one: the lease was lost."""
        for write, state in written:
            if write.how is not None:
                self.counts[write.how] += 1
            kind, _ = self._ending.pop(write.lease, UNKNOWN)
            if state is State.FAILED and isinstance(write, Finish):
                if self._metering is not None:
                    self._metering.meters.failed(kind)
                log.warning("job failed", job_id=str(write.lease.job_id), kind=kind, error=write.error)
            if state is None:
                self._refused(write.lease, kind)
        self._leases.drop([write.lease for write, _ in written])
        # A lease counts until its end is written: only now may another job of such a kind start.
        self._claiming.written(self._after_ends)
        if not self._completer.waiting:
            self._after_ends.clear()

    def _refused(self, lease: Lease, kind: str) -> None:
        if self._metering is not None:
            self._metering.meters.lost(Loss.TAKEN)
        log.warning(
            "job lost its lease to another server; stopped here",
            job_id=str(lease.job_id), kind=kind, epoch=lease.epoch,
        )  # fmt: skip
        ended_at = self._leases.ended_at(lease)
        if ended_at is not None:
            self._stops.add(lease, stopped_at=ended_at)

    # For the heart, when the process ends

    def with_these(self, last: Last) -> Last:
        """The last words of a process with the ends that are under way. A statement that has taken one of these up may
        not have been sent, where the event loop is blocked; if it was, another write changes nothing."""
        ends = [write for _, write in list(self._ending.values())]
        ended = {write.lease for write in ends}
        return Last(
            [
                *(one for one in last.finishes if one.lease not in ended),
                *(one for one in ends if isinstance(one, Finish)),
            ],
            [
                *(one for one in last.releases if one.lease not in ended),
                *(one for one in ends if isinstance(one, Release)),
            ],
            last.killing,
        )

    def kind_of(self, job_id: JobId) -> str:
        """The kind of a job whose end is under way; empty if there is none."""
        return next((kind for lease, (kind, _) in list(self._ending.items()) if lease.job_id == job_id), "")
