"""What the ops of a session take and give: one struct for the arguments and one for the result of each. Pure.

An op travels as `op.request` and is answered with `op.response`; both hold plain objects, which are read here. Unknown
fields are ignored. A result is a claim of the runner's and is read with the same care.

Spec: runners, "Remotion workspace ops", "Media session ops and argv validation".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from rota.errors import ProtocolError
from rota.runners.codes import JobType, OpCode
from rota.runners.frames import PAYLOAD_BYTES_MAX
from rota.runners.messages import Count, JsonObject, Part, Text, Word

Path = Annotated[str, Meta(min_length=1, max_length=4096)]
Url = Annotated[str, Meta(min_length=1, max_length=16_384)]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{64}$(?!\n)")]
"""SHA-256 in hexadecimal; read in either case, written in lower case."""
InlineBytes = Annotated[int, Meta(ge=0, le=PAYLOAD_BYTES_MAX)]
Argv = Annotated[tuple[Annotated[str, Meta(max_length=100_000)], ...], Meta(max_length=10_000)]


class Nothing(Part, frozen=True):
    """No arguments, or nothing to tell."""


class StageArgs(Part, frozen=True):
    """GET this URL into the session."""

    url: Url
    path: Path
    max_bytes: Count
    sha256: Digest | None = None


class Moved(Part, frozen=True):
    """So many bytes, and their SHA-256."""

    bytes: Count
    sha256: Digest


class FfmpegArgs(Part, frozen=True):
    """Run ffmpeg with this argv, which does not name the program."""

    argv: Argv
    timeout_sec: Count


class FfmpegResult(Part, frozen=True):
    """How ffmpeg ended."""

    exit_code: int
    stderr_tail: Text
    duration_ms: Count


class FfprobeResult(Part, frozen=True):
    """What ffprobe wrote."""

    exit_code: int
    stdout: str
    stderr_tail: Text


class ReadArgs(Part, frozen=True):
    """Give this file's content inline."""

    path: Path
    max_bytes: InlineBytes


class ReadResult(Part, frozen=True):
    """A file's content, whole."""

    content: str
    encoding: Word
    bytes: Count


class PublishArgs(Part, frozen=True):
    """PUT this file to the URL."""

    path: Path
    put_url: Url
    max_bytes: Count
    content_type: Word


class PathArgs(Part, frozen=True):
    """About this path."""

    path: Path


class StatResult(Part, frozen=True):
    """Whether a file is there, and its size."""

    exists: bool
    bytes: Count


class WriteFileArgs(Part, frozen=True):
    """Write this file."""

    path: Path
    content: str
    encoding: Word


class ReadFileResult(Part, frozen=True):
    """A file's content; never a part of it."""

    content: str
    encoding: Word
    bytes: Count
    truncated: bool


class ListFilesArgs(Part, frozen=True):
    """List what is below a path."""

    path: Path | None = None
    depth: Count | None = None


class Entry(Part, frozen=True):
    """One file or folder."""

    path: Path
    kind: Word
    bytes: Count


class ListFilesResult(Part, frozen=True):
    """What is there."""

    entries: tuple[Entry, ...]


class DeletePathResult(Part, frozen=True):
    """Whether something was there to delete."""

    deleted: bool


class ExecArgs(Part, frozen=True):
    """Run one of the few commands that are allowed."""

    command: Word
    args: Argv
    timeout_sec: Count


class ExecResult(Part, frozen=True):
    """How a command ended; long output is cut, and says so."""

    exit_code: int
    stdout: str
    stderr: str
    duration_ms: Count
    stdout_truncated: bool = False
    stderr_truncated: bool = False


class StatusResult(Part, frozen=True):
    """How a workspace is."""

    workspace_ready: bool
    disk_used_bytes: Count
    open_processes: Count


class RenderArgs(Part, frozen=True):
    """Render a composition and PUT the outcome."""

    composition_id: Word
    args: Argv
    put_url: Url
    output_name: Path


class RenderResult(Part, frozen=True):
    """What was rendered."""

    bytes: Count
    sha256: Digest
    duration_ms: Count


class ManifestEntry(Part, frozen=True):
    """One file of a workspace that is rebuilt."""

    path: Path
    sha256: Digest
    url: Url


class HydrateArgs(Part, frozen=True):
    """Rebuild a workspace from these files."""

    manifest: tuple[ManifestEntry, ...]


class HydrateResult(Part, frozen=True):
    """How many files were fetched, and how many were there already."""

    restored: Count
    skipped: Count


@dataclass(frozen=True, slots=True)
class Op:
    """One op: what it takes and what it gives."""

    args: type[Part]
    result: type[Part]


MEDIA_OPS: Final[Mapping[str, Op]] = MappingProxyType(
    {
        "stage": Op(StageArgs, Moved),
        "ffmpeg": Op(FfmpegArgs, FfmpegResult),
        "ffprobe": Op(FfmpegArgs, FfprobeResult),
        "read": Op(ReadArgs, ReadResult),
        "publish": Op(PublishArgs, Moved),
        "stat": Op(PathArgs, StatResult),
        "close": Op(Nothing, Nothing),
    }
)
WORKSPACE_OPS: Final[Mapping[str, Op]] = MappingProxyType(
    {
        "writeFile": Op(WriteFileArgs, Moved),
        "readFile": Op(ReadArgs, ReadFileResult),
        "listFiles": Op(ListFilesArgs, ListFilesResult),
        "deletePath": Op(PathArgs, DeletePathResult),
        "exec": Op(ExecArgs, ExecResult),
        "status": Op(Nothing, StatusResult),
        "stage": Op(StageArgs, Moved),
        "publish": Op(PublishArgs, Moved),
        "render": Op(RenderArgs, RenderResult),
        "hydrate": Op(HydrateArgs, HydrateResult),
        "close": Op(Nothing, Nothing),
    }
)
OPS: Final[Mapping[str, Mapping[str, Op]]] = MappingProxyType(
    {JobType.COMPILE: MEDIA_OPS, JobType.EXTRACT: MEDIA_OPS, JobType.REMOTION: WORKSPACE_OPS}
)
"""The ops of each job type; an op of another type's is as unknown as one of nobody's."""


def args_of(job_type: str, op: str, args: JsonObject) -> Part:
    """The typed arguments of an op.

    Args:
        job_type: of the session.
        op: its name.
        args: as they came.

    Returns: the struct of `OPS[job_type][op].args`.

    Raises: ProtocolError with code `unsupported_op` if this job type has no such op, or `invalid_args`.
    """
    known = OPS.get(job_type, {}).get(op)
    if known is None:
        offered = ", ".join(OPS.get(job_type, {})) or "none"
        raise ProtocolError(
            f"A {job_type[:60]} session has no op {op[:60]!r}, only: {offered}.", code=OpCode.UNSUPPORTED_OP
        )
    return _read(args, known.args, f"The arguments of {op} are no good")


def result_of(job_type: str, op: str, result: JsonObject) -> Part:
    """The typed result of an op; call it for ops that this side knows.

    Raises: ProtocolError with code `invalid_result` if the runner answered something else.
    """
    try:
        return msgspec.convert(result, OPS[job_type][op].result)
    except msgspec.ValidationError as error:
        raise ProtocolError(
            f"The runner's result of {op} is no good: {error}. Trust nothing of it.", code="invalid_result"
        ) from None


def plain(part: Part) -> JsonObject:
    """Arguments or a result as they travel."""
    made: Any = msgspec.to_builtins(part)
    return dict(made)


def _read(value: JsonObject, kind: type[Part], what: str) -> Part:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"{what}: {error}.", code=OpCode.INVALID_ARGS) from None
