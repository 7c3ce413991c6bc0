"""A runner without its socket and its programs: events in, commands out. Pure.

It dials, says hello, and holds what it is assigned: one session for each job, one op at a time in each. Connections
come and go, and sessions stay: their rules are in `agent_jobs` and `agent_ops`. Here are the connection, with what a
silent or a hostile gateway does to it, heartbeats, and the end. The runner distrusts what it is assigned as much as it
is distrusted (I12): what it cannot do it declines.

Spec: runners, "Connection handshake and authentication", "Job lifecycle, leases and fencing".
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from random import Random
from types import MappingProxyType
from typing import Any, Final

from rota.runners import agent_events as events
from rota.runners import clocks, handshake, messages, ops
from rota.runners.agent_events import Command, Event
from rota.runners.agent_jobs import Held, HeldJobs, State
from rota.runners.agent_line import Line, Phase
from rota.runners.agent_ops import AgentOps
from rota.runners.codes import CloseCode, JobType, RejectReason
from rota.runners.dial import LEASE_SHARE, redial_wait_s
from rota.runners.frames import Frame
from rota.runners.matching import Needs, lacks, offered
from rota.runners.messages import LEASE_S

SILENCE_S: Final = 33.0
"""After two heartbeats without an answer, and a little, a link is half open: redial while the leases still hold."""
WELCOME_S: Final = 20.0
"""How long a gateway may take to answer a hello: the database has its say before."""
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
CLOCK_OFF_S_MAX: Final = 100 * 365.25 * 86_400
"""A clock that has lost its battery is decades off; a gateway's time that is further away is wrong itself."""
LEAVE_S: Final = 5.0
"""How long a goodbye may take."""
STUBBORN: Final = frozenset(
    {CloseCode.UNSUPPORTED, CloseCode.UNAUTHENTICATED, CloseCode.FORBIDDEN, CloseCode.SUPERSEDED}
)


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
        self.draining: events.Drain | None = None
        self.paused = False
        self._line = line = Line(random)
        self._jobs = jobs = HeldJobs(line)
        operations = AgentOps(line, jobs)
        self._told = capabilities  # in the last hello
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
        self._handlers: Mapping[type, Callable[[Any], None]] = MappingProxyType(
            {
                events.Start: self._start, events.Connected: self._connected, events.DialFailed: self._dial_failed,
                events.Received: self._received, events.Heard: self._heard, events.Dropped: self._dropped,
                events.OpEnded: operations.ended, events.OpMoved: operations.moved,
                events.Recalled: operations.recalled,
                events.SessionBroke: jobs.broke, events.SessionEnded: self._session_ended,
                events.Changed: self._changed, events.Paused: self._paused, events.Drain: self._drain,
                events.Tick: self._tick,
            }
        )  # fmt: skip
        self._answers: Mapping[type, Callable[[Frame, Any], None]] = MappingProxyType(
            {
                messages.GatewayHeartbeat: self._beat_answered, messages.Assign: self._assigned,
                messages.OpRequest: operations.requested, messages.Cancel: jobs.cancelled,
                messages.Drain: self._gateway_drain, messages.Bye: self._bye,
            }
        )  # fmt: skip

    @property
    def phase(self) -> Phase:
        """How far the connection is."""
        return self._line.phase

    @property
    def held(self) -> Mapping[str, Held]:
        """The jobs that this runner holds, by id."""
        return self._jobs.by_id

    def handle(self, event: Event, now: float, wall: float) -> list[Command]:
        """Takes what happened.

        Args:
            event: in the order in which it happened.
            now: seconds of a clock that never steps and that counts while the machine sleeps.
            wall: seconds since 1970, as this machine believes.

        Returns: what to do, in this order.
        """
        late = self._expected is not None and now > self._expected + SLEPT_S
        self._line.now, self._line.wall = now, wall
        self._jobs.stop_what_is_over()
        if late and self._line.phase in (Phase.DIALLING, Phase.GREETING, Phase.OPEN):
            self._line.say(events.Tell("slept", "This machine was asleep, or stood still: connecting again."))
            self._redial_now("slept")
        self._handlers[type(event)](event)
        self._leave_if_done()
        self._expected = self.next_at()
        return self._line.take()

    def next_at(self) -> float | None:
        """When to say `Tick` next; None: not before something happens."""
        if self._line.phase is Phase.OVER:
            return None
        times = [self._phase_by, self._beat_at if self._line.is_open else inf]
        if self._dial_at is not None:
            times.append(self._dial_at)
        if self._line.is_open:
            times.append(self._heard_at + SILENCE_S)
        if self.draining is not None and self._jobs.has_running():
            times.append(self._drain_by)
        if self._awaits_crossing() and self._line.now < self._leave_at:
            times.append(self._leave_at)
        times.append(self._jobs.stop_at())
        first = min(times)
        return None if first == inf else first

    @property
    def free_slots(self) -> int:
        """How many more jobs this runner takes now."""
        if self.draining or self.paused or self._outdated or self._gateway_drains or not offered(self.capabilities):
            return 0
        return max(0, self.capabilities.slots - self._jobs.busy)

    # The connection

    def _start(self, _event: events.Start) -> None:
        self._dial()

    def _dial(self) -> None:
        self._line.link += 1
        self._line.phase, self._dial_at, self._phase_by = (
            Phase.DIALLING,
            None,
            self._line.now + self._patience_s(DIAL_S),
        )
        self._line.say(events.Dial(self._line.link))

    def _patience_s(self, whole_s: float) -> float:
        left_s = self._jobs.least_left_s()
        return whole_s if left_s is None else min(whole_s, max(HURRIED_S, left_s / 3))

    def _connected(self, event: events.Connected) -> None:
        if event.link != self._line.link or self._line.phase is not Phase.DIALLING:
            self._line.say(events.Hang(event.link, CloseCode.NORMAL, "not needed any more"))
            return
        self._line.phase, self._phase_by = Phase.GREETING, self._line.now + self._patience_s(WELCOME_S)
        self._heard_at = self._hello_at = self._line.now
        self._gateway_drains = False
        self._retry_after_s = 0.0
        self._told = self.capabilities
        self._line.say(
            events.SendHello(
                self._line.link, self._line.new_id(), self.capabilities, self._jobs.running(), self._clock_offset_s
            )
        )

    def _dial_failed(self, event: events.DialFailed) -> None:
        if event.link == self._line.link and self._line.phase is Phase.DIALLING:
            self._line.say(events.Tell("no_connection", event.reason))
            self._retry_after_s = min(event.retry_after_s or 0.0, RETRY_AFTER_S_MAX)
            self._down()

    def _heard(self, event: events.Heard) -> None:
        if event.link == self._line.link:
            self._heard_at = self._line.now

    def _dropped(self, event: events.Dropped) -> None:
        if event.link != self._line.link or self._line.phase in (Phase.DOWN, Phase.OVER):
            return
        if self._line.phase is Phase.LEAVING:
            self._over()
            return
        why = f" ({event.reason})" if event.reason else ""
        self._line.say(
            events.Tell("disconnected", f"The connection ended: {event.code}{why}.", urgent=event.code in STUBBORN)
        )
        self._down(event.code if event.code in STUBBORN else None)

    def _down(self, refused: int | None = None) -> None:
        """There is no connection: when to dial again. `refused`: with a code of those that time alone does not mend."""
        wait_s = redial_wait_s(
            self._line.random, self._failures, retry_after_s=self._retry_after_s, lease_left_s=self._jobs.least_left_s()
        )
        if refused is not None:
            wait_s = max(self._retry_after_s, REFUSED_S * (0.5 + self._line.random.random()))
            left_s = self._jobs.least_left_s()
            if refused == CloseCode.SUPERSEDED and left_s is not None:
                # It may have been its own older connection, late: no session is given up for that.
                wait_s = min(wait_s, left_s * LEASE_SHARE)
        self._failures += 1
        self._lost_link()
        self._dial_at = self._line.now + wait_s

    def _redial_now(self, reason: str) -> None:
        self._line.say(events.Hang(self._line.link, CloseCode.NORMAL, reason, at_once=True))
        self._lost_link()
        self._dial()

    def _lost_link(self) -> None:
        self._line.phase, self._phase_by, self._beat_at = Phase.DOWN, inf, inf
        self._beats.clear()

    def _received(self, event: events.Received) -> None:
        if event.link != self._line.link or self._line.phase not in (Phase.GREETING, Phase.OPEN):
            return
        self._heard_at = self._line.now
        message = event.frame.message
        if self._line.phase is Phase.GREETING and isinstance(message, messages.Welcome):
            self._welcomed(message)
        elif isinstance(message, messages.Bye) or (self._line.is_open and not isinstance(message, messages.Welcome)):
            self._answers[type(message)](event.frame, message)

    def _welcomed(self, welcome: messages.Welcome) -> None:
        self._line.phase, self._phase_by, self._failures, self._clock_tried = Phase.OPEN, inf, 0, False
        minimum = welcome.min_agent_version
        self._outdated = minimum is not None and handshake.is_older(self.capabilities.agent_version, minimum)
        if self._outdated:
            text = f"This runner is {self.capabilities.agent_version}, and {minimum} is needed: update it to get jobs."
            self._line.say(events.Tell("outdated", text, urgent=True))
        else:
            self._line.say(events.Tell("connected", f"Connected to {welcome.gateway_instance}."))
        for kept in welcome.resumed:
            held = self._jobs.of(kept.job_id, kept.lease_epoch)
            if held is not None:
                self._jobs.confirmed(held, self._hello_at + LEASE_S)
                if held.state is State.DONE:
                    self._jobs.say_last(held)
        # A gateway may want to hear of its runners more often than the protocol's 15 s; never less.
        self._beat_every_s = max(1, min(messages.HEARTBEAT_S, welcome.heartbeat_sec))
        self._beat_at = self._line.now
        self._say_drain()
        self._beat()
        self._ready()

    def _beat(self) -> None:
        if not self._line.is_open or self._line.now < self._beat_at:
            return
        running = self._jobs.running()
        self._beats.append(Beat(self._line.now, frozenset((job.job_id, job.lease_epoch) for job in running)))
        self._beat_at = self._line.now + self._beat_every_s
        self._line.send(messages.RunnerHeartbeat(free_slots=self.free_slots, running=running))

    def _beat_answered(self, frame: Frame, answer: messages.GatewayHeartbeat) -> None:
        if not self._beats or frame.id in self._answered:
            return
        self._answered.append(frame.id)
        beat = self._beats.popleft()
        for lease in answer.leases:
            held = self._jobs.by_id.get(lease.job_id)
            if held is None or (held.job_id, held.epoch) not in beat.leases:
                continue
            if lease.ok:
                self._jobs.confirmed(held, beat.sent_at + LEASE_S)
            else:
                self._jobs.lost(held)

    def _ready(self) -> None:
        if self._line.is_open:
            self._line.send(messages.Ready(free_slots=self.free_slots))

    def _gateway_drain(self, _frame: Frame, _message: messages.Drain) -> None:
        self._gateway_drains = True

    def _bye(self, _frame: Frame, bye: messages.Bye) -> None:
        self._retry_after_s = min(float(bye.retry_after_sec or 0), RETRY_AFTER_S_MAX)
        self._line.say(events.Tell("goodbye", f"The gateway says goodbye: {bye.reason}.", urgent=True))
        theirs = None if bye.server_time is None else clocks.parse(bye.server_time)
        if theirs is None or self._line.phase is not Phase.GREETING or self._clock_tried:
            return
        if abs(theirs - self._line.wall) > CLOCK_OFF_S_MAX:
            return
        self._clock_tried, self._clock_offset_s = True, theirs - self._line.wall
        text = (
            f"This machine's clock is off by {-self._clock_offset_s:.0f} s; trying once more with the gateway's time."
        )
        self._line.say(events.Tell("clock", text, urgent=True))
        self._redial_now("clock")

    # Jobs

    def _assigned(self, frame: Frame, assign: messages.Assign) -> None:
        self._jobs.take(frame, assign, lambda: self._declines(assign))

    def _session_ended(self, event: events.SessionEnded) -> None:
        if self._jobs.ended(event):
            self._ready()

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

    # The person, the system and time

    def _changed(self, event: events.Changed) -> None:
        self.capabilities = event.capabilities
        if self._line.is_open and not self._jobs.by_id and event.capabilities != self._told:
            self._redial_now("capabilities changed")  # they are told in a hello only
        else:
            self._ready()

    def _paused(self, event: events.Paused) -> None:
        self.paused = event.paused
        self._ready()

    def _drain(self, event: events.Drain) -> None:
        by = inf if event.deadline_s is None else self._line.now + event.deadline_s
        first, self.draining = self.draining is None, event
        self._drain_by = min(self._drain_by, by)
        if first:
            self._say_drain()
        self._drain_due()

    def _say_drain(self) -> None:
        """Announces the drain. The heartbeat behind it is answered when the gateway has read it: whatever it assigned
        before has come by then, and could be declined (S65)."""
        if self.draining is None or not self._line.is_open:
            return
        self._line.send(messages.Drain(reason=self.draining.reason))
        self._beat_at = self._line.now
        self._beat()
        self._drain_beat, self._leave_at = self._beats[-1], self._line.now + LEAVE_S

    def _awaits_crossing(self) -> bool:
        return self._line.is_open and any(beat is self._drain_beat for beat in self._beats)

    def _drain_due(self) -> None:
        if self._line.now >= self._drain_by:
            self._jobs.end_all("the runner ends", grace_s=GRACE_AT_DRAIN_S)

    def _leave_if_done(self) -> None:
        if self.draining is None or self._line.phase in (Phase.LEAVING, Phase.OVER) or self._jobs.busy:
            return
        if self._awaits_crossing() and self._line.now < self._leave_at:
            return
        if self._line.is_open:
            self._line.send(messages.Bye(reason=self.draining.reason))
            self._line.say(events.Hang(self._line.link, CloseCode.NORMAL, "drained"))
            self._line.phase, self._phase_by = Phase.LEAVING, self._line.now + LEAVE_S
            self._jobs.by_id.clear()
        elif not self._jobs.by_id:
            if self._line.phase is not Phase.DOWN:
                self._line.say(events.Hang(self._line.link, CloseCode.NORMAL, "drained", at_once=True))
            self._over()

    def _over(self) -> None:
        self._line.phase, self._dial_at, self._phase_by = Phase.OVER, None, inf
        self._line.say(events.Exit(0))

    def _tick(self, _event: events.Tick) -> None:
        if self._dial_at is not None and self._line.now >= self._dial_at:
            self._dial()
        self._drain_due()
        if self._line.now >= self._phase_by:
            if self._line.phase is Phase.LEAVING:
                self._over()
            else:
                self._line.say(events.Hang(self._line.link, CloseCode.NORMAL, "no answer came", at_once=True))
                self._down()
        elif self._line.is_open and self._line.now >= self._heard_at + SILENCE_S:
            self._line.say(events.Tell("silence", f"Nothing came for {SILENCE_S:.0f} s: connecting again."))
            self._redial_now("silence")
        else:
            self._beat()
