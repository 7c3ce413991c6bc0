"""Rota: background work for services that already run PostgreSQL. The public names; everything else may change."""

from rota.app import App
from rota.errors import (
    DatabaseAway,
    DatabaseError,
    EmbeddedError,
    EnqueueError,
    JobCancelled,
    JobEnded,
    JobFailed,
    JobNotFound,
    LeaseLost,
    MediaError,
    PayloadError,
    ResultTimeout,
    RotaError,
    SchemaError,
    SettingsError,
)
from rota.ids import JobId
from rota.queue.io.context import Context
from rota.queue.io.worker import Worker
from rota.queue.job import (
    Cancelled,
    Enqueued,
    Fail,
    GiveBack,
    NewJob,
    Retry,
    Snooze,
    State,
    Yield,
    forever_key,
    open_key,
    queued_key,
)
from rota.queue.retry import Exponential, Fixed
from rota.settings import Settings
from rota.version import __version__

__all__ = [
    "App",
    "Cancelled",
    "Context",
    "DatabaseAway",
    "DatabaseError",
    "EmbeddedError",
    "EnqueueError",
    "Enqueued",
    "Exponential",
    "Fail",
    "Fixed",
    "GiveBack",
    "JobCancelled",
    "JobEnded",
    "JobFailed",
    "JobId",
    "JobNotFound",
    "LeaseLost",
    "MediaError",
    "NewJob",
    "PayloadError",
    "ResultTimeout",
    "Retry",
    "RotaError",
    "SchemaError",
    "Settings",
    "SettingsError",
    "Snooze",
    "State",
    "Worker",
    "Yield",
    "__version__",
    "forever_key",
    "open_key",
    "queued_key",
]
