"""What a handler gets as `ctx`: its job, and the ways to speak to the worker that runs it.

It may be used from the handler's coroutine or from its thread. It holds no rules: the lease book and the dispatcher
do.
"""

from collections.abc import Generator
from typing import Any, Protocol

from rota.errors import LeaseLost
from rota.ids import JobId
from rota.queue.io.job_events import JobEvents, job_events
from rota.queue.job import ClaimedJob
from rota.queue.payload import cut_text, encode


class Host(Protocol):
    """What runs the job, as its context sees it."""

    def told_to_stop(self) -> bool:
        """Whether the job has to end; if so, the handler knows it from now on."""
        ...

    def progressed(self, progress: Any | None) -> bool:
        """Notes that the job moved; False if its lease is gone."""
        ...

    def said(self, level: str, event: str, fields: dict[str, Any]) -> None:
        """Keeps a line that the handler logged."""
        ...


class Noted:
    """What `ctx.progress` returns: it is done already, and may be awaited or not, so one word serves both worlds."""

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
