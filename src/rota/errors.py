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
    ├── JobNotFound          no job has this id
    ├── BatchNotFound        no batch has this id
    ├── PathNotAllowed       a path of a session could mean something outside of it
    ├── ArgvNotAllowed       a command line for ffmpeg or ffprobe is refused; names the argument
    └── LeaseLost            what was said came under a lease that is over; a normal answer, never a crash

Each message is one or two sentences for a person: what is wrong, then what to do.
"""

import re

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


class JobNotFound(RotaError):
    """No job has this id."""


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


class LeaseLost(RotaError):
    """The lease under which this was said is over: another holder may run the job, or it has ended."""
