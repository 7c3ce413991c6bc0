"""How a replica of the gateway deals queued jobs to runners: claims, offers, and offers that are taken back. Pure.

The database decides what a claim gets; who claims, and whether what came still fits its runner, is decided here. A job
that its runner declines is not offered to it again for a while, so that the two do not go round.

Spec: runners, "Routing and targets", "Job lifecycle, leases and fencing".
"""

from typing import Final

from rota.runners import gateway_events as events
from rota.runners import messages
from rota.runners.claim_lines import ClaimLines, Sort
from rota.runners.gateway_events import Identity, Job
from rota.runners.gateway_jobs import LiveJobs, runner_id_of
from rota.runners.gateway_links import Links
from rota.runners.gateway_outgoing import Outgoing
from rota.runners.matching import Needs, belongs, lacks, target_of
from rota.runners.registry import Link, Live, Phase, State
from rota.runners.token import Claims, TokenKeys, expiry

ACCEPT_S: Final = 10.0
CLAIM_MAX: Final = 16
"""Jobs of one claim. A runner that has more free slots claims again at once."""
DECLINED_S: Final = 60.0
"""For how long a job is not offered again to a runner that was too busy for it, or silent."""
REFUSED_S: Final = 86_400.0
"""The same where the runner can never do it."""
DECLINED_MAX: Final = 64


class Dealing:
    """Who is offered which job.

    Args:
        out: where commands go.
        links: all connections, and whether this replica drains.
        jobs: those that are live.
        lines: who waits for whose claim.
        keys: for job tokens.
    """

    def __init__(self, out: Outgoing, links: Links, jobs: LiveJobs, lines: ClaimLines, keys: TokenKeys) -> None:
        self._out = out
        self._links = links
        self._jobs = jobs
        self._lines = lines
        self._keys = keys

    def demand(self, event: events.Demand) -> None:
        """Jobs are queued: those that have waited longest for such claim."""
        self._lines.stir()
        self._lines.demands += 1
        wanted = event.count
        for link in self._links.registry.idle(event.needs.target, event.needs.org_id):
            if wanted <= 0:
                return
            if lacks(event.needs, link.capabilities) is None:
                wanted -= link.free
                self._claim(link)
                self._links.registry.place(link)

    def ready(self, link: Link, message: messages.Ready) -> None:
        """A runner has room: it claims, alone or in line."""
        link.reported = message.free_slots - sum(live.state is State.OFFERED for live in link.jobs.values())
        self._claim_in_turn(link)
        self._links.registry.place(link)

    def claimed(self, event: events.Claimed) -> None:
        """What a claim got is offered, or given back where its runner cannot have it any more."""
        link = self._links.registry.links.get(event.connection)
        asked, nothing, missed = 0, False, False
        if link is not None:
            asked, link.claiming = link.claiming, 0
            nothing = not event.jobs and not link.declined and link.claimed_at[0] == self._lines.stirred
            # A job whose notification was faster than this answer may be younger than what the claim looked at.
            missed = len(event.jobs) < asked and link.claimed_at[1] != self._lines.demands
        for job in event.jobs:
            if link is None or link.phase is not Phase.OPEN or link.draining or self._links.draining is not None:
                self._out.say(events.Release(job.lease, "", "the runner is gone or drains"))
            elif (why := _unfit(link, job)) is not None:
                self._out.say(events.Release(job.lease, runner_id_of(link), why))
            else:
                self._assign(link, job)
        if link is not None and link.phase is Phase.OPEN:
            if missed or link.claim_again or (asked and len(event.jobs) >= asked):
                self._claim(link)
            self._links.registry.place(link)
        self._next_in_line(event.connection, nothing=nothing)

    def decline(self, link: Link | None, live: Live, reason: str, *, for_good: bool, silent: bool = False) -> None:
        """The offer is taken back: its runner will not have the job, or has not answered (`silent`)."""
        self._out.say(events.Release(live.job.lease, live.runner_id, reason))
        self._jobs.forget(live, "the runner declined the job; it is queued again", by_runner=not silent)
        if link is not None:
            link.declined[live.job.lease.job_id] = self._out.now + (REFUSED_S if for_good else DECLINED_S)
            while len(link.declined) > DECLINED_MAX:
                link.declined.popitem(last=False)

    def unanswered(self, live: Live) -> None:
        """The time of an offer is over; its runner gets no other before it says that it has room."""
        link = live.link
        self.decline(link, live, f"no answer within {ACCEPT_S:.0f} s", for_good=False, silent=True)
        if link is not None:
            link.reported = 0
            self._links.registry.place(link)

    def _claim(self, link: Link) -> None:
        if link.claiming:
            link.claim_again = True
            return
        slots = min(link.free, CLAIM_MAX)
        if slots <= 0 or self._links.draining is not None or link.identity is None:
            return
        while link.declined and next(iter(link.declined.values())) <= self._out.now:
            link.declined.popitem(last=False)
        link.claiming, link.claim_again = slots, False
        link.claimed_at = (self._lines.stirred, self._lines.demands)
        self._out.say(
            events.Claim(
                link.number, link.identity, target_of(link.identity.kind), link.identity.org_id, link.capabilities,
                slots, tuple(link.declined),
            )
        )  # fmt: skip

    def _claim_in_turn(self, link: Link) -> None:
        if link.identity is None:
            return
        sort = _sort(link, link.identity)
        if self._lines.is_dry(sort, self._out.now) or self._lines.join(sort, [link.number]):
            return
        self._claim(link)
        if link.claiming:
            self._lines.lead(sort, link.number)

    def _next_in_line(self, connection: int, *, nothing: bool) -> None:
        """The one that asked for all that are alike has its answer: `nothing` if that is so for all of them."""
        ended = self._lines.end(connection)
        if ended is None:
            return
        sort, line = ended
        if nothing:
            self._lines.note_dry(sort, self._out.now)
            return
        while line and not self._lines.join(sort, line):
            link = self._links.registry.links.get(line.popleft())
            if link is not None:
                self._claim_in_turn(link)

    def _assign(self, link: Link, job: Job) -> None:
        older = self._jobs.by_id.get(job.lease.job_id)
        if older is not None:
            self._jobs.forget(older, "another runner has the job")
        live = self._jobs.enter(link, job, State.OFFERED)
        live.answer_by = self._out.now + ACCEPT_S
        self._jobs.attach(link, live)
        self._jobs.watch(live)
        link.reported -= 1
        exp = expiry(wall=self._out.wall, timeout_s=job.timeout_s)
        token = self._keys.mint(Claims(job.lease.job_id, job.lease.epoch, job.org_id, exp, job.session_id))
        live.token = (token, exp)
        assign = messages.Assign(
            job_type=job.job_type, lease_epoch=job.lease.epoch, job_token=token, attempt=job.attempt,
            timeout_sec=job.timeout_s, limits=job.limits, requires=job.requires, spec=job.spec, org_id=job.org_id,
        )  # fmt: skip
        self._out.send(link, assign, job.lease.job_id, job.session_id)


def _sort(link: Link, identity: Identity) -> Sort:
    return identity.kind, identity.org_id, link.capabilities


def _unfit(link: Link, job: Job) -> str | None:
    """Why this job must not go there: the claim's statement has seen to it, and this looks once more."""
    assert link.identity is not None
    needs = Needs(job.target, job.org_id, job.job_type, job.requires, job.limits.max_output_bytes)
    if not belongs(needs, kind=link.identity.kind, org_id=link.identity.org_id):
        return "the job is not for this runner"
    return lacks(needs, link.capabilities)
