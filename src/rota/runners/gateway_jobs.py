"""The leased jobs that are live at one replica of the gateway: by id, by session and by runner. Pure.

A job is live from the moment it is dealt, or its runner comes back with it, until it is forgotten: because it ended, or
because its lease is over or elsewhere. Each way in and out is one method here, so that no index outlives its job.

Spec: runners, "Job lifecycle, leases and fencing".
"""

from collections import OrderedDict
from typing import Final

from rota.runners import gateway_events as events
from rota.runners.claim_lines import ClaimLines
from rota.runners.codes import CancelReason
from rota.runners.gateway_events import Job, Lease
from rota.runners.gateway_links import Links, TimerKey
from rota.runners.gateway_ops import Ops, away_at
from rota.runners.gateway_outgoing import Outgoing
from rota.runners.messages import LEASE_S
from rota.runners.registry import Link, Live, State
from rota.runners.session import OpGate
from rota.runners.timers import Timers

ENDED_MAX: Final = 4096
"""Jobs that ended here and are remembered, so that what crosses their end on its way is not answered."""


class LiveJobs:
    """All jobs that are live here.

    Args:
        out: where commands go.
        links: all connections.
        timers: of the whole replica.
        ops: who waits for the ops of sessions.
        lines: which hear that there may be work again.
    """

    def __init__(self, out: Outgoing, links: Links, timers: Timers[TimerKey], ops: Ops, lines: ClaimLines) -> None:
        self.by_id: dict[str, Live] = {}
        self._out = out
        self._links = links
        self._timers = timers
        self._ops = ops
        self._lines = lines
        self._sessions: dict[str, Live] = {}
        self._of_runner: dict[str, dict[str, Live]] = {}
        self._ended: OrderedDict[Lease, None] = OrderedDict()

    def of(self, lease: Lease) -> Live | None:
        """The job, if it is live here under this very epoch (I3)."""
        live = self.by_id.get(lease.job_id)
        return live if live is not None and live.job.lease == lease else None

    def of_session(self, session_id: str) -> Live | None:
        """The job of a session."""
        return self._sessions.get(session_id)

    def of_runner(self, runner_id: str) -> list[Live]:
        """The jobs of a runner, whether it is connected or not."""
        return list(self._of_runner.get(runner_id, {}).values())

    def has_ended(self, lease: Lease) -> bool:
        """Whether its runner has ended it here, not long ago."""
        return lease in self._ended

    def enter(self, link: Link, job: Job, state: State) -> Live:
        """The job is live from now on, for the runner of this link."""
        gate = OpGate(self._out.now - job.age_s + job.timeout_s, float(job.limits.idle_timeout_sec), self._out.now)
        live = Live(job, runner_id_of(link), None, state, gate, self._out.now + LEASE_S)
        self.by_id[job.lease.job_id] = live
        self._sessions[job.session_id] = live
        self._of_runner.setdefault(live.runner_id, {})[job.lease.job_id] = live
        return live

    def attach(self, link: Link, live: Live) -> None:
        """The runner of the job is at this link; its op is to be sent there again."""
        if live.link is not None and live.link is not link:
            live.link.jobs.pop(live.job.lease.job_id, None)
        live.link = link
        self.renewed(live)
        link.jobs[live.job.lease.job_id] = live
        if live.gate.op is not None:
            live.gate.op.sent = False

    def renewed(self, live: Live) -> None:
        """Its lease begins anew."""
        live.leased_until = self._out.now + LEASE_S

    def watch(self, live: Live) -> None:
        """Looks at the job again when something of it may be over; call it after each change."""
        times = [live.leased_until]
        if live.answer_by is not None:
            times.append(live.answer_by)
        if live.state is State.RUNNING:
            times.append(live.gate.next_at())
        if live.link is None and live.gate.op is not None and not live.gate.op.sent:
            times.append(away_at(live))
        self._timers.set(("job", live.job.lease.job_id), min(times))

    def forget(self, live: Live, reason: str, *, by_runner: bool = False) -> None:
        """The job is not live here any more. What its own runner ended, it need not be told about."""
        self._ops.release(live, 410, "session_lost", reason)
        job = live.job
        self.by_id.pop(job.lease.job_id, None)
        self._sessions.pop(job.session_id, None)
        own = self._of_runner.get(live.runner_id)
        if own is not None and own.pop(job.lease.job_id, None) is not None and not own:
            del self._of_runner[live.runner_id]
        self._lines.stir()
        self._timers.drop(("job", job.lease.job_id))
        if live.link is not None:
            live.link.jobs.pop(job.lease.job_id, None)
            live.link = None
        if by_runner:
            self._ended[job.lease] = None
        while len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)

    def tell_and_forget(self, live: Live, cancel: CancelReason | None, reason: str) -> None:
        """Tells its runner to stop it, unless it knows, and forgets it; the slot is free again."""
        link = live.link
        if cancel is not None and link is not None:
            self._out.cancel(link, live.job.lease.job_id, cancel)
        self.forget(live, reason)
        if link is not None:
            self._links.registry.place(link)

    def expire(self, live: Live, reason: str, cancel: CancelReason | None = None) -> None:
        """Ends the job as one whose lease ran out."""
        self._out.say(events.Expire(live.job.lease, reason))
        self.tell_and_forget(live, cancel, reason)


def runner_id_of(link: Link) -> str:
    """Whose link it is; empty before its hello was found good."""
    return "" if link.identity is None else link.identity.runner_id
