"""What a program declares: the handlers of its kinds, its passes, and the settings that bound them.

A decorator only notes what it is given; defaults, limits and types are put together when they are first needed, so that
modules are imported without settings. It opens nothing: the database and all that runs is `App`'s.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from math import inf
from typing import Any, Literal, Self, TypeVar, overload

from rota import settings as settings_module
from rota.errors import EnqueueError, SettingsError
from rota.ids import JobId
from rota.io import tracing
from rota.io.cpus import cpu_count
from rota.queue.checks import is_number
from rota.queue.handler import PAYLOAD_TYPE, Handler, make_handler
from rota.queue.job import Dedupe, NewJob
from rota.queue.kind import EXEC_LIMIT, Isolation, Kind
from rota.queue.limits import Limits, Rate
from rota.queue.new_job import KIND_NAME, describe
from rota.queue.payload import check_text
from rota.queue.periodic import INTERVAL_S_MAX, Cron, Declared, Every, Schedule
from rota.queue.periodic import check as check_schedule
from rota.queue.retry import Fixed, RetryWaits
from rota.queue.role import kinds_of
from rota.settings import LIMIT_TABLES, Settings

Function = TypeVar("Function", bound=Callable[..., Any])
KindOrHandler = str | Callable[..., Any]


class Declarations:
    """The handlers and passes of a program.

    Args:
        flags: settings that go before those of the file and the environment, as a command line gives them.
        settings: all settings, already read; else they are read when first needed.
    """

    def __init__(self, flags: Mapping[str, Any], settings: Settings | None) -> None:
        self._flags = flags
        self._given = settings
        self._functions: dict[str, tuple[Callable[..., Any], Mapping[str, Any]]] = {}
        self._kinds: dict[Callable[..., Any], str] = {}
        self._passes: dict[str, Declared] = {}

    def override(self, **flags: Any) -> Self:
        """Puts settings over those of the file and the environment, as a command line does; before the first use."""
        self._flags = {**self._flags, **{name: value for name, value in flags.items() if value is not None}}
        if self._given is not None:
            self._given = replace(self._given, **{name: value for name, value in flags.items() if value is not None})
        for cached in ("settings", "handlers"):
            self.__dict__.pop(cached, None)
        return self

    @overload
    def job(self, name: Function, /) -> Function: ...

    @overload
    def job(
        self,
        name: str | None = None,
        /,
        *,
        limit: int | Literal["cpu"] | None = None,
        fleet_limit: int | None = None,
        tenant_limit: int | None = None,
        fair: bool = False,
        rate: Rate | None = None,
        urgent_priority: int | None = None,
        lease_s: float | None = None,
        heartbeat_s: float | None = None,
        max_tries: int | None = None,
        retry: RetryWaits | None = None,
        isolation: Isolation = "auto",
        exec: Sequence[str] = (),
        ends_alone: bool = False,
        payload: Any = Any,
        keep_s: float | None = None,
        keep_failed_s: float | None = None,
        role: str | None = None,
    ) -> Callable[[Function], Function]: ...

    def job(
        self,
        name: str | Callable[..., Any] | None = None,
        /,
        *,
        limit: int | Literal["cpu"] | None = None,
        fleet_limit: int | None = None,
        tenant_limit: int | None = None,
        fair: bool = False,
        rate: Rate | None = None,
        urgent_priority: int | None = None,
        lease_s: float | None = None,
        heartbeat_s: float | None = None,
        max_tries: int | None = None,
        retry: RetryWaits | None = None,
        isolation: Isolation = "auto",
        exec: Sequence[str] = (),
        ends_alone: bool = False,
        payload: Any = Any,
        keep_s: float | None = None,
        keep_failed_s: float | None = None,
        role: str | None = None,
    ) -> Any:
        """Makes a function the handler of a kind; the function itself stays as it is.

        Args:
            name: the kind, 1 to 200 characters; else the function's name.
            limit: jobs of this kind at once in one worker process, 0 (keeps it off) to 100,000. `"cpu"`: as many
                as the process may use CPUs, shared with the other kinds that say so. Settings (ROTA_LIMIT_<KIND>) go
                first.
            fleet_limit: jobs of this kind at once on all servers together, 1 to 100,000. Settings
                (ROTA_FLEET_LIMIT_<KIND>) go first.
            tenant_limit: jobs of one tenant in this kind at once on all servers together, 1 to 100,000; tenants then
                take turns.
            fair: tenants take turns: one job of each that has any. Priority orders the jobs of one tenant.
            rate: `rota.Rate(100, per_s=60)`: at most so many jobs start in any so many seconds, on all servers.
            urgent_priority: with `limit="cpu"`: jobs of this priority and above may also take the quarter of the CPUs
                that is kept for them.
            lease_s: how long a job may go without progress, 1 to 86,400 seconds.
            heartbeat_s: how often its progress is written, 0.1 seconds to half the lease.
            max_tries: tries before it fails, 1 to 1,000.
            retry: how long to wait after a failed try: `rota.Fixed(…)`, `rota.Exponential(…)`.
            isolation: `process` runs a plain function in a child process that can be killed; `auto` runs an async one
                in the event loop and a plain one in a thread.
            exec: the services of exec servers that its jobs need. Jobs are claimed only while each is offered, and no
                more than this worker's share of their slots.
            ends_alone: each end is a commit of its own, not one of a batch: it is durable sooner, and costs more.
            payload: the type to decode into; else the annotation of the second parameter.
            keep_s: how long its ended jobs stay, 0 seconds to ten years; else as the settings say.
            keep_failed_s: the same for its failed ones, which never go before the others.
            role: the servers that take it, besides those with the role `all`; else `default`.

        Raises: SettingsError if two functions want the same kind; other faults show when the app is first used.
        """
        if name is not None and not isinstance(name, str):
            return self.job()(name)

        def register(function: Function) -> Function:
            kind = str(name or getattr(function, "__name__", ""))
            check_text("The name of a kind", kind)
            if not kind or len(kind) > 200:
                raise SettingsError(f"{kind[:50]!r} is no name for a kind: give 1 to 200 characters.")
            if kind in self._functions:
                raise SettingsError(f"Two handlers want the kind {kind!r}. Give one of them another name.")
            self._functions[kind] = (
                function,
                {
                    "limit": limit, "lease_s": lease_s, "heartbeat_s": heartbeat_s, "max_tries": max_tries,
                    "retry": retry, "isolation": isolation, "ends_alone": ends_alone, "payload_type": payload,
                    "keep_s": keep_s, "keep_failed_s": keep_failed_s,
                    "limits": Limits(fleet_limit, tenant_limit, fair, rate), "urgent_priority": urgent_priority,
                    "exec": (exec,) if isinstance(exec, str) else tuple(exec),
                    "role": role,
                },
            )  # fmt: skip
            self._kinds[function] = kind
            # So that a handler, also one in a child process, can name it by its function.
            with suppress(AttributeError, TypeError):
                setattr(function, KIND_NAME, kind)
            if payload is not Any:
                setattr(function, PAYLOAD_TYPE, payload)
            self.__dict__.pop("handlers", None)
            return function

        return register

    def every(
        self,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        name: str | None = None,
        priority: int = 0,
        first_after_s: float | None = None,
        **options: Any,
    ) -> Callable[[Function], Function]:
        """Makes a function the handler of a pass: work that runs once in each interval, on all servers together.

        Args:
            days, hours, minutes, seconds: the interval, of elapsed time: 1 second to ten years in all.
            name: of the pass, and the kind of its runs; else the function's name.
            priority: of its runs.
            first_after_s: when it runs for the first time after it is new, 0 seconds to ten years; else after one
                interval.
            options: as for `job`; `limit` is 1 unless given.

        Raises: SettingsError for an interval that cannot work; as `job`.
        """
        parts = {"days": days, "hours": hours, "minutes": minutes, "seconds": seconds}
        for part, value in parts.items():
            if not is_number(value, 0, INTERVAL_S_MAX):
                raise SettingsError(f"A pass with {part}={value!r} cannot be: give a number.")
        interval_s = days * 86_400 + hours * 3600 + minutes * 60 + seconds
        return self._pass(Every(interval_s), name, options, priority=priority, first_after_s=first_after_s)

    def cron(
        self, line: str, *, tz: str = "UTC", name: str | None = None, priority: int = 0, **options: Any
    ) -> Callable[[Function], Function]:
        """Makes a function the handler of a pass by a cron line, by the clocks of a time zone.

        Args:
            line: minute, hour, day, month and weekday, such as `0 3 * * *`.
            tz: a time zone such as `Europe/Berlin`.
            name: of the pass, and the kind of its runs; else the function's name.
            priority: of its runs.
            options: as for `job`; `limit` is 1 unless given.

        Raises: SettingsError for a line or a time zone that is none; as `job`.
        """
        return self._pass(Cron(" ".join(str(line).split()), tz), name, options, priority=priority)

    def _pass(
        self,
        schedule: Schedule,
        name: str | None,
        options: Mapping[str, Any],
        *,
        priority: int,
        first_after_s: float | None = None,
    ) -> Callable[[Function], Function]:
        def register(function: Function) -> Function:
            kind = str(name or getattr(function, "__name__", ""))
            check_schedule(schedule, name=kind)
            if first_after_s is not None and not 0 <= first_after_s <= INTERVAL_S_MAX:
                raise SettingsError(f"The pass {kind!r} has first_after_s={first_after_s!r}: give 0 seconds or more.")
            self.job(kind, **{"limit": 1, **options})(function)
            self._passes[kind] = Declared(str(schedule), priority, first_after_s)
            return function

        return register

    # What comes of it

    @cached_property
    def settings(self) -> Settings:
        """The settings of this program, read once.

        Raises: SettingsError that names the setting and its source.
        """
        return self._given or settings_module.load(flags=self._flags)

    @cached_property
    def handlers(self) -> dict[str, Handler]:
        """The handlers by kind, with defaults and limits from the settings.

        Raises: SettingsError that names the kind, or the limit that names no kind.
        """
        settings = self.settings
        handlers = {}
        for name, (function, options) in self._functions.items():
            own = {key: value for key, value in options.items() if value is not None}
            lease_s = own.get("lease_s", settings.lease_s)
            limit, fleet = (settings_module.limit_of(settings, name, table=table) for table in LIMIT_TABLES)
            if limit is not None:
                own.pop("urgent_priority", None)
                own["limit"] = limit
            if own.get("limit") == "cpu":
                own |= {"limit": cpu_count(), "cpu_bound": True}
            if fleet is not None:
                own["limits"] = replace(own["limits"], fleet=fleet)
            kind = Kind(
                name=name,
                runs_pass=name in self._passes,
                **{
                    "limit": EXEC_LIMIT if own.get("exec") else settings.limit,
                    "lease_s": lease_s,
                    # A short lease brings its heartbeat with it, unless the kind says otherwise.
                    "heartbeat_s": min(settings.heartbeat_s, lease_s / 3) if is_number(lease_s, 1, inf) else 0,
                    "max_tries": settings.max_tries,
                    "retry": Fixed(),
                    **own,
                },
            )
            handlers[name] = make_handler(function, kind=kind)
        unknown = settings_module.unknown_limits(settings, list(handlers))
        if unknown:
            known = ", ".join(sorted(handlers)) or "none"
            raise SettingsError(f"{unknown[0]} limits a kind that this program does not have. Its kinds: {known}.")
        return handlers

    @property
    def passes(self) -> Mapping[str, Declared]:
        """The passes of this program, by name."""
        return self._passes

    def taken(self) -> dict[str, Handler]:
        """The handlers of the kinds that this server takes by its role.

        Raises: SettingsError for settings, handlers or roles that are no good.
        """
        roles = {name: handler.kind.role for name, handler in self.handlers.items()}
        taken = kinds_of(self.settings.role, kinds=roles, table=self.settings.roles)
        return {name: handler for name, handler in self.handlers.items() if name in taken}

    def new(
        self,
        kind: KindOrHandler,
        payload: Any = None,
        *,
        priority: int = 0,
        tenant: str | None = None,
        dedupe: Dedupe | None = None,
        run_after: datetime | None = None,
        delay_s: float | None = None,
        max_tries: int | None = None,
        parent: JobId | None = None,
    ) -> NewJob:
        """Describes a job to add, checked but not sent; for `enqueue_many`. See `enqueue` for the arguments."""
        name = self._name_of(kind)
        known = name in self._functions
        if max_tries is None and known:
            max_tries = self._functions[name][1]["max_tries"]
        return describe(
            name, payload, known=known, priority=priority, tenant=tenant, dedupe=dedupe, run_after=run_after,
            delay_s=delay_s, max_tries=max_tries, parent=parent,
            trace=tracing.current(),
        )  # fmt: skip

    def _name_of(self, kind: KindOrHandler) -> str:
        if isinstance(kind, str):
            return kind
        name = self._kinds.get(kind)
        if name is None:
            shown = getattr(kind, "__name__", repr(kind))
            raise EnqueueError(
                f"{shown} is no handler of this app. Decorate it with @app.job, or give the kind's name."
            )
        return name
