"""What a user's program holds: its handlers, and the way to enqueue. The one module that knows all parts.

Its kinds and passes are `declarations.py`'s; here are the database, the jobs, and what runs them.

app = rota.App()

@app.job(limit=4)
async def thumbnail(ctx: rota.Context, job: Thumbnail) -> dict: ...

await app.enqueue(thumbnail, Thumbnail("a.mp4"), conn=conn)
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, Self, Unpack
from uuid import uuid4

from rota import settings as settings_module
from rota.commands import Args, Call, Completed, ExecServers, Options, Place, Run, Stdin
from rota.declarations import Declarations, KindOrHandler
from rota.errors import EnqueueError, SettingsError
from rota.ids import BatchId, JobId
from rota.io.commands import run_whole
from rota.io.embedded import EmbeddedPostgres
from rota.io.person import here
from rota.io.postgres import Database, Target
from rota.queue.io.batches import Batch
from rota.queue.io.desk import DatabaseDesk, Desk
from rota.queue.io.metering import Metering
from rota.queue.io.store import Store
from rota.queue.io.watch import Watch
from rota.queue.io.worker import Worker, WorkerOptions
from rota.queue.job import BatchStatus, Dedupe, Enqueued, EnqueuedBatch, NewJob, State
from rota.queue.new_job import batch_id_of, check_priority, check_times, checked, job_id_of
from rota.queue.pause import Pause, PauseScope
from rota.queue.pause import check as check_pause
from rota.queue.payload import check_text
from rota.queue.watching import Viewer
from rota.sessions import Session, SessionAsk, SessionOptions, Sessions, org_of
from rota.sessions import Target as RunnerTarget
from rota.settings import Settings, path_of

EMBEDDED = "embedded:"
Then = NewJob | tuple[KindOrHandler, Any]
"""What follows a batch: a job of `app.new`, or a kind and a payload."""


class App(Declarations):
    """A program's handlers and its queue.

    Nothing is opened until it is needed; `start` and `stop` may be called twice and in any order, and the app is an
    async context manager that does both.

    Args:
        dsn: the database; else ROTA_DSN or rota.toml. `embedded:FOLDER` runs a PostgreSQL of its own from a folder.
        schema: where Rota's tables live.
        settings: all settings, already read; else they are read when first needed.
    """

    def __init__(self, *, dsn: str | None = None, schema: str | None = None, settings: Settings | None = None) -> None:
        super().__init__({"dsn": dsn, "schema": schema}, settings)
        self._database: Database | None = None
        self._embedded: EmbeddedPostgres | None = None
        self._exec_servers: ExecServers | None = None
        self._sessions: Sessions | None = None
        self._starting = asyncio.Lock()
        self._own_desk = DatabaseDesk(self.database, target=lambda: self.target, schema=lambda: self.settings.schema)
        self._desk: Desk = self._own_desk
        self.sync = SyncApp(self)

    # The database

    @property
    def target(self) -> Target:
        """The database of this program; an embedded one is started first.

        Raises: SettingsError, EmbeddedError.
        """
        dsn = self.settings.require_dsn()
        if dsn.startswith(EMBEDDED):
            if self._embedded is None:
                self._embedded = EmbeddedPostgres(path_of(dsn.removeprefix(EMBEDDED)))
            dsn = self._embedded.start()
        return Target(dsn, schema=self.settings.schema, pooler=self.settings.pooler)

    async def database(self) -> Database:
        """The program's own pool, opened when first asked for.

        Raises: DatabaseAway, DatabaseError, SettingsError.
        """
        if self._desk is not self._own_desk:
            raise SettingsError("The queue of this app is not in a database now: it was replaced with app.use_queue.")
        if self._database is not None:
            return self._database
        async with self._starting:
            if self._database is None:
                database = Database(self.target, size=self.settings.pool_size)
                await database.start()
                self._database = database
            return self._database

    async def store(self) -> Store:
        """The queue itself, for tools."""
        return Store(await self.database())

    async def start(self) -> None:
        """Opens the database and checks that its schema is this program's.

        Raises: DatabaseAway, DatabaseError, SchemaError, SettingsError.
        """
        await self._desk.start()

    async def stop(self) -> None:
        """Closes what was opened."""
        await self._own_desk.stop()
        if self._exec_servers is not None:
            await self._exec_servers.stop()
        if self._sessions is not None:
            await self._sessions.stop()
        database, self._database = self._database, None
        if database is not None:
            await database.stop()
        embedded, self._embedded = self._embedded, None
        if embedded is not None:
            embedded.stop()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def use_queue(self, desk: Desk | None) -> Desk:
        """Has jobs added to another queue than the database of the settings, as `rota.testing.in_memory` does; None
        takes that back. Meanwhile nothing of the app reaches a database.

        Returns: what was used before.
        """
        before, self._desk = self._desk, desk or self._own_desk
        return before

    # Enqueueing

    async def enqueue(
        self,
        kind: KindOrHandler,
        payload: Any = None,
        *,
        conn: Any = None,
        priority: int = 0,
        tenant: str | None = None,
        dedupe: Dedupe | None = None,
        run_after: datetime | None = None,
        delay_s: float | None = None,
        max_tries: int | None = None,
        parent: JobId | None = None,
    ) -> Enqueued:
        """Adds one job.

        Args:
            kind: a handler of this app, or a kind by name (of this program or another).
            payload: JSON values, a dataclass, a pydantic model, …; None for none.
            conn: a connection of yours (asyncpg, psycopg, SQLAlchemy): the job is added in its transaction and exists
                if and when that commits. Without it the job is committed when this returns.
            priority: a whole number of 32 bits; within a kind, higher runs first.
            tenant: whose work it is, at most 200 characters.
            dedupe: `rota.open_key(…)` or one of its siblings; docs/guide/enqueueing.md has the table.
            run_after: not before this time (with a time zone).
            delay_s: not before so many seconds from now, 0 to a hundred years, by the database's clock; not together
                with `run_after`.
            max_tries: 1 to 1,000; else the kind's.
            parent: the job that adds it as its child; `cancel(parent, children=True)` cancels it too.

        Returns: `id`, and `created`: False if another job holds the key; `id` is then that job's.

        Raises: PayloadError with the field's path; EnqueueError; without `conn` also DatabaseAway and its kin.
        """
        job = self.new(
            kind, payload, priority=priority, tenant=tenant, dedupe=dedupe, run_after=run_after, delay_s=delay_s,
            max_tries=max_tries, parent=parent,
        )  # fmt: skip
        return await self._desk.enqueue(job, conn=conn)

    async def enqueue_many(self, jobs: Sequence[NewJob], *, conn: Any = None) -> list[Enqueued]:
        """Adds many jobs, all or none, much faster than one by one; make them with `app.new(…)`.

        Args:
            jobs: what to add, of any kinds.
            conn: as for `enqueue`.

        Returns: for each job, in order, its id and whether it was created; if not, the id is of the job that holds
            the key.

        Raises: as `enqueue`.
        """
        return await self._desk.enqueue_many(checked(jobs), conn=conn) if jobs else []

    async def enqueue_batch(
        self, jobs: Sequence[NewJob], *, then: Then | None = None, conn: Any = None
    ) -> EnqueuedBatch:
        """Adds many jobs, all or none, as one batch: when all have ended, in whatever way, one more job follows.

        Args:
            jobs: what to add; make them with `app.new(…)`. One whose key another job holds is not of the batch.
            then: the follow-up: `(kind, payload)`, or a job of `app.new`. An object that is its payload gets a field
                `batch` with the counts: `jobs`, `done`, `failed`, `cancelled`, `expired`.
            conn: as for `enqueue`.

        Returns: the batch's id, and for each job its id and whether it was created.

        Raises: as `enqueue`; EnqueueError for a follow-up with a key or a time of its own.
        """
        follow_up = None if then is None else self._follow_up(then)
        return await self._desk.enqueue_batch(checked(jobs), then=follow_up, conn=conn)

    @asynccontextmanager
    async def batch(self, *, then: Then | None = None, conn: Any = None) -> AsyncIterator[Batch]:
        """Collects jobs and adds them as one batch at the end of the block; none if the block raises.

        Args:
            then: the follow-up, as for `enqueue_batch`.
            conn: as for `enqueue`.

        Yields: a Batch: `add(kind, payload, …)` takes what `app.new` takes; afterwards it has `id` and `jobs`.
        """
        follow_up = None if then is None else self._follow_up(then)
        collected = Batch(self.new)
        yield collected
        collected.added = await self.enqueue_batch(collected.waiting, then=follow_up, conn=conn)

    async def batch_status(self, batch_id: BatchId) -> BatchStatus:
        """How a batch stands: its jobs by state, and its follow-up once it has ended.

        Raises: BatchNotFound.
        """
        return await (await self._desk.asked()).batch(batch_id_of(batch_id))

    def _follow_up(self, then: Then) -> NewJob:
        job = then if isinstance(then, NewJob) else self.new(*then)
        if job.dedupe is not None or job.run_after is not None or job.delay_s is not None:
            raise EnqueueError(
                "The follow-up of a batch has no key and no time of its own: it runs when all have ended."
            )
        return job

    async def cancel(
        self, job_id: JobId, *, children: bool = False, reason: str = "Cancelled by the program"
    ) -> State | None:
        """Cancels a job.

        Args:
            job_id: the job; it may have ended, where only its children are meant.
            children: also the jobs that it added as its children, and theirs.
            reason: kept with the jobs.

        Returns: CANCELLED if it was queued, LEASED if its worker was asked to stop, None if it has ended.
        """
        job_id = job_id_of(job_id)
        return (await (await self._desk.asked()).cancel([job_id], children=children, reason=reason)).get(job_id)

    async def move(
        self,
        job_id: JobId,
        *,
        priority: int | None = None,
        run_after: datetime | None = None,
        delay_s: float | None = None,
    ) -> State | None:
        """Gives a queued job another priority, another time, or both.

        Args:
            job_id: the job.
            priority: the new one; None keeps it.
            run_after: not before this time (with a time zone).
            delay_s: not before so many seconds from now; 0 makes it due.

        Returns: QUEUED if it was moved, LEASED if it runs and was left as it is, None if it has ended.

        Raises: EnqueueError for a priority or a time that is none.
        """
        if priority is not None:
            check_priority(priority)
        check_times(run_after, delay_s)
        job_id = job_id_of(job_id)
        asked = await self._desk.asked()
        return (await asked.move([job_id], priority=priority, run_after=run_after, delay_s=delay_s)).get(job_id)

    async def result(self, job: JobId | Enqueued, *, timeout_s: float | None = None) -> Any:
        """Waits until a job has ended, and gives its result.

        Args:
            job: its id, or what `enqueue` returned. An enqueue on a connection of yours has to be committed.
            timeout_s: how long to wait at most; 0 only looks, None waits for as long as it takes.

        Returns: what the handler returned, as JSON values; None if that was nothing.

        Raises: JobFailed or JobCancelled with the reason; ResultTimeout; JobNotFound; DatabaseError.
        """
        return await self._desk.result(job_id_of(job), timeout_s=timeout_s)

    # Looking

    async def position(self, job: JobId | Enqueued) -> Place | None:
        """Where a job stands in line for slots of exec servers, whether its call waits there or no worker has claimed
        it yet: `ahead` counts both, and `unclaimed` says how many of these are in the database only. The workers tell
        of their calls every few seconds. Inside the handler, `run.position()` asks the exec servers at once.

        Returns: None where its kind needs no exec server (`exec=…`), or it waits for none, or nobody knows.

        Raises: DatabaseAway and its kin.
        """
        return await self._desk.position(job.id if isinstance(job, Enqueued) else job)

    async def admin_jobs(self, viewer: Viewer) -> dict[str, Any]:
        """What an administrator sees, ready for JSON; whether somebody is one, the caller decides.

        Args:
            viewer: whose jobs: `rota.Viewer.of_tenant("acme")` or `rota.Viewer.everything()`. Jobs of other tenants are
                neither in the rows nor in the counts.

        Returns: `jobs`: how many there are by `kind` and `state`; `failed`: the 20 that failed last, newest first, each
            error cut to 500 characters.

        Raises: DatabaseAway and its kin.
        """
        return (await Watch(await self.database()).overview(viewer)).plain()

    # Commands on exec servers

    @property
    def exec_servers(self) -> ExecServers:
        """The exec servers of this program. It connects to them when one is first needed.

        Raises: SettingsError if none is set.
        """
        if self._exec_servers is None:
            from rota.slots.io.from_settings import client_of  # noqa: PLC0415 - its HTTP and websockets cost a start

            self._exec_servers = client_of(self.settings)
        return self._exec_servers

    def use_exec_servers(self, servers: ExecServers | None) -> ExecServers | None:
        """Has commands run by something else than the exec servers of the settings, as tests do. With None those are
        connected to anew when one is next needed.

        Returns: what was used before; None if nothing was yet.
        """
        before, self._exec_servers = self._exec_servers, servers
        return before

    def exec(
        self, service: str, args: Args = (), *, stdin: Stdin | None = None, **options: Unpack[Options]
    ) -> AbstractAsyncContextManager[Run]:
        """Runs a declared command in a slot of an exec server, outside of any job; see `Context.exec`."""
        return self.exec_servers.exec(Call(service, args, stdin, **options))

    def run(
        self, service: str, args: Args = (), *, input: Stdin | None = None, **options: Unpack[Options]
    ) -> Awaitable[Completed]:
        """Runs a command whole, for small work: `(await app.run("ocr", input=page)).output`; see `Context.run`."""
        return run_whole(self.exec_servers, Call(service, args, input, **options))

    # Sessions on runners

    @property
    def sessions(self) -> Sessions:
        """The runners of this program, through its gateway. It connects when one is first needed.

        Raises: GatewayAbsent if none is set; SettingsError for a setting that cannot be used.
        """
        if self._sessions is None:
            from rota.runners.io.engine_settings import engine_of  # noqa: PLC0415 - as those of the exec servers

            self._sessions = engine_of(self.settings)
        return self._sessions

    def use_sessions(self, sessions: Sessions | None) -> Sessions | None:
        """Has sessions opened by something else than the gateway of the settings, as tests do. With None that one is
        connected to anew when it is next needed.

        Returns: what was used before; None if nothing was yet.
        """
        before, self._sessions = self._sessions, sessions
        return before

    def session(
        self,
        job_type: str,
        *,
        target: RunnerTarget = "CloudPool",
        tenant: str | None = None,
        execution_id: str | None = None,
        **options: Unpack[SessionOptions],
    ) -> AbstractAsyncContextManager[Session]:
        """Opens a session on a runner, outside of any job; see `Context.session`.

        Args:
            job_type, target, tenant, options: as there.
            execution_id: the workflow execution; one has one open session at a time. Else the session is one of its
                own. No queue job watches over it: if this program dies, the session ends when it has been idle.
        """
        return self.sessions.session(
            SessionAsk(job_type, target, tenant or org_of(target), execution_id=execution_id or str(uuid4()), **options)
        )

    # Holding back

    async def pause(
        self,
        kind: KindOrHandler | None = None,
        *,
        tenant: str | None = None,
        everything: bool = False,
        note: str | None = None,
        paused_by: str | None = None,
        for_s: float | None = None,
    ) -> None:
        """Holds back the jobs of a kind (or a pass), of a tenant, or all, on all servers, within about a second.
        Jobs that run go on. Pausing again replaces the note and the end.

        Args:
            kind: a handler, or a kind by name; or give `tenant`, or `everything=True`.
            note: why, for those who wonder.
            paused_by: who; else the user and host of this process.
            for_s: for how long, in seconds; None: until somebody resumes.

        Raises: EnqueueError if not exactly one thing is named, or a value is no good.
        """
        scope, name = self._scope(kind, tenant, everything)
        check_pause(note=note, paused_by=paused_by, for_s=for_s)
        asked = await self._desk.asked()
        await asked.pause(scope, name, note=note, paused_by=paused_by or here(), for_s=for_s)

    async def resume(
        self, kind: KindOrHandler | None = None, *, tenant: str | None = None, everything: bool = False
    ) -> Pause | None:
        """Takes back a pause. Returns: the pause; None if that was not paused."""
        scope, name = self._scope(kind, tenant, everything)
        return await (await self._desk.asked()).resume(scope, name)

    async def pauses(self) -> list[Pause]:
        """What is held back now, with why, by whom and until when."""
        return await (await self._desk.asked()).pauses()

    def _scope(self, kind: KindOrHandler | None, tenant: str | None, everything: bool) -> tuple[PauseScope, str]:
        if (kind is not None) + (tenant is not None) + everything != 1:
            raise EnqueueError("Name one thing: a kind, tenant=…, or everything=True.")
        if everything:
            return PauseScope.ALL, ""
        scope, name = (PauseScope.TENANT, tenant) if kind is None else (PauseScope.KIND, self._name_of(kind))
        check_text(scope.value, name)
        if not name:
            raise EnqueueError(f"The name of a {scope.value} is empty.")
        return scope, name

    # Working

    def worker(self, *, ends_process: bool = False, metering: Metering | None = None) -> Worker:
        """A worker for this app's handlers; `await worker.run()` works until `worker.stop()`.

        Args:
            ends_process: the process is the worker's own and ends right after `run`.
            metering: counts what it does, for metrics.

        Raises: SettingsError.
        """
        if not self.handlers:
            raise SettingsError("This app has no handlers: there is nothing to work on. Decorate one with @app.job.")
        if self._desk is not self._own_desk:
            raise SettingsError("The queue of this app is in memory now: run its jobs with `await queue.drain()`.")
        settings = self.settings
        if metering is not None:
            # Handlers may use exec servers without saying so by their kinds.
            metering.exec_tally = lambda: None if self._exec_servers is None else self._exec_servers.tally()
        worker = Worker(
            self.taken(),
            target=replace(self.target, application="rota worker"),
            options=WorkerOptions(
                poll_s=settings.poll_s,
                stop_grace_s=settings.stop_grace_s,
                keep_s=settings.keep_days * 86_400,
                keep_failed_s=settings.keep_failed_days * 86_400,
                job_pool_size=settings.job_pool_size,
                cancel_grace_s=settings.cancel_grace_s,
                ends_process=ends_process,
                metering=metering,
                role=", ".join(settings.role),
                settings_digest=settings_module.digest(settings),
                passes=self._passes,
            ),
            commands=lambda: self.exec_servers,
            sessions=lambda: self.sessions,
        )
        self._bind_to_exec_servers(worker)
        return worker

    def _bind_to_exec_servers(self, worker: Worker) -> None:
        """Kinds that need exec servers are claimed by the worker's share of what those have."""
        services = {name: handler.kind.exec for name, handler in self.handlers.items() if handler.kind.exec}
        if not services:
            return
        servers = self.exec_servers
        for name in services:

            def allowance(kind: str = name) -> int:
                return worker.running.get(kind, 0) + servers.room(kind, services=services, running=worker.running)

            worker.allow(name, allowance)
        servers.watch(worker.look_again)
        worker.stands(lambda: servers.standing(services))


class SyncApp:
    """`app.sync`: the same words for programs without asyncio. `conn` is a psycopg, SQLAlchemy or Django connection."""

    def __init__(self, app: App) -> None:
        self._app = app

    def enqueue(
        self,
        kind: KindOrHandler,
        payload: Any = None,
        *,
        conn: Any,
        priority: int = 0,
        tenant: str | None = None,
        dedupe: Dedupe | None = None,
        run_after: datetime | None = None,
        delay_s: float | None = None,
        max_tries: int | None = None,
        parent: JobId | None = None,
    ) -> Enqueued:
        """Adds one job in the transaction of `conn`; see `App.enqueue`."""
        job = self._app.new(
            kind, payload, priority=priority, tenant=tenant, dedupe=dedupe, run_after=run_after, delay_s=delay_s,
            max_tries=max_tries, parent=parent,
        )  # fmt: skip
        return self._app._desk.enqueue_sync(job, conn=conn)

    def enqueue_many(self, jobs: Sequence[NewJob], *, conn: Any) -> list[Enqueued]:
        """Adds many jobs, all or none, in the transaction of `conn`; see `App.enqueue_many`."""
        return self._app._desk.enqueue_many_sync(checked(jobs), conn=conn) if jobs else []

    def enqueue_batch(self, jobs: Sequence[NewJob], *, then: Then | None = None, conn: Any) -> EnqueuedBatch:
        """Adds many jobs as one batch, in the transaction of `conn`; see `App.enqueue_batch`."""
        follow_up = None if then is None else self._app._follow_up(then)
        return self._app._desk.enqueue_batch_sync(checked(jobs), then=follow_up, conn=conn)

    def result(self, job: JobId | Enqueued, *, timeout_s: float | None = None) -> Any:
        """Waits until a job has ended, and gives its result; see `App.result`. It opens a connection of its own.

        Raises: as `App.result`; RotaError where an event loop runs in this thread, which this would block.
        """
        return self._app._desk.result_sync(job_id_of(job), timeout_s=timeout_s)
