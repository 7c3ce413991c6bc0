"""The heartbeats of runners, as a replica of the gateway answers them: which leases go on. Pure.

A heartbeat is answered when the database has renewed what it lists, and one after the other, so that answers keep
their order. Where the database does not answer, the runner hears nothing about those leases, and its own deadline
counts.

Spec: runners, "Job lifecycle, leases and fencing".
"""

from typing import Final

from rota.runners import clocks, messages
from rota.runners import gateway_events as events
from rota.runners.gateway_events import Lease
from rota.runners.gateway_jobs import LiveJobs
from rota.runners.gateway_links import Links
from rota.runners.gateway_outgoing import Outgoing
from rota.runners.registry import Link, Phase

BEATS_MAX: Final = 4
"""Heartbeats that wait for the database; a runner that sends more is answered on the next."""


class Beats:
    """What heartbeats ask, and their answers.

    Args:
        out: where commands go.
        links: all connections.
        jobs: those that are live.
    """

    def __init__(self, out: Outgoing, links: Links, jobs: LiveJobs) -> None:
        self._out = out
        self._links = links
        self._jobs = jobs

    def beat(self, link: Link, beat: messages.RunnerHeartbeat) -> None:
        """A runner says what it runs and how many slots are free."""
        listed = {held.job_id for held in beat.running}
        link.reported = beat.free_slots - sum(job_id not in listed for job_id in link.jobs)
        self._links.registry.place(link)
        if len(link.beats) >= BEATS_MAX:
            return
        link.beats.append(beat)
        if len(link.beats) == 1:
            self._renew(link)

    def renewed(self, event: events.Renewed) -> None:
        """The database has said which leases go on, or has not answered."""
        link = self._links.waiting(event.connection, Phase.OPEN)
        if link is None or not link.beats:
            return
        unknown = _leases(link.beats[0]) if event.lost is None else event.unknown
        self._answer(link, frozenset(event.lost or ()), unknown=frozenset(unknown))
        self._renew(link)

    def _renew(self, link: Link) -> None:
        """Asks for the leases of the oldest heartbeat that waits."""
        while link.beats:
            valid = tuple(lease for lease in _leases(link.beats[0]) if _holds(link, lease))
            if valid:
                self._out.say(events.Renew(link.number, valid))
                return
            self._answer(link, frozenset(), unknown=frozenset())

    def _answer(self, link: Link, lost: frozenset[Lease], *, unknown: frozenset[Lease]) -> None:
        answers: list[messages.LeaseAnswer] = []
        for lease in _leases(link.beats.popleft()):
            ok, known = _holds(link, lease) and lease not in lost, lease not in unknown
            if ok and known:
                live = link.jobs[lease.job_id]
                self._jobs.renewed(live)
                self._jobs.watch(live)
            if known or not ok:
                answers.append(messages.LeaseAnswer(job_id=lease.job_id, ok=ok))
        now = clocks.stamp(self._out.wall)
        self._out.send(link, messages.GatewayHeartbeat(server_time=now, leases=tuple(answers)))
        for gone in map(self._jobs.of, lost):
            if gone is not None:
                self._jobs.forget(gone, "its lease is gone")


def _leases(beat: messages.RunnerHeartbeat) -> list[Lease]:
    return [Lease(held.job_id, held.lease_epoch) for held in beat.running]


def _holds(link: Link, lease: Lease) -> bool:
    live = link.jobs.get(lease.job_id)
    return live is not None and live.job.lease == lease
