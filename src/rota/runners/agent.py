"""A runner without its socket and its programs: events in, commands out. Pure.

It dials, says hello, and holds what it is assigned: one session for each job, one op at a time in each. Connections
come and go; a session stays until it is closed or cancelled, or until the last lease that was confirmed is about to end
by this machine's own clock, which counts while the machine sleeps: then it stops by itself, with nobody to tell it
(I2). What ended is told until the gateway shows that it knows. It distrusts what it is assigned as much as it is
distrusted (I12): what it cannot do it declines, and what it is asked for is read by the types of `ops.py`.

Spec: runners, "Job lifecycle, leases and fencing", "Idempotency".
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from random import Random
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from rota.errors import ProtocolError
from rota.runners import agent_events as events
from rota.runners import clocks, handshake, messages, ops
from rota.runners.agent_events import Answer, Command, Event
from rota.runners.dial import redial_wait_s
from rota.runners.matching import Needs, lacks, offered
from rota.runners.messages import CancelReason, CloseCode, Frame, JobType, OpCode, OpError, Outcome, RejectReason
from rota.runners.session import OpLog, Repeat

LEASE_S: Final = 45.0
UNCONFIRMED_S: Final = 30.0
"""How long a job may run on its assignment alone: the lease, less the 10 seconds within which the gateway hears of its
acceptance or gives it away, less 5 for the way from the claim to the gateway."""
STOP_MARGIN_S: Final = 1.0
"""A session is stopped this long before its lease is over, so that its programs are dead by then."""
SILENCE_S: Final = 33.0
"""After two heartbeats without an answer, and a little, a link is half open: redial while the leases still hold."""
WELCOME_S: Final = 20.0
HURRIED_S: Final = 3.0
"""How long a dial, and then a welcome, may take at least while a lease runs out, of which each gets a third. A replica
that stands still takes connections and says nothing, and another one is a dial away."""
DIAL_S: Final = 60.0
"""A dial that is not answered for so long is given up, whatever its own timeout is."""
SLEPT_S: Final = 10.0
"""A clock that is so late was suspended, and the link with it."""
REFUSED_S: Final = 30.0
"""After a refusal that only a person can lift, and after another process of the same name: not before half of this."""
GRACE_AT_DRAIN_S: Final = 5.0
BEATS_REMEMBERED: Final = 16
"""Answers to heartbeats that are known again by their ids: one that came twice must not confirm two."""
RETRY_AFTER_S_MAX: Final = 3600.0
"""However long a gateway asks to be left alone: one that is wrong about it must not lose its runners for good."""
GRACE_S_MAX: Final = 60.0
"""However long a gateway gives a job to stop."""
CLOCK_OFF_S_MAX: Final = 100 * 365.25 * 86_400
"""A clock that has lost its battery is decades off; a gateway's time that is further away is wrong itself."""
LEAVE_S: Final = 5.0
"""How long a goodbye may take."""
LARGE_RESULT_BYTES: Final = 256 * 1024
"""A result below this, in its texts, cannot be too large for a frame: escapes make six bytes of one at most."""
PROGRESS_EVERY_S: Final = 1.0
STUBBORN: Final = frozenset(
    {CloseCode.UNSUPPORTED, CloseCode.UNAUTHENTICATED, CloseCode.FORBIDDEN, CloseCode.SUPERSEDED}
)


class Phase(Enum):
    """How far the connection is."""

    DOWN = "down"
    DIALLING = "dialling"
    GREETING = "greeting"
    OPEN = "open"
    LEAVING = "leaving"
    OVER = "over"


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


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat that was sent and not yet answered."""

    sent_at: float
    leases: frozenset[tuple[str, int]]


class Agent:
    """The whole state of one runner.

    Args:
        capabilities: what it can do.
        random: for jitter and the ids of messages.
    """

    def __init__(self, capabilities: messages.Capabilities, random: Random) -> None:
        self.capabilities = capabilities
        self.phase = Phase.DOWN
        self.held: dict[str, Held] = {}
        self.draining: events.Drain | None = None
        self.paused = False
        self._random = random
        self._told = capabilities  # in the last hello
        self._link = 0
        self._failures = 0
        self._dial_at: float | None = None
        self._phase_by = inf
        self._heard_at = 0.0
        self._hello_at = 0.0
        self._beat_at = inf
        self._beat_every_s: float = messages.HEARTBEAT_S
        self._beats: deque[Beat] = deque()
        self._answered: deque[str] = deque(maxlen=BEATS_REMEMBERED)
        self._outdated = False
        self._gateway_drains = False
        self._drain_by = inf
        self._drain_beat: Beat | None = None
        self._leave_at = -inf
        self._clock_offset_s = 0.0
        self._clock_tried = False
        self._retry_after_s = 0.0
        self._expected: float | None = None
        self._now = self._wall = 0.0
        self._out: list[Command] = []
        self._handlers: Mapping[type, Callable[[Any], None]] = MappingProxyType(
            {
                events.Start: self._start, events.Connected: self._connected, events.DialFailed: self._dial_failed,
                events.Received: self._received, events.Heard: self._heard, events.Dropped: self._dropped,
                events.OpEnded: self._op_ended, events.OpMoved: self._op_moved, events.Recalled: self._recalled,
                events.SessionBroke: self._session_broke, events.SessionEnded: self._session_ended,
                events.Changed: self._changed, events.Paused: self._paused, events.Drain: self._drain,
                events.Tick: self._tick,
            }
        )  # fmt: skip
        self._answers: Mapping[type, Callable[[Frame, Any], None]] = MappingProxyType(
            {
                messages.GatewayHeartbeat: self._beat_answered, messages.Assign: self._assigned,
                messages.OpRequest: self._op_requested, messages.Cancel: self._cancelled,
                messages.Drain: self._gateway_drain, messages.Bye: self._bye,
            }
        )  # fmt: skip

    def handle(self, event: Event, now: float, wall: float) -> list[Command]:
        """Takes what happened.

        Args:
            event: in the order in which it happened.
            now: seconds of a clock that never steps and that counts while the machine sleeps.
            wall: seconds since 1970, as this machine believes.

        Returns: what to do, in this order.
        """
        late = self._expected is not None and now > self._expected + SLEPT_S
        self._now, self._wall = now, wall
        self._stop_what_is_over()
        if late and self.phase in (Phase.DIALLING, Phase.GREETING, Phase.OPEN):
            self._out.append(events.Tell("slept", "This machine was asleep, or stood still: connecting again."))
            self._redial_now("slept")
        self._handlers[type(event)](event)
        self._leave_if_done()
        self._expected = self.next_at()
        out, self._out = self._out, []
        return out

    def next_at(self) -> float | None:
        """When to say `Tick` next; None: not before something happens."""
        if self.phase is Phase.OVER:
            return None
        times = [self._phase_by, self._beat_at if self.phase is Phase.OPEN else inf]
        if self._dial_at is not None:
            times.append(self._dial_at)
        if self.phase is Phase.OPEN:
            times.append(self._heard_at + SILENCE_S)
        if self.draining is not None and any(held.state is State.RUNNING for held in self.held.values()):
            times.append(self._drain_by)
        if self._awaits_crossing() and self._now < self._leave_at:
            times.append(self._leave_at)
        times.extend(_stop_at(held) for held in self.held.values() if held.state is not State.ENDING)
        first = min(times)
        return None if first == inf else first

    @property
    def free_slots(self) -> int:
        """How many more jobs this runner takes now."""
        if self.draining or self.paused or self._outdated or self._gateway_drains or not offered(self.capabilities):
            return 0
        return max(0, self.capabilities.slots - self._busy)

    @property
    def _busy(self) -> int:
        return sum(held.state is not State.DONE for held in self.held.values())

    # The connection

    def _start(self, _event: events.Start) -> None:
        self._dial()

    def _dial(self) -> None:
        self._link += 1
        self.phase, self._dial_at, self._phase_by = Phase.DIALLING, None, self._now + self._patience_s(DIAL_S)
        self._out.append(events.Dial(self._link))

    def _patience_s(self, whole_s: float) -> float:
        left = [held.deadline - self._now for held in self.held.values() if held.state is State.RUNNING]
        return min(whole_s, max(HURRIED_S, min(left) / 3)) if left else whole_s

    def _connected(self, event: events.Connected) -> None:
        if event.link != self._link or self.phase is not Phase.DIALLING:
            self._out.append(events.Hang(event.link, CloseCode.NORMAL, "not needed any more"))
            return
        self.phase, self._phase_by = Phase.GREETING, self._now + self._patience_s(WELCOME_S)
        self._heard_at = self._hello_at = self._now
        self._gateway_drains = False
        self._retry_after_s = 0.0
        self._told = self.capabilities
        self._out.append(
            events.SendHello(self._link, self._id(), self.capabilities, self._running(), self._clock_offset_s)
        )

    def _dial_failed(self, event: events.DialFailed) -> None:
        if event.link == self._link and self.phase is Phase.DIALLING:
            self._out.append(events.Tell("no_connection", event.reason))
            self._retry_after_s = min(event.retry_after_s or 0.0, RETRY_AFTER_S_MAX)
            self._down(stubborn=False)

    def _heard(self, event: events.Heard) -> None:
        if event.link == self._link:
            self._heard_at = self._now

    def _dropped(self, event: events.Dropped) -> None:
        if event.link != self._link or self.phase in (Phase.DOWN, Phase.OVER):
            return
        if self.phase is Phase.LEAVING:
            self._over()
            return
        why = f" ({event.reason})" if event.reason else ""
        self._out.append(
            events.Tell("disconnected", f"The connection ended: {event.code}{why}.", urgent=event.code in STUBBORN)
        )
        self._down(stubborn=event.code in STUBBORN)

    def _down(self, *, stubborn: bool) -> None:
        """There is no connection: when to dial again."""
        left = [held.deadline - self._now for held in self.held.values() if held.state is State.RUNNING]
        wait_s = redial_wait_s(
            self._random, self._failures, retry_after_s=self._retry_after_s, lease_left_s=min(left, default=None)
        )
        if stubborn:
            wait_s = max(self._retry_after_s, REFUSED_S * (0.5 + self._random.random()))
        self._failures += 1
        self._lost_link()
        self._dial_at = self._now + wait_s

    def _redial_now(self, reason: str) -> None:
        self._out.append(events.Hang(self._link, CloseCode.NORMAL, reason, at_once=True))
        self._lost_link()
        self._dial()

    def _lost_link(self) -> None:
        self.phase, self._phase_by, self._beat_at = Phase.DOWN, inf, inf
        self._beats.clear()

    def _received(self, event: events.Received) -> None:
        if event.link != self._link or self.phase not in (Phase.GREETING, Phase.OPEN):
            return
        self._heard_at = self._now
        message = event.frame.message
        if self.phase is Phase.GREETING and isinstance(message, messages.Welcome):
            self._welcomed(message)
        elif isinstance(message, messages.Bye) or (
            self.phase is Phase.OPEN and not isinstance(message, messages.Welcome)
        ):
            self._answers[type(message)](event.frame, message)

    def _welcomed(self, welcome: messages.Welcome) -> None:
        self.phase, self._phase_by, self._failures, self._clock_tried = Phase.OPEN, inf, 0, False
        minimum = welcome.min_agent_version
        self._outdated = minimum is not None and handshake.is_older(self.capabilities.agent_version, minimum)
        if self._outdated:
            text = f"This runner is {self.capabilities.agent_version}, and {minimum} is needed: update it to get jobs."
            self._out.append(events.Tell("outdated", text, urgent=True))
        else:
            self._out.append(events.Tell("connected", f"Connected to {welcome.gateway_instance}."))
        for kept in welcome.resumed:
            held = self.held.get(kept.job_id)
            if held is not None and held.epoch == kept.lease_epoch:
                held.deadline = max(held.deadline, self._hello_at + LEASE_S)
                if held.state is State.DONE:
                    self._say_last(held)
        # A gateway may want to hear of its runners more often than the protocol's 15 s; never less.
        self._beat_every_s = max(1, min(messages.HEARTBEAT_S, welcome.heartbeat_sec))
        self._beat_at = self._now
        self._say_drain()
        self._beat()
        self._ready()

    def _beat(self) -> None:
        if self.phase is not Phase.OPEN or self._now < self._beat_at:
            return
        running = self._running()
        self._beats.append(Beat(self._now, frozenset((job.job_id, job.lease_epoch) for job in running)))
        self._beat_at = self._now + self._beat_every_s
        self._send(messages.RunnerHeartbeat(free_slots=self.free_slots, running=running))

    def _beat_answered(self, frame: Frame, answer: messages.GatewayHeartbeat) -> None:
        if not self._beats or frame.id in self._answered:
            return
        self._answered.append(frame.id)
        beat = self._beats.popleft()
        for lease in answer.leases:
            held = self.held.get(lease.job_id)
            if held is None or (held.job_id, held.epoch) not in beat.leases:
                continue
            if lease.ok:
                held.deadline = max(held.deadline, beat.sent_at + LEASE_S)
            elif held.state is State.DONE:
                del self.held[held.job_id]
            else:
                self._end(held, "the gateway says that the lease is lost", ())

    def _ready(self) -> None:
        if self.phase is Phase.OPEN:
            self._send(messages.Ready(free_slots=self.free_slots))

    def _gateway_drain(self, _frame: Frame, _message: messages.Drain) -> None:
        self._gateway_drains = True

    def _bye(self, _frame: Frame, bye: messages.Bye) -> None:
        self._retry_after_s = min(float(bye.retry_after_sec or 0), RETRY_AFTER_S_MAX)
        self._out.append(events.Tell("goodbye", f"The gateway says goodbye: {bye.reason}.", urgent=True))
        theirs = None if bye.server_time is None else clocks.parse(bye.server_time)
        if theirs is None or self.phase is not Phase.GREETING or self._clock_tried:
            return
        if abs(theirs - self._wall) > CLOCK_OFF_S_MAX:
            return
        self._clock_tried, self._clock_offset_s = True, theirs - self._wall
        text = (
            f"This machine's clock is off by {-self._clock_offset_s:.0f} s; trying once more with the gateway's time."
        )
        self._out.append(events.Tell("clock", text, urgent=True))
        self._redial_now("clock")

    # Jobs

    def _assigned(self, frame: Frame, assign: messages.Assign) -> None:
        assert frame.job_id is not None  # its type needs one
        older = self.held.get(frame.job_id)
        if older is not None and older.epoch == assign.lease_epoch:
            return
        if older is not None and older.state is State.DONE:
            del self.held[older.job_id]
            older = None
        reason = RejectReason.BUSY if older is not None else self._declines(assign)
        if older is not None and older.state is State.RUNNING:
            self._end(older, "the job was assigned anew", ())
        if reason is not None:
            self._send(
                messages.Reject(lease_epoch=assign.lease_epoch, job_token=assign.job_token, reason=reason), frame.job_id
            )
            return
        self.held[frame.job_id] = Held(frame.job_id, assign, self._now + UNCONFIRMED_S, frame.session_id)
        self._send(messages.Accept(lease_epoch=assign.lease_epoch, job_token=assign.job_token), frame.job_id)
        self._out.append(events.OpenSession(frame.job_id, assign))

    def _declines(self, assign: messages.Assign) -> RejectReason | None:
        if self.draining is not None:
            return RejectReason.SHUTTING_DOWN
        if self.paused:
            return RejectReason.PAUSED_BY_USER
        if assign.job_type == JobType.REMOTION and self.capabilities.container == "none":
            return RejectReason.NO_CONTAINER_RUNTIME
        needs = Needs("", assign.org_id, assign.job_type, assign.requires, assign.limits.max_output_bytes)
        if assign.job_type not in ops.OPS or lacks(needs, self.capabilities) is not None or self._outdated:
            return RejectReason.CAPABILITY_MISMATCH
        return RejectReason.BUSY if self.free_slots <= 0 else None

    def _cancelled(self, frame: Frame, cancel: messages.Cancel) -> None:
        held = self.held.get(frame.job_id or "")
        if held is None:
            return
        if held.state is State.DONE:
            del self.held[held.job_id]
            return
        last = () if cancel.reason == CancelReason.LEASE_LOST else (self._complete(held, Outcome.CANCELLED),)
        self._end(held, cancel.reason, last, grace_s=min(cancel.grace_sec, GRACE_S_MAX))

    def _end(
        self, held: Held, reason: str, last: tuple[messages.RunnerMessage, ...], *, grace_s: float = STOP_MARGIN_S
    ) -> None:
        """Ends a session; what is last said of it comes when it has ended. A lost lease takes back what would be."""
        if held.state is State.RUNNING:
            held.state, held.last = State.ENDING, last
            self._out.append(events.EndSession(held.job_id, held.epoch, grace_s, reason))
        elif held.state is State.ENDING and not last:
            held.last = ()

    def _session_broke(self, event: events.SessionBroke) -> None:
        held = self._of(event.job_id, event.epoch)
        if held is not None:
            fail = messages.Fail(
                lease_epoch=held.epoch, job_token=held.assign.job_token, failure_class=messages.FailureClass.RUNNER,
                code=event.code, message=event.message, retryable=True,
            )  # fmt: skip
            self._end(held, event.code, (fail,))

    def _session_ended(self, event: events.SessionEnded) -> None:
        held = self._of(event.job_id, event.epoch)
        if held is None or held.state is not State.ENDING:
            return
        if held.last and self._now < held.deadline:
            held.state = State.DONE
            self._say_last(held)
        else:
            del self.held[held.job_id]
        self._ready()

    def _say_last(self, held: Held) -> None:
        if self.phase is Phase.OPEN:
            for message in held.last:
                session_id = held.session_id if isinstance(message, messages.OpResponse) else None
                self._send(message, held.job_id, session_id)

    def _stop_what_is_over(self) -> None:
        for held in list(self.held.values()):
            if self._now < _stop_at(held):
                continue
            if held.state is State.RUNNING:
                self._out.append(
                    events.Tell(
                        "lease_over", f"Job {held.job_id} stops: its lease was not confirmed in time.", urgent=True
                    )
                )
                self._end(held, "the lease was not confirmed in time", ())
            elif held.state is State.DONE:
                del self.held[held.job_id]

    # Ops

    def _op_requested(self, frame: Frame, request: messages.OpRequest) -> None:
        held = self.held.get(frame.job_id or "")
        if held is None or held.state is State.ENDING:
            return
        if held.session_id is None:
            held.session_id = frame.session_id
        if held.session_id != frame.session_id:
            return
        if held.state is State.DONE:
            self._say_last(held)
            return
        try:
            args = ops.args_of(held.assign.job_type, request.op, request.args)
        except ProtocolError as error:
            self._respond(held, request.op_id, _failed(error.code, str(error)))
            return
        match held.log.ask(request.op_id):
            case Repeat.NEW if request.op == "close":
                held.log.ended(request.op_id)
                done = self._response(held, request.op_id, Answer({}))
                self._end(held, "closed", (done, self._complete(held, Outcome.SUCCEEDED)))
            case Repeat.NEW:
                self._out.append(
                    events.RunOp(
                        held.job_id, held.epoch, held.assign.job_type, request.op_id, request.op, args,
                        float(request.timeout_sec),
                    )
                )  # fmt: skip
            case Repeat.KEPT:
                self._out.append(events.Recall(held.job_id, held.epoch, request.op_id))
            case Repeat.EXPIRED:
                self._respond(held, request.op_id, _EXPIRED)
            case Repeat.BUSY:
                text = f"Op {held.log.running} is in flight; a session handles one at a time."
                self._respond(held, request.op_id, _failed(OpCode.OP_IN_FLIGHT, text, retryable=True))
            case Repeat.RUNNING:
                return  # its answer will come

    def _op_ended(self, event: events.OpEnded) -> None:
        held = self._of(event.job_id, event.epoch)
        if held is None or held.state is not State.RUNNING:
            return
        aged = held.log.ended(event.op_id)
        if aged is None:
            return
        answer = self._fitting(held, event.op_id, event.answer)
        self._out.append(events.KeepAnswer(held.job_id, held.epoch, event.op_id, answer))
        for op_id in aged:
            self._out.append(events.ForgetAnswer(held.job_id, held.epoch, op_id))
        self._respond(held, event.op_id, answer)

    def _op_moved(self, event: events.OpMoved) -> None:
        held = self._of(event.job_id, event.epoch)
        if held is None or held.state is not State.RUNNING or self.phase is not Phase.OPEN:
            return
        if self._now < held.progress_at:
            return
        held.progress_at = self._now + PROGRESS_EVERY_S
        self._send(
            messages.Progress(
                lease_epoch=held.epoch, job_token=held.assign.job_token, stage=event.stage, op_id=event.op_id,
                percent=event.percent, detail=event.detail,
            ),
            held.job_id,
        )  # fmt: skip

    def _recalled(self, event: events.Recalled) -> None:
        held = self._of(event.job_id, event.epoch)
        if held is not None and held.state is State.RUNNING:
            self._respond(held, event.op_id, event.answer or _EXPIRED)

    def _respond(self, held: Held, op_id: str, answer: Answer) -> None:
        """Answers an op. Without a connection nothing is said: the gateway will ask again."""
        if self.phase is Phase.OPEN:
            self._send(self._response(held, op_id, answer), held.job_id, held.session_id)

    def _response(self, held: Held, op_id: str, answer: Answer) -> messages.OpResponse:
        return messages.OpResponse(
            lease_epoch=held.epoch, job_token=held.assign.job_token, op_id=op_id, ok=answer.error is None,
            result=(answer.result or {}) if answer.error is None else None, error=answer.error,
        )  # fmt: skip

    def _fitting(self, held: Held, op_id: str, answer: Answer) -> Answer:
        """The answer, or that it is too large for a frame: it must not be found out by the socket."""
        if sum(len(value) for value in (answer.result or {}).values() if isinstance(value, str)) < LARGE_RESULT_BYTES:
            return answer
        try:
            messages.encode(Frame("", self._response(held, op_id, answer), held.job_id, held.session_id))
        except ProtocolError as error:
            return _failed(OpCode.FILE_TOO_LARGE, str(error))
        return answer

    def _complete(self, held: Held, outcome: Outcome) -> messages.Complete:
        return messages.Complete(lease_epoch=held.epoch, job_token=held.assign.job_token, outcome=outcome)

    # The person, the system and time

    def _changed(self, event: events.Changed) -> None:
        self.capabilities = event.capabilities
        if self.phase is Phase.OPEN and not self.held and event.capabilities != self._told:
            self._redial_now("capabilities changed")  # they are told in a hello only
        else:
            self._ready()

    def _paused(self, event: events.Paused) -> None:
        self.paused = event.paused
        self._ready()

    def _drain(self, event: events.Drain) -> None:
        by = inf if event.deadline_s is None else self._now + event.deadline_s
        first, self.draining = self.draining is None, event
        self._drain_by = min(self._drain_by, by)
        if first:
            self._say_drain()
        self._drain_due()

    def _say_drain(self) -> None:
        """Announces the drain. The heartbeat behind it is answered when the gateway has read it: whatever it assigned
        before has come by then, and could be declined (S65)."""
        if self.draining is None or self.phase is not Phase.OPEN:
            return
        self._send(messages.Drain(reason=self.draining.reason))
        self._beat_at = self._now
        self._beat()
        self._drain_beat, self._leave_at = self._beats[-1], self._now + LEAVE_S

    def _awaits_crossing(self) -> bool:
        return self.phase is Phase.OPEN and any(beat is self._drain_beat for beat in self._beats)

    def _drain_due(self) -> None:
        if self._now >= self._drain_by:
            for held in self.held.values():
                if held.state is State.RUNNING:
                    self._end(held, "the runner ends", (), grace_s=GRACE_AT_DRAIN_S)

    def _leave_if_done(self) -> None:
        if self.draining is None or self.phase in (Phase.LEAVING, Phase.OVER) or self._busy:
            return
        if self._awaits_crossing() and self._now < self._leave_at:
            return
        if self.phase is Phase.OPEN:
            self._send(messages.Bye(reason=self.draining.reason))
            self._out.append(events.Hang(self._link, CloseCode.NORMAL, "drained"))
            self.phase, self._phase_by = Phase.LEAVING, self._now + LEAVE_S
            self.held.clear()
        elif not self.held:
            if self.phase is not Phase.DOWN:
                self._out.append(events.Hang(self._link, CloseCode.NORMAL, "drained", at_once=True))
            self._over()

    def _over(self) -> None:
        self.phase, self._dial_at, self._phase_by = Phase.OVER, None, inf
        self._out.append(events.Exit(0))

    def _tick(self, _event: events.Tick) -> None:
        if self._dial_at is not None and self._now >= self._dial_at:
            self._dial()
        self._drain_due()
        if self._now >= self._phase_by:
            if self.phase is Phase.LEAVING:
                self._over()
            else:
                self._out.append(events.Hang(self._link, CloseCode.NORMAL, "no answer came", at_once=True))
                self._down(stubborn=False)
        elif self.phase is Phase.OPEN and self._now >= self._heard_at + SILENCE_S:
            self._out.append(events.Tell("silence", f"Nothing came for {SILENCE_S:.0f} s: connecting again."))
            self._redial_now("silence")
        else:
            self._beat()

    # What all of these are made of

    def _running(self) -> tuple[messages.Held, ...]:
        return tuple(messages.Held(job_id=held.job_id, lease_epoch=held.epoch) for held in self.held.values())

    def _of(self, job_id: str, epoch: int) -> Held | None:
        held = self.held.get(job_id)
        return held if held is not None and held.epoch == epoch else None

    def _send(self, message: messages.RunnerMessage, job_id: str | None = None, session_id: str | None = None) -> None:
        self._out.append(events.Send(self._link, Frame(self._id(), message, job_id, session_id)))

    def _id(self) -> str:
        return str(UUID(int=self._random.getrandbits(128), version=4))


def _stop_at(held: Held) -> float:
    return held.deadline - (STOP_MARGIN_S if held.state is State.RUNNING else 0.0)


def _failed(code: str, message: str, *, retryable: bool = False) -> Answer:
    return Answer(error=OpError(code=code, message=message, retryable=retryable))


_EXPIRED: Final = _failed(OpCode.OP_EXPIRED, "This op was done, and its answer has aged out.")
