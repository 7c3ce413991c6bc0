"""How a call of an exec server travels from a child process to its worker, and how it went on the way back. Pure.

A child has no event loop and no connection: its worker makes the call for it, under the job's own name and lease. What
the handler sees is the same as in a thread: the output and the receipt, or the same exception.
"""

from collections.abc import AsyncIterable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from rota.commands import Call, Completed, Options, Stdin
from rota.errors import (
    ExecError,
    ExecFailed,
    ExecLost,
    ExecRefused,
    ExecStopped,
    LeaseLost,
    NoSlot,
    NotNow,
    RotaError,
    SettingsError,
)

INPUT_BYTES_MAX: Final = 32 * 1024 * 1024
"""What a child hands over to its worker as input; both hold it in memory. A file travels as its path."""
ERRORS: Final[Mapping[str, type[RotaError]]] = {
    error.__name__: error
    for error in (ExecFailed, ExecLost, ExecRefused, ExecStopped, LeaseLost, NoSlot, SettingsError)
}
_RECEIPT: Final = (
    "ended_by", "exit", "signal", "stderr_line", "stdout_prefix", "duration_s", "peak_memory_bytes", "bytes_in",
    "bytes_out", "dropped_bytes", "error", "retryable", "ok",
)  # fmt: skip


class Report(Struct, frozen=True):
    """A receipt as it travels; it is a `rota.commands.Receipt`."""

    ended_by: str
    exit: int | None
    signal: str | None
    stderr_line: str | None
    stdout_prefix: str | None
    duration_s: float
    peak_memory_bytes: int
    bytes_in: int
    bytes_out: int
    dropped_bytes: int
    error: str | None
    retryable: bool
    ok: bool


class Asks(Struct, frozen=True, tag=True):
    """To the worker: run this command for the handler. `number` is that of the answer; `path` is a file to feed it."""

    number: int
    service: str
    args: dict[str, Any] | list[Any]
    input: bytes | None
    path: str | None
    options: dict[str, Any]


class Answered(Struct, frozen=True, tag=True):
    """To the child: the command went well (`output` and `report`), or `error` is what to raise, by its name."""

    number: int
    output: bytes = b""
    report: Report | None = None
    error: str | None = None
    words: str = ""
    after_s: float = 0.0


def asks(number: int, call: Call) -> Asks:
    """A call as it travels.

    Raises: ExecRefused for an input that a child cannot hand over.
    """
    data, path = _input(call.stdin)
    options: Options = {
        "env": dict(call.env), "priority": call.priority, "tenant": call.tenant, "timeout_s": call.timeout_s,
        "wait_s": call.wait_s, "check": call.check, "output": call.output,
    }  # fmt: skip
    args = dict(call.args) if isinstance(call.args, Mapping) else list(call.args)
    return Asks(number, call.service, args, data, path, dict(options))


def call_of(told: Asks, *, name: str, moved: Callable[[], None]) -> Call:
    """The call that the worker makes for its child."""
    stdin: Stdin | None = told.input if told.path is None else Path(told.path)
    return Call(told.service, told.args, stdin, name=name, moved=moved, **told.options)


def answered(number: int, done: Completed) -> Answered:
    """A command that ended as the handler wanted."""
    return Answered(number, done.output, _report(done.receipt))


def failed(number: int, error: Exception) -> Answered:
    """A call that raised."""
    report = _report(error.receipt) if isinstance(error, ExecFailed) else None
    after_s = error.after_s if isinstance(error, NotNow) else 0.0
    return Answered(number, report=report, error=type(error).__name__, words=str(error), after_s=after_s)


def completed(told: Answered) -> Completed:
    """What `ctx.run_sync` returns in a child.

    Raises: what the call raised in the worker.
    """
    if told.error is None:
        assert told.report is not None, "what went well has a receipt"
        return Completed(told.output, told.report)
    kind = ERRORS.get(told.error)
    if kind is None:
        # A mistake of ours, or of what runs the commands: its words say which.
        raise ExecError(f"{told.error}: {told.words}")
    if issubclass(kind, ExecFailed):
        raise ExecFailed(told.words, receipt=told.report)
    if issubclass(kind, NotNow):
        raise kind(told.words, after_s=told.after_s)
    raise kind(told.words)


def _report(receipt: Any) -> Report:
    return Report(**{name: getattr(receipt, name) for name in _RECEIPT})


def _input(stdin: Any) -> tuple[bytes | None, str | None]:
    if stdin is None:
        return None, None
    if isinstance(stdin, Path):
        return None, str(stdin.absolute())
    if isinstance(stdin, AsyncIterable):
        raise ExecRefused("A child process has no event loop to read an async iterator: give bytes, or a Path.")
    if isinstance(stdin, bytes | bytearray | memoryview):
        data = bytes(stdin)
    else:
        data = stdin.read(INPUT_BYTES_MAX + 1) if hasattr(stdin, "read") else _joined(stdin)
    if not isinstance(data, bytes):
        raise ExecRefused("A command is fed bytes, and this is text: give bytes, a Path, or an open binary file.")
    if len(data) > INPUT_BYTES_MAX:
        raise ExecRefused(
            f"A child process hands at most {INPUT_BYTES_MAX:,} bytes over to its worker: write the input to a file "
            "and give its Path."
        )
    return data, None


def _joined(chunks: Any) -> bytes:
    data = bytearray()
    for chunk in chunks:
        if not isinstance(chunk, bytes | bytearray | memoryview):
            kind = type(chunk).__name__
            raise ExecRefused(
                f"A command is fed chunks of bytes, and one is {kind}: give bytes, a Path, or an open file."
            )
        data += chunk
        if len(data) > INPUT_BYTES_MAX:
            break
    return bytes(data)
