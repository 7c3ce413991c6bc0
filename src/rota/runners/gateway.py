"""One replica of the gateway without its sockets and its database: events in, commands out. Pure.

A connection says hello, is checked, is welcomed; then it is dealt jobs for its free slots, and ops for its sessions.
The database decides every lease: this machine only asks, and believes itself less. A job outlives its connection for as
long as its lease does, so that its runner can come back. Here stands which part answers to which event; the rules are
in those parts, from the lowest: `gateway_outgoing`, `_links`, `_ops`, `_jobs`; then `_admission`, `_beats`, `_dealing`,
`_reports` and `_ends`.

Spec: runners, "Connection handshake and authentication", "Job lifecycle, leases and fencing", "Session ops".
"""

from collections.abc import Callable, Mapping
from random import Random
from types import MappingProxyType
from typing import Any

from rota.runners import gateway_events as events
from rota.runners import handshake, messages
from rota.runners.claim_lines import ClaimLines
from rota.runners.codes import CloseCode, ErrorCode
from rota.runners.gateway_admission import Admission, Rules
from rota.runners.gateway_beats import Beats
from rota.runners.gateway_dealing import Dealing
from rota.runners.gateway_ends import Ends
from rota.runners.gateway_events import Command, Event
from rota.runners.gateway_jobs import LiveJobs
from rota.runners.gateway_links import Links, TimerKey
from rota.runners.gateway_ops import ENDS, Ops
from rota.runners.gateway_outgoing import Outgoing
from rota.runners.gateway_reports import Reports
from rota.runners.messages import OfJob
from rota.runners.registry import Link, Live, Phase, Registry
from rota.runners.timers import Timers
from rota.runners.token import TokenKeys


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
        self._timers: Timers[TimerKey] = Timers()
        self._out = out = Outgoing(random)
        lines = ClaimLines()
        self._links = links = Links(out, self.registry, self._timers)
        self._ops = ops = Ops(out)
        self._jobs = jobs = LiveJobs(out, links, self._timers, ops, lines)
        self._admission = admission = Admission(rules, out, links, ops, jobs)
        self._beats = beats = Beats(out, links, jobs)
        self._dealing = dealing = Dealing(out, links, jobs, lines, keys)
        self._reports = Reports(out, links, ops, jobs, dealing=dealing, keys=keys)
        self._ends = ends = Ends(out, links, ops, jobs, dealing)
        self._handlers: Mapping[type, Callable[[Any], None]] = MappingProxyType(
            {
                events.Opened: links.opened, events.Heard: links.heard, events.Lost: links.lost,
                events.Received: self._received, events.Garbled: self._garbled,
                events.Verified: admission.verified, events.Refused: admission.refused, events.Kept: admission.kept,
                events.Elsewhere: admission.elsewhere, events.Listening: admission.listening,
                events.Demand: dealing.demand, events.Claimed: dealing.claimed, events.Renewed: beats.renewed,
                events.Unsendable: ends.unsendable, events.LeaseLost: ends.lease_lost, events.Moved: ends.moved,
                events.CancelJob: ends.cancelled, events.JobEnded: ends.ended,
                events.Revoked: ends.revoked, events.Forbidden: ends.forbidden,
                events.OpAsked: self._op_asked, events.AskGone: ops.ask_gone,
                events.Drain: links.drain, events.Stop: self._stop, events.Tick: self._tick,
            }
        )  # fmt: skip
        self._answers: Mapping[type, Callable[[Link, Any], None]] = MappingProxyType(
            {
                messages.RunnerHeartbeat: beats.beat, messages.Ready: dealing.ready,
                messages.Drain: self._runner_drains, messages.Bye: self._bye,
            }
        )  # fmt: skip

    @property
    def jobs(self) -> Mapping[str, Live]:
        """The jobs that are live here, by id."""
        return self._jobs.by_id

    @property
    def draining(self) -> events.Drain | None:
        """What the runners were told of the end of this replica, if they were."""
        return self._links.draining

    def handle(self, event: Event, now: float, wall: float) -> list[Command]:
        """Takes what happened.

        Args:
            event: in the order in which it happened.
            now: seconds of a clock that never steps, not less than before.
            wall: seconds since 1970, for times that runners read and for the ends of tokens.

        Returns: what to do, in this order.
        """
        self._out.begin(now, wall)
        self._handlers[type(event)](event)
        return self._out.take()

    def next_at(self) -> float | None:
        """When to say `Tick` next; None: not before something happens."""
        return self._timers.next_at()

    def live(self, session_id: str) -> Live | None:
        """The live job of a session, for views and figures."""
        return self._jobs.of_session(session_id)

    def _received(self, event: events.Received) -> None:
        link = self._links.alive(event.connection)
        if link is None:
            return
        message = event.frame.message
        if link.phase is Phase.HELLO and isinstance(message, messages.Hello):
            self._admission.hello(link, message)
        elif link.phase is not Phase.OPEN:
            self._links.end(link, CloseCode.UNSUPPORTED, f"{message.type} came before the welcome")
        elif isinstance(message, messages.Hello):
            self._links.end(link, CloseCode.UNSUPPORTED, "a second hello")
        elif isinstance(message, OfJob):
            self._reports.take(link, event.frame, message)
        else:
            self._answers[type(message)](link, message)

    def _garbled(self, event: events.Garbled) -> None:
        link = self._links.alive(event.connection)
        if link is None:
            return
        if link.phase is Phase.OPEN:
            if event.type == messages.OpResponse.type:
                self._reports.unreadable(link, event)
        elif event.code == ErrorCode.UNSUPPORTED_VERSION:
            self._links.goodbye(link, CloseCode.UNSUPPORTED, handshake.supported())
        else:
            self._links.end(link, CloseCode.UNSUPPORTED, event.reason)

    def _runner_drains(self, link: Link, _message: messages.Drain) -> None:
        link.draining = True
        self.registry.place(link)

    def _bye(self, link: Link, _message: messages.Bye) -> None:
        if link.draining:  # it said that it ends, so nobody will come back for its jobs
            for live in list(link.jobs.values()):
                self._jobs.expire(live, "the runner ended")
        self._links.end(link, CloseCode.NORMAL, "goodbye")

    def _op_asked(self, event: events.OpAsked) -> None:
        live = self._jobs.of_session(event.session_id)
        if self._ops.ask(event, live) and live is not None:
            self._jobs.watch(live)

    def _stop(self, event: events.Stop) -> None:
        self._ops.stopping = True
        for live in self._jobs.by_id.values():
            self._ops.release(live, 504, "op_timeout", ENDS)
        self._links.stop(event.reason)

    def _tick(self, _event: events.Tick) -> None:
        for kind, key in self._timers.due(self._out.now):
            if kind == "job":
                self._ends.due(str(key))
            else:
                self._links.due(kind, int(key))
