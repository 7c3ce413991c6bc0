"""One replica of the gateway without its sockets and its database: events in, commands out. Pure.

A connection says hello, is checked, is welcomed; then it is dealt jobs for its free slots, and ops for its sessions.
The database decides every lease: this machine only asks, and believes itself less. What a runner says about a job
counts if the job is live on its very connection, under the epoch and with the token that it was given (I3); else it is
told to stop. A job outlives its connection for as long as its lease does, so that its runner can come back.

Spec: runners, "Connection handshake and authentication", "Job lifecycle, leases and fencing", "Session ops".
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from rota.runners import clocks, handshake, messages
from rota.runners import gateway_events as events
from rota.runners.gateway_events import Command, Event, Job, Lease
from rota.runners.matching import Needs, Target, belongs, failure_class, lacks, refuses, target_of
from rota.runners.messages import CancelReason, CloseCode, FailureClass, Frame, OfJob, Outcome
from rota.runners.ramp import Ramp
from rota.runners.registry import Link, Live, Phase, Registry, State
from rota.runners.session import InFlight, OpGate
from rota.runners.timers import Timers
from rota.runners.token import Claims, TokenKeys, expiry

HELLO_S: Final = 10.0
ACCEPT_S: Final = 10.0
LEASE_S: Final = 45.0
GRACE_S: Final = 10
AWAY_S: Final = 3.0
"""For how long an op waits for a runner whose connection has just ended: it dials again within a second or two, and a
balancer that is started anew must not cost sessions."""
ENDS: Final = "this gateway ends; ask again with the same opId, the runner keeps its answer"
DECLINED_S: Final = 60.0
"""For how long a job is not offered again to a runner that was too busy for it, or silent."""
DECLINED_MAX: Final = 64
CLAIM_MAX: Final = 16
"""Jobs of one claim. A runner that has more free slots claims again at once."""
BEATS_MAX: Final = 4
"""Heartbeats that wait for the database; a runner that sends more is answered on the next."""
ENDED_MAX: Final = 4096
"""Jobs that ended here and are remembered, so that what crosses their end on its way is not answered."""
PROGRESS_EVERY_S: Final = 1.0
HELLOS_PER_S: Final = 500.0
RETURN_S: Final = 1.0
"""A lease that is live here lets its runner in past the ramp, once in so long."""
RETURN_RETRY_MAX_S: Final = 10.0
"""Who says that it holds jobs is told to wait no longer: 30 s of a lease may be left when a line is cut."""
DRY_S: Final = 1.0
"""For how long a claim that found nothing speaks for all runners that are alike: till the next look for queued jobs."""
DRY_MAX: Final = 4096
"""Sorts of runners about which this is remembered."""
DISABLED: Final = "this organisation may not use runners now"


Sort = tuple[str, str | None, messages.Capabilities]
"""What the claims of runners that are alike have in common: kind, organisation, and what they can do."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a replica is told.

    Attributes:
        instance: its name, which is in its welcomes and in the rows of its sessions.
        min_agent_version: older runners get no jobs; None: all do.
        hellos_per_s: how many runners may connect in a second; those that hold jobs have as many of their own.
    """

    instance: str
    min_agent_version: str | None = None
    hellos_per_s: float = HELLOS_PER_S


class Gateway:
    """The whole state of one replica.

    Args:
        rules: what it is told.
        keys: for job tokens, the same on all replicas.
        random: for the ids of messages and ops.
    """

    def __init__(self, rules: Rules, keys: TokenKeys, random: Random) -> None:
        self.rules = rules
        self.registry = Registry()
        self.jobs: dict[str, Live] = {}
        self.draining: events.Drain | None = None
        self.stopping = False
        self._keys = keys
        self._random = random
        self._sessions: dict[str, Live] = {}
        self._of_runner: dict[str, dict[str, Live]] = {}
        self._asks: dict[int, Live] = {}
        self._ramp = Ramp(rules.hellos_per_s)
        self._returns = Ramp(rules.hellos_per_s, retry_max_s=RETURN_RETRY_MAX_S)
        self._dry: dict[Sort, float] = {}
        self._lines: dict[Sort, dict[int, None]] = {}
        self._leaders: dict[int, Sort] = {}
        self._stirred = self._demands = 0
        self._ended: OrderedDict[Lease, None] = OrderedDict()
        self._timers: Timers[tuple[str, int | str]] = Timers()
        self._out: list[Command] = []
        self._now = self._wall = 0.0
        self._handlers: Mapping[type, Callable[[Any], None]] = MappingProxyType(
            {
                events.Opened: self._opened, events.Received: self._received, events.Garbled: self._garbled,
                events.Unsendable: self._unsendable,
                events.Heard: self._heard, events.Lost: self._lost, events.Verified: self._verified,
                events.Refused: self._refused, events.Kept: self._kept, events.Claimed: self._claimed,
                events.Renewed: self._renewed, events.LeaseLost: self._lease_lost, events.Demand: self._demand,
                events.CancelJob: self._cancel_job, events.JobEnded: self._job_ended,
                events.Revoked: self._revoked, events.Forbidden: self._forbidden,
                events.Moved: self._moved, events.OpAsked: self._op_asked, events.AskGone: self._ask_gone,
                events.Drain: self._drain, events.Stop: self._stop, events.Tick: self._tick,
            }
        )  # fmt: skip
        self._answers: Mapping[type, Callable[[Link, Any], None]] = MappingProxyType(
            {
                messages.RunnerHeartbeat: self._heartbeat, messages.Ready: self._ready,
                messages.Drain: self._runner_drains, messages.Bye: self._bye,
            }
        )  # fmt: skip
        self._job_answers: Mapping[type, Callable[[Link, Live, Any], None]] = MappingProxyType(
            {
                messages.Accept: self._accept, messages.Reject: self._reject, messages.Progress: self._progress,
                messages.OpResponse: self._op_response, messages.Complete: self._complete, messages.Fail: self._fail,
            }
        )  # fmt: skip

    def handle(self, event: Event, now: float, wall: float) -> list[Command]:
        """Takes what happened.

        Args:
            event: in the order in which it happened.
            now: seconds of a clock that never steps, not less than before.
            wall: seconds since 1970, for times that runners read and for the ends of tokens.

        Returns: what to do, in this order.
        """
        self._now, self._wall = now, wall
        self._handlers[type(event)](event)
        out, self._out = self._out, []
        return out

    def next_at(self) -> float | None:
        """When to say `Tick` next; None: not before something happens."""
        return self._timers.next_at()

    def live(self, session_id: str) -> Live | None:
        """The live job of a session, for views and figures."""
        return self._sessions.get(session_id)

    # Connections

    def _opened(self, event: events.Opened) -> None:
        link = Link(event.connection, event.host, self._now)
        self.registry.links[link.number] = link
        self._timers.set(("hello", link.number), self._now + HELLO_S)
        self._timers.set(("link", link.number), self._now + messages.DEAD_AFTER_S)

    def _received(self, event: events.Received) -> None:
        link = self._alive(event.connection)
        if link is None:
            return
        message = event.frame.message
        if link.phase is Phase.HELLO and isinstance(message, messages.Hello):
            self._hello(link, message)
        elif link.phase is not Phase.OPEN:
            self._end(link, CloseCode.UNSUPPORTED, f"{message.type} came before the welcome")
        elif isinstance(message, messages.Hello):
            self._end(link, CloseCode.UNSUPPORTED, "a second hello")
        elif isinstance(message, OfJob):
            self._of_job(link, event.frame, message)
        else:
            self._answers[type(message)](link, message)

    def _garbled(self, event: events.Garbled) -> None:
        link = self._alive(event.connection)
        if link is None or link.phase is Phase.OPEN:
            return
        if event.code == messages.ErrorCode.UNSUPPORTED_VERSION:
            self._goodbye(link, CloseCode.UNSUPPORTED, handshake.supported())
        else:
            self._end(link, CloseCode.UNSUPPORTED, event.reason)

    def _heard(self, event: events.Heard) -> None:
        self._alive(event.connection)

    def _lost(self, event: events.Lost) -> None:
        link = self.registry.links.pop(event.connection, None)
        if link is not None:
            self._leave(link, "the connection is gone")
            self._timers.drop(("hello", link.number))
            self._timers.drop(("link", link.number))

    def _hello(self, link: Link, hello: messages.Hello) -> None:
        refusal = handshake.check_hello(hello)
        if refusal is not None:
            self._goodbye(link, refusal.code, refusal.reason)
            return
        wait_s = self._admit(hello)
        if wait_s is not None:
            reason = "too many runners connect at once; try again later"
            self._goodbye(link, CloseCode.RATE_LIMITED, reason, wait_s)
            return
        self._timers.drop(("hello", link.number))
        link.hello, link.phase = hello, Phase.CHECKING
        link.version = handshake.negotiate(hello.protocol_version) or messages.PROTOCOL_VERSION
        self._out.append(events.Authenticate(link.number, hello, link.host))

    def _admit(self, hello: messages.Hello) -> float | None:
        """Before anything of it is proved: None if it may come in, else how long it should wait.

        Ids of jobs are not guessed, so one that is live here speaks for its runner. Whoever holds jobs of which this
        replica does not know, as after its restart, goes before those that hold none."""
        held = hello.running or ()
        for one in held:
            live = self._of(Lease(one.job_id, one.lease_epoch))
            if live is not None and self._now >= live.returned_at + RETURN_S:
                live.returned_at = self._now
                return None
        return (self._returns if held else self._ramp).admit(self._now)

    def _refused(self, event: events.Refused) -> None:
        link = self._waiting(event.connection, Phase.HELLO, Phase.CHECKING)
        if link is not None:
            self._goodbye(
                link,
                event.code,
                event.reason,
                event.retry_after_s,
                clocks.stamp(self._wall) if event.tells_time else None,
            )

    def _verified(self, event: events.Verified) -> None:
        link = self._waiting(event.connection, Phase.CHECKING)
        if link is None:
            return
        if event.identity.runner_id in link.barred:
            self._goodbye(link, CloseCode.UNAUTHENTICATED, "the device was revoked")
            return
        if event.identity.org_id in link.barred:
            self._goodbye(link, CloseCode.FORBIDDEN, DISABLED)
            return
        link.identity = event.identity
        old = self.registry.of_runner.get(event.identity.runner_id)
        if old is not None:
            self._end(old, CloseCode.SUPERSEDED, "superseded by a newer connection of the same runner")
        self.registry.of_runner[event.identity.runner_id] = link
        minimum = self.rules.min_agent_version
        link.outdated = minimum is not None and handshake.is_older(link.capabilities.agent_version, minimum)
        held = _listed(link)
        for live in self._of_runner.get(event.identity.runner_id, {}).values():
            if live.job.lease not in held:
                self._release_waiters(live, 410, "session_lost", "the runner came back without this session")
        if held:
            link.phase = Phase.HOLDING
            self._out.append(events.CheckHeld(link.number, event.identity, held))
        else:
            self._welcome(link, ())

    def _kept(self, event: events.Kept) -> None:
        link = self._waiting(event.connection, Phase.HOLDING)
        if link is None or link.identity is None:
            return
        kept: list[Live] = []
        for job in event.jobs:
            live = self.jobs.get(job.lease.job_id)
            if live is not None and live.job.lease != job.lease:
                self._forget(live, "another runner has the job")
                live = None
            if live is None:
                live = self._enter(link, job, State.CANCELLING if job.cancelling else State.RUNNING)
                if job.cancelling:
                    live.answer_by = self._now + GRACE_S
            self._attach(link, live)
            if not job.accepted or live.state is State.OFFERED:
                self._out.append(events.StoreAccept(job.lease))
            if live.state is State.OFFERED:
                live.state, live.answer_by = State.RUNNING, None
            self._watch(live)
            kept.append(live)
        self._welcome(link, tuple(live for live in kept if live.state is State.RUNNING))

    def _welcome(self, link: Link, resumed: tuple[Live, ...]) -> None:
        assert link.identity is not None
        link.phase = Phase.OPEN
        self._send(
            link,
            messages.Welcome(
                runner_id=link.identity.runner_id,
                kind=link.identity.kind,
                org_id=link.identity.org_id,
                protocol_version=link.version,
                heartbeat_sec=messages.HEARTBEAT_S,
                dead_after_sec=messages.DEAD_AFTER_S,
                max_inline_bytes=messages.PAYLOAD_BYTES_MAX,
                gateway_instance=self.rules.instance,
                server_time=clocks.stamp(self._wall),
                resumed=tuple(
                    messages.Held(job_id=live.job.lease.job_id, lease_epoch=live.job.lease.epoch) for live in resumed
                ),
                min_agent_version=self.rules.min_agent_version,
            ),
        )
        self._out.append(events.Seen(link.number, link.identity, link.capabilities))
        for lease in _listed(link):
            live = link.jobs.get(lease.job_id)
            if live is None or live.job.lease != lease:
                self._send_cancel(link, lease.job_id, CancelReason.LEASE_LOST)
            elif live.state is State.CANCELLING:
                self._send_cancel(link, lease.job_id, live.cancel_reason)
        for live in resumed:
            self._send_op(live)
        if self.draining is not None:
            self._send(link, messages.Drain(reason=self.draining.reason, deadline_sec=self.draining.deadline_s))

    def _heartbeat(self, link: Link, beat: messages.RunnerHeartbeat) -> None:
        listed = {held.job_id for held in beat.running}
        link.reported = beat.free_slots - sum(job_id not in listed for job_id in link.jobs)
        self.registry.place(link)
        if len(link.beats) >= BEATS_MAX:
            return
        link.beats.append(beat)
        if len(link.beats) == 1:
            self._renew(link)

    def _renew(self, link: Link) -> None:
        """Asks for the leases of the oldest heartbeat that waits; one after the other, so that answers keep their
        order."""
        while link.beats:
            valid = tuple(lease for lease in _leases(link.beats[0]) if self._holds(link, lease))
            if valid:
                self._out.append(events.Renew(link.number, valid))
                return
            self._answer_beat(link, frozenset(), known=True)

    def _renewed(self, event: events.Renewed) -> None:
        link = self._waiting(event.connection, Phase.OPEN)
        if link is None or not link.beats:
            return
        self._answer_beat(link, frozenset(event.lost or ()), known=event.lost is not None)
        self._renew(link)

    def _answer_beat(self, link: Link, lost: frozenset[Lease], *, known: bool) -> None:
        answers: list[messages.LeaseAnswer] = []
        for lease in _leases(link.beats.popleft()):
            ok = self._holds(link, lease) and lease not in lost
            if ok and known:
                live = link.jobs[lease.job_id]
                live.leased_until = self._now + LEASE_S
                self._watch(live)
            if known or not ok:
                answers.append(messages.LeaseAnswer(job_id=lease.job_id, ok=ok))
        self._send(link, messages.GatewayHeartbeat(server_time=clocks.stamp(self._wall), leases=tuple(answers)))
        for gone in map(self._of, lost):
            if gone is not None:
                self._forget(gone, "its lease is gone")

    def _ready(self, link: Link, message: messages.Ready) -> None:
        link.reported = message.free_slots - sum(live.state is State.OFFERED for live in link.jobs.values())
        self._claim_in_turn(link)
        self.registry.place(link)

    def _runner_drains(self, link: Link, _message: messages.Drain) -> None:
        link.draining = True
        self.registry.place(link)

    def _bye(self, link: Link, message: messages.Bye) -> None:
        if link.draining:  # it said that it ends, so nobody will come back for its jobs
            for live in list(link.jobs.values()):
                self._expire(live, "the runner ended")
        self._end(link, CloseCode.NORMAL, "goodbye")

    # Dealing jobs

    def _demand(self, event: events.Demand) -> None:
        self._stir()
        self._demands += 1
        wanted = event.count
        for link in self.registry.idle(event.needs.target, event.needs.org_id):
            if wanted <= 0:
                return
            if lacks(event.needs, link.capabilities) is None:
                wanted -= link.free
                self._claim(link)
                self.registry.place(link)

    def _claim(self, link: Link) -> None:
        if link.claiming:
            link.claim_again = True
            return
        slots = min(link.free, CLAIM_MAX)
        if slots <= 0 or self.draining is not None or link.identity is None:
            return
        while link.declined and next(iter(link.declined.values())) <= self._now:
            link.declined.popitem(last=False)
        link.claiming, link.claim_again = slots, False
        link.claimed_at = (self._stirred, self._demands)
        self._out.append(
            events.Claim(
                link.number, link.identity, target_of(link.identity.kind), link.identity.org_id, link.capabilities,
                slots, tuple(link.declined),
            )
        )  # fmt: skip

    def _stir(self) -> None:
        """There may be work where there was none."""
        self._stirred += 1
        self._dry.clear()

    def _claim_in_turn(self, link: Link) -> None:
        """Claims for a runner that is ready. Where thousands connect at once, one claim that finds nothing does for all
        that are alike: the others wait for its answer, and for a moment nobody asks again."""
        if link.identity is None:
            return
        sort = (link.identity.kind, link.identity.org_id, link.capabilities)
        if self._now < self._dry.get(sort, 0.0):
            return
        line = self._lines.get(sort)
        if line is not None:
            line[link.number] = None
            return
        self._claim(link)
        if link.claiming:
            self._lines[sort] = {}
            self._leaders[link.number] = sort

    def _next_in_line(self, connection: int, *, nothing: bool) -> None:
        """The one that asked for all that are alike has its answer: `nothing` if that is so for all of them."""
        sort = self._leaders.pop(connection, None)
        if sort is None:
            return
        line = self._lines.pop(sort)
        if nothing:
            if len(self._dry) >= DRY_MAX:
                self._dry.clear()
            self._dry[sort] = self._now + DRY_S
            return
        while line and sort not in self._lines:
            number = next(iter(line))
            del line[number]
            link = self.registry.links.get(number)
            if link is not None:
                self._claim_in_turn(link)
        if line:
            self._lines[sort] |= line

    def _claimed(self, event: events.Claimed) -> None:
        link = self.registry.links.get(event.connection)
        asked, nothing, missed = 0, False, False
        if link is not None:
            asked, link.claiming = link.claiming, 0
            nothing = not event.jobs and not link.declined and link.claimed_at[0] == self._stirred
            # A job whose notification was faster than this answer may be younger than what the claim looked at.
            missed = len(event.jobs) < asked and link.claimed_at[1] != self._demands
        for job in event.jobs:
            if link is None or link.phase is not Phase.OPEN or link.draining or self.draining is not None:
                self._out.append(events.Release(job.lease, "", "the runner is gone or drains"))
            elif (why := _unfit(link, job)) is not None:
                self._out.append(events.Release(job.lease, _runner_id(link), why))
            else:
                self._assign(link, job)
        if link is not None and link.phase is Phase.OPEN:
            if missed or link.claim_again or (asked and len(event.jobs) >= asked):
                self._claim(link)
            self.registry.place(link)
        self._next_in_line(event.connection, nothing=nothing)

    def _assign(self, link: Link, job: Job) -> None:
        older = self.jobs.get(job.lease.job_id)
        if older is not None:
            self._forget(older, "another runner has the job")
        live = self._enter(link, job, State.OFFERED)
        live.answer_by = self._now + ACCEPT_S
        self._attach(link, live)
        self._watch(live)
        link.reported -= 1
        exp = expiry(wall=self._wall, timeout_s=job.timeout_s)
        token = self._keys.mint(Claims(job.lease.job_id, job.lease.epoch, job.org_id, exp, job.session_id))
        live.token = (token, exp)
        assign = messages.Assign(
            job_type=job.job_type, lease_epoch=job.lease.epoch, job_token=token, attempt=job.attempt,
            timeout_sec=job.timeout_s, limits=job.limits, requires=job.requires, spec=job.spec, org_id=job.org_id,
        )  # fmt: skip
        self._send(link, assign, job.lease.job_id, job.session_id)

    # What a runner says about a job

    def _of_job(self, link: Link, frame: Frame, message: OfJob) -> None:
        assert frame.job_id is not None  # its type needs one
        live = link.jobs.get(frame.job_id)
        lease = Lease(frame.job_id, message.lease_epoch)
        if live is None or live.job.lease != lease or not self._proves(live, message.job_token):
            if lease not in self._ended:
                self._send_cancel(link, frame.job_id, CancelReason.LEASE_LOST)
        elif not isinstance(message, messages.OpResponse) or frame.session_id == live.job.session_id:
            self._job_answers[type(message)](link, live, message)

    def _proves(self, live: Live, token: str) -> bool:
        if live.token is not None and live.token[0] == token:
            return live.token[1] > self._wall
        claims = self._keys.read(token, wall=self._wall)
        job = live.job
        if claims is None or (claims.job_id, claims.epoch, claims.org_id) != (*_pair(job.lease), job.org_id):
            return False
        if claims.session_id not in (None, job.session_id):
            return False
        live.token = (token, claims.exp)
        return True

    def _accept(self, link: Link, live: Live, _message: messages.Accept) -> None:
        if live.state is State.CANCELLING:  # it said so before it heard of the cancel, or it does not know of it
            self._send_cancel(link, live.job.lease.job_id, live.cancel_reason)
        if live.state is not State.OFFERED:
            return
        live.state, live.answer_by = State.RUNNING, None
        self._out.append(events.StoreAccept(live.job.lease))
        self._watch(live)
        self._send_op(live)

    def _reject(self, link: Link, live: Live, message: messages.Reject) -> None:
        if live.state is State.CANCELLING:  # the two have crossed: there is nothing to stop
            self._out.append(events.EndCancelled(live.job.lease))
            self._forget(live, "the job was cancelled", by_runner=True)
            self.registry.place(link)
        if live.state is not State.OFFERED:
            return
        self._decline(link, live, message.reason, for_good=refuses(message.reason))
        if not refuses(message.reason):
            link.reported = 0  # it will say when it has room again
        self.registry.place(link)

    def _decline(self, link: Link | None, live: Live, reason: str, *, for_good: bool, silent: bool = False) -> None:
        self._out.append(events.Release(live.job.lease, live.runner_id, reason))
        self._forget(live, "the runner declined the job; it is queued again", by_runner=not silent)
        if link is not None:
            link.declined[live.job.lease.job_id] = self._now + (86_400.0 if for_good else DECLINED_S)
            while len(link.declined) > DECLINED_MAX:
                link.declined.popitem(last=False)

    def _progress(self, _link: Link, live: Live, message: messages.Progress) -> None:
        if live.state is State.RUNNING and self._now >= live.progress_at:
            live.progress_at = self._now + PROGRESS_EVERY_S
            self._out.append(events.NoteProgress(live.job.lease, message))

    def _op_response(self, _link: Link, live: Live, message: messages.OpResponse) -> None:
        if live.state is State.CANCELLING:
            return
        op = live.gate.answered(message.op_id, self._now)
        if op is None:
            return
        for ask in op.waiters:
            self._asks.pop(ask, None)
            self._out.append(events.AnswerOp(ask, op.op_id, message.result, message.error))
        if op.op == "close" and message.ok:
            self._out.append(events.Succeed(live.job.lease))
            self._forget(live, "the session is closed", by_runner=True)
        else:
            self._watch(live)

    def _complete(self, _link: Link, live: Live, message: messages.Complete) -> None:
        lease = live.job.lease
        if live.state is State.CANCELLING or message.outcome == Outcome.CANCELLED:
            self._out.append(events.EndCancelled(lease))
        elif message.outcome == Outcome.SUCCEEDED:
            self._out.append(events.Succeed(lease, message.result))
        else:
            self._out.append(
                events.FailJob(
                    lease,
                    FailureClass.RUNNER,
                    "",
                    "unknown_outcome",
                    f"the runner said {message.outcome}",
                    retryable=False,
                )
            )
        self._forget(live, "the runner has ended the session", by_runner=True)

    def _fail(self, _link: Link, live: Live, message: messages.Fail) -> None:
        lease = live.job.lease
        if live.state is State.CANCELLING:
            self._out.append(events.EndCancelled(lease))
        else:
            counts = failure_class(message.failure_class)
            self._out.append(
                events.FailJob(
                    lease, counts, message.failure_class, message.code, message.message,
                    retryable=message.retryable and counts is not FailureClass.INPUT,
                )
            )  # fmt: skip
        self._forget(live, "the job failed", by_runner=True)

    # Ends that do not come from the runner

    def _unsendable(self, event: events.Unsendable) -> None:
        live = self.jobs.get(event.job_id)
        if live is None:
            return
        if live.state is not State.OFFERED:
            self._release_waiters(live, 413, "too_large", event.reason)
            live.gate.op = None
            self._watch(live)
            return
        code, link = messages.ErrorCode.TOO_LARGE, live.link
        self._out.append(
            events.FailJob(live.job.lease, FailureClass.INPUT, "", code, event.reason, retryable=False)
        )  # fmt: skip
        self._forget(live, "its spec is too large")
        if link is not None:
            link.reported += 1  # the runner never heard of it
            self.registry.place(link)

    def _lease_lost(self, event: events.LeaseLost) -> None:
        live = self._of(event.lease)
        if live is not None:
            self._tell_and_forget(live, CancelReason.LEASE_LOST, "its lease is gone")

    def _moved(self, event: events.Moved) -> None:
        live = self._of(event.lease)
        if live is None or live.link is not None:
            return  # the runner is here: the row has not caught up
        self._seek(live)
        self._forget(live, "the session is elsewhere")

    def _cancel_job(self, event: events.CancelJob) -> None:
        live = self.jobs.get(event.job_id)
        if live is None or live.state is State.CANCELLING:
            return
        live.state, live.answer_by, live.cancel_reason = State.CANCELLING, self._now + GRACE_S, event.reason
        if live.link is not None:
            self._send_cancel(live.link, event.job_id, event.reason)
        self._release_waiters(live, 409, "op_cancelled", f"the job was cancelled: {event.reason}")
        self._watch(live)

    def _job_ended(self, event: events.JobEnded) -> None:
        live = self.jobs.get(event.job_id)
        if live is not None:
            self._tell_and_forget(live, CancelReason.EXECUTION_ENDED, "its job has ended")

    def _revoked(self, event: events.Revoked) -> None:
        self._bar(event.runner_id)
        for live in list(self._of_runner.get(event.runner_id, {}).values()):
            self._expire(live, event.reason, CancelReason.REVOKED)
        link = self.registry.of_runner.get(event.runner_id)
        if link is not None:
            self._goodbye(link, CloseCode.UNAUTHENTICATED, event.reason)

    def _forbidden(self, event: events.Forbidden) -> None:
        self._bar(event.org_id)
        # Also those whose device is not connected just now; what the pool does for it is the platform's own.
        for live in [one for one in self.jobs.values() if one.job.org_id == event.org_id]:
            if live.job.target == Target.ORG_RUNNER:
                self._expire(live, "the organisation is disabled", CancelReason.REVOKED)
        for link in list(self.registry.of_runner.values()):
            if link.identity is not None and link.identity.org_id == event.org_id:
                self._goodbye(link, CloseCode.FORBIDDEN, DISABLED)

    def _bar(self, name: str) -> None:
        """Whoever is being looked at now must not come in on what was read before."""
        for link in self.registry.links.values():
            if link.phase is Phase.CHECKING:
                link.barred.add(name)

    def _expire(self, live: Live, reason: str, cancel: CancelReason | None = None) -> None:
        self._out.append(events.Expire(live.job.lease, reason))
        self._tell_and_forget(live, cancel, reason)

    def _tell_and_forget(self, live: Live, cancel: CancelReason | None, reason: str) -> None:
        if cancel is not None and live.link is not None:
            self._send_cancel(live.link, live.job.lease.job_id, cancel)
        link = live.link
        self._forget(live, reason)
        if link is not None:
            self.registry.place(link)

    # Ops

    def _op_asked(self, event: events.OpAsked) -> None:
        live = self._sessions.get(event.session_id)
        op_id = event.op_id or self._id()
        if self.stopping:
            self._out.append(events.RefuseOp(event.ask, 504, "op_timeout", ENDS))
            return
        if live is None or (live.state is not State.CANCELLING and self._is_away(live)):
            self._out.append(events.SeekOp(event.ask, op_id))
            return
        if live.state is State.CANCELLING:
            self._out.append(events.RefuseOp(event.ask, 410, "session_lost", "the job was cancelled"))
            return
        whole_s = live.job.timeout_s
        timeout_s = whole_s if event.timeout_s is None else max(1, min(event.timeout_s, whole_s))
        refused = live.gate.ask(
            event.ask, op_id=op_id, op=event.op, args=event.args, timeout_s=timeout_s, now=self._now
        )
        if refused is not None:
            running = live.gate.op.op_id if live.gate.op is not None else ""
            self._out.append(events.RefuseOp(event.ask, 409, refused, f"op {running} is in flight"))
            return
        self._asks[event.ask] = live
        self._send_op(live)
        self._watch(live)

    def _is_away(self, live: Live) -> bool:
        return live.link is None and self._now >= live.left_at + AWAY_S

    def _seek(self, live: Live) -> None:
        """Whoever waits for the op of this session finds it elsewhere, if anywhere."""
        op, live.gate.op = live.gate.op, None
        if op is None:
            return
        for ask in op.waiters:
            self._asks.pop(ask, None)
            self._out.append(events.SeekOp(ask, op.op_id))

    def _ask_gone(self, event: events.AskGone) -> None:
        live = self._asks.pop(event.ask, None)
        if live is not None and live.gate.op is not None:
            live.gate.op.waiters.pop(event.ask, None)

    def _send_op(self, live: Live) -> None:
        op = live.gate.op
        if op is None or op.sent or live.link is None or live.state is not State.RUNNING:
            return
        op.sent = True
        request = messages.OpRequest(op_id=op.op_id, op=op.op, args=op.args, timeout_sec=op.timeout_s)
        self._send(live.link, request, live.job.lease.job_id, live.job.session_id)

    def _release_waiters(self, live: Live, status: int, code: str, reason: str) -> None:
        op: InFlight | None = live.gate.op
        if op is None:
            return
        for ask in op.waiters:
            self._asks.pop(ask, None)
            self._out.append(events.RefuseOp(ask, status, code, reason))
        op.waiters.clear()

    # The end of this replica, and time

    def _drain(self, event: events.Drain) -> None:
        if self.draining is not None:
            return
        self.draining = event
        for link in self.registry.links.values():
            if link.phase is Phase.OPEN:
                self._send(link, messages.Drain(reason=event.reason, deadline_sec=event.deadline_s))

    def _stop(self, event: events.Stop) -> None:
        self.draining, self.stopping = self.draining or events.Drain(event.reason), True
        for live in list(self.jobs.values()):
            self._release_waiters(live, 504, "op_timeout", ENDS)
        for link in list(self.registry.links.values()):
            if link.phase is not Phase.CLOSING:
                self._goodbye(link, CloseCode.GOING_AWAY, event.reason)

    def _tick(self, _event: events.Tick) -> None:
        for kind, key in self._timers.due(self._now):
            if kind == "job":
                live = self.jobs.get(str(key))
                if live is not None:
                    self._job_due(live)
                continue
            link = self.registry.links.get(int(key))
            if link is None or link.phase is Phase.CLOSING:
                continue
            if kind == "hello":
                self._end(link, CloseCode.UNSUPPORTED, f"no hello within {HELLO_S:.0f} s")
            elif self._now >= link.heard_at + messages.DEAD_AFTER_S:
                self._end(link, CloseCode.HEARTBEAT_TIMEOUT, f"nothing came for {messages.DEAD_AFTER_S} s")
            else:
                self._timers.set(("link", link.number), link.heard_at + messages.DEAD_AFTER_S)

    def _job_due(self, live: Live) -> None:
        over = live.gate.over(self._now)
        if live.answer_by is not None and live.answer_by <= self._now:
            if live.state is State.CANCELLING:
                self._out.append(events.EndCancelled(live.job.lease))
                self._tell_and_forget(live, None, "the job was cancelled")
            else:
                link = live.link
                self._decline(link, live, f"no answer within {ACCEPT_S:.0f} s", for_good=False, silent=True)
                if link is not None:
                    link.reported = 0
                    self.registry.place(link)
        elif live.leased_until <= self._now:
            self._tell_and_forget(live, CancelReason.LEASE_LOST, "its lease ran out")
        elif over is not None and live.state is State.RUNNING:
            self._expire(live, over, CancelReason.EXECUTION_ENDED)
        elif self._is_away(live) and live.gate.op is not None and not live.gate.op.sent:
            self._seek(live)
            self._watch(live)
        else:
            for ask in live.gate.overdue(self._now):
                self._asks.pop(ask, None)
                self._out.append(
                    events.RefuseOp(
                        ask, 504, "op_timeout", "the runner did not answer in time; it may be at it still: ask again "
                        "with the same opId",
                    )
                )  # fmt: skip
            self._watch(live)

    # What all of these are made of

    def _alive(self, connection: int) -> Link | None:
        """The link, if what it says counts; it was heard of."""
        link = self.registry.links.get(connection)
        if link is None or link.phase is Phase.CLOSING:
            return None
        link.heard_at = self._now
        return link

    def _waiting(self, connection: int, *phases: Phase) -> Link | None:
        link = self.registry.links.get(connection)
        return link if link is not None and link.phase in phases else None

    def _of(self, lease: Lease) -> Live | None:
        live = self.jobs.get(lease.job_id)
        return live if live is not None and live.job.lease == lease else None

    def _holds(self, link: Link, lease: Lease) -> bool:
        live = link.jobs.get(lease.job_id)
        return live is not None and live.job.lease == lease

    def _enter(self, link: Link, job: Job, state: State) -> Live:
        gate = OpGate(self._now - job.age_s + job.timeout_s, float(job.limits.idle_timeout_sec), self._now)
        live = Live(job, _runner_id(link), None, state, gate, self._now + LEASE_S)
        self.jobs[job.lease.job_id] = live
        self._sessions[job.session_id] = live
        self._of_runner.setdefault(live.runner_id, {})[job.lease.job_id] = live
        return live

    def _attach(self, link: Link, live: Live) -> None:
        if live.link is not None and live.link is not link:
            live.link.jobs.pop(live.job.lease.job_id, None)
        live.link = link
        live.leased_until = self._now + LEASE_S
        link.jobs[live.job.lease.job_id] = live
        if live.gate.op is not None:
            live.gate.op.sent = False

    def _watch(self, live: Live) -> None:
        times = [live.leased_until]
        if live.answer_by is not None:
            times.append(live.answer_by)
        if live.state is State.RUNNING:
            times.append(live.gate.next_at())
        if live.link is None and live.gate.op is not None and not live.gate.op.sent:
            times.append(live.left_at + AWAY_S)
        self._timers.set(("job", live.job.lease.job_id), min(times))

    def _forget(self, live: Live, reason: str, *, by_runner: bool = False) -> None:
        """The job is not live here any more. What its own runner ended, it need not be told about."""
        self._release_waiters(live, 410, "session_lost", reason)
        job = live.job
        self.jobs.pop(job.lease.job_id, None)
        self._sessions.pop(job.session_id, None)
        own = self._of_runner.get(live.runner_id)
        if own is not None and own.pop(job.lease.job_id, None) is not None and not own:
            del self._of_runner[live.runner_id]
        self._stir()
        self._timers.drop(("job", job.lease.job_id))
        if live.link is not None:
            live.link.jobs.pop(job.lease.job_id, None)
            live.link = None
        if by_runner:
            self._ended[job.lease] = None
        while len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)

    def _leave(self, link: Link, reason: str) -> None:
        """The link is over; its jobs stay until their leases end, or their runner comes back."""
        welcomed = link.phase is Phase.OPEN
        self.registry.forget(link)
        for live in link.jobs.values():
            live.link, live.left_at = None, self._now
        link.jobs.clear()
        if welcomed and link.identity is not None:
            self._out.append(events.Seen(link.number, link.identity, None, reason))

    def _end(self, link: Link, code: CloseCode, reason: str) -> None:
        self._out.append(events.Close(link.number, code, reason[:120]))
        self._leave(link, reason)

    def _goodbye(
        self, link: Link, code: int, reason: str, retry_after_s: float | None = None, server_time: str | None = None
    ) -> None:
        wait = None if retry_after_s is None else max(1, round(retry_after_s))
        self._send(link, messages.Bye(reason=reason, retry_after_sec=wait, server_time=server_time))
        self._out.append(events.Close(link.number, code, reason[:120]))
        self._leave(link, reason)

    def _send_cancel(self, link: Link, job_id: str, reason: str) -> None:
        self._send(link, messages.Cancel(reason=reason, grace_sec=GRACE_S), job_id)

    def _send(
        self, link: Link, message: messages.GatewayMessage, job_id: str | None = None, session_id: str | None = None
    ) -> None:
        self._out.append(events.Send(link.number, Frame(self._id(), message, job_id, session_id)))

    def _id(self) -> str:
        return str(UUID(int=self._random.getrandbits(128), version=4))


def _leases(beat: messages.RunnerHeartbeat) -> list[Lease]:
    return [Lease(held.job_id, held.lease_epoch) for held in beat.running]


def _listed(link: Link) -> tuple[Lease, ...]:
    """What its hello says that it still holds."""
    held = (link.hello.running or ()) if link.hello is not None else ()
    return tuple(dict.fromkeys(Lease(job.job_id, job.lease_epoch) for job in held))


def _pair(lease: Lease) -> tuple[str, int]:
    return lease.job_id, lease.epoch


def _runner_id(link: Link) -> str:
    return "" if link.identity is None else link.identity.runner_id


def _unfit(link: Link, job: Job) -> str | None:
    """Why this job must not go there: the claim's statement has seen to it, and this looks once more."""
    assert link.identity is not None
    needs = Needs(job.target, job.org_id, job.job_type, job.requires, job.limits.max_output_bytes)
    if not belongs(needs, kind=link.identity.kind, org_id=link.identity.org_id):
        return "the job is not for this runner"
    return lacks(needs, link.capabilities)
