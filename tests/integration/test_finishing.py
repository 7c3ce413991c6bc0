"""A job's success in the caller's own transaction, on a connection of every library that Rota takes."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
import pytest

import rota
from rota.ids import BatchId, Holder
from rota.io.postgres import Database, Target
from rota.lease import Lease
from rota.queue.io import batches
from rota.queue.io.finishing import FinishWith
from rota.queue.io.store import Store
from rota.queue.job import Ask, Finish, NewJob
from tests.integration.callers_libraries import CALLERS, Caller
from tests.postgres_servers import Server

HOLDER = Holder("here:1:aa")


class Ending:
    """What runs the job, as this test's own object."""

    schema = "rota"
    holder = HOLDER

    def __init__(self, *follow_ups: NewJob) -> None:
        self.follow_ups: Sequence[NewJob] = follow_ups
        self.said: list[bool] = []

    def closing(self) -> bool:
        return True

    def takes(self, finish: Finish) -> bool:
        return False

    def ended(self, *, batch_id: BatchId | None, sure: bool) -> None:
        self.said.append(sure)


@pytest.fixture(scope="module")
def shared_dsn(default_server: Server) -> Iterator[str]:
    """One database for all tests here, with a table of the program's own."""
    with default_server.database(template=default_server.template()) as address:
        with psycopg.connect(address, autocommit=True) as conn:
            conn.execute("CREATE TABLE data (what text)")
        yield address


@pytest.fixture(params=CALLERS, ids=lambda library: library.__name__)
def caller(request: pytest.FixtureRequest, shared_dsn: str) -> Iterator[Caller]:
    """A caller with each kind of connection in turn, on an empty database."""
    made: Caller = request.param(shared_dsn)
    yield made
    made.close()
    with psycopg.connect(shared_dsn, autocommit=True) as conn:
        conn.execute("SET lock_timeout = '5s'")  # a caller that was not closed fails one test, and hangs none
        conn.execute("TRUNCATE data, rota.open_jobs, rota.ended_jobs, rota.batches")


def lease_on(dsn: str, **options: Any) -> Lease:
    """Adds a job and claims it."""

    async def claim() -> Lease:
        database = Database(Target(dsn), size=1)
        store = Store(database)
        try:
            await store.enqueue(NewJob("work", **options))
            (job,) = await store.claim([Ask("work", 1, 300.0, 3)], holder=HOLDER)
            return job.lease
        finally:
            await database.stop()

    return asyncio.run(claim())


def seen(dsn: str, text: str) -> list[Any]:
    """What is committed."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        return [row[0] for row in conn.execute(text).fetchall()]  # type: ignore[call-overload]


def block(caller: Caller, end: FinishWith, work: Callable[[], Any]) -> None:
    """Runs the block form."""
    if not caller.is_async:
        with end:
            work()
        return

    async def enter() -> None:
        await end.__aenter__()

    run: Any = caller.run  # type: ignore[attr-defined]
    run(enter())
    try:
        work()
    except BaseException as error:
        run(end.__aexit__(type(error), error, error.__traceback__))
        raise
    run(end.__aexit__(None, None, None))


def insert(caller: Caller, what: str) -> None:
    caller.execute(f"INSERT INTO data VALUES ('{what}')")


def test_a_block_without_a_transaction_has_one_of_its_own(caller: Caller) -> None:
    lease, ending = lease_on(caller.dsn), Ending(NewJob("next"))
    end = FinishWith(caller.conn, lease=lease, ending=ending, result={"n": 1})
    block(caller, end, lambda: insert(caller, "a"))
    assert ending.said == [False, True], "written, and then committed"
    assert seen(caller.dsn, "SELECT what FROM data") == ["a"]
    assert seen(caller.dsn, "SELECT result FROM rota.ended_jobs WHERE state = 'done'") == [{"n": 1}]
    assert seen(caller.dsn, "SELECT kind FROM rota.open_jobs") == ["next"]


def test_a_block_that_raises_leaves_nothing(caller: Caller) -> None:
    lease, ending = lease_on(caller.dsn), Ending(NewJob("next"))

    def work() -> None:
        insert(caller, "a")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        block(caller, FinishWith(caller.conn, lease=lease, ending=ending, result=None), work)
    assert ending.said == []
    assert seen(caller.dsn, "SELECT what FROM data") == []
    assert seen(caller.dsn, "SELECT state FROM rota.open_jobs") == ["leased"]


def test_a_refused_success_takes_the_data_with_it(caller: Caller) -> None:
    """I3: an older epoch ends nothing, and what it wrote beside is not kept."""
    lease, ending = lease_on(caller.dsn), Ending(NewJob("next"))
    stale = Lease(lease.job_id, lease.epoch - 1)
    with pytest.raises(rota.LeaseLost):
        block(caller, FinishWith(caller.conn, lease=stale, ending=ending, result=None), lambda: insert(caller, "a"))
    assert ending.said == []
    assert seen(caller.dsn, "SELECT what FROM data") == []
    assert seen(caller.dsn, "SELECT kind FROM rota.open_jobs WHERE state = 'leased'") == ["work"]


def test_a_success_of_a_former_holder_is_refused(caller: Caller) -> None:
    """After a failover that lost claims, an epoch may be another's."""
    lease, ending = lease_on(caller.dsn), Ending(NewJob("next"))
    ending.holder = Holder("there:2:bb")
    with pytest.raises(rota.LeaseLost):
        block(caller, FinishWith(caller.conn, lease=lease, ending=ending, result=None), lambda: insert(caller, "a"))
    assert ending.said == []
    assert seen(caller.dsn, "SELECT what FROM data") == []
    assert seen(caller.dsn, "SELECT kind FROM rota.open_jobs WHERE state = 'leased'") == ["work"]


def test_the_caller_s_own_transaction_decides(caller: Caller) -> None:
    lease, ending = lease_on(caller.dsn), Ending(NewJob("next"))
    for commits in (False, True):
        caller.begin()
        insert(caller, "a")
        block(caller, FinishWith(caller.conn, lease=lease, ending=ending, result=1), lambda: None)
        assert seen(caller.dsn, "SELECT what FROM data") == []
        (caller.commit if commits else caller.rollback)()
    assert ending.said == [False, False], "whether it was committed is not for the block to know"
    assert seen(caller.dsn, "SELECT what FROM data") == ["a"]
    assert seen(caller.dsn, "SELECT state FROM rota.ended_jobs") == ["done"]


def test_a_batch_comes_whole_or_not_at_all(caller: Caller) -> None:
    def add(*kinds: str) -> None:
        jobs, then = [NewJob(kind) for kind in kinds], NewJob("then")
        if caller.is_async:
            run: Any = caller.run  # type: ignore[attr-defined]
            run(batches.add_on(caller.conn, jobs, then=then, schema="rota"))
        else:
            batches.add_on_sync(caller.conn, jobs, then=then, schema="rota")

    with pytest.raises(rota.EnqueueError):
        add("good", "")
    add("one", "two")
    assert seen(caller.dsn, "SELECT kind FROM rota.open_jobs ORDER BY id") == ["one", "two"]
    assert seen(caller.dsn, "SELECT jobs FROM rota.batches") == [2]
