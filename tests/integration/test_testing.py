"""`rota.testing` against a real database, and its fixtures in a real run of pytest."""

import asyncio
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import rota
from rota.queue.job import JobRow
from rota.settings import Settings
from rota.testing import (
    assert_enqueued_on,
    assert_enqueued_on_sync,
    assert_not_enqueued_on,
    assert_not_enqueued_on_sync,
    drain,
    in_memory,
)
from tests.integration.callers_libraries import CALLERS, Caller
from tests.pages import ROOT, blocks_of


@pytest.fixture
async def app(migrated_dsn: str) -> AsyncIterator[rota.App]:
    async with rota.App(settings=Settings(dsn=migrated_dsn)) as made:
        yield made


async def test_drain_runs_all_that_is_due_and_what_follows(app: rota.App) -> None:
    ran: list[str] = []

    @app.job
    async def part(ctx: rota.Context, n: int) -> None:
        ran.append(f"part {n}")
        if n == 0:
            ctx.enqueue(part, 5)

    @app.job
    async def whole(ctx: rota.Context) -> None:
        ran.append("whole")

    @app.job
    async def held(ctx: rota.Context) -> None: ...

    await app.enqueue_batch([app.new(part, n) for n in range(3)], then=(whole, {}))
    later = await app.enqueue(part, 9, delay_s=3600)
    await app.enqueue("of another program")
    await app.pause(held)
    await app.enqueue(held)
    await drain(app)
    assert sorted(ran) == ["part 0", "part 1", "part 2", "part 5", "whole"]
    await drain(app)
    with pytest.raises(rota.ResultTimeout):
        await app.result(later, timeout_s=0)


async def test_drain_says_what_does_not_end(app: rota.App) -> None:
    @app.job
    async def endless(ctx: rota.Context) -> None:
        await asyncio.Event().wait()

    app.override(stop_grace_s=0)
    job = await app.enqueue(endless)
    with pytest.raises(AssertionError, match=f"still due or running after 0.2 s: endless {job.id} "):
        await drain(app, timeout_s=0.2)


def fate_program(app: rota.App) -> None:
    """Handlers that end in every way that there is."""

    @app.job(max_tries=2, retry=rota.Fixed(0))
    async def ends(ctx: rota.Context, how: str) -> Any:
        first = ctx.job.progress is None
        ctx.progress(0.5, "begun")
        ctx.enqueue(followed, how)
        match how:
            case "value":
                return {"n": 1}
            case "retry":
                return rota.Retry(after_s=0, error="once more")
            case "snooze":
                return rota.Snooze(0, "not yet") if first else "after a snooze"
            case "again":
                return rota.Again() if first else None
            case "yield":
                return rota.Yield() if first else None
            case "give back":
                return rota.GiveBack("busy", after_s=0) if first else None
            case "fail":
                return rota.Fail("never")
            case "cancelled":
                return rota.Cancelled("withdrawn")
            case "unfit result":
                return object()
            case "raises":
                raise rota.NoSlot("full", after_s=0) if first else ValueError("bad")

    @app.job
    def followed(ctx: rota.Context, how: str) -> str:
        return how.upper()

    @app.job
    def typed(ctx: rota.Context, n: int) -> int:
        return n

    @app.job
    def whole(ctx: rota.Context, payload: dict[str, Any]) -> list[int]:
        return [payload["batch"][name] for name in ("jobs", "done", "failed", "cancelled")]


WAYS = (
    "value", "retry", "snooze", "again", "yield", "give back", "fail", "cancelled", "unfit result", "raises",
)  # fmt: skip


async def add_all(app: rota.App) -> None:
    for how in WAYS:
        await app.enqueue("ends", how)
    await app.enqueue("ends", "value", dedupe=rota.open_key("one"))
    await app.enqueue("ends", "fail", dedupe=rota.open_key("one"))
    await app.enqueue_batch([app.new("typed", n) for n in (1, 2, "three")], then=("whole", {}))


def fates(rows: Sequence[JobRow]) -> list[tuple[str | None, ...]]:
    """What became of jobs, without what differs from place to place."""
    return sorted(
        (
            row.kind, row.payload if row.kind != "whole" else None, row.state.value, str(row.tries),
            str(row.result and json.loads(row.result)), re.sub(r" at 0x\w+", "", row.last_error or ""),
        )
        for row in rows
    )  # fmt: skip


async def test_jobs_in_memory_end_as_they_do_on_a_worker(app: rota.App) -> None:
    fate_program(app)
    with in_memory(app) as queue:
        await add_all(app)
        await queue.drain()
        wanted = fates(queue.jobs)
    await add_all(app)
    await drain(app)
    store = await app.store()
    (low, high) = rota.JobId(UUID(int=0)), rota.JobId(UUID(int=2**128 - 1))
    assert fates(await store.show(low, high, limit=1000)) == wanted
    assert {fate[2] for fate in wanted} == {"done", "failed", "cancelled"}


@pytest.fixture(params=CALLERS, ids=lambda library: library.__name__)
def caller(request: pytest.FixtureRequest, migrated_dsn: str) -> Iterator[Caller]:
    made: Caller = request.param(migrated_dsn)
    yield made
    made.close()


def test_what_was_added_is_seen_on_the_callers_connection(caller: Caller) -> None:
    caller.begin()
    caller.execute(
        """SELECT id FROM rota.enqueue('greet', '"text"', tenant => 'acme', priority => 3, delay_s => 60,
           dedupe_key => 'ada', dedupe_scope => 'open')"""
    )
    if caller.is_async:

        async def look() -> None:
            (found,) = await assert_enqueued_on(
                caller.conn, "greet", count=1, payload="text", tenant="acme", delay_s=60
            )
            assert (found.priority, found.dedupe_key, found.state) == (3, "ada", rota.State.QUEUED)
            await assert_not_enqueued_on(caller.conn, "greet", payload="other")
            with pytest.raises(AssertionError, match="Nothing was added"):
                await assert_enqueued_on(caller.conn, "other")

        caller.run(look())
    else:
        (found,) = assert_enqueued_on_sync(caller.conn, "greet", count=1, payload="text", tenant="acme", delay_s=60)
        assert (found.priority, found.dedupe_key, found.state) == (3, "ada", rota.State.QUEUED)
        assert_not_enqueued_on_sync(caller.conn, "greet", payload="other")
        with pytest.raises(AssertionError, match="Nothing was added"):
            assert_enqueued_on_sync(caller.conn, "other")
    caller.rollback()


def run_pytest(folder: Path, *, conftest: str, test: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(textwrap.dedent(conftest))
    (folder / "test_it.py").write_text(textwrap.dedent(test))
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(folder)]
    return subprocess.run(
        [*line, str(folder)], capture_output=True, text=True, check=False, timeout=60, cwd=folder, env=os.environ
    )


TEST = """
    def test_a_job(rota_queue, rota_clock, rota_app):
        rota_app.sync.enqueue("greet", "Ada", conn=None, delay_s=5)
        rota_clock.advance(5)
        (ran,) = rota_queue.sync.drain()
        assert ran.result == "Hello Ada"


    def test_each_test_has_its_own_queue(rota_queue):
        rota_queue.assert_not_enqueued("greet")
"""


def test_the_fixtures_of_pytest(tmp_path: Path) -> None:
    conftest = """
        import pytest
        import rota

        pytest_plugins = ["rota.testing.fixtures"]
        app = rota.App()


        @app.job
        def greet(ctx, name: str) -> str:
            return f"Hello {name}"


        @pytest.fixture
        def rota_app():
            return app
    """
    done = run_pytest(tmp_path, conftest=conftest, test=TEST)
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout


def test_the_tests_of_the_guide_pass(tmp_path: Path) -> None:
    programs = {block.program: block.text for block in blocks_of(ROOT / "docs/guide/testing.md") if block.program}
    (tmp_path / "shop.py").write_text(programs["shop.py"])
    done = run_pytest(tmp_path, conftest=programs["conftest.py"], test=programs["test_shop.py"])
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout


def test_the_fixtures_say_what_is_missing(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, conftest='pytest_plugins = ["rota.testing.fixtures"]', test=TEST)
    assert done.returncode == 1 and "Define a fixture `rota_app`" in done.stdout, done.stdout


DJANGO = """
    import unittest

    import django
    from django.conf import settings

    settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
    django.setup()

    from django.db import connection
    from django.test import TestCase

    import rota
    from rota.contrib.django import make_app
    from rota.testing import in_memory

    app = make_app(settings=rota.Settings(dsn="postgresql://nobody@127.0.0.1:1/none"))


    @app.job
    def count(ctx, table: str) -> int:
        with connection.cursor() as cursor:
            return cursor.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


    class CountTest(TestCase):
        def test_a_handler_sees_what_the_test_has_not_committed(self) -> None:
            with in_memory(app) as queue, connection.cursor() as cursor:
                cursor.execute("CREATE TABLE films (path text)")
                cursor.execute("INSERT INTO films VALUES ('a.mp4')")
                app.sync.enqueue(count, "films", conn=connection)
                (ran,) = queue.sync.drain(reraise=True)
                assert ran.result == 1


    unittest.main()
"""


def test_handlers_stand_in_the_transaction_of_a_django_test(tmp_path: Path) -> None:
    (tmp_path / "it.py").write_text(textwrap.dedent(DJANGO))
    done = subprocess.run(
        [sys.executable, "it.py"], capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path, env=os.environ
    )
    assert done.returncode == 0 and "Ran 1 test" in done.stderr, done.stderr
