"""What a worker and its child processes say to each other, as typed messages. Pure.

One frame is a 4-byte big-endian length and a msgpack body. A child runs one job at a time: it says Ready, is told Run,
says Moved as the job moves and Said for what it logs, and at the end Ended; Until moves its deadline, Stop asks it to
end the job. It Asks for commands on exec servers, and is Answered (`rota.queue.child_calls`). Both sides come from the
same installation, so there are no versions.
"""

import struct
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import Struct

from rota.commands import OUTPUT_BYTES_MAX
from rota.ids import Holder, JobId
from rota.lease import Lease
from rota.queue.child_calls import Answered, Asks
from rota.queue.job import ClaimedJob, NewJob, Scope
from rota.queue.outcomes import HandlerOutcome
from rota.queue.payload import cut_text

START_S_MAX: Final = 30.0
"""How long a child may take to be ready; one that hangs while it starts is killed. As long may the program take that it
loads for its first job: until then the job counts as one that moves."""
MOVES_S: Final = 0.2
"""How often that is said: a lease may be as short as a second."""
FRAME_BYTES_MAX: Final = OUTPUT_BYTES_MAX + 1024 * 1024
"""All that `ctx.run_sync` takes of a command's output, and what stands around it."""
_LENGTH: Final = struct.Struct(">I")


class Target(Struct, frozen=True):
    """Where a handler's function is: a module to import or, for a program's main file, its path."""

    module: str
    name: str
    main_path: str | None = None


class Begin(Struct, frozen=True, tag=True):
    """To the child, first: where modules are found, and how to log (None: as the program's own code says)."""

    sys_path: list[str]
    log_format: str | None = None
    log_level: str = "info"


class Run(Struct, frozen=True, tag=True):
    """To the child: run this job."""

    target: Target
    kind: str
    id: UUID
    epoch: int
    tenant: str | None
    payload: str
    priority: int
    tries: int
    max_tries: int
    run_after: datetime
    created_at: datetime
    dedupe_scope: str | None
    progress: str | None
    trace: str | None
    deadline: float
    """When its lease is over, as `rota.io.clock` counts, which both sides share."""
    schema: str
    holder: Holder | None
    """Whose lease it is."""

    def job(self) -> ClaimedJob:
        """The job, as a worker has it."""
        return ClaimedJob(
            Lease(JobId(self.id), self.epoch), self.kind, self.tenant, self.payload, self.priority, self.tries,
            self.max_tries, self.run_after, self.created_at,
            None if self.dedupe_scope is None else Scope(self.dedupe_scope), self.progress, self.trace,
        )  # fmt: skip


class Until(Struct, frozen=True, tag=True):
    """To the child: the job's lease was extended to this deadline."""

    deadline: float


class Stop(Struct, frozen=True, tag=True):
    """To the child: the job should end; `ctx.should_stop` is true from now on."""


class Waiting(Struct, frozen=True, tag=True):
    """To the child: whether a more urgent job waits; what `ctx.should_yield` says from now on."""

    asked: bool


class Ready(Struct, frozen=True, tag=True):
    """To the worker: the child has started and wants work."""


class Moved(Struct, frozen=True, tag=True):
    """To the worker: the job moved (I4)."""

    progress: dict[str, Any] | None = None


class Said(Struct, frozen=True, tag=True):
    """To the worker: a line that the handler logged, as it is to be kept; see LogLine."""

    number: int
    said_at: float
    level: str
    event: str
    fields: str | None = None


class Closing(Struct, frozen=True, tag=True):
    """To the worker: the handler begins to write the job's end in a transaction of its own."""


class Ended(Struct, frozen=True, tag=True):
    """To the worker: how the handler ended. One of: a result (JSON text), an outcome, an error, or an error that no
    later try can change (`final`). `told`: it had seen that it should stop. `follow_ups`: what is added with a success.
    `written`: the handler has written the success itself; `sure`: and it is committed."""

    result: str | None = None
    outcome: str | None = None
    facts: dict[str, Any] = {}
    error: str | None = None
    traceback: str | None = None
    final: bool = False
    told: bool = False
    follow_ups: tuple[NewJob, ...] = ()
    written: bool = False
    sure: bool = False
    batch_id: UUID | None = None


Message = Begin | Run | Until | Stop | Waiting | Ready | Moved | Said | Closing | Ended | Asks | Answered
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Message)
_OUTCOMES: Final = {outcome.__name__: outcome for outcome in HandlerOutcome.__args__}


def frame(message: Message) -> bytes:
    """One message as bytes on the wire."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def run_message(job: ClaimedJob, target: Target, *, deadline: float, schema: str, holder: Holder | None) -> Run:
    """The order to run a job."""
    return Run(
        target, job.kind, job.id, job.lease.epoch, job.tenant, job.payload, job.priority, job.tries, job.max_tries,
        job.run_after, job.created_at, job.dedupe_scope, job.progress, job.trace, deadline, schema, holder,
    )  # fmt: skip


def last_frame(ended: Ended) -> bytes:
    """The last message of a job as bytes on the wire, whatever its handler has put into it: what cannot be handed over
    fails the job for good, as a result does that cannot be stored."""
    try:
        data = frame(ended)
    except Exception as error:
        return frame(_refused(ended, f"What the handler returned cannot be handed to its worker: {error}"))
    if len(data) - _LENGTH.size > FRAME_BYTES_MAX:
        size = f"{len(data):,} bytes, with the jobs that follow it; at most {FRAME_BYTES_MAX:,} are allowed"
        return frame(_refused(ended, f"The end of the job has {size} in a child process"))
    return data


def _refused(ended: Ended, error: str) -> Ended:
    # A success that the handler has written itself stands.
    return Ended(
        error=cut_text(error), final=True, told=ended.told, written=ended.written, sure=ended.sure,
        batch_id=ended.batch_id,
    )  # fmt: skip


def outcome_message(outcome: HandlerOutcome) -> Ended:
    """A handler's outcome as a message; its texts as a job keeps them."""
    facts = {name: cut_text(fact) if isinstance(fact, str) else fact for name, fact in asdict(outcome).items()}
    return Ended(outcome=type(outcome).__name__, facts=facts)


def outcome_of(ended: Ended) -> HandlerOutcome:
    """The handler's outcome of a message that has one."""
    assert ended.outcome is not None, "asked for the outcome of a message without one"
    made: HandlerOutcome = _OUTCOMES[ended.outcome](**ended.facts)
    return made


class Frames:
    """Bytes in, messages out; keeps what is not whole yet."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Takes bytes as they come, and gives the messages that are whole.

        Raises: ValueError if the bytes are no frames of such messages; nothing that comes after can be read.
        """
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > FRAME_BYTES_MAX:
                raise ValueError(f"a frame of {length} bytes; at most {FRAME_BYTES_MAX} are allowed")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            try:
                message: Message = _decoder.decode(body)
            except msgspec.MsgspecError as error:
                raise ValueError(f"a message that this version does not know: {error}") from None
            yield message
