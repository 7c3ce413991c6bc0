"""The ops of sessions as a replica of the gateway passes them on: asked by engines, answered by runners. Pure.

Each ask is answered once: with what the runner said, with a refusal, or with the word to look for the session
elsewhere. Which op of a session is in flight is its `OpGate`'s; here is who waits for it.

Spec: runners, "Session ops", "Gateway internal API".
"""

from typing import Final

from rota.runners import gateway_events as events
from rota.runners import messages
from rota.runners.gateway_outgoing import Outgoing
from rota.runners.registry import Live, State
from rota.runners.session import InFlight

AWAY_S: Final = 3.0
"""For how long an op waits for a runner whose connection has just ended: it dials again within a second or two, and a
balancer that is started anew must not cost sessions."""
ENDS: Final = "this gateway ends; ask again with the same opId, the runner keeps its answer"


class Ops:
    """Who waits for which op.

    Args:
        out: where commands go.
    """

    def __init__(self, out: Outgoing) -> None:
        self.stopping = False
        """This replica ends: it takes no op more."""
        self._out = out
        self._asks: dict[int, Live] = {}

    def ask(self, event: events.OpAsked, live: Live | None) -> bool:
        """An engine wants an op of this session, if that is live here.

        Returns: whether the op is in flight now.
        """
        op_id = event.op_id or self._out.new_id()
        if self.stopping:
            self._out.say(events.RefuseOp(event.ask, 504, "op_timeout", ENDS))
            return False
        if live is None or (live.state is not State.CANCELLING and self.is_away(live)):
            self._out.say(events.SeekOp(event.ask, op_id))
            return False
        if live.state is State.CANCELLING:
            self._out.say(events.RefuseOp(event.ask, 410, "session_lost", "the job was cancelled"))
            return False
        whole_s = live.job.timeout_s
        timeout_s = whole_s if event.timeout_s is None else max(1, min(event.timeout_s, whole_s))
        refused = live.gate.ask(
            event.ask, op_id=op_id, op=event.op, args=event.args, timeout_s=timeout_s, now=self._out.now
        )
        if refused is not None:
            running = live.gate.op.op_id if live.gate.op is not None else ""
            self._out.say(events.RefuseOp(event.ask, 409, refused, f"op {running} is in flight"))
            return False
        self._asks[event.ask] = live
        self.send(live)
        return True

    def ask_gone(self, event: events.AskGone) -> None:
        """Nobody waits for this ask any more; the op goes on."""
        live = self._asks.pop(event.ask, None)
        if live is not None and live.gate.op is not None:
            live.gate.op.waiters.pop(event.ask, None)

    def send(self, live: Live) -> None:
        """Sends the op of this session, if it can be and was not sent on the connection that the runner has now."""
        op = live.gate.op
        if op is None or op.sent or live.link is None or live.state is not State.RUNNING:
            return
        op.sent = True
        request = messages.OpRequest(op_id=op.op_id, op=op.op, args=op.args, timeout_sec=op.timeout_s)
        self._out.send(live.link, request, live.job.lease.job_id, live.job.session_id)

    def answer(self, live: Live, message: messages.OpResponse) -> InFlight | None:
        """The runner has answered.

        Returns: the op that it was; None if that is not in flight.
        """
        return self._answer(live, message.op_id, message.result, message.error)

    def unreadable(self, live: Live, error: messages.OpError) -> None:
        """The runner has answered what nobody can read: the op that it is at has failed."""
        op = live.gate.op
        if op is not None and op.sent:
            self._answer(live, op.op_id, None, error)

    def _answer(
        self, live: Live, op_id: str, result: messages.JsonObject | None, error: messages.OpError | None
    ) -> InFlight | None:
        op = live.gate.answered(op_id, self._out.now)
        if op is None:
            return None
        for ask in op.waiters:
            self._asks.pop(ask, None)
            self._out.say(events.AnswerOp(ask, op.op_id, result, error))
        return op

    def is_away(self, live: Live) -> bool:
        """Whether its runner has had its time to come back."""
        return live.link is None and self._out.now >= away_at(live)

    def seek(self, live: Live) -> None:
        """Whoever waits for the op of this session finds it elsewhere, if anywhere."""
        op, live.gate.op = live.gate.op, None
        if op is None:
            return
        for ask in op.waiters:
            self._asks.pop(ask, None)
            self._out.say(events.SeekOp(ask, op.op_id))

    def release(self, live: Live, status: int, code: str, reason: str) -> None:
        """Nobody waits any longer for the op of this session; all hear why."""
        op: InFlight | None = live.gate.op
        if op is None:
            return
        for ask in op.waiters:
            self._asks.pop(ask, None)
            self._out.say(events.RefuseOp(ask, status, code, reason))
        op.waiters.clear()

    def refuse_overdue(self, live: Live) -> None:
        """Those whose time is up hear so."""
        for ask in live.gate.overdue(self._out.now):
            self._asks.pop(ask, None)
            self._out.say(
                events.RefuseOp(
                    ask, 504, "op_timeout", "the runner did not answer in time; it may be at it still: ask again "
                    "with the same opId",
                )
            )  # fmt: skip


def away_at(live: Live) -> float:
    """Until when the runner of a job without a link may come back and be asked still."""
    return live.left_at + AWAY_S
