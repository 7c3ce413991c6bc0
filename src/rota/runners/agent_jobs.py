"""The jobs that a runner holds: taken, ended, told about, and stopped when their lease is over. Pure.

A session stays until it is closed or cancelled, or until the last lease that was confirmed is about to end by this
machine's own clock, which counts while the machine sleeps: then it stops by itself, with nobody to tell it (I2). What
ended is told until the gateway shows that it knows.

Spec: runners, "Job lifecycle, leases and fencing".
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import Final

from rota.runners import agent_events as events
from rota.runners import messages
from rota.runners.agent_line import Line
from rota.runners.codes import CancelReason, FailureClass, Outcome, RejectReason
from rota.runners.frames import Frame
from rota.runners.session import OpLog

UNCONFIRMED_S: Final = 30.0
"""How long a job may run on its assignment alone: the lease, less the 10 seconds within which the gateway hears of its
acceptance or gives it away, less 5 for the way from the claim to the gateway."""
STOP_MARGIN_S: Final = 1.0
"""A session is stopped this long before its lease is over, so that its programs are dead by then."""
GRACE_S_MAX: Final = 60.0
"""However long a gateway gives a job to stop."""


class State(Enum):
    """How far a session is."""

    RUNNING = "running"
    ENDING = "ending"
    DONE = "done"


@dataclass(slots=True, eq=False)
class Held:
    """One job that this runner holds.

    Attributes:
        job_id: the job.
        assign: what was assigned.
        deadline: when its lease is over, as far as this runner may trust it.
        session_id: of its session, once it was named.
        log: its ops.
        state: how far it is.
        last: what to say when it has ended, and again until the gateway is seen to know.
        progress_at: when progress may be sent next.
    """

    job_id: str
    assign: messages.Assign
    deadline: float
    session_id: str | None
    log: OpLog = field(default_factory=OpLog)
    state: State = State.RUNNING
    last: tuple[messages.RunnerMessage, ...] = ()
    progress_at: float = 0.0

    @property
    def epoch(self) -> int:
        """Of its lease."""
        return self.assign.lease_epoch


class HeldJobs:
    """All jobs that this runner holds.

    Args:
        line: where commands go.
    """

    def __init__(self, line: Line) -> None:
        self.by_id: dict[str, Held] = {}
        self._line = line

    def of(self, job_id: str, epoch: int) -> Held | None:
        """The job, if it is held under this very epoch (I3)."""
        held = self.by_id.get(job_id)
        return held if held is not None and held.epoch == epoch else None

    @property
    def busy(self) -> int:
        """How many take a slot."""
        return sum(held.state is not State.DONE for held in self.by_id.values())

    def running(self) -> tuple[messages.Held, ...]:
        """What is told of them in a hello and in heartbeats."""
        return tuple(messages.Held(job_id=held.job_id, lease_epoch=held.epoch) for held in self.by_id.values())

    def least_left_s(self) -> float | None:
        """For how long the shortest lease of a session still holds; None without a session."""
        left = [held.deadline - self._line.now for held in self.by_id.values() if held.state is State.RUNNING]
        return min(left, default=None)

    def stop_at(self) -> float:
        """When the first of them is over."""
        return min((_stop_at(held) for held in self.by_id.values() if held.state is not State.ENDING), default=inf)

    def take(self, frame: Frame, assign: messages.Assign, declines: Callable[[], RejectReason | None]) -> None:
        """A job is assigned: it is held from now on, or given back.

        Args:
            frame: that brought it.
            assign: what is assigned.
            declines: why this runner does not take it, if so; asked unless it holds the job already.
        """
        assert frame.job_id is not None  # its type needs one
        older = self.by_id.get(frame.job_id)
        if older is not None and older.epoch == assign.lease_epoch:
            return
        if older is not None and older.state is State.DONE:
            del self.by_id[older.job_id]
            older = None
        reason = RejectReason.BUSY if older is not None else declines()
        if older is not None and older.state is State.RUNNING:
            self.end(older, "the job was assigned anew", ())
        if reason is not None:
            self._line.send(
                messages.Reject(lease_epoch=assign.lease_epoch, job_token=assign.job_token, reason=reason), frame.job_id
            )
            return
        self.by_id[frame.job_id] = Held(frame.job_id, assign, self._line.now + UNCONFIRMED_S, frame.session_id)
        self._line.send(messages.Accept(lease_epoch=assign.lease_epoch, job_token=assign.job_token), frame.job_id)
        self._line.say(events.OpenSession(frame.job_id, assign))

    def cancelled(self, frame: Frame, cancel: messages.Cancel) -> None:
        """The gateway wants a job to stop, or shows that it knows that it has."""
        held = self.by_id.get(frame.job_id or "")
        if held is None:
            return
        if held.state is State.DONE:
            del self.by_id[held.job_id]
            return
        last = () if cancel.reason == CancelReason.LEASE_LOST else (self.complete(held, Outcome.CANCELLED),)
        self.end(held, cancel.reason, last, grace_s=min(cancel.grace_sec, GRACE_S_MAX))

    def end(
        self, held: Held, reason: str, last: tuple[messages.RunnerMessage, ...], *, grace_s: float = STOP_MARGIN_S
    ) -> None:
        """Ends a session; what is last said of it comes when it has ended. A lost lease takes back what would be."""
        if held.state is State.RUNNING:
            held.state, held.last = State.ENDING, last
            self._line.say(events.EndSession(held.job_id, held.epoch, grace_s, reason))
        elif held.state is State.ENDING and not last:
            held.last = ()

    def end_all(self, reason: str, *, grace_s: float) -> None:
        """Ends all sessions; nothing is said of them."""
        for held in self.by_id.values():
            if held.state is State.RUNNING:
                self.end(held, reason, (), grace_s=grace_s)

    def has_running(self) -> bool:
        """Whether any session goes on."""
        return any(held.state is State.RUNNING for held in self.by_id.values())

    def broke(self, event: events.SessionBroke) -> None:
        """A session cannot go on, by no fault of who asked for it."""
        held = self.of(event.job_id, event.epoch)
        if held is not None:
            fail = messages.Fail(
                lease_epoch=held.epoch, job_token=held.assign.job_token, failure_class=FailureClass.RUNNER,
                code=event.code, message=event.message, retryable=True,
            )  # fmt: skip
            self.end(held, event.code, (fail,))

    def ended(self, event: events.SessionEnded) -> bool:
        """A session has ended: what is last said of it is said now.

        Returns: whether its slot is free now.
        """
        held = self.of(event.job_id, event.epoch)
        if held is None or held.state is not State.ENDING:
            return False
        if held.last and self._line.now < held.deadline:
            held.state = State.DONE
            self.say_last(held)
        else:
            del self.by_id[held.job_id]
        return True

    def say_last(self, held: Held) -> None:
        """Says again what was last said of a job that ended."""
        if self._line.is_open:
            for message in held.last:
                session_id = held.session_id if isinstance(message, messages.OpResponse) else None
                self._line.send(message, held.job_id, session_id)

    def confirmed(self, held: Held, until: float) -> None:
        """The gateway has said that the lease holds until then."""
        held.deadline = max(held.deadline, until)

    def lost(self, held: Held) -> None:
        """The gateway has said that the lease does not hold."""
        if held.state is State.DONE:
            del self.by_id[held.job_id]
        else:
            self.end(held, "the gateway says that the lease is lost", ())

    def stop_what_is_over(self) -> None:
        """Stops the sessions whose lease is about to end, and forgets what was told for as long as it counts."""
        for held in list(self.by_id.values()):
            if self._line.now < _stop_at(held):
                continue
            if held.state is State.RUNNING:
                self._line.say(
                    events.Tell(
                        "lease_over", f"Job {held.job_id} stops: its lease was not confirmed in time.", urgent=True
                    )
                )
                self.end(held, "the lease was not confirmed in time", ())
            elif held.state is State.DONE:
                del self.by_id[held.job_id]

    def complete(self, held: Held, outcome: Outcome) -> messages.Complete:
        """What is said of a job that ended."""
        return messages.Complete(lease_epoch=held.epoch, job_token=held.assign.job_token, outcome=outcome)


def _stop_at(held: Held) -> float:
    return held.deadline - (STOP_MARGIN_S if held.state is State.RUNNING else 0.0)
