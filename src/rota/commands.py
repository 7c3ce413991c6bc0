"""Commands in slots of exec servers, as their callers see them: what a call is, and who can run one. Pure.

The queue hands a job's calls on and knows nothing of slots; `rota.slots` runs them and knows nothing of jobs;
`rota.testing` answers them without an exec server. What they share is here: `Commands` has one method.
"""

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, Protocol, TypedDict

from rota.tallies import ExecTally

CALLS_TOLD: Final = 50
"""Calls of one process that are told of one by one; more are only counted."""
OUTPUT_BYTES_MAX: Final = 64 * 1024 * 1024
"""How much output `run` takes into memory; `exec` streams any amount."""

Value = str | int | float | bool
Args = Mapping[str, Value] | Sequence[Value]
"""The arguments of a service's template, by name or as a list."""
Stdin = bytes | Path | BinaryIO | Iterable[bytes] | AsyncIterable[bytes]
"""What a command reads: bytes, a file by its path, an open binary file, or chunks; an asyncio.StreamReader, too."""


class Receipt(Protocol):
    """How a command ended."""

    @property
    def ended_by(self) -> str:
        """`exit`, `timeout`, `stall`, `memory`, `output`, `cancelled`, `stopped`, `refused` or `broken`."""
        ...

    @property
    def exit(self) -> int | None:
        """Its exit status, if it ended by itself."""
        ...

    @property
    def signal(self) -> str | None:
        """The signal that ended it."""
        ...

    @property
    def stderr_line(self) -> str | None:
        """The line of its stderr that says what went wrong."""
        ...

    @property
    def stdout_prefix(self) -> str | None:
        """The beginning of its output where that was not handed on."""
        ...

    @property
    def duration_s(self) -> float:
        """How long it ran."""
        ...

    @property
    def peak_memory_bytes(self) -> int:
        """The most memory that its processes had together."""
        ...

    @property
    def bytes_in(self) -> int:
        """What it was fed."""
        ...

    @property
    def bytes_out(self) -> int:
        """What it wrote to stdout."""
        ...

    @property
    def dropped_bytes(self) -> int:
        """What it wrote beyond its limits, and nobody kept."""
        ...

    @property
    def error(self) -> str | None:
        """Why it did not go well, in a sentence."""
        ...

    @property
    def retryable(self) -> bool:
        """Whether the same call may go well elsewhere or later."""
        ...

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with status 0."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where a call stands in line.

    Attributes:
        ahead: calls that get a slot before it; the least over the exec servers it waits at, and in a job also the jobs
            that no worker has claimed yet and that will go before it.
        running: commands that run in those slots now.
        eta_low_s, eta_high_s: when its turn may come, in seconds from now; a guess, None without one.
        unclaimed: those of `ahead` that are in the database only.
    """

    ahead: int
    running: int = 0
    eta_low_s: float | None = None
    eta_high_s: float | None = None
    unclaimed: int = 0

    def behind(self, unclaimed: int) -> "Place":
        """The place with so many jobs before it that stand in no line yet. They are taken to be like the others, so
        the guess grows with their number."""
        more = 1 + unclaimed / (self.ahead + 1)
        low_s, high_s = (None if eta_s is None else eta_s * more for eta_s in (self.eta_low_s, self.eta_high_s))
        return Place(self.ahead + unclaimed, self.running, low_s, high_s, self.unclaimed + unclaimed)


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that went well, with all its output."""

    output: bytes
    receipt: Receipt


class Options(TypedDict, total=False):
    """What a call can be told beside its service and arguments.

    env: variables that the service declares.
    priority: higher is served first; else the job's, or 0.
    tenant: whose work it is; else the job's.
    timeout_s: how long it may run, at most what the service allows.
    wait_s: how long to wait for a slot; else the setting `exec_wait_s`.
    check: False leaves a bad end to the caller, who looks at the receipt.
    output: False: nobody wants what it writes to stdout. No stream is made for it, `run.stdout` gives nothing, and the
        receipt has its beginning.
    """

    env: Mapping[str, str]
    priority: int
    tenant: str | None
    timeout_s: float | None
    wait_s: float | None
    check: bool
    output: bool


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Call:
    """One command to run.

    Attributes:
        service, args, stdin, env, priority, tenant, timeout_s, wait_s, check, output: see `Options`.
        name: what it is for, such as the id of its job: it is part of the call's id on the wire, and what
            its exec server knows poison by; None: nothing.
        moved: called whenever it is seen to go on, also while it waits in line for its limited time.
        unclaimed: asked, for its place in line, how many jobs that no worker has claimed will go before it; None: it
            is no job's.
    """

    service: str
    args: Args = ()
    stdin: Stdin | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    tenant: str | None = None
    timeout_s: float | None = None
    wait_s: float | None = None
    check: bool = True
    output: bool = True
    name: str | None = None
    moved: Callable[[], None] = _nothing
    unclaimed: Callable[[], Awaitable[int]] | None = None


@dataclass(frozen=True, slots=True)
class KindShare:
    """What a worker may have of the slots that a kind needs.

    Attributes:
        services: that its jobs use.
        pool: these, and all services that draw from the same slots anywhere.
        share: so many jobs of kinds that draw from them may be here at once; 0: nothing that is connected offers them.
        slots: of all clients together, for the service that has the fewest; 0: not known.
    """

    services: tuple[str, ...]
    pool: tuple[str, ...] = ()
    share: int = 0
    slots: int = 0


@dataclass(frozen=True, slots=True)
class CallInLine:
    """A call of a job: it waits for a slot, or its command runs.

    Attributes:
        name: of its job.
        service: what it wants.
        priority: of the call.
        for_s: for how long it has been there.
        place: where it stood when it was last asked for; None: it runs, or it is not known.
        runs: whether it has a slot.
    """

    name: str
    service: str
    priority: int
    for_s: float
    place: Place | None = None
    runs: bool = False


@dataclass(frozen=True, slots=True)
class Standing:
    """How a process stands with exec servers.

    Attributes:
        connected: exec servers that it is connected to; an address that is polled in the older way counts as one.
        kinds: what it may have for each kind that needs slots.
        calls: those of its calls that were made for jobs, the oldest first, at most CALLS_TOLD.
        parked: how many of its calls wait, by service and priority.
        times: how long commands take, from and to, in seconds, by service: of those that kinds need and that ran here.
    """

    connected: int = 0
    kinds: Mapping[str, KindShare] = field(default_factory=dict)
    calls: tuple[CallInLine, ...] = ()
    parked: tuple[tuple[str, int, int], ...] = ()
    times: Mapping[str, tuple[float, float]] = field(default_factory=dict)


class Run(Protocol):
    """One command while it waits, runs, and after."""

    @property
    def stdout(self) -> AsyncIterator[bytes]:
        """Its output as it comes. It ends only where the output is whole and the command went well (I9).

        Raises, at its end: ExecFailed, ExecLost, ExecRefused, ExecStopped, NoSlot.
        """
        ...

    @property
    def receipt(self) -> Receipt:
        """How it ended; after the `async with` block, or after the end of stdout.

        Raises: RuntimeError if it has not ended.
        """
        ...

    def started(self) -> Awaitable[None]:
        """Awaits its slot.

        Raises: NoSlot.
        """
        ...

    def position(self) -> Awaitable[Place | None]:
        """Where it stands in line; None once it has a slot, or where it cannot be told."""
        ...

    def cancel(self) -> None:
        """Stops it, or its wait. The block ends as if the command had ended; its receipt says `cancelled`."""
        ...


class Commands(Protocol):
    """Who can run commands."""

    def exec(self, call: Call) -> AbstractAsyncContextManager[Run]:
        """Asks for a slot for the call, at once; the block may look on while it waits. Leaving the block waits for
        the command's end, or cancels it if output was left unread or the block raised."""
        ...


class ExecServers(Commands, Protocol):
    """The exec servers as a worker sees them."""

    def room(self, kind: str, *, services: Mapping[str, Sequence[str]], running: Mapping[str, int]) -> int:
        """How many more jobs of a kind that needs slots may be claimed now; `services` of each such kind.

        The first question connects, and until that is done the answer is 0.
        """
        ...

    def watch(self, changed: Callable[[], None]) -> None:
        """Calls `changed` when `room` may answer otherwise."""
        ...

    def standing(self, services: Mapping[str, Sequence[str]]) -> Standing:
        """How things stand, for people; `services` of each kind that needs slots. Places in line are those that were
        last told, and asking has them told anew."""
        ...

    def tally(self) -> ExecTally:
        """What was counted so far; it belongs to whoever asks."""
        ...

    def stop(self) -> Awaitable[None]:
        """Ends all calls and closes all connections; safe to repeat."""
        ...
