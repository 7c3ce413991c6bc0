"""The sessions of a runner: folders, the one op that runs in each, and the answers that are kept. It carries out the
agent's commands and tells what came of them; it decides nothing about jobs.

What an op does is not known here either: a `MediaSession` does it. Each op is answered once, whatever happens, and each
session's end is told once, when none of its processes lives and its folder is on its way out.

Spec: runners, "Job types", "Media session ops and argv validation".
"""

import asyncio
import contextlib
import os
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from rota.io.log import get_logger, redact
from rota.io.scratch import Scratch
from rota.runners.agent_events import (
    Answer,
    EndSession,
    Event,
    ForgetAnswer,
    KeepAnswer,
    OpEnded,
    OpenSession,
    OpMoved,
    Recall,
    Recalled,
    RunOp,
    SessionBroke,
    SessionEnded,
)
from rota.runners.codes import OpCode
from rota.runners.io.answers import Answers
from rota.runners.io.disk import used_bytes
from rota.runners.io.ringlog import RingLog
from rota.runners.messages import Assign, OpError, Part
from rota.runners.ops import plain

FILES: Final = "files"
ANSWERS: Final = "answers"
LATE_S: Final = 5.0
"""How much longer than its time an op may take before it is ended from here: the media session counts it, too."""
END_SHARE: Final = 0.5
"""How much of a cancel's grace an op gets to stop by itself; the rest is for killing and cleaning."""

WorkshopCommand = OpenSession | RunOp | KeepAnswer | ForgetAnswer | Recall | EndSession

log = get_logger("rota.runner")


class Media(Protocol):
    """What carries out the ops of one session."""

    async def run(
        self,
        op: str,
        args: Mapping[str, Any],
        *,
        timeout_s: float,
        progress: Callable[[float | None, str | None], None],
        cancelled: asyncio.Event,
    ) -> Part | OpError:
        """Carries out one op. When `cancelled` is set, it ends what runs and returns soon."""
        ...

    async def close(self) -> None:
        """Ends whatever still runs."""
        ...


MakeMedia = Callable[[Path, Assign], Media]
"""What makes a session's ops work: its folder of files, and the job."""


class Workshop:
    """All sessions of one runner.

    Args:
        scratch: where their folders are.
        make_media: makes what carries out a session's ops.
        say: told what came of each command.
        ring: where it is written down which ops ran.
    """

    def __init__(self, scratch: Scratch, *, make_media: MakeMedia, say: Callable[[Event], None], ring: RingLog) -> None:
        self._scratch = scratch
        self._make_media = make_media
        self._say = say
        self._ring = ring
        self._sessions: dict[tuple[str, int], _Session] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def obey(self, command: WorkshopCommand) -> None:
        """Carries out one command; what came of it is told later, or at once."""
        if isinstance(command, OpenSession):
            session = _Session(command, self._scratch, make_media=self._make_media, say=self._say, ring=self._ring)
            self._sessions[command.job_id, command.assign.lease_epoch] = session
            return
        key = command.job_id, command.epoch
        if isinstance(command, EndSession):
            ending = asyncio.create_task(self._end(self._sessions.pop(key, None), command))
            self._tasks.add(ending)
            ending.add_done_callback(self._tasks.discard)
            return
        session = self._sessions[key]
        match command:
            case RunOp():
                session.run(command)
            case KeepAnswer():
                session.answers.keep(command.op_id, command.answer)
            case ForgetAnswer():
                session.answers.forget(command.op_id)
            case Recall():
                self._say(Recalled(*key, command.op_id, session.answers.recall(command.op_id)))

    def break_largest(self, message: str) -> None:
        """Ends the session that takes the most disk, because there is too little for all."""
        sizes = {key: used_bytes(session.folder) for key, session in self._sessions.items() if session.folder}
        if sizes:
            job_id, epoch = max(sizes, key=lambda key: sizes[key])
            self._say(SessionBroke(job_id, epoch, OpCode.DISK_FULL, message))

    async def close(self) -> None:
        """Ends every session at once and removes every folder; safe to repeat."""
        for session in self._sessions.values():
            await session.end(0.0)
        self._sessions.clear()
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        await self._scratch.close()

    async def _end(self, session: "_Session | None", command: EndSession) -> None:
        if session is not None:
            await session.end(command.grace_s)
        self._ring.write("session ended", job_id=command.job_id, epoch=command.epoch, reason=command.reason)
        self._say(SessionEnded(command.job_id, command.epoch))


class _Session:
    def __init__(
        self,
        command: OpenSession,
        scratch: Scratch,
        *,
        make_media: MakeMedia,
        say: Callable[[Event], None],
        ring: RingLog,
    ) -> None:
        self.folder = ""
        self.answers = Answers(Path("."))
        self._job_id = command.job_id
        self._assign = command.assign
        self._scratch = scratch
        self._make_media = make_media
        self._say = say
        self._ring = ring
        self._media: Media | None = None
        self._cancelled = asyncio.Event()
        self._op: asyncio.Task[None] | None = None
        self._open()

    def _open(self) -> None:
        self._ring.write("session begins", job_id=self._job_id, job_type=self._assign.job_type)
        try:
            self.folder = self._scratch.take()
            files = Path(self.folder) / FILES
            os.mkdir(files, 0o700)
            self.answers = Answers(Path(self.folder) / ANSWERS)
            self._media = self._make_media(files, self._assign)
        except OSError as error:
            why = f"no folder could be made for this session: {error.strerror}"
            self._say(SessionBroke(self._job_id, self._assign.lease_epoch, OpCode.DISK_FULL, why))

    def run(self, command: RunOp) -> None:
        """Begins an op; the agent gives one at a time."""
        self._op = asyncio.create_task(self._run(command))

    async def end(self, grace_s: float) -> None:
        """Ends the op that runs, gently and then not, and gives the folder back."""
        self._cancelled.set()
        op = self._op
        if op is not None:
            await asyncio.wait([op], timeout=grace_s * END_SHARE)
            op.cancel()
            await asyncio.wait([op])
        if self._media is not None:
            with contextlib.suppress(OSError):
                await self._media.close()
        if self.folder:
            self._scratch.give_back(self.folder)
            self.folder = ""

    async def _run(self, command: RunOp) -> None:
        began_at = asyncio.get_running_loop().time()
        answer = Answer(
            error=OpError(code=OpCode.CANCELLED, message="the session was ended while this op ran", retryable=False)
        )
        try:
            answer = await self._answered(command)
        except asyncio.CancelledError:
            pass  # it is answered, and that is the task's end
        except Exception as error:
            # The words of an error may hold an address with its signature (I10).
            trace = redact(traceback.format_exc())
            log.error("op broke", job_id=self._job_id, op_id=command.op_id, op=command.op, trace=trace)
            text = f"the runner failed at this op ({type(error).__name__})"
            answer = Answer(error=OpError(code="internal_error", message=text, retryable=True))
        self._ring.write(
            "op ended", job_id=self._job_id, op_id=command.op_id, op=command.op,
            code="ok" if answer.error is None else answer.error.code,
            duration_s=round(asyncio.get_running_loop().time() - began_at, 3),
        )  # fmt: skip
        self._op = None
        self._say(OpEnded(command.job_id, command.epoch, command.op_id, answer))

    async def _answered(self, command: RunOp) -> Answer:
        if self._media is None:
            return Answer(error=OpError(code=OpCode.DISK_FULL, message="this session has no folder", retryable=True))

        def moved(fraction: float | None, detail: str | None) -> None:
            percent = None if fraction is None else round(min(max(fraction, 0.0), 1.0) * 100, 2)
            self._say(OpMoved(command.job_id, command.epoch, command.op_id, command.op, percent, detail))

        try:
            async with asyncio.timeout(command.timeout_s + LATE_S):
                made = await self._media.run(
                    command.op,
                    plain(command.args),
                    timeout_s=command.timeout_s,
                    progress=moved,
                    cancelled=self._cancelled,
                )
        except TimeoutError:
            return Answer(
                error=OpError(code=OpCode.TIMEOUT, message=f"it took over {command.timeout_s:g} s", retryable=True)
            )
        if isinstance(made, OpError):
            return Answer(error=made)
        return Answer(result=plain(made))
