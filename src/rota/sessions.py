"""Sessions on runners, as their callers see them: what is asked for, what ops give, and who can open one. Pure.

The queue hands a job's sessions on and knows nothing of runners; `rota.runners` opens them and knows nothing of
handlers; `rota.testing` may answer them without a gateway. What they share is here: `Sessions` has one method.

Spec: runners, "Media session ops and argv validation", "Presigned URLs and object storage".
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypedDict

from rota.errors import SettingsError

Target = Literal["CloudPool", "OrgRunner"]

READ_BYTES_MAX: Final = 4 * 1024 * 1024
"""The most that `read` gives; publish what is larger. The protocol's."""
NO_ORG: Final = "default"
"""The organisation of work that is nobody's in particular."""


def org_of(target: str) -> str:
    """The organisation of a session for which none was named: the pool serves any; a desktop has to be somebody's.

    Raises: SettingsError for a desktop.
    """
    if target != "CloudPool":
        raise SettingsError(f"A session for {target} runs on a machine of some organisation. Give tenant=….")
    return NO_ORG


class SessionOptions(TypedDict, total=False):
    """What a session can be told beside its job type, target and tenant.

    name: what it is for within its execution; a name of its own lets two engines agree that they mean the same
        session. Else its number in the try.
    spec: what the runner is told of the job, as plain JSON; never a secret.
    priority: higher is served first; else the job's, or 0.
    timeout_s: how long the session lives at most, up to 14,400.
    idle_s: how long it lives without an op.
    wait_s: how long to wait for a runner; else the setting `gateway_wait_s`.
    output_bytes_max: the largest object that it publishes; a runner that allows less is not given the job.
    fontset: the least version of the fonts that a runner must have.
    """

    name: str | None
    spec: Mapping[str, Any]
    priority: int
    timeout_s: int
    idle_s: int
    wait_s: float | None
    output_bytes_max: int | None
    fontset: str | None


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class SessionAsk:
    """One session that is wanted.

    Attributes:
        job_type: such as `video.compile`.
        target: `CloudPool` or `OrgRunner`.
        tenant: the organisation that it is for.
        execution_id: of the workflow execution; a running queue job's id binds the session's life to that job's try.
        iteration: which run of the execution, such as the epoch of the job's lease: another run, another session.
        name, spec, priority, timeout_s, idle_s, wait_s, output_bytes_max, fontset: see `SessionOptions`.
        moved: called whenever it is seen to go on, also in the limited wait for a runner.
    """

    job_type: str
    target: str
    tenant: str
    execution_id: str
    iteration: str = "0"
    name: str | None = None
    spec: Mapping[str, Any] = field(default_factory=dict)
    priority: int = 0
    timeout_s: int = 14_400
    idle_s: int = 1_800
    wait_s: float | None = None
    output_bytes_max: int | None = None
    fontset: str | None = None
    moved: Callable[[], None] = _nothing


@dataclass(frozen=True, slots=True)
class Moved:
    """A file that went into or out of a session: its size and its SHA-256 in hexadecimal, as the runner says."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class FfmpegDone:
    """How ffmpeg ended."""

    exit_code: int
    stderr_tail: str
    duration_s: float


@dataclass(frozen=True, slots=True)
class Probed:
    """What ffprobe wrote: text that a runner sent, to be read as data."""

    exit_code: int
    stdout: str
    stderr_tail: str


@dataclass(frozen=True, slots=True)
class Stat:
    """Whether a file is in the session, and its size."""

    exists: bool
    bytes: int


@dataclass(frozen=True, slots=True)
class FfmpegProgress:
    """How far an ffmpeg run is, as the runner says.

    Attributes:
        stage: a word for what it does.
        fraction: how much is done, 0 to 1; None where that cannot be told.
        detail: more, for people.
    """

    stage: str
    fraction: float | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """An output that the platform has checked and that no runner can reach any more.

    Attributes:
        key: where it is in the object store.
        bytes, sha256: as the platform measured them.
    """

    key: str
    bytes: int
    sha256: str


class FfmpegRun(Protocol):
    """One ffmpeg run: await it for its end, or iterate over its progress; both raise if it goes wrong."""

    def __await__(self) -> Generator[Any, None, FfmpegDone]:
        """Waits for the end; after iterating, it is there at once."""
        ...

    def __aiter__(self) -> AsyncIterator[FfmpegProgress]:
        """How far it is, until its end."""
        ...

    @property
    def done(self) -> FfmpegDone:
        """How it ended.

        Raises: RuntimeError if it has not.
        """
        ...


class Session(Protocol):
    """One session on one runner. It does one op at a time; paths are relative to its own folder there.

    Every op raises OpFailed with the protocol's `code` if the runner could not do it, and SessionLost if the session
    is over: open a new one and begin anew, or let the error through and the job is tried again.
    """

    @property
    def id(self) -> str:
        """The session's id."""
        ...

    @property
    def job_id(self) -> str:
        """The id of its runner job."""
        ...

    def stage(
        self, path: str, *, source: str, sha256: str | None = None, bytes_max: int | None = None
    ) -> Awaitable[Moved]:
        """Brings an object into the session.

        Args:
            path: what it is called there.
            source: its key in the object store.
            sha256: what it must hash to.
            bytes_max: how large it may be; else as large as it is.
        """
        ...

    def ffmpeg(self, argv: Sequence[str], *, timeout_s: int | None = None, check: bool = True) -> FfmpegRun:
        """Runs ffmpeg with these arguments, which do not name the program.

        Args:
            argv: as on a command line; the runner lets through what it understands and finds safe.
            timeout_s: how long it may run; else as long as the session.
            check: False leaves an exit status other than 0 to the caller.

        Raises, where it is awaited: ProgramFailed with its last words.
        """
        ...

    def ffprobe(self, argv: Sequence[str], *, timeout_s: int = 120, check: bool = True) -> Awaitable[Probed]:
        """Runs ffprobe; as `ffmpeg` otherwise."""
        ...

    def read(self, path: str, *, bytes_max: int = READ_BYTES_MAX) -> Awaitable[bytes]:
        """A small file's content, whole; one larger than `bytes_max` raises OpFailed with `file_too_large`."""
        ...

    def publish(
        self,
        path: str,
        *,
        to: str | None = None,
        expect: object = None,
        content_type: str | None = None,
        bytes_max: int | None = None,
    ) -> Awaitable[Published]:
        """Takes a file out of the session, checks it, and only then puts it where it belongs.

        Args:
            path: the file.
            to: the key that it gets; else one below `outputs/`.
            expect: a `rota.Media`: what it must be; None takes anything of the right size and hash.
            content_type: else what its name says.
            bytes_max: how large it may be; at most the session's limit.

        Raises: VerificationFailed if it is not what was expected; nothing of it is kept.
        """
        ...

    def stat(self, path: str) -> Awaitable[Stat]:
        """Whether a file is there."""
        ...

    def close(self) -> Awaitable[None]:
        """Ends the session. Leaving the block does the same; safe to repeat."""
        ...


class Sessions(Protocol):
    """Who can open sessions on runners."""

    def session(self, ask: SessionAsk) -> AbstractAsyncContextManager[Session]:
        """Waits for a runner and opens a session; leaving the block closes it, or cancels it if the block raised.

        Raises, at the start of the block: NoRunner if none took it in time; GatewayAbsent if there is no gateway.
        """
        ...

    def stop(self) -> Awaitable[None]:
        """Ends what is open; safe to repeat."""
        ...
