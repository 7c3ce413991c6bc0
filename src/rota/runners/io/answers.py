"""The answers of one session's ops, kept for a repeat: small ones in memory, large ones as files.

Which are kept, and until when, the agent says. 256 answers of 4 MiB each take a gigabyte of disk and almost no memory
(S64). Their folder lies beside the session's files, where no program of the session can reach it (I12).
"""

import contextlib
from pathlib import Path
from typing import Final

import msgspec

from rota.runners.agent_events import Answer
from rota.runners.messages import JsonObject, OpError

INLINE_BYTES_MAX: Final = 4096
"""Answers up to this size stay in memory: with 256 of them, a megabyte for each session."""
MODE: Final = 0o700


class _Kept(msgspec.Struct, frozen=True):
    result: JsonObject | None
    error: OpError | None


class Answers:
    """The answers of one session; `folder` is made with the first large one. Its calls may read and write files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: dict[str, bytes | Path] = {}
        self._count = 0

    def keep(self, op_id: str, answer: Answer) -> None:
        """Keeps an answer. Where a disk takes no more it stays in memory: it must not be lost."""
        data = msgspec.msgpack.encode(_Kept(answer.result, answer.error))
        self._kept[op_id] = data
        if len(data) > INLINE_BYTES_MAX:
            self._count += 1
            path = self._folder / str(self._count)
            with contextlib.suppress(OSError):
                self._folder.mkdir(mode=MODE, exist_ok=True)
                path.write_bytes(data)
                self._kept[op_id] = path

    def forget(self, op_id: str) -> None:
        """Forgets an answer, if it is kept."""
        kept = self._kept.pop(op_id, None)
        if isinstance(kept, Path):
            with contextlib.suppress(OSError):
                kept.unlink()

    def recall(self, op_id: str) -> Answer | None:
        """An answer as it was kept; None if there is none, or it cannot be read."""
        kept = self._kept.get(op_id)
        try:
            data = kept.read_bytes() if isinstance(kept, Path) else kept
            if data is None:
                return None
            made = msgspec.msgpack.decode(data, type=_Kept)
        except (OSError, msgspec.DecodeError):
            return None
        return Answer(made.result, made.error)
