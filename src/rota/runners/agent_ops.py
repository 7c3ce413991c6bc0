"""The ops of a runner's sessions: one at a time in each, and each carried out once. Pure.

What an op is asked for is read by the types of `ops.py` before anything else looks at it (I12). Its answer is kept, so
that a repeat is answered and never carried out again; without a connection nothing is said: the gateway will ask again.

Spec: runners, "Session ops", "Idempotency".
"""

from typing import Final

from rota.errors import ProtocolError
from rota.runners import agent_events as events
from rota.runners import messages, ops
from rota.runners.agent_events import Answer
from rota.runners.agent_jobs import Held, HeldJobs, State
from rota.runners.agent_line import Line
from rota.runners.codes import OpCode, Outcome
from rota.runners.frames import Frame, encode
from rota.runners.messages import OpError
from rota.runners.session import Repeat

LARGE_RESULT_BYTES: Final = 256 * 1024
"""A result below this, in its texts, cannot be too large for a frame: escapes make six bytes of one at most."""
PROGRESS_EVERY_S: Final = 1.0


class AgentOps:
    """What is asked of sessions, and their answers.

    Args:
        line: where commands go.
        jobs: those that this runner holds.
    """

    def __init__(self, line: Line, jobs: HeldJobs) -> None:
        self._line = line
        self._jobs = jobs

    def requested(self, frame: Frame, request: messages.OpRequest) -> None:
        """The gateway asks for an op, perhaps again."""
        held = self._jobs.by_id.get(frame.job_id or "")
        if held is None or held.state is State.ENDING:
            return
        if held.session_id is None:
            held.session_id = frame.session_id
        if held.session_id != frame.session_id:
            return
        if held.state is State.DONE:
            self._jobs.say_last(held)
            return
        try:
            args = ops.args_of(held.assign.job_type, request.op, request.args)
        except ProtocolError as error:
            self._respond(held, request.op_id, _failed(error.code, str(error)))
            return
        match held.log.ask(request.op_id):
            case Repeat.NEW if request.op == "close":
                held.log.ended(request.op_id)
                done = self._response(held, request.op_id, Answer({}))
                self._jobs.end(held, "closed", (done, self._jobs.complete(held, Outcome.SUCCEEDED)))
            case Repeat.NEW:
                self._line.say(
                    events.RunOp(
                        held.job_id, held.epoch, held.assign.job_type, request.op_id, request.op, args,
                        float(request.timeout_sec),
                    )
                )  # fmt: skip
            case Repeat.KEPT:
                self._line.say(events.Recall(held.job_id, held.epoch, request.op_id))
            case Repeat.EXPIRED:
                self._respond(held, request.op_id, _EXPIRED)
            case Repeat.BUSY:
                text = f"Op {held.log.running} is in flight; a session handles one at a time."
                self._respond(held, request.op_id, _failed(OpCode.OP_IN_FLIGHT, text, retryable=True))
            case Repeat.RUNNING:
                return  # its answer will come

    def ended(self, event: events.OpEnded) -> None:
        """An op was carried out: its answer is kept and told."""
        held = self._jobs.of(event.job_id, event.epoch)
        if held is None or held.state is not State.RUNNING:
            return
        aged = held.log.ended(event.op_id)
        if aged is None:
            return
        answer = self._fitting(held, event.op_id, event.answer)
        self._line.say(events.KeepAnswer(held.job_id, held.epoch, event.op_id, answer))
        for op_id in aged:
            self._line.say(events.ForgetAnswer(held.job_id, held.epoch, op_id))
        self._respond(held, event.op_id, answer)

    def moved(self, event: events.OpMoved) -> None:
        """An op makes progress; it is told now and then."""
        held = self._jobs.of(event.job_id, event.epoch)
        if held is None or held.state is not State.RUNNING or not self._line.is_open:
            return
        if self._line.now < held.progress_at:
            return
        held.progress_at = self._line.now + PROGRESS_EVERY_S
        self._line.send(
            messages.Progress(
                lease_epoch=held.epoch, job_token=held.assign.job_token, stage=event.stage, op_id=event.op_id,
                percent=event.percent, detail=event.detail,
            ),
            held.job_id,
        )  # fmt: skip

    def recalled(self, event: events.Recalled) -> None:
        """A kept answer was looked up."""
        held = self._jobs.of(event.job_id, event.epoch)
        if held is not None and held.state is State.RUNNING:
            self._respond(held, event.op_id, event.answer or _EXPIRED)

    def _respond(self, held: Held, op_id: str, answer: Answer) -> None:
        """Answers an op. Without a connection nothing is said: the gateway will ask again."""
        if self._line.is_open:
            self._line.send(self._response(held, op_id, answer), held.job_id, held.session_id)

    def _response(self, held: Held, op_id: str, answer: Answer) -> messages.OpResponse:
        return messages.OpResponse(
            lease_epoch=held.epoch, job_token=held.assign.job_token, op_id=op_id, ok=answer.error is None,
            result=(answer.result or {}) if answer.error is None else None, error=answer.error,
        )  # fmt: skip

    def _fitting(self, held: Held, op_id: str, answer: Answer) -> Answer:
        """The answer, or that it is too large for a frame: it must not be found out by the socket."""
        if sum(len(value) for value in (answer.result or {}).values() if isinstance(value, str)) < LARGE_RESULT_BYTES:
            return answer
        try:
            encode(Frame("", self._response(held, op_id, answer), held.job_id, held.session_id))
        except ProtocolError as error:
            return _failed(OpCode.FILE_TOO_LARGE, str(error))
        return answer


def _failed(code: str, message: str, *, retryable: bool = False) -> Answer:
    return Answer(error=OpError(code=code, message=message, retryable=retryable))


_EXPIRED: Final = _failed(OpCode.OP_EXPIRED, "This op was done, and its answer has aged out.")
