"""Rota: background work for services that already run PostgreSQL. The public names; everything else may change."""

from rota.app import App
from rota.errors import (
    BatchNotFound,
    DatabaseAway,
    DatabaseError,
    EmbeddedError,
    EnqueueError,
    JobNotFound,
    LeaseLost,
    MediaError,
    PayloadError,
    RotaError,
    SchemaError,
    SettingsError,
)
from rota.ids import BatchId, JobId
from rota.queue.io.context import Context
from rota.queue.io.worker import Worker
from rota.queue.job import (
    Again,
    BatchCounts,
    BatchStatus,
    Cancelled,
    Enqueued,
    EnqueuedBatch,
    Fail,
    GiveBack,
    NewJob,
    Retry,
    Snooze,
    State,
    Yield,
    debounce_key,
    forever_key,
    merge_key,
    open_key,
    queued_key,
    replace_key,
    throttle_key,
)
from rota.queue.pause import Pause
from rota.queue.periodic import PassRun
from rota.queue.retry import Exponential, Fixed
from rota.settings import Settings
from rota.version import __version__

__all__ = [
    "Again",
    "App",
    "BatchCounts",
    "BatchId",
    "BatchNotFound",
    "BatchStatus",
    "Cancelled",
    "Context",
    "DatabaseAway",
    "DatabaseError",
    "EmbeddedError",
    "EnqueueError",
    "Enqueued",
    "EnqueuedBatch",
    "Exponential",
    "Fail",
    "Fixed",
    "GiveBack",
    "JobId",
    "JobNotFound",
    "LeaseLost",
    "MediaError",
    "NewJob",
    "PassRun",
    "Pause",
    "PayloadError",
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
    "debounce_key",
    "forever_key",
    "merge_key",
    "open_key",
    "queued_key",
    "replace_key",
    "throttle_key",
]
