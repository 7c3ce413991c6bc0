"""`ctx.finish_with(conn)`: the job's success, written in the handler's own transaction on its own data.

Both commit together or neither does. It is fenced by epoch as every end is (I3), and refused where somebody asked to
cancel the job: LeaseLost then ends the block, and with it the handler's transaction. From the moment it is written the
lease is not renewed, because the row belongs to the handler's transaction until that ends.
"""

from collections.abc import Generator, Sequence
from types import TracebackType
from typing import Any, Protocol, Self
from uuid import UUID

from rota.errors import LeaseLost
from rota.ids import BatchId, Holder
from rota.io.postgres import statement
from rota.lease import Lease
from rota.queue.io.callers import Row, fetch_on, fetch_on_sync
from rota.queue.io.rows import many_jobs, one_end
from rota.queue.io.transactions import transaction_on, transaction_on_sync
from rota.queue.job import Finish, NewJob, Outcome
from rota.queue.payload import encode


class Ending(Protocol):
    """What runs the job, as its end by the handler's own hand needs it."""

    @property
    def schema(self) -> str:
        """Rota's schema in the handler's database."""
        ...

    @property
    def holder(self) -> Holder | None:
        """Whose lease it is; None: anybody's."""
        ...

    @property
    def follow_ups(self) -> Sequence[NewJob]:
        """The jobs that are added with the success."""
        ...

    def closing(self) -> bool:
        """Renews the lease no more; False if it is not held, or if the job has to stop."""
        ...

    def takes(self, finish: Finish) -> bool:
        """Whether it keeps this success itself, because its queue is in no database; False: write it with SQL."""
        ...

    def ended(self, *, batch_id: BatchId | None, sure: bool) -> None:
        """Notes that the success was written; `sure`: and committed."""
        ...


class FinishWith:
    """What `ctx.finish_with` returns.

    `async with` (in a plain handler `with`) writes the success at the end of the block, and opens a transaction for the
    block where the connection has none. `await` writes it now; in a plain handler `write()` does.

    Attributes:
        result: the job's result; it may be set within the block.
    """

    __slots__ = ("_conn", "_ending", "_lease", "_own", "result")

    def __init__(self, conn: Any, *, lease: Lease, ending: Ending, result: Any) -> None:
        self.result = result
        self._conn = conn
        self._lease = lease
        self._ending = ending
        self._own: Any = None
        """The transaction that was opened for the block."""

    # In a coroutine

    def __await__(self) -> Generator[Any, Any, None]:
        return self._write().__await__()

    async def __aenter__(self) -> Self:
        self._own = transaction_on(self._conn)
        if self._own is not None:
            await self._own.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            try:
                await self._write()
            except BaseException as failed:
                await self._leave(type(failed), failed, failed.__traceback__)
                raise
        await self._leave(kind, error, trace)
        self._note_commit(error)

    async def _leave(self, *thrown: Any) -> None:
        if self._own is not None:
            await self._own.__aexit__(*thrown)

    async def _write(self) -> None:
        schema, finish = self._begin(), self._finish()
        if self._ending.takes(finish):
            return
        end = one_end(finish, unless_cancelled=True, holder=self._ending.holder)
        rows = await fetch_on(self._conn, _sql("finish_one.sql", schema), end, schema=schema)
        batch_id = self._taken(rows)
        if self._ending.follow_ups:
            text = _sql("enqueue_many.sql", schema)
            await fetch_on(self._conn, text, many_jobs(self._ending.follow_ups), schema=schema)
        self._ending.ended(batch_id=batch_id, sure=False)

    # In a thread or a child process

    def write(self) -> None:
        """Writes the success now, on a synchronous connection.

        Raises: LeaseLost if the job may not end so; EnqueueError, SchemaError or the library's own errors.
        """
        schema, finish = self._begin(), self._finish()
        if self._ending.takes(finish):
            return
        end = one_end(finish, unless_cancelled=True, holder=self._ending.holder)
        rows = fetch_on_sync(self._conn, _sql("finish_one.sql", schema), end, schema=schema)
        batch_id = self._taken(rows)
        if self._ending.follow_ups:
            text = _sql("enqueue_many.sql", schema)
            fetch_on_sync(self._conn, text, many_jobs(self._ending.follow_ups), schema=schema)
        self._ending.ended(batch_id=batch_id, sure=False)

    def __enter__(self) -> Self:
        self._own = transaction_on_sync(self._conn)
        if self._own is not None:
            self._own.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            try:
                self.write()
            except BaseException as failed:
                if self._own is not None:
                    self._own.__exit__(type(failed), failed, failed.__traceback__)
                raise
        if self._own is not None:
            self._own.__exit__(kind, error, trace)
        self._note_commit(error)

    # Parts

    def _begin(self) -> str:
        if not self._ending.closing():
            raise self._lost()
        return self._ending.schema

    def _finish(self) -> Finish:
        result = None if self.result is None else encode(self.result, what="result")
        return Finish(self._lease, Outcome.DONE, result=result)

    def _taken(self, rows: list[Row]) -> BatchId | None:
        if not rows:
            raise self._lost()
        batch_id = rows[0]["batch_id"]
        return None if batch_id is None else BatchId(UUID(str(batch_id)))

    def _note_commit(self, error: BaseException | None) -> None:
        if error is None and self._own is not None:
            self._ending.ended(batch_id=None, sure=True)

    def _lost(self) -> LeaseLost:
        return LeaseLost(
            f"Job {self._lease.job_id} cannot end in this transaction: its lease is over, or somebody cancelled it. "
            "Nothing of the transaction should be committed."
        )


def _sql(name: str, schema: str) -> str:
    return statement("rota.queue.io.sql", name, schema)
