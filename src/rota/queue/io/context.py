"""What a handler gets as `ctx`: its job, and the ways to speak to the worker that runs it.

It may be used from the handler's coroutine or from its thread. It holds no rules: the lease book and the dispatcher
do.
"""

from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Final, Protocol, TypeVar, Unpack

from rota.commands import Args, Call, Commands, Completed, Options, Run, Stdin
from rota.errors import EnqueueError, LeaseLost
from rota.ids import JobId
from rota.io import tracing
from rota.io.commands import run_whole
from rota.queue.io.finishing import Ending, FinishWith
from rota.queue.io.job_events import JobEvents, job_events
from rota.queue.job import ClaimedJob, Dedupe, NewJob
from rota.queue.new_job import describe, kind_of
from rota.queue.payload import cut_text, encode
from rota.sessions import Session, SessionAsk, SessionOptions, Sessions, Target, org_of

T = TypeVar("T")

NOT_IN_A_CHILD: Final = (
    "ctx.exec and ctx.run need an event loop, and a child process has none: use ctx.run_sync, or isolation='thread'."
)
NO_SESSIONS_IN_A_CHILD: Final = "ctx.session does not reach a child process: give sessions to an async handler."
ONLY_IN_A_THREAD: Final = "ctx.run_sync is for plain functions: `await ctx.run(…)` in an async one."

FOLLOW_UPS_MAX: Final = 10_000
"""Jobs that may follow one: they are added in the transaction of its end, which should be short."""


class Yielded(BaseException):
    """Raised by `ctx.yield_if_waiting`; no `except Exception` of a handler catches it."""


class Host(Ending, Protocol):
    """What runs the job, as its context sees it."""

    @property
    def yield_asked(self) -> bool:
        """Whether a more urgent job of the kind waits for this one's slot."""
        ...

    def follow(self, job: NewJob) -> None:
        """Keeps a job that is to be added with the success."""
        ...

    def told_to_stop(self) -> bool:
        """Whether the job has to end; if so, the handler knows it from now on."""
        ...

    def progressed(self, progress: Any | None) -> bool:
        """Notes that the job moved; False if its lease is gone."""
        ...

    def said(self, level: str, event: str, fields: dict[str, Any]) -> None:
        """Keeps a line that the handler logged."""
        ...

    def commands(self) -> Commands:
        """Who runs commands in slots of exec servers.

        Raises: SettingsError if nobody does.
        """
        ...

    def sessions(self) -> Sessions:
        """Who opens sessions on runners.

        Raises: SettingsError if nobody does.
        """
        ...

    def run_call(self, call: Call) -> Completed:
        """Runs a command whole and waits for it, from the handler's thread or child process.

        Raises: SettingsError where the handler is a coroutine, or nobody runs commands; LeaseLost once the job must
            stop; as `Commands.exec`.
        """
        ...


class Noted:
    """What `ctx.progress` and its like return: it is done, and may be awaited or not: one word for both worlds."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


_NOTED = Noted()


class Context:
    """A handler's `ctx`.

    Attributes:
        job: the claimed job: id, kind, tenant, tries and so on.
        payload: the decoded payload, as the handler's second argument.
    """

    __slots__ = ("_host", "job", "payload")

    def __init__(self, job: ClaimedJob, payload: Any, *, host: "Host") -> None:
        self.job = job
        self.payload = payload
        self._host = host

    @property
    def id(self) -> JobId:
        """The job's id."""
        return self.job.id

    @property
    def should_stop(self) -> bool:
        """True once the worker wants this job to end: its lease is over, or somebody cancelled it.

        A coroutine is stopped anyway; a thread or a child process has to look here now and then, and should return
        soon: whatever it returns then, but for an outcome, is not taken for the job's result.
        """
        return self._host.told_to_stop()

    @property
    def should_yield(self) -> bool:
        """True while a job of this kind with a higher priority waits, and this one is the one to make room.

        The worker looks about once a second. Return `rota.Yield()` at a good place: no try counts, and the job goes
        back to its old place in the line.
        """
        return self._host.yield_asked

    def yield_if_waiting(self) -> Noted:
        """Ends the handler here with `rota.Yield()` if `should_yield`; may be awaited and need not be."""
        if self._host.yield_asked:
            raise Yielded
        return _NOTED

    def enqueue(
        self,
        kind: str | Callable[..., Any],
        payload: Any = None,
        *,
        child: bool = False,
        priority: int = 0,
        tenant: str | None = None,
        dedupe: Dedupe | None = None,
        run_after: datetime | None = None,
        delay_s: float | None = None,
        max_tries: int | None = None,
    ) -> Noted:
        """Adds a job in the transaction that writes this job's success: both are there, or neither.

        Nothing is added if the job fails, goes back to the queue, or has lost its lease. To add a job at once, whatever
        becomes of this one, use `app.enqueue`.

        Args:
            kind: a handler, or a kind by name.
            payload: as for `app.enqueue`, and so are the others.
            child: the new job is this one's child, which `app.cancel(…, children=True)` cancels with it.

        Returns: something that may be awaited and need not be. The new job has no id yet.

        Raises: PayloadError, EnqueueError.
        """
        name = kind_of(kind)
        job = describe(
            name, payload, known=name == self.job.kind, priority=priority, tenant=tenant, dedupe=dedupe,
            run_after=run_after, delay_s=delay_s, max_tries=max_tries, parent=self.job.id if child else None,
            trace=tracing.current(),
        )  # fmt: skip
        if len(self._host.follow_ups) >= FOLLOW_UPS_MAX:
            raise EnqueueError(
                f"Job {self.job.id} is followed by {FOLLOW_UPS_MAX:,} jobs, and may not have more. "
                "Add many with app.enqueue_many, or let one job add the next piece."
            )
        self._host.follow(job)
        return _NOTED

    def finish_with(self, conn: Any, *, result: Any = None) -> FinishWith:
        """Writes this job's success in a transaction of yours, together with your own data.

        `async with ctx.finish_with(conn): …` writes it at the end of the block; `await ctx.finish_with(conn)` writes it
        now, and your commit decides. In a plain handler it is `with ctx.finish_with(conn): …` or `.write()`. What
        `ctx.enqueue` was told goes with it. The worker then writes nothing more, and what the handler returns is not
        used. Commit soon: the lease is not renewed any more.

        Args:
            conn: a connection as for `app.enqueue`, in a database that has Rota's schema.
            result: the job's result.

        Raises (where it is written): LeaseLost if the lease is over or somebody cancelled the job; PayloadError.
        """
        return FinishWith(conn, lease=self.job.lease, ending=self._host, result=result)

    @property
    def log(self) -> JobEvents:
        """A logger whose lines carry the job's id, kind and epoch: `ctx.log.info("stored", bytes=7)`.

        They go where the program's logs go. From `info` up, the first thousand of a run also stay with the job, for
        `rota jobs show ID --logs`.
        """
        return job_events(self.job, keep=self._host.said)

    def progress(self, fraction: float | None = None, text: str | None = None, **facts: Any) -> Noted:
        """Says that the job moved: its lease follows (I4). Call it after each piece of work; it costs almost nothing.

        Args:
            fraction: how much is done, 0 to 1.
            text: what was done, in a few words; long texts are cut.
            facts: anything else to keep with the job, such as a position to go on from after a crash.

        Returns: something that may be awaited and need not be.

        Raises: LeaseLost if the job must not go on; PayloadError if a fact cannot be stored.
        """
        progress: dict[str, Any] | None = None
        if fraction is not None or text is not None or facts:
            progress = dict(facts)
            if fraction is not None:
                progress["fraction"] = min(1.0, max(0.0, float(fraction)))
            if text is not None:
                progress["text"] = cut_text(text, bytes_max=2000)
            if facts:
                encode(facts, what="progress", bytes_max=64 * 1024)
        if self._host.told_to_stop() or not self._host.progressed(progress):
            raise LeaseLost(f"Job {self.job.id} must stop: its lease is over, or somebody cancelled it.")
        return _NOTED

    # Commands on exec servers

    def exec(
        self, service: str, args: Args = (), *, stdin: Stdin | None = None, **options: Unpack[Options]
    ) -> AbstractAsyncContextManager[Run]:
        """Runs a declared command in a slot of an exec server, with its output as it comes.

        Output and progress move the job's lease, and so does the limited wait for a slot. When the job is stopped, so
        is the command. Where no slot comes within `wait_s`, NoSlot is raised; if the handler lets it through, the job
        goes back for a minute and no try counts.

        Args:
            service: what an exec server declares.
            args: for the template of the service, by name or as a list.
            stdin: bytes, a Path, an open binary file, or chunks.
            options: see `rota.commands.Options`; priority and tenant are the job's unless given.

        Returns: `async with ctx.exec(…) as run`, with `run.stdout`, `run.position()`, `run.cancel()`, `run.receipt`.

        Raises, in the block: ExecFailed, ExecLost, ExecRefused, ExecStopped, NoSlot; SettingsError.
        """
        return self._host.commands().exec(self._call(service, args, stdin, options))

    def run(
        self, service: str, args: Args = (), *, input: Stdin | None = None, **options: Unpack[Options]
    ) -> Awaitable[Completed]:
        """Runs a command whole, for small work: `(await ctx.run("ocr", input=page)).output`. As `exec` otherwise."""
        return run_whole(self._host.commands(), self._call(service, args, input, options))

    def run_sync(
        self, service: str, args: Args = (), *, input: Stdin | None = None, **options: Unpack[Options]
    ) -> Completed:
        """The same for handlers in threads and child processes: `ctx.run_sync("ocr", input=page).output`.

        A child process has its worker make the call: an input that is no Path is handed over whole, at most 32 MiB.

        Raises: as `exec`; LeaseLost once the job must stop.
        """
        return self._host.run_call(self._call(service, args, input, options))

    # Sessions on runners

    def session(
        self,
        job_type: str,
        *,
        target: Target = "CloudPool",
        tenant: str | None = None,
        **options: Unpack[SessionOptions],
    ) -> AbstractAsyncContextManager[Session]:
        """Opens a session on a runner: `async with ctx.session("video.compile") as s`, then `await s.stage(…)` and
        its like. For async handlers.

        This job is the session's execution: when its try ends, in whatever way, so do its sessions. One is open at a
        time; another waits until it has ended. Waiting, ops and progress move the job's lease. Where no runner comes
        within `wait_s`, NoRunner is raised; if the handler lets it through, the job goes back for a minute and no try
        counts.

        Args:
            job_type: such as `video.compile` or `video.analyze.extract`.
            target: `CloudPool`, or `OrgRunner` for a machine of the tenant's own.
            tenant: whose work it is; else the job's, or for the pool `default`.
            options: see `rota.sessions.SessionOptions`; priority is the job's unless given.

        Raises, at the start of the block: NoRunner, GatewayAbsent, GatewayAway, SessionLost; SettingsError.
        """
        host, job = self._host, self.job
        told: SessionOptions = {"priority": job.priority, **options}
        ask = SessionAsk(
            job_type, target, tenant or job.tenant or org_of(target), execution_id=str(job.id),
            iteration=str(job.lease.epoch), moved=lambda: _ignore(host.progressed(None)), **told,
        )  # fmt: skip
        return host.sessions().session(ask)

    def _call(self, service: str, args: Args, stdin: Stdin | None, options: Options) -> Call:
        host = self._host
        told: Options = {"priority": self.job.priority, "tenant": self.job.tenant, **options}
        return Call(
            service, args, stdin, name=str(self.job.id), moved=lambda: _ignore(host.progressed(None)), **told
        )  # fmt: skip


def _ignore(_kept: bool) -> None:
    """Who lost its lease is stopped in other ways."""
