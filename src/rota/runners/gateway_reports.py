"""What a runner reports about a job, and what a replica of the gateway makes of it. Pure.

A report counts if the job is live on its very connection, under the epoch and with the token that it was given (I3);
else the runner is told to stop. What it says of its success is a claim: the verifier judges the output (I11).

Spec: runners, "Job lifecycle, leases and fencing", "Session ops".
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from rota.runners import gateway_events as events
from rota.runners import messages
from rota.runners.codes import CancelReason, FailureClass, Outcome
from rota.runners.frames import Frame
from rota.runners.gateway_dealing import Dealing
from rota.runners.gateway_events import Lease
from rota.runners.gateway_jobs import LiveJobs
from rota.runners.gateway_links import Links
from rota.runners.gateway_ops import Ops
from rota.runners.gateway_outgoing import Outgoing
from rota.runners.matching import failure_class, refuses
from rota.runners.messages import OfJob
from rota.runners.registry import Link, Live, State
from rota.runners.token import TokenKeys

PROGRESS_EVERY_S: Final = 1.0


class Reports:
    """The answers of runners about their jobs.

    Args:
        out: where commands go.
        links: all connections.
        ops: who waits for the ops of sessions.
        jobs: those that are live.
        dealing: takes back what was declined.
        keys: for job tokens.
    """

    def __init__(
        self, out: Outgoing, links: Links, ops: Ops, jobs: LiveJobs, *, dealing: Dealing, keys: TokenKeys
    ) -> None:
        self._out = out
        self._links = links
        self._ops = ops
        self._jobs = jobs
        self._dealing = dealing
        self._keys = keys
        self._handlers: Mapping[type, Callable[[Link, Live, Any], None]] = MappingProxyType(
            {
                messages.Accept: self._accept, messages.Reject: self._reject, messages.Progress: self._progress,
                messages.OpResponse: self._op_response, messages.Complete: self._complete, messages.Fail: self._fail,
            }
        )  # fmt: skip

    def take(self, link: Link, frame: Frame, message: OfJob) -> None:
        """A message about a job; it counts, or its runner is told to stop."""
        assert frame.job_id is not None  # its type needs one
        live = link.jobs.get(frame.job_id)
        lease = Lease(frame.job_id, message.lease_epoch)
        if live is None or live.job.lease != lease or not self._proves(live, message.job_token):
            if not self._jobs.has_ended(lease):
                self._out.cancel(link, frame.job_id, CancelReason.LEASE_LOST)
        elif not isinstance(message, messages.OpResponse) or frame.session_id == live.job.session_id:
            self._handlers[type(message)](link, live, message)

    def unreadable(self, link: Link, event: events.Garbled) -> None:
        """Its answer to an op is no message: whoever waits hears so, and does not wait for what can never come."""
        live = link.jobs.get(event.job_id or "")
        if live is None or live.state is not State.RUNNING:
            return
        self._ops.unreadable(live, messages.OpError(code=event.code, message=event.reason, retryable=False))
        self._jobs.watch(live)

    def _proves(self, live: Live, token: str) -> bool:
        if live.token is not None and live.token[0] == token:
            return live.token[1] > self._out.wall
        claims = self._keys.read(token, wall=self._out.wall)
        job = live.job
        if claims is None or (claims.job_id, claims.epoch, claims.org_id) != (
            job.lease.job_id, job.lease.epoch, job.org_id,
        ):  # fmt: skip
            return False
        if claims.session_id not in (None, job.session_id):
            return False
        live.token = (token, claims.exp)
        return True

    def _accept(self, link: Link, live: Live, _message: messages.Accept) -> None:
        if live.state is State.CANCELLING:  # it said so before it heard of the cancel, or it does not know of it
            self._out.cancel(link, live.job.lease.job_id, live.cancel_reason)
        if live.state is not State.OFFERED:
            return
        live.state, live.answer_by = State.RUNNING, None
        self._out.say(events.StoreAccept(live.job.lease))
        self._jobs.watch(live)
        self._ops.send(live)

    def _reject(self, link: Link, live: Live, message: messages.Reject) -> None:
        if live.state is State.CANCELLING:  # the two have crossed: there is nothing to stop
            self._out.say(events.EndCancelled(live.job.lease))
            self._jobs.forget(live, "the job was cancelled", by_runner=True)
            self._links.registry.place(link)
        if live.state is not State.OFFERED:
            return
        self._dealing.decline(link, live, message.reason, for_good=refuses(message.reason))
        if not refuses(message.reason):
            link.reported = 0  # it will say when it has room again
        self._links.registry.place(link)

    def _progress(self, _link: Link, live: Live, message: messages.Progress) -> None:
        if live.state is State.RUNNING and self._out.now >= live.progress_at:
            live.progress_at = self._out.now + PROGRESS_EVERY_S
            self._out.say(events.NoteProgress(live.job.lease, message))

    def _op_response(self, _link: Link, live: Live, message: messages.OpResponse) -> None:
        if live.state is State.CANCELLING:
            return
        op = self._ops.answer(live, message)
        if op is None:
            return
        if op.op == "close" and message.ok:
            self._out.say(events.Succeed(live.job.lease))
            self._jobs.forget(live, "the session is closed", by_runner=True)
        else:
            self._jobs.watch(live)

    def _complete(self, _link: Link, live: Live, message: messages.Complete) -> None:
        lease = live.job.lease
        if live.state is State.CANCELLING or message.outcome == Outcome.CANCELLED:
            self._out.say(events.EndCancelled(lease))
        elif message.outcome == Outcome.SUCCEEDED:
            self._out.say(events.Succeed(lease, message.result))
        else:
            self._out.say(
                events.FailJob(
                    lease,
                    FailureClass.RUNNER,
                    "",
                    "unknown_outcome",
                    f"the runner said {message.outcome}",
                    retryable=False,
                )
            )
        self._jobs.forget(live, "the runner has ended the session", by_runner=True)

    def _fail(self, _link: Link, live: Live, message: messages.Fail) -> None:
        lease = live.job.lease
        if live.state is State.CANCELLING:
            self._out.say(events.EndCancelled(lease))
        else:
            counts = failure_class(message.failure_class)
            self._out.say(
                events.FailJob(
                    lease, counts, message.failure_class, message.code, message.message,
                    retryable=message.retryable and counts is not FailureClass.INPUT,
                )
            )  # fmt: skip
        self._jobs.forget(live, "the job failed", by_runner=True)
