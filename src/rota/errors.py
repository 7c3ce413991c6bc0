"""Every error that Rota raises, as one tree.

    RotaError
    ├── SettingsError        a setting is unknown or wrong; names the setting and its source
    ├── PayloadError         a payload cannot be stored or does not fit its type; names the field
    ├── EnqueueError         an enqueue was refused for another reason (kind, key, connection)
    ├── DatabaseError        the database cannot be used
    │   ├── DatabaseAway     it does not answer now; trying again later is right
    │   └── SchemaError      it answers, but its schema is missing, older or newer than this program
    ├── EmbeddedError        the embedded PostgreSQL cannot be started or its data folder cannot be used
    ├── MediaError           ffmpeg or ffprobe is missing or failed
    ├── ObjectError          an object store cannot be used, or a key is none
    │   └── ObjectNotFound   it has no object with this key
    ├── VerificationFailed   what a runner has published is not what was asked for; it is removed
    ├── ArgumentsError       arguments, environment or streams of a command do not fit its service; names the place
    ├── PipeError            a one-time stream ended early, was never fetched, or is not what was sent
    ├── JobNotFound          no job has this id
    ├── ProtocolError        a frame between a client and an exec server is no good or too large; names the field
    ├── NotNow               what the job needs is not to be had now; if its handler lets it through, no try counts
    ├── ExecError            a command in a slot of an exec server did not go well
    │   ├── NoSlot           no slot came free in time (a NotNow too)
    │   ├── ExecStopped      the exec server handed it back, unharmed (a NotNow too)
    │   ├── ExecRefused      it was not run, and the same call never will be
    │   ├── ExecFailed       it ran and ended badly; `receipt` tells how
    │   └── ExecLost         the connection to its exec server broke while it ran
    ├── SessionError         a session on a runner did not go well
    │   ├── NoRunner         no runner took the session in time (a NotNow too)
    │   ├── GatewayAbsent    there is no gateway here, or it serves no engine (a NotNow too)
    │   ├── GatewayAway      the gateway does not answer now (a NotNow too)
    │   ├── GatewayRefused   the gateway did not take a request, and the same one never goes better
    │   ├── SessionNotFound  no such session was ever opened
    │   ├── SessionLost      the session is over: its runner, its lease or its kept answers are gone
    │   ├── OpInFlight       the session does one op at a time, and one runs
    │   ├── OpCancelled      the session was cancelled while the op ran
    │   ├── OpTimeout        the runner did not answer in time
    │   ├── OpFailed         the runner could not do the op; `code` says why
    │   └── ProgramFailed    ffmpeg or ffprobe ended with a status other than 0
    ├── RunnerError          this machine could not be paired, or its gateway refuses it; says what to do
    ├── BatchNotFound        no batch has this id
    ├── DeviceNotFound       no paired device has this id
    ├── OrganisationDisabled this organisation may not use runners now
    ├── PairingError         a device was not paired; `code` says why
    ├── JobEnded             a job whose result was waited for has none
    │   ├── JobFailed        it failed or expired; says why
    │   └── JobCancelled     somebody wanted it to end
    ├── ResultTimeout        a job has not ended in the time that its result was waited for; a TimeoutError too
    ├── PathNotAllowed       a path of a session could mean something outside of it
    ├── ArgvNotAllowed       a command line for ffmpeg or ffprobe is refused; names the argument
    └── LeaseLost            what was said came under a lease that is over; a normal answer, never a crash

Each message is one or two sentences for a person: what is wrong, then what to do.
"""

import re
from typing import Any
from uuid import UUID

_QUERY = re.compile(r"(://[^\s'\"?]*)\?[^\s'\"]*")
"""The query of a URL inside of a text: it may hold a signature."""


class RotaError(Exception):
    """The root: `except rota.RotaError` catches all that Rota raises on purpose."""


class SettingsError(RotaError):
    """A setting is unknown or has a bad value. The message names the setting and where it came from."""


class PayloadError(RotaError):
    """A payload cannot be stored, or does not fit the handler's type.

    `path` is the place in the payload, such as `$.width` or `$.parts[2].name`; `$` is the whole payload.
    """

    def __init__(self, message: str, *, path: str = "$") -> None:
        super().__init__(message)
        self.path = path


class EnqueueError(RotaError):
    """An enqueue was refused: a bad kind, key or connection. Nothing was written."""


class DatabaseError(RotaError):
    """The database cannot be used. The message says why and what to do."""


class DatabaseAway(DatabaseError):
    """The database does not answer now; the same call may go through later."""


class SchemaError(DatabaseError):
    """The schema in the database is missing, older or newer than this program."""


class EmbeddedError(RotaError):
    """The embedded PostgreSQL cannot be started, or its data folder cannot be used."""


class MediaError(RotaError):
    """ffmpeg or ffprobe is missing, or it failed on a file."""


class ObjectError(RotaError):
    """A store of objects cannot be used, or a key is not one that it can keep."""


class ObjectNotFound(ObjectError):
    """The store has no object with this key."""


class VerificationFailed(RotaError):
    """What a runner has published is not what was asked for, and was removed. The step fails with class `runner`."""


class ArgumentsError(RotaError):
    """What was asked of a service does not fit its declaration. The message names the argument and what is allowed."""


class PipeError(RotaError):
    """A one-time stream did not arrive whole: it ended early, nobody came for it, or its reader went away."""


class JobNotFound(RotaError):
    """No job has this id."""


class JobEnded(RotaError):
    """A job whose result was waited for ended without one. `job_id` is the job's."""

    def __init__(self, message: str, *, job_id: UUID) -> None:
        super().__init__(message)
        self.job_id = job_id


class JobFailed(JobEnded):
    """The job failed, or it expired. The message has its last error."""


class JobCancelled(JobEnded):
    """The job was cancelled. The message has the reason."""


class ResultTimeout(RotaError, TimeoutError):
    """The job has not ended in the time that its result was waited for; it goes on."""


class ProtocolError(RotaError):
    """A frame between a client and an exec server is no good, or too large to be sent.

    `code` is the word that an ERROR frame carries, `job_id` the exec call or the job that it was about and `type` what
    it was, each if it was named.
    """

    def __init__(self, message: str, *, code: str, job_id: str | None = None, type: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.job_id = job_id
        self.type = type


class NotNow(RotaError):
    """What a job needs is not to be had now. If its handler lets this through, the job goes back to the queue for
    `after_s` seconds, and no try counts."""

    def __init__(self, message: str, *, after_s: float) -> None:
        super().__init__(message)
        self.after_s = after_s


class ExecError(RotaError):
    """A command in a slot of an exec server did not go well."""


class NoSlot(NotNow, ExecError):
    """No slot came free within the time that the call was willing to wait."""


class ExecStopped(NotNow, ExecError):
    """The exec server handed the command back, because it ends or had no room; it may run elsewhere or later."""


class ExecRefused(ExecError):
    """The command was not run: its arguments do not fit, or it is too large. The same call never goes better, so a
    job whose handler lets this through fails at once."""


class ExecFailed(ExecError):
    """The command ran and ended badly, or its output did not arrive whole. `receipt` tells how it ended."""

    def __init__(self, message: str, *, receipt: Any) -> None:
        super().__init__(message)
        self.receipt = receipt


class ExecLost(ExecError):
    """The connection to the exec server broke while the command ran. It is killed there; how far it came is unknown."""


class SessionError(RotaError):
    """A session on a runner did not go well. `code` is the protocol's word; `retryable`: trying again may help."""

    code = "session_error"
    retryable = True


class NoRunner(NotNow, SessionError):
    """No runner took the session within the time that the call was willing to wait."""

    code = "no_runner"


class GatewayAbsent(NotNow, SessionError):
    """No gateway is set, or it has no token for engines: there are no runners here. Do without, if you can."""

    code = "internal_api_disabled"


class GatewayAway(NotNow, SessionError):
    """The gateway does not answer now, or its replica that holds the session does not."""

    code = "gateway_away"


class GatewayRefused(SessionError):
    """The gateway did not take a request, for a reason that stays. `code` is its word for it."""

    retryable = False

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class SessionNotFound(SessionError):
    """No such session was ever opened. Do not try again."""

    code = "session_not_found"
    retryable = False


class SessionLost(SessionError):
    """The session is over and cannot serve an op. `reason` says why. Open a new one, or fail."""

    code = "session_lost"

    def __init__(self, message: str, *, reason: str = "unknown") -> None:
        super().__init__(message)
        self.reason = reason


class OpInFlight(SessionError):
    """The session does one op at a time, and one runs."""

    code = "op_in_flight"


class OpCancelled(SessionError):
    """The session was cancelled, or its execution ended, while the op ran."""

    code = "op_cancelled"
    retryable = False


class OpTimeout(SessionError):
    """The runner did not answer the op in time; it may still be at it."""

    code = "op_timeout"


class OpFailed(SessionError):
    """The runner could not do an op. `code` is the protocol's word for why, such as `argv_not_allowed`."""

    def __init__(self, message: str, *, code: str, retryable: bool) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable


class ProgramFailed(SessionError):
    """ffmpeg or ffprobe ran on the runner and ended with another status than 0. `stderr_tail` has its last words."""

    code = "program_failed"
    retryable = False

    def __init__(self, message: str, *, exit_code: int, stderr_tail: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.stderr_tail = stderr_tail


class RunnerError(RotaError):
    """This machine cannot be a runner as it is: it was not paired, or its gateway refuses it for good."""


class BatchNotFound(RotaError):
    """No batch has this id."""


class PathNotAllowed(RotaError):
    """A path of a session could mean something outside of it. The message is a clause: what is wrong with the path."""


class ArgvNotAllowed(RotaError):
    """A command line for ffmpeg or ffprobe is refused: the op's error `argv_not_allowed`.

    `argument` is the element of the argv, with what was found inside of it where that helps; `reason` is the rest.
    """

    def __init__(self, argument: str, reason: str) -> None:
        # A signed address that was put in a command line must not go on into logs and answers.
        self.argument = _QUERY.sub(r"\1?…", argument)
        self.reason = _QUERY.sub(r"\1?…", reason)
        super().__init__(f"{self.argument}: {self.reason}.")


class DeviceNotFound(RotaError):
    """No paired device has this id, or it is revoked."""


class OrganisationDisabled(RotaError):
    """This organisation may not use runners now."""


class PairingError(RotaError):
    """A device was not paired. `code` is the word for it: invalid_code, wrong, used, expired, locked or try_again."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class LeaseLost(RotaError):
    """The lease under which this was said is over: another holder may run the job, or it has ended."""
