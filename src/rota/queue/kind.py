"""A kind of job: its settings, and the rules they have to keep. Pure.

What differs between kinds is settings, not code paths: lease, heartbeat, tries, waits, how many run at once.
"""

from dataclasses import dataclass, field
from typing import Any, Final, Literal

from rota.errors import SettingsError
from rota.queue.checks import PRIORITY_MAX, is_number
from rota.queue.limits import NO_LIMITS, Limits
from rota.queue.payload import check_text
from rota.queue.retry import Exponential, Fixed, RetryWaits
from rota.queue.role import ALL_ROLES, DEFAULT_ROLE, is_role

Isolation = Literal["auto", "async", "thread", "process"]
"""Where a handler runs: in the worker's event loop, in a thread of it, or in a child process that can be killed."""

LEASE_S: Final = 300.0
"""Seed 003: a lease of 5 minutes, unless progress moves it."""
HEARTBEAT_S: Final = 30.0
"""Seed 003: progress is written every 30 seconds."""
MAX_TRIES: Final = 3
"""Seed 003."""
EXEC_LIMIT: Final = 1000
"""The limit of a kind that needs exec servers where nothing else is said: its share of their slots is what counts."""
LIMIT: Final = 10
"""Jobs of one kind at once in one worker process where nothing else is said."""

KEEP_S_MAX: Final = 3650 * 86_400.0
"""Ten years, as in the settings."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The settings of one kind.

    Attributes:
        name: 1 to 200 characters.
        limit: jobs of this kind at once in one worker process; 0 keeps the kind off it.
        lease_s: how long a job may go without progress, 1 to 86,400 seconds.
        heartbeat_s: how often progress is written; at most half the lease.
        max_tries: tries before the job fails, 1 to 1,000.
        retry: how long to wait after a failed try.
        ends_alone: each end is written in a commit of its own.
        payload_type: what the handler takes; Any for plain JSON values.
        keep_s: how long its ended jobs stay, 0 seconds to ten years; None: as the settings say.
        keep_failed_s: the same for its failed ones, which never go before the others.
        limits: what holds for the kind on all servers together.
        cpu_bound: its jobs share the CPUs with those of all such kinds of the process; `limit` is their number.
        urgent_priority: jobs of this priority and above may also take the CPUs that are kept for urgent ones.
        exec: the services of exec servers that its jobs need: no more of them are claimed than have a share there.
        role: the servers that take it, besides those that take all: see `rota.queue.role`.
        runs_pass: its jobs are the runs of the pass of this name.
    """

    name: str
    limit: int = LIMIT
    lease_s: float = LEASE_S
    heartbeat_s: float = HEARTBEAT_S
    max_tries: int = MAX_TRIES
    retry: RetryWaits = field(default_factory=Fixed)
    isolation: Isolation = "auto"
    ends_alone: bool = False
    payload_type: Any = Any
    keep_s: float | None = None
    keep_failed_s: float | None = None
    limits: Limits = NO_LIMITS
    cpu_bound: bool = False
    urgent_priority: int | None = None
    exec: tuple[str, ...] = ()
    role: str = DEFAULT_ROLE
    runs_pass: bool = False

    def check(self) -> None:
        """Refuses settings that cannot work.

        Raises: SettingsError that names the kind and the setting.
        """
        rules: tuple[tuple[bool, str], ...] = (
            (1 <= len(self.name) <= 200, "needs a name of 1 to 200 characters"),
            (
                is_number(self.limit, 0, 100_000, whole=True),
                f'has limit={self.limit!r}; give "cpu", or 0 (keeps the kind off) to 100,000',
            ),
            (is_number(self.lease_s, 1, 86_400), f"has lease_s={self.lease_s!r}; give 1 to 86,400 seconds"),
            (
                is_number(self.lease_s, 1, 86_400) and is_number(self.heartbeat_s, 0.1, self.lease_s / 2),
                f"has heartbeat_s={self.heartbeat_s!r} with lease_s={self.lease_s!r}; "
                "give at least 0.1 and at most half the lease, so that one lost heartbeat does not stop the job",
            ),
            (
                is_number(self.max_tries, 1, 1000, whole=True),
                f"has max_tries={self.max_tries!r}; give a whole number, 1 to 1,000",
            ),
            (
                self.isolation in ("auto", "async", "thread", "process"),
                f"has isolation={self.isolation!r}; give async, thread or process",
            ),
            (
                is_role(self.role),
                f"has role={self.role!r}; give a name of lower-case letters, digits, _ and -, other than {ALL_ROLES!r}",
            ),
            (
                callable(getattr(self.retry, "wait_s", None)),
                "has a retry without wait_s; give rota.Fixed or Exponential",
            ),
            *(self.retry.faults() if isinstance(self.retry, Fixed | Exponential) else ()),
            (
                self.urgent_priority is None
                or is_number(self.urgent_priority, -PRIORITY_MAX, PRIORITY_MAX, whole=True),
                f"has urgent_priority={self.urgent_priority!r}; give a whole number",
            ),
            (
                self.urgent_priority is None or self.cpu_bound,
                f"has urgent_priority={self.urgent_priority}, which only means something with limit='cpu'",
            ),
            *self.limits.faults(),
        )
        keeps = {"keep_s": self.keep_s, "keep_failed_s": self.keep_failed_s}
        rules += tuple(
            (
                kept is None or is_number(kept, 0, KEEP_S_MAX),
                f"has {name}={kept!r}; give 0 to {KEEP_S_MAX:,.0f} seconds",
            )
            for name, kept in keeps.items()
        )
        check_text("The name of a kind", self.name)
        for kept, fault in rules:
            if not kept:
                raise SettingsError(f"Kind {self.name!r} {fault}.")
