"""Exec calls answered by a test: no exec server, no process, and a record of what was asked.

It stands on the protocol in `rota.commands`, so handlers speak to it as to exec servers, and the errors that they get
are the errors of real receipts.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from rota.commands import Args, Call, Place, Receipt, Standing, Stdin
from rota.slots.io.exec_run import chunks_of, error_of
from rota.slots.messages import EndedBy
from rota.slots.messages import Receipt as Report
from rota.slots.output import digest_of
from rota.tallies import ExecTally

ROOM: Final = 1000
"""Slots that there seem to be: none is ever short."""


class NoAnswer(AssertionError):
    """A handler asked for a service for which the test gave no answer."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One command that somebody wanted run; `input` is all that it would have read."""

    service: str
    args: Args
    input: bytes
    call: Call


Output = bytes | Callable[[Asked], bytes]


@dataclass(frozen=True, slots=True)
class _Answer:
    output: Output
    report: Report
    error: Exception | None


class Answers:
    """Answers exec calls; give it to `App.use_exec_servers`, or use `queue.answer` of a queue in memory.

    Attributes:
        asked: the commands that were wanted, in order.
    """

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self._answers: dict[str, list[_Answer]] = {}

    def answer(
        self,
        service: str,
        *,
        output: Output = b"",
        exit: int = 0,
        stderr_line: str | None = None,
        ended_by: str = EndedBy.EXIT,
        retryable: bool = False,
        error: Exception | None = None,
        duration_s: float = 0.0,
    ) -> None:
        """Says what a service answers. Several answers of one service are given in turn, and the last one for ever.

        Args:
            service: its name.
            output: what it writes to stdout, or a function of the `Asked` that makes it.
            exit: its exit status.
            stderr_line: the line of its stderr that says what went wrong.
            ended_by: how it ended: `exit`, `timeout`, `stall`, `memory`, `output`, `stopped`, `refused` or `broken`.
            retryable: the same call may go well elsewhere or later.
            error: raised in place of all this, such as `rota.NoSlot(…)`.
            duration_s: how long it seems to have run.
        """
        report = Report(
            ended_by=ended_by, exit=exit if ended_by == EndedBy.EXIT else None, stderr_line=stderr_line,
            duration_s=duration_s, retryable=retryable,
        )  # fmt: skip
        self._answers.setdefault(service, []).append(_Answer(output, report, error))

    @asynccontextmanager
    async def exec(self, call: Call) -> AsyncIterator["AnsweredRun"]:
        """Answers a call."""
        asked = Asked(call.service, call.args, await _read(call.stdin), call)
        self.asked.append(asked)
        answer = self._next(call.service)
        if answer.error is not None:
            raise answer.error
        output = answer.output if isinstance(answer.output, bytes) else answer.output(asked)
        call.moved()
        run = AnsweredRun(call, output, answer.report, bytes_in=len(asked.input))
        yield run
        run.close()

    def _next(self, service: str) -> _Answer:
        answers = self._answers.get(service)
        if not answers:
            raise NoAnswer(
                f"A handler wants the service {service!r}, and this test has no answer for it. "
                f"Give one: queue.answer({service!r}, output=b…)."
            )
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def room(self, kind: str, *, services: Mapping[str, Sequence[str]], running: Mapping[str, int]) -> int:
        """There is always room."""
        return ROOM

    def watch(self, changed: Callable[[], None]) -> None:
        """Nothing ever changes."""

    def standing(self, services: Mapping[str, Sequence[str]]) -> Standing:
        """Nothing waits."""
        return Standing()

    def tally(self) -> ExecTally:
        """Nothing is counted."""
        return ExecTally()

    async def stop(self) -> None:
        """There is nothing to close."""


class AnsweredRun:
    """One answered command, as its caller sees it."""

    def __init__(self, call: Call, output: bytes, report: Report, *, bytes_in: int) -> None:
        self._call = call
        self._output = output
        self._report = report
        self._bytes_in = bytes_in
        self._cancelled = False
        self._over = False
        self._stdout = self._chunks()

    @property
    def stdout(self) -> AsyncIterator[bytes]:
        """Its output in one chunk. Raises, at its end, what a bad receipt means."""
        return self._stdout

    async def _chunks(self) -> AsyncIterator[bytes]:
        if self._output and self._call.output:
            yield self._output
        self._end()

    def close(self) -> None:
        """The block is left: output that was not read cancels the command; one without output is over."""
        if self._over:
            return
        if self._output and self._call.output:
            self._cancelled = True
        self._end()

    def _end(self) -> None:
        self._over = True
        if not self._cancelled and self._call.check and not self._receipt.ok:
            raise error_of(self._call.service, self._receipt)

    @property
    def receipt(self) -> Receipt:
        """How it ended.

        Raises: RuntimeError while it has not.
        """
        if not self._over:
            raise RuntimeError("The command has not ended: its receipt is there after its output, or after the block.")
        return self._receipt

    @property
    def _receipt(self) -> Report:
        ended_by = EndedBy.CANCELLED if self._cancelled else self._report.ended_by
        told: dict[str, Any] = {
            name: getattr(self._report, name) for name in ("stderr_line", "duration_s", "retryable")
        }
        return Report(
            ended_by=ended_by, exit=None if self._cancelled else self._report.exit, bytes_in=self._bytes_in,
            bytes_out=len(self._output), digest=digest_of(self._output), **told,
        )  # fmt: skip

    async def started(self) -> None:
        """It has its slot at once."""

    async def position(self) -> Place | None:
        """It stands in no line."""
        return None

    def cancel(self) -> None:
        """Stops it."""
        self._cancelled = True


async def _read(stdin: Stdin | None) -> bytes:
    """All that a command would have read."""
    return b"" if stdin is None else b"".join([chunk async for chunk in chunks_of(stdin, moved=lambda: None)])
