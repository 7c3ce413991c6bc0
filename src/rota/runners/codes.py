"""The words and numbers by which a runner and a gateway say why. Pure.

All lists of words are open: an unknown one is kept as it came, and whoever reads it treats it as he treats the rest.

Spec: runners, "Transport and envelope" (close codes), "Message catalogue", "Error and failure classes".
"""

from enum import IntEnum, StrEnum


class CloseCode(IntEnum):
    """Why a connection was closed, as a websocket's close code."""

    NORMAL = 1000
    GOING_AWAY = 1001
    TOO_BIG = 1009
    UNSUPPORTED = 4400
    UNAUTHENTICATED = 4401
    FORBIDDEN = 4403
    HEARTBEAT_TIMEOUT = 4408
    SUPERSEDED = 4409
    RATE_LIMITED = 4429


class ErrorCode(StrEnum):
    """What is wrong with a frame: the `code` of its `ProtocolError`."""

    BAD_MESSAGE = "bad_message"  # no JSON, a field is missing or wrong, an id that the type needs is absent
    TOO_LARGE = "message_too_large"  # the payload is over its limit
    UNSUPPORTED_VERSION = "unsupported_version"  # of the envelope


class JobType(StrEnum):
    """What a session may be for. An open list."""

    REMOTION = "remotion.workspace-session"
    COMPILE = "video.compile"
    EXTRACT = "video.analyze.extract"


class RejectReason(StrEnum):
    """Why a runner declines a job. An open list."""

    BUSY = "busy"
    CAPABILITY_MISMATCH = "capability_mismatch"
    SHUTTING_DOWN = "shutting_down"
    PAUSED_BY_USER = "paused_by_user"
    NO_CONTAINER_RUNTIME = "no_container_runtime"


class CancelReason(StrEnum):
    """Why a job must stop. An open list."""

    USER = "user"
    EXECUTION_ENDED = "execution_ended"
    LEASE_LOST = "lease_lost"
    REVOKED = "revoked"
    SHUTDOWN = "shutdown"


class Outcome(StrEnum):
    """How a job that did not fail ended. An open list."""

    SUCCEEDED = "succeeded"
    CANCELLED = "cancelled"


class FailureClass(StrEnum):
    """Whose fault a failure is. From a runner it is a claim, never a fact. An open list."""

    PLATFORM = "platform"
    RUNNER = "runner"
    INPUT = "input"


class OpCode(StrEnum):
    """The `code` of an op that failed. An open list."""

    INVALID_PATH = "invalid_path"
    ARGV_NOT_ALLOWED = "argv_not_allowed"
    EXEC_NOT_ALLOWED = "exec_not_allowed"
    FILE_TOO_LARGE = "file_too_large"
    OUTPUT_TOO_LARGE = "output_too_large"
    UNSUPPORTED_OP = "unsupported_op"
    OP_EXPIRED = "op_expired"
    OP_IN_FLIGHT = "op_in_flight"
    STAGE_FAILED = "stage_failed"
    PUBLISH_FAILED = "publish_failed"
    TIMEOUT = "timeout"
    CONTAINER_UNAVAILABLE = "container_unavailable"
    DISK_FULL = "disk_full"
    CANCELLED = "cancelled"
    # Ours, where no other word fits: an argument is missing or of a wrong type; a program took too much memory.
    INVALID_ARGS = "invalid_args"
    OUT_OF_MEMORY = "out_of_memory"
