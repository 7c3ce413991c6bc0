"""How a runner comes in at a replica of the gateway: its hello, the ramp, what it still holds, and the welcome. Pure.

Nothing is asked of the database before the ramp has let a hello in, and a connection is welcomed only after the
database has said who it is and which of its leases still hold. A newer connection of the same runner replaces the older
one. After the welcome a connection is no concern of this module.

Spec: runners, "Connection handshake and authentication".
"""

from dataclasses import dataclass
from typing import Final

from rota.runners import clocks, handshake, messages
from rota.runners import gateway_events as events
from rota.runners.codes import CancelReason, CloseCode
from rota.runners.frames import PAYLOAD_BYTES_MAX
from rota.runners.gateway_events import Identity, Lease
from rota.runners.gateway_jobs import LiveJobs
from rota.runners.gateway_links import Links
from rota.runners.gateway_ops import Ops
from rota.runners.gateway_outgoing import Outgoing
from rota.runners.ramp import Ramp
from rota.runners.registry import Link, Live, Phase, State

HELLOS_PER_S: Final = 500.0
RETURN_S: Final = 1.0
"""A lease that is live here lets its runner in past the ramp, once in so long."""
RETURN_RETRY_MAX_S: Final = 10.0
"""Who says that it holds jobs is told to wait no longer: 30 s of a lease may be left when a line is cut."""
SUPERSEDED: Final = "superseded by a newer connection of the same runner"
DISABLED: Final = "this organisation may not use runners now"


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


class Admission:
    """From a hello to its welcome.

    Args:
        rules: what the replica is told.
        out: where commands go.
        links: all connections.
        ops: who waits for the ops of sessions.
        jobs: those that are live.
    """

    def __init__(self, rules: Rules, out: Outgoing, links: Links, ops: Ops, jobs: LiveJobs) -> None:
        self._rules = rules
        self._out = out
        self._links = links
        self._ops = ops
        self._jobs = jobs
        self._ramp = Ramp(rules.hellos_per_s)
        self._returns = Ramp(rules.hellos_per_s, retry_max_s=RETURN_RETRY_MAX_S)

    def hello(self, link: Link, hello: messages.Hello) -> None:
        """A connection says who it is: if that could be, the database is asked."""
        refusal = handshake.check_hello(hello)
        if refusal is not None:
            self._links.goodbye(link, refusal.code, refusal.reason)
            return
        wait_s = self._admit(hello)
        if wait_s is not None:
            reason = "too many runners connect at once; try again later"
            self._links.goodbye(link, CloseCode.RATE_LIMITED, reason, wait_s)
            return
        self._links.greeted(link)
        link.hello = hello
        link.version = handshake.negotiate(hello.protocol_version) or messages.PROTOCOL_VERSION
        self._out.say(events.Authenticate(link.number, hello, link.host))

    def refused(self, event: events.Refused) -> None:
        """It may not come in."""
        link = self._links.waiting(event.connection, Phase.HELLO, Phase.CHECKING)
        if link is not None:
            server_time = clocks.stamp(self._out.wall) if event.tells_time else None
            self._links.goodbye(link, event.code, event.reason, event.retry_after_s, server_time)

    def verified(self, event: events.Verified) -> None:
        """It is who it says: it replaces its older connection, and what it holds is looked at."""
        link = self._links.waiting(event.connection, Phase.CHECKING)
        if link is None:
            return
        identity = event.identity
        if identity.runner_id in link.barred:
            self._links.goodbye(link, CloseCode.UNAUTHENTICATED, "the device was revoked")
            return
        if identity.org_id in link.barred:
            self._links.goodbye(link, CloseCode.FORBIDDEN, DISABLED)
            return
        if link.elsewhere.get(identity.runner_id, 0) > event.order:
            self._links.end(link, CloseCode.SUPERSEDED, SUPERSEDED)
            return
        del self._links.registry.checking[link.number]
        link.identity, link.order = identity, event.order
        old = self._links.registry.of_runner.get(identity.runner_id)
        if old is not None:
            self._links.end(old, CloseCode.SUPERSEDED, SUPERSEDED)
        self._links.registry.of_runner[identity.runner_id] = link
        minimum = self._rules.min_agent_version
        link.outdated = minimum is not None and handshake.is_older(link.capabilities.agent_version, minimum)
        held = _listed(link)
        for live in self._jobs.of_runner(identity.runner_id):
            if live.job.lease not in held:
                self._ops.release(live, 410, "session_lost", "the runner came back without this session")
        if held:
            link.phase = Phase.HOLDING
            self._out.say(events.CheckHeld(link.number, identity, held))
        else:
            self._welcome(link, identity, ())

    def elsewhere(self, event: events.Elsewhere) -> None:
        """A runner has connected at another replica. Words cross: only what is newer replaces what is here, and a
        replica that holds what is older has not heard of this one."""
        for link in self._links.registry.checking.values():
            link.elsewhere[event.runner_id] = max(event.order, link.elsewhere.get(event.runner_id, 0))
        here = self._links.registry.of_runner.get(event.runner_id)
        if here is None:
            return
        if here.order < event.order:
            self._links.end(here, CloseCode.SUPERSEDED, SUPERSEDED)
        else:
            self._out.say(events.Announce(event.runner_id, here.order))

    def listening(self, _event: events.Listening) -> None:
        """Who holds a newer connection of one of these runners answers."""
        for runner_id, link in self._links.registry.of_runner.items():
            self._out.say(events.Announce(runner_id, link.order))

    def kept(self, event: events.Kept) -> None:
        """Of what it holds, these leases are its own still: they are live here, and it is welcome."""
        link = self._links.waiting(event.connection, Phase.HOLDING)
        if link is None or link.identity is None:
            return
        kept: list[Live] = []
        for job in event.jobs:
            live = self._jobs.by_id.get(job.lease.job_id)
            if live is not None and live.job.lease != job.lease:
                self._jobs.forget(live, "another runner has the job")
                live = None
            if live is None:
                live = self._jobs.enter(link, job, State.CANCELLING if job.cancelling else State.RUNNING)
                if job.cancelling:
                    live.answer_by = self._out.grace_ends_at()
            self._jobs.attach(link, live)
            if not job.accepted or live.state is State.OFFERED:
                self._out.say(events.StoreAccept(job.lease))
            if live.state is State.OFFERED:
                live.state, live.answer_by = State.RUNNING, None
            self._jobs.watch(live)
            kept.append(live)
        self._welcome(link, link.identity, tuple(live for live in kept if live.state is State.RUNNING))

    def _admit(self, hello: messages.Hello) -> float | None:
        """Before anything of it is proved: None if it may come in, else how long it should wait.

        Ids of jobs are not guessed, so one that is live here speaks for its runner. Whoever holds jobs of which this
        replica does not know, as after its restart, goes before those that hold none."""
        held = hello.running or ()
        for one in held:
            live = self._jobs.of(Lease(one.job_id, one.lease_epoch))
            if live is not None and self._out.now >= live.returned_at + RETURN_S:
                live.returned_at = self._out.now
                return None
        return (self._returns if held else self._ramp).admit(self._out.now)

    def _welcome(self, link: Link, identity: Identity, resumed: tuple[Live, ...]) -> None:
        link.phase = Phase.OPEN
        self._out.send(
            link,
            messages.Welcome(
                runner_id=identity.runner_id,
                kind=identity.kind,
                org_id=identity.org_id,
                protocol_version=link.version,
                heartbeat_sec=messages.HEARTBEAT_S,
                dead_after_sec=messages.DEAD_AFTER_S,
                max_inline_bytes=PAYLOAD_BYTES_MAX,
                gateway_instance=self._rules.instance,
                server_time=clocks.stamp(self._out.wall),
                resumed=tuple(
                    messages.Held(job_id=live.job.lease.job_id, lease_epoch=live.job.lease.epoch) for live in resumed
                ),
                min_agent_version=self._rules.min_agent_version,
            ),
        )
        self._out.say(events.Seen(link.number, identity, link.capabilities))
        for lease in _listed(link):
            live = link.jobs.get(lease.job_id)
            if live is None or live.job.lease != lease:
                self._out.cancel(link, lease.job_id, CancelReason.LEASE_LOST)
            elif live.state is State.CANCELLING:
                self._out.cancel(link, lease.job_id, live.cancel_reason)
        for live in resumed:
            self._ops.send(live)
        self._links.tell_drain(link)


def _listed(link: Link) -> tuple[Lease, ...]:
    """What its hello says that it still holds."""
    held = (link.hello.running or ()) if link.hello is not None else ()
    return tuple(dict.fromkeys(Lease(job.job_id, job.lease_epoch) for job in held))
