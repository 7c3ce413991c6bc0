"""Ends of jobs that do not come from their runner, at a replica of the gateway. Pure.

Somebody cancels a job, revokes its device or disables its organisation; its lease is lost or goes to another replica;
its offer is not answered, its session idles or is at its limit. The runner is told to stop where it is here.

Spec: runners, "Job lifecycle, leases and fencing".
"""

from rota.runners import gateway_events as events
from rota.runners.codes import CancelReason, CloseCode, ErrorCode, FailureClass
from rota.runners.gateway_admission import DISABLED
from rota.runners.gateway_dealing import Dealing
from rota.runners.gateway_jobs import LiveJobs
from rota.runners.gateway_links import Links
from rota.runners.gateway_ops import Ops
from rota.runners.gateway_outgoing import Outgoing
from rota.runners.matching import Target
from rota.runners.registry import State


class Ends:
    """What ends jobs from outside, and by time.

    Args:
        out: where commands go.
        links: all connections.
        ops: who waits for the ops of sessions.
        jobs: those that are live.
        dealing: takes back offers that are not answered.
    """

    def __init__(self, out: Outgoing, links: Links, ops: Ops, jobs: LiveJobs, dealing: Dealing) -> None:
        self._out = out
        self._links = links
        self._ops = ops
        self._jobs = jobs
        self._dealing = dealing

    def unsendable(self, event: events.Unsendable) -> None:
        """A message of this job fits into no frame: its offer fails for good, its op is refused."""
        live = self._jobs.by_id.get(event.job_id)
        if live is None:
            return
        if live.state is not State.OFFERED:
            self._ops.release(live, 413, "too_large", event.reason)
            live.gate.op = None
            self._jobs.watch(live)
            return
        code, link = ErrorCode.TOO_LARGE, live.link
        self._out.say(
            events.FailJob(live.job.lease, FailureClass.INPUT, "", code, event.reason, retryable=False)
        )  # fmt: skip
        self._jobs.forget(live, "its spec is too large")
        if link is not None:
            link.reported += 1  # the runner never heard of it
            self._links.registry.place(link)

    def lease_lost(self, event: events.LeaseLost) -> None:
        """The database says that the lease does not hold."""
        live = self._jobs.of(event.lease)
        if live is not None:
            self._jobs.tell_and_forget(live, CancelReason.LEASE_LOST, "its lease is gone")

    def moved(self, event: events.Moved) -> None:
        """The session belongs to another replica: whoever waits for its op is sent there."""
        live = self._jobs.of(event.lease)
        if live is None or live.link is not None:
            return  # the runner is here: the row has not caught up
        self._ops.seek(live)
        self._jobs.forget(live, "the session is elsewhere")

    def cancelled(self, event: events.CancelJob) -> None:
        """Somebody wants the job to stop: its runner is told, and has a grace."""
        live = self._jobs.by_id.get(event.job_id)
        if live is None or live.state is State.CANCELLING:
            return
        live.state, live.answer_by, live.cancel_reason = State.CANCELLING, self._out.grace_ends_at(), event.reason
        if live.link is not None:
            self._out.cancel(live.link, event.job_id, event.reason)
        self._ops.release(live, 409, "op_cancelled", f"the job was cancelled: {event.reason}")
        self._jobs.watch(live)

    def ended(self, event: events.JobEnded) -> None:
        """Somebody else has ended the job."""
        live = self._jobs.by_id.get(event.job_id)
        if live is not None:
            self._jobs.tell_and_forget(live, CancelReason.EXECUTION_ENDED, "its job has ended")

    def revoked(self, event: events.Revoked) -> None:
        """A runner may not be connected any more."""
        self._links.bar(event.runner_id)
        for live in self._jobs.of_runner(event.runner_id):
            self._jobs.expire(live, event.reason, CancelReason.REVOKED)
        link = self._links.registry.of_runner.get(event.runner_id)
        if link is not None:
            self._links.goodbye(link, CloseCode.UNAUTHENTICATED, event.reason)

    def forbidden(self, event: events.Forbidden) -> None:
        """An organisation may not use runners any more."""
        self._links.bar(event.org_id)
        # Also those whose device is not connected just now; what the pool does for it is the platform's own.
        for live in [one for one in self._jobs.by_id.values() if one.job.org_id == event.org_id]:
            if live.job.target == Target.ORG_RUNNER:
                self._jobs.expire(live, "the organisation is disabled", CancelReason.REVOKED)
        for link in list(self._links.registry.of_runner.values()):
            if link.identity is not None and link.identity.org_id == event.org_id:
                self._links.goodbye(link, CloseCode.FORBIDDEN, DISABLED)

    def due(self, job_id: str) -> None:
        """A time of this job has come: its answer's, its lease's, its session's, or that of who waits for its op."""
        live = self._jobs.by_id.get(job_id)
        if live is None:
            return
        now = self._out.now
        over = live.gate.over(now)
        if live.answer_by is not None and live.answer_by <= now:
            if live.state is State.CANCELLING:
                self._out.say(events.EndCancelled(live.job.lease))
                self._jobs.tell_and_forget(live, None, "the job was cancelled")
            else:
                self._dealing.unanswered(live)
        elif live.leased_until <= now:
            self._jobs.tell_and_forget(live, CancelReason.LEASE_LOST, "its lease ran out")
        elif over is not None and live.state is State.RUNNING:
            self._jobs.expire(live, over, CancelReason.EXECUTION_ENDED)
        elif self._ops.is_away(live) and live.gate.op is not None and not live.gate.op.sent:
            self._ops.seek(live)
            self._jobs.watch(live)
        else:
            self._ops.refuse_overdue(live)
            self._jobs.watch(live)
