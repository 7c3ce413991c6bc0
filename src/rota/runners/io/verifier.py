"""Judges what a runner has published, and promotes it by copy, or removes it. Runs where the platform runs.

The staged object is copied first to a key that no URL of a runner's has ever named, and that no other judgement has,
and that copy is what is measured, hashed, probed and promoted. So a late upload through a URL that is still good
changes nothing that was judged, and nothing that was delivered. What a runner has said of its output is a hint: if it
does not fit, something is wrong.

Spec: runners, "Presigned URLs and object storage".
"""

import asyncio
import hashlib
import json
import posixpath
import re
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rota.errors import ArgvNotAllowed, ObjectError, ObjectNotFound, VerificationFailed
from rota.objects.keys import check_final_key, verifying_key
from rota.objects.store import Head, ObjectStore
from rota.runners.argv import compile_argv
from rota.runners.codes import OpCode
from rota.runners.expectation import Media, mismatch
from rota.runners.failures import OpFailure
from rota.runners.ffmpeg_report import Complaints
from rota.runners.io.session_folder import SessionFolder
from rota.runners.io.tool_run import ToolRunner

_EXTENSION: Final = re.compile(r"\.[A-Za-z0-9]{1,9}")
PROBE_S: Final = 60.0
"""How long ffprobe may take for one output: it reads the heads of its streams, and nothing whole."""
PROBE_BYTES_MAX: Final = 8 * 1024 * 1024
"""ffprobe's words on a file with thousands of streams; whoever needs more is no output of ours."""
ROOM_BYTES: Final = 1024 * 1024
"""What ffprobe may write beside the file: nothing, in truth."""


@dataclass(frozen=True, slots=True)
class Promoted:
    """What was delivered, as the platform has measured it."""

    key: str
    size_bytes: int
    sha256: str


class Verifier:
    """What judges.

    Args:
        store: where outputs are staged and delivered.
        tools: runs ffprobe.
        folder: where objects lie while they are probed; None: the system's for such files.
    """

    def __init__(self, store: ObjectStore, tools: ToolRunner, *, folder: Path | None = None) -> None:
        self._store = store
        self._tools = tools
        self._folder = folder

    async def promote(
        self, staged: str, final: str, *, bytes_max: int, expect: Media | None = None, sha256_hint: str | None = None
    ) -> Promoted:
        """Judges a staged object and makes it `final`, or removes it.

        Args:
            staged: its key, of `staging_key`.
            final: where it is delivered: a key that runners are never lent for writing.
            bytes_max: how large it may be.
            expect: what ffprobe has to see; None: any content, for what is no media.
            sha256_hint: what the runner said it uploaded.

        Raises:
            VerificationFailed: it is not what was asked for; it is removed, and the step fails with class `runner`.
            ObjectError: the store cannot be used; nothing was decided, and the call can be repeated.
        """
        check_final_key(final)
        judged = verifying_key(staged, secrets.token_hex(8))
        try:
            try:
                await self._measured(staged, bytes_max)
                await self._store.copy(staged, judged)
                promoted = await self._judged(judged, final, bytes_max, expect, sha256_hint)
            except ObjectNotFound:
                raise VerificationFailed("Nothing was published: there is no staged object.") from None
            await self._store.copy(judged, final)
        except VerificationFailed:
            await self._store.delete(staged)
            raise
        finally:
            await self._store.delete(judged)
        await self._store.delete(staged)
        return promoted

    async def _measured(self, key: str, bytes_max: int) -> Head:
        head = await self._store.head(key)
        if head is None:
            raise ObjectNotFound(f"There is no object {key!r}.")
        if head.size_bytes > bytes_max:
            raise VerificationFailed(f"The output has {head.size_bytes:,} bytes, and {bytes_max:,} are allowed.")
        return head

    async def _judged(
        self, key: str, final: str, bytes_max: int, expect: Media | None, sha256_hint: str | None
    ) -> Promoted:
        # What was copied may be another than what was measured.
        head = await self._measured(key, bytes_max)
        digest, size = hashlib.sha256(), 0
        with tempfile.TemporaryDirectory(prefix="rota-verify-", dir=self._folder) as folder:
            path = Path(folder) / f"output{_extension(final)}"
            try:
                with path.open("wb") as file:
                    async for chunk in self._store.read(key):
                        size += len(chunk)
                        if size > head.size_bytes:
                            break
                        digest.update(chunk)
                        if expect is not None:
                            await asyncio.to_thread(file.write, chunk)
            except OSError as error:
                raise ObjectError(f"There is no room here to judge an output: {error.strerror}. Free some.") from None
            if size != head.size_bytes:
                # That is the store's doing: no runner can write there.
                raise ObjectError(
                    f"The store gave {size:,} bytes or more of an object of {head.size_bytes:,}: repeat it."
                )
            if sha256_hint is not None and sha256_hint.lower() != digest.hexdigest():
                raise VerificationFailed("The output is not the one that the runner said it has published.")
            if expect is not None:
                wrong = mismatch(expect, await self._probed(Path(folder), path.name, size))
                if wrong is not None:
                    raise VerificationFailed(f"The output is not what was asked for: {wrong}.")
        return Promoted(final, size, digest.hexdigest())

    async def _probed(self, folder: Path, name: str, size: int) -> dict[str, Any]:
        asked = ["-v", "error", "-show_format", "-show_streams", "-of", "json", name]
        out = bytearray()

        def take(data: bytes) -> None:
            out.extend(data[: PROBE_BYTES_MAX - len(out)])

        try:
            argv = (await asyncio.to_thread(compile_argv, "ffprobe", asked, SessionFolder(folder))).argv
            end = await self._tools.run(
                "ffprobe", argv, folder=folder, timeout_s=PROBE_S, bytes_left=lambda: size + ROOM_BYTES, stdout=take,
                stderr=Complaints().take,
            )  # fmt: skip
            probed = json.loads(bytes(out)) if end.exit_code == 0 else {}
        except (ArgvNotAllowed, ValueError, RecursionError):
            probed = {}
        except OpFailure as failure:
            # A file that ffprobe cannot be got through is no output; what else went wrong says nothing about it.
            if failure.error.code not in (OpCode.TIMEOUT, OpCode.OUT_OF_MEMORY):
                raise
            probed = {}
        return probed if isinstance(probed, dict) else {}


def _extension(key: str) -> str:
    """It may tell what a file's first bytes do not; nothing else of the key is taken."""
    found = _EXTENSION.fullmatch(posixpath.splitext(key)[1])
    return found[0] if found else ""
