"""One session as its engine holds it: ops through the gateway, bytes through presigned URLs, outputs through the
verifier.

A URL is minted when its op is issued and is never kept: an op that is issued anew gets a new URL, a new opId and, for
an output, a new staging key. What a runner answers is data: it is read with care, and nothing rests on it.

Spec: runners, "Media session ops and argv validation", "Presigned URLs and object storage".
"""

import asyncio
import base64
import binascii
import mimetypes
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final, TypeVar
from uuid import UUID, uuid4

from rota.errors import (
    GatewayAway,
    JobNotFound,
    OpFailed,
    ProgramFailed,
    SessionError,
    SessionLost,
    VerificationFailed,
)
from rota.io.log import get_logger
from rota.objects.keys import check_final_key, staging_key
from rota.objects.store import CONTENT_TYPE, ObjectStore
from rota.runners import ops
from rota.runners.engine_answers import JobView, result_or_raise
from rota.runners.io.ffmpeg_run import FfmpegTask
from rota.runners.io.gateway_client import GatewayClient
from rota.runners.io.promoting import Promoting
from rota.runners.messages import Part
from rota.sessions import READ_BYTES_MAX, FfmpegDone, FfmpegRun, Moved, Probed, Published, SessionAsk, Stat

TRANSFER_S: Final = 1800
"""How long one transfer may take."""
SHORT_S: Final = 60
"""How long an op that only looks may take."""
TRANSFER_TRIES: Final = 3
"""How often an op that moves bytes is issued, where its runner says that trying again may help: a URL may have run out
while a laptop slept (S89)."""
STIR_S: Final = 5.0
"""While an op with a short limit runs, its job is said to move so often."""

P = TypeVar("P", bound=Part)
T = TypeVar("T")
log = get_logger("rota.engine")


@dataclass(frozen=True, slots=True)
class Means:
    """What a session works with: the gateway, the objects, and what judges its outputs."""

    client: GatewayClient
    objects: ObjectStore
    outputs: Promoting
    look_s: float = 1.0


class RunnerSession:
    """Implements `rota.sessions.Session`."""

    def __init__(self, means: Means, ask: SessionAsk, *, session_id: str, job_id: str, output_bytes_max: int) -> None:
        self._means = means
        self._ask = ask
        self._id = session_id
        self._job_id = job_id
        self._output_bytes_max = output_bytes_max
        self.closed = False

    @property
    def id(self) -> str:
        """The session's id."""
        return self._id

    @property
    def job_id(self) -> str:
        """The id of its runner job."""
        return self._job_id

    async def stage(self, path: str, *, source: str, sha256: str | None = None, bytes_max: int | None = None) -> Moved:
        """Brings an object into the session."""
        head = await self._means.objects.head(source)
        if head is None:
            raise OpFailed(f"There is no object {source!r} to stage.", code="stage_failed", retryable=False)
        limit = head.size_bytes if bytes_max is None else bytes_max

        async def issue() -> Moved:
            url = await self._means.objects.mint_get(source)
            found = await self._op(
                "stage", ops.StageArgs(url=url, path=path, max_bytes=limit, sha256=sha256), ops.Moved, TRANSFER_S
            )
            return Moved(found.bytes, found.sha256.lower())

        return await _reissued(issue)

    def ffmpeg(self, argv: Sequence[str], *, timeout_s: int | None = None, check: bool = True) -> FfmpegRun:
        """Runs ffmpeg."""
        op_id, limit_s = str(uuid4()), timeout_s or self._ask.timeout_s

        async def run() -> FfmpegDone:
            args = ops.FfmpegArgs(argv=tuple(argv), timeout_sec=limit_s)
            found = await self._op("ffmpeg", args, ops.FfmpegResult, limit_s, op_id=op_id, stirs=False)
            done = FfmpegDone(found.exit_code, found.stderr_tail, found.duration_ms / 1000)
            if check:
                _check("ffmpeg", done.exit_code, done.stderr_tail)
            return done

        return FfmpegTask(op_id, run=run, look=self._look, moved=self._ask.moved, look_s=self._means.look_s)

    async def ffprobe(self, argv: Sequence[str], *, timeout_s: int = 120, check: bool = True) -> Probed:
        """Runs ffprobe."""
        args = ops.FfmpegArgs(argv=tuple(argv), timeout_sec=timeout_s)
        found = await self._op("ffprobe", args, ops.FfprobeResult, timeout_s)
        if check:
            _check("ffprobe", found.exit_code, found.stderr_tail)
        return Probed(found.exit_code, found.stdout, found.stderr_tail)

    async def read(self, path: str, *, bytes_max: int = READ_BYTES_MAX) -> bytes:
        """A small file's content."""
        found = await self._op("read", ops.ReadArgs(path=path, max_bytes=bytes_max), ops.ReadResult, SHORT_S)
        try:
            content = (
                base64.b64decode(found.content, validate=True) if found.encoding == "base64" else found.content.encode()
            )
        except (binascii.Error, UnicodeError):
            content = None
        # A short read is never taken for a whole file (I9).
        if content is None or len(content) != found.bytes or len(content) > bytes_max:
            raise OpFailed(
                f"The runner's answer to read {path!r} is not the file that it says.", code="invalid_result",
                retryable=False,
            )  # fmt: skip
        return content

    async def publish(
        self,
        path: str,
        *,
        to: str | None = None,
        expect: object = None,
        content_type: str | None = None,
        bytes_max: int | None = None,
    ) -> Published:
        """Takes a file out, has it checked and promoted."""
        if to is not None:
            check_final_key(to)  # before gigabytes are moved
        limit = min(bytes_max or self._output_bytes_max, self._output_bytes_max)
        kind = content_type or mimetypes.guess_type(path)[0] or CONTENT_TYPE
        job_id = UUID(self._job_id)

        async def issue() -> tuple[int, Moved]:
            n = await self._means.client.staging(self._job_id)
            url = await self._means.objects.mint_put(staging_key(job_id, n), content_type=kind)
            found = await self._op(
                "publish", ops.PublishArgs(path=path, put_url=url, max_bytes=limit, content_type=kind), ops.Moved,
                TRANSFER_S,
            )  # fmt: skip
            return n, Moved(found.bytes, found.sha256.lower())

        n, claimed = await _reissued(issue)
        final = to or f"outputs/{self._job_id}/{n}/{PurePosixPath(path).name}"
        judging = self._means.outputs.promote(job_id, n, to=final, expect=expect, bytes_max=limit, claimed=claimed)
        try:
            return await self._stirring(judging)
        except VerificationFailed as error:
            await self._refuse(str(error))
            raise

    async def _refuse(self, why: str) -> None:
        """Ends the session of a runner whose output is not what was asked for. Who counts failures looks at its job."""
        try:
            await self._means.client.verdict(self._job_id, why)
            self.closed = True
        except (SessionError, JobNotFound) as error:
            log.warning("job of a refused output was not failed", job_id=self._job_id, error=str(error))

    async def stat(self, path: str) -> Stat:
        """Whether a file is there."""
        found = await self._op("stat", ops.PathArgs(path=path), ops.StatResult, SHORT_S)
        return Stat(found.exists, found.bytes)

    async def close(self) -> None:
        """Ends the session."""
        if self.closed:
            return
        try:
            await self._op("close", ops.Nothing(), ops.Nothing, SHORT_S)
        except SessionLost:
            # What was wanted is so.
            log.info("session was over before it was closed", session_id=self._id, job_id=self._job_id)
        self.closed = True

    async def _op(
        self,
        op: str,
        args: Part,
        result: type[P],
        timeout_s: int,
        *,
        op_id: str | None = None,
        stirs: bool = True,
    ) -> P:
        if self.closed:
            raise SessionLost("This session is closed. Open a new one.", reason="closed")
        asked = self._means.client.op(
            self._id, op_id=op_id or str(uuid4()), op=op, args=ops.plain(args), timeout_s=timeout_s
        )
        answer = await (self._stirring(asked) if stirs else asked)
        self._ask.moved()
        found = ops.result_of(self._ask.job_type, op, result_or_raise(op, answer))
        if not isinstance(found, result):
            raise SessionError(f"A {self._ask.job_type} session has another {op}. Use the ops of its type.")
        return found

    async def _stirring(self, work: Awaitable[T]) -> T:
        """Awaits something that takes a limited time, which is why its job counts as moving meanwhile."""
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({task}, timeout=STIR_S))[0]:
                self._ask.moved()
            return task.result()
        finally:
            task.cancel()

    async def _look(self) -> JobView | None:
        """The job, for its progress. Who cannot be asked now may be asked a second later."""
        try:
            return await self._means.client.job(self._job_id)
        except GatewayAway:
            return None


async def _reissued(issue: Callable[[], Awaitable[T]]) -> T:
    """An op that moves bytes, issued anew, with all that belongs to it, where its runner says that this may help."""
    tries = 0
    while True:
        tries += 1
        try:
            return await issue()
        except OpFailed as error:
            if not error.retryable or tries == TRANSFER_TRIES:
                raise
            log.info("op is issued anew", code=error.code, tries=tries)


def _check(program: str, exit_code: int, stderr_tail: str) -> None:
    if exit_code != 0:
        raise ProgramFailed(
            f"{program} ended with status {exit_code} on the runner: {stderr_tail[-500:].strip()}",
            exit_code=exit_code,
            stderr_tail=stderr_tail,
        )
