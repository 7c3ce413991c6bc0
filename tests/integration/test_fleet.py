"""Servers, roles, passes and pauses on a real PostgreSQL: what workers say of themselves, and what they heed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

import rota
from rota.errors import EnqueueError, SettingsError
from rota.ids import Holder
from rota.lease import Lease
from rota.queue.io import registry as registry_module
from rota.queue.io.registry import Registry
from rota.queue.io.store import Store
from rota.queue.job import Ask, NewJob, State
from rota.queue.periodic import Declared, PassRow, key_of
from rota.queue.server import Server
from rota.version import __version__
from tests.integration.test_worker import Bench, bench, made_bench, until, working

__all__ = ["bench"]

WAIT_S = 60.0
NOBODY = Server(Holder("gone:1:aa"), "gone", 1, "1", "all", "d", kinds={}, passes={})


@asynccontextmanager
async def beating(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Workers that say at every look that they live."""
    with monkeypatch.context() as patch:
        patch.setattr(registry_module, "SEEN_EVERY_S", 0.0)
        yield


async def note(bench: Bench, name: str) -> None:
    """Waits until a handler has noted this."""
    await until(lambda: name in bench.ran, what=name, within_s=WAIT_S)


def noting(bench: Bench, *kinds: str, **options: Any) -> None:
    """Handlers that note that they ran."""

    def make(kind: str) -> None:
        @bench.app.job(kind, **options)
        async def handler(ctx: rota.Context) -> None:
            bench.ran.append(kind)

    for kind in kinds:
        make(kind)


# Servers


async def test_a_worker_is_there_while_it_works(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    go = asyncio.Event()

    @bench.app.job(limit=3)
    async def work(ctx: rota.Context) -> None:
        await go.wait()

    noting(bench, "off", limit=0)
    bench.app.every(hours=1, name="hourly")(lambda: None)
    async with beating(monkeypatch), working(bench.app) as worker:

        async def mine() -> Any:
            return await bench.store.servers()

        (row,) = await until(mine, what="its row")
        assert (row.holder, row.version, row.role, row.live, row.draining) == (
            worker.holder, __version__, "all", True, False,
        )  # fmt: skip
        assert (row.kinds, row.passes) == (
            {"work": 3, "hourly": 1}, {"hourly": Declared("every 3600 s")},
        )  # fmt: skip
        await bench.app.enqueue(work)

        async def runs() -> bool:
            (now,) = await bench.store.servers()
            return now.running == {"work": 1} and now.seen_at > row.seen_at

        await until(runs, what="the running job")
        worker.stop()

        async def drains() -> bool:
            (now,) = await bench.store.servers()
            return now.draining

        await until(drains, what="the drain")
        go.set()
    assert await bench.store.servers() == []


async def test_a_row_that_was_lost_comes_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash of the database empties what is not logged."""
    noting(bench, "work")
    async with beating(monkeypatch), working(bench.app):
        await until(bench.store.servers, what="the row")
        await bench.conn.execute("TRUNCATE rota.servers")
        await until(bench.store.servers, what="the row again")


async def test_a_worker_whose_looks_fail_is_not_live_and_works_again_by_itself(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S24: every statement is refused for a while; `live` means that it would take a job."""
    noting(bench, "work")
    async with beating(monkeypatch), working(bench.app):
        await until(bench.store.servers, what="the row")
        await bench.conn.execute("ALTER TABLE rota.open_jobs RENAME TO away")
        # The look that may be under way ends; from then on none gets through.
        (before,) = await bench.store.servers()

        async def silent() -> bool:
            nonlocal before
            last, (before,) = before, await bench.store.servers()
            await asyncio.sleep(1)
            return last.seen_at == before.seen_at

        await until(silent, what="no more heartbeats", within_s=WAIT_S)
        await bench.conn.execute("ALTER TABLE rota.away RENAME TO open_jobs")
        await bench.app.enqueue("work")
        await note(bench, "work")


async def test_a_busy_server_takes_the_jobs_of_one_that_is_gone(bench: Bench) -> None:
    """S25: nobody has to be idle or started anew for it, and the table of servers has no say in it."""
    go = asyncio.Event()

    @bench.app.job(limit=1)
    async def long(ctx: rota.Context) -> None:
        bench.ran.append("long")
        await go.wait()

    noting(bench, "work")
    job = await bench.app.enqueue("work")
    (lost,) = await bench.store.claim([Ask("work", 1, 1.0, 3)], holder=NOBODY.holder)
    await bench.store.serve(NOBODY, running={"work": 1})
    async with working(bench.app):
        await bench.app.enqueue(long)
        await note(bench, "long")
        assert (await bench.ends(job.id)).tries == 2
        assert "work" in bench.ran
        go.set()
    assert await bench.store.renew([]) == {} and lost.lease == Lease(job.id, 1)


class _Ahead(Store):
    """A database whose clock is ahead until somebody sets it back."""

    ahead_s = 0.0

    async def serve(self, *args: Any, **options: Any) -> datetime:
        return await super().serve(*args, **options) + timedelta(seconds=self.ahead_s)


async def test_leases_of_a_clock_that_was_set_back_are_counted_from_now(bench: Bench) -> None:
    """At the start of a worker, and when it sees that the clock has gone back."""
    store = _Ahead(bench.store.database)
    registry = Registry(store, replace(NOBODY, kinds={"work": 1}), random=Random(1))
    left = "SELECT extract(epoch FROM lease_until - now())::integer FROM rota.open_jobs"

    async def be_claimed_ahead() -> None:
        await bench.value(
            "UPDATE rota.open_jobs SET state = 'leased', leased_by = 'gone', lease_epoch = 1, "
            "heartbeat_at = now() + interval '5 h', lease_until = now() + interval '5 h 60 s' RETURNING 1"
        )

    await store.enqueue(NewJob("work"))
    await be_claimed_ahead()
    await registry.beat({}, now=True)
    assert 50 <= await bench.value(left) <= 60
    await be_claimed_ahead()
    store.ahead_s = 5 * 3600.0
    await registry.beat({}, now=True)
    assert await bench.value(left) > 3600
    store.ahead_s = 0.0
    await registry.beat({}, now=True)
    assert 50 <= await bench.value(left) <= 60


# Roles


async def test_a_worker_takes_the_kinds_of_its_role(migrated_dsn: str) -> None:
    async with made_bench(migrated_dsn, role=("builds", "api"), roles={"api": ("mail",)}) as bench:
        noting(bench, "build", role="builds")
        noting(bench, "mail", "other")
        bench.app.every(seconds=1, name="sweep", role="builds", first_after_s=0)(lambda: bench.ran.append("sweep"))
        bench.app.every(seconds=1, name="retention", first_after_s=0)(lambda: bench.ran.append("retention"))
        other = await bench.app.enqueue("other", priority=9)
        async with working(bench.app):
            for kind in ("build", "mail"):
                await bench.app.enqueue(kind)
            for kind in ("build", "mail", "sweep"):
                await note(bench, kind)
            (row,) = await bench.store.servers()
            assert (row.role, set(row.kinds)) == ("builds, api", {"build", "mail", "sweep"})
            # Its code has all of them, whatever it takes.
            assert set(row.passes) == {"sweep", "retention"}
            assert [orphan.kind for orphan in await bench.store.orphan_kinds()] == ["other", "retention"]
        assert (await bench.row(other.id)).state is State.QUEUED
        assert not {"other", "retention"} & {*bench.ran}


async def test_a_role_that_nothing_has_stops_the_start(migrated_dsn: str) -> None:
    async with made_bench(migrated_dsn, role=("builds",)) as bench:
        noting(bench, "work")
        with pytest.raises(SettingsError, match="'builds'"):
            bench.app.worker()
    with pytest.raises(SettingsError, match="has role='all'"):
        noting(bench, "more", role="all")
        bench.app.handlers  # noqa: B018


async def test_work_that_nobody_takes_is_told_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry(bench.store, replace(NOBODY, kinds={"work": 1}), random=Random(1))
    monkeypatch.setattr(registry_module, "ORPHANS_EVERY", 1)
    said: list[tuple[str, str]] = []

    def say(event: str, *, kind: str, **_: Any) -> None:
        said.append((event, kind))

    monkeypatch.setattr(registry_module, "log", SimpleNamespace(warning=say, info=say))
    await bench.app.enqueue("lonely")
    await bench.app.enqueue("work")
    for _ in range(3):
        await registry.beat({}, now=True)
    assert said == [("no live server takes this kind", "lonely")]
    await bench.app.enqueue("left")
    await bench.conn.execute("DELETE FROM rota.open_jobs WHERE kind = 'lonely'")
    await registry.beat({}, now=True)
    assert said[1:] == [
        ("no live server takes this kind", "left"),
        ("a live server takes this kind again, or its work is gone", "lonely"),
    ]


# Passes


async def passes(store: Store) -> dict[str, PassRow]:
    return {row.name: row for row in await store.passes()}


async def open_runs(bench: Bench, name: str) -> int:
    return await bench.value("SELECT count(*) FROM rota.open_jobs WHERE dedupe_key = $1", key_of(name))


async def test_a_pass_runs_in_its_raster_and_one_at_a_time(bench: Bench) -> None:
    """On two workers together, with a try that fails, each run due one interval after the one before."""
    dues: list[datetime] = []

    @bench.app.every(seconds=1, retry=rota.Fixed(0.0), max_tries=2)
    async def tick(ctx: rota.Context, run: rota.PassRun) -> None:
        assert await open_runs(bench, "tick") == 1
        dues.append(run.due_at)
        if len(dues) % 2:
            raise RuntimeError("no luck")

    began = datetime.now(UTC)
    async with working(bench.app), working(bench.app):
        await until(lambda: len(dues) >= 6, what="three runs of two tries", within_s=WAIT_S)
    assert min(dues) - began > timedelta(seconds=0.8), "never at once"
    firsts = dues[::2]
    assert dues[1::2] == firsts[: len(dues) // 2], "the second try is the same run"
    assert all((later - earlier) % timedelta(seconds=1) == timedelta(0) for earlier, later in pairwise(firsts))
    assert len(set(firsts)) == len(firsts)
    assert await open_runs(bench, "tick") == 1


async def test_a_run_that_fails_for_good_has_a_next_one(bench: Bench) -> None:
    @bench.app.every(seconds=1, first_after_s=0)
    async def tick(ctx: rota.Context) -> rota.Fail:
        bench.ran.append("tick")
        return rota.Fail("no luck")

    async with working(bench.app):
        await until(lambda: len(bench.ran) >= 2, what="two runs", within_s=WAIT_S)
    assert await bench.value("SELECT count(*) FROM rota.jobs WHERE state = 'failed'") == len(bench.ran)
    assert await open_runs(bench, "tick") == 1


async def test_a_run_that_is_due_when_the_worker_starts_runs_once(bench: Bench) -> None:
    """Whatever was missed while nobody was there."""

    @bench.app.every(hours=1)
    async def hourly(ctx: rota.Context) -> None:
        bench.ran.append("hourly")

    async with working(bench.app):
        await until(lambda: passes(bench.store), what="the pass")
    assert bench.ran == []
    await bench.conn.execute("UPDATE rota.passes SET due_at = due_at - interval '10 hours'")
    await bench.conn.execute("UPDATE rota.open_jobs SET run_after = run_after - interval '10 hours'")
    async with working(bench.app):
        await note(bench, "hourly")

        async def next_one() -> PassRow | None:
            row = (await passes(bench.store))["hourly"]
            return row if row.open_state == "queued" and row.due_at > row.now else None

        row = await until(next_one, what="the next run")
    assert bench.ran == ["hourly"]
    assert row.due_at - row.now <= timedelta(hours=1)


async def test_a_cancelled_run_is_left_out(bench: Bench) -> None:
    server = replace(NOBODY, passes={"hourly": Declared("every 3600 s")})
    registry = Registry(bench.store, server, random=Random(1))
    await registry.beat({}, now=True)
    before = (await passes(bench.store))["hourly"]
    assert before.open_id is not None
    await bench.app.cancel(before.open_id)
    await registry.beat({}, now=True)
    after = (await passes(bench.store))["hourly"]
    assert after.due_at == after.open_run_after == before.due_at + timedelta(hours=1)


async def test_passes_follow_the_code_of_live_servers(bench: Bench) -> None:
    """Added, changed and removed; two versions side by side do not undo each other's work."""

    def server(holder: str, **declared: str) -> Registry:
        told = {name: Declared(schedule) for name, schedule in declared.items()}
        facts = replace(NOBODY, holder=Holder(holder), passes=told)
        return Registry(bench.store, facts, random=Random(1), gone_s=0.5)

    async def schedules() -> dict[str, str]:
        return {name: row.schedule for name, row in (await passes(bench.store)).items() if row.removed_at is None}

    old = server("a:1:old", hourly="every 3600 s", daily="every 86400 s")
    await old.beat({}, now=True)
    assert await schedules() == {"hourly": "every 3600 s", "daily": "every 86400 s"}
    new = server("b:1:new", hourly="every 1800 s", nightly="cron 0 3 * * * Europe/Berlin")
    both = {"hourly": "every 1800 s", "daily": "every 86400 s", "nightly": "cron 0 3 * * * Europe/Berlin"}
    for registry in (new, old, new, old):
        await registry.beat({}, now=True)
        assert await schedules() == both
    hourly = (await passes(bench.store))["hourly"]
    assert hourly.due_at == hourly.open_run_after and hourly.due_at - hourly.now <= timedelta(minutes=30)

    await old.leave()
    await new.beat({}, now=True)
    assert (await passes(bench.store))["daily"].missing_since is not None
    assert await schedules() == both, "another program may still come back"

    async def removed() -> bool:
        await new.beat({}, now=True)
        return "daily" not in await schedules()

    await until(removed, what="the end of the pass")
    row = (await passes(bench.store))["daily"]
    assert (row.open_id, await open_runs(bench, "daily"), await open_runs(bench, "hourly")) == (None, 0, 1)
    cancelled = await bench.value("SELECT last_error FROM rota.ended_jobs WHERE kind = 'daily'")
    assert cancelled == "The pass daily is no longer in the program's code"

    due_at = row.due_at
    await server("c:1:old", daily="every 86400 s").beat({}, now=True)
    back = (await passes(bench.store))["daily"]
    assert (back.removed_at, back.due_at) == (None, due_at + timedelta(days=1)), "its raster goes on"
    assert await open_runs(bench, "daily") == 1


async def test_servers_that_tend_the_passes_at_once_add_each_once(bench: Bench) -> None:
    registries = [
        Registry(
            Store(bench.store.database),
            replace(NOBODY, holder=Holder(f"h:{number}:a"), passes={f"p{n}": Declared("every 60 s") for n in range(5)}),
            random=Random(number),
        )
        for number in range(4)
    ]
    for _ in range(3):
        await asyncio.gather(*(registry.beat({}, now=True) for registry in registries))
        assert await bench.value("SELECT count(*) FROM rota.passes") == 5
        assert await bench.value("SELECT count(*) FROM rota.open_jobs") == 5


def test_options_of_passes_are_checked() -> None:
    app = rota.App()
    with pytest.raises(SettingsError, match="'nothing' has an interval of 0 s"):
        app.every(name="nothing")(lambda: None)
    with pytest.raises(SettingsError, match="first_after_s=-1"):
        app.every(hours=1, first_after_s=-1, name="early")(lambda: None)
    with pytest.raises(SettingsError, match="'bad' has the cron line 'at noon'"):
        app.cron("at  noon", name="bad")(lambda: None)
    with pytest.raises(SettingsError, match="Two handlers want the kind 'twice'"):
        app.cron("0 3 * * *", name="twice")(app.every(hours=1, name="twice")(lambda: None))


# Pauses


async def test_a_paused_kind_waits_and_others_do_not(bench: Bench) -> None:
    noting(bench, "held", "free", "later")
    await bench.app.pause("held", note="Provider is down", for_s=3600)
    waits = await bench.app.enqueue("held", priority=9)
    async with working(bench.app) as worker:
        await bench.ends((await bench.app.enqueue("free")).id)
        # While it works, within a look.
        await bench.app.pause("later")
        await until(lambda: worker._slots.paused and worker._slots.paused.holds("later"), what="the second pause")
        also = await bench.app.enqueue("later")
        await bench.ends((await bench.app.enqueue("free")).id)
        assert [(await bench.row(job.id)).state for job in (waits, also)] == [State.QUEUED] * 2
        assert [pause.name for pause in await bench.app.pauses()] == ["held", "later"]
        ended = await bench.app.resume("held")
        assert ended is not None and ended.note == "Provider is down" and "@" in ended.paused_by
        await bench.ends(waits.id)
        assert (await bench.row(also.id)).state is State.QUEUED


async def test_a_paused_tenant_waits_and_running_jobs_go_on(bench: Bench) -> None:
    go = asyncio.Event()

    @bench.app.job()
    async def work(ctx: rota.Context) -> None:
        bench.ran.append(ctx.job.tenant or "")
        await go.wait()

    async with working(bench.app):
        runs = await bench.app.enqueue(work, tenant="org")
        await note(bench, "org")
        await bench.app.pause(tenant="org")
        waits = await bench.app.enqueue(work, tenant="org")
        go.set()
        await bench.ends((await bench.app.enqueue(work, tenant="other")).id)
        assert (await bench.ends(runs.id)).state is State.DONE
        assert (await bench.row(waits.id)).state is State.QUEUED
        await bench.app.resume(tenant="org")
        await bench.ends(waits.id)


async def test_all_work_is_held_until_its_time_is_over(bench: Bench) -> None:
    noting(bench, "work")
    await bench.app.pause(everything=True, for_s=3600)
    job = await bench.app.enqueue("work")
    async with working(bench.app) as worker:
        await until(lambda: worker._slots.paused is not None, what="the first look")
        assert worker._slots.asks() == []
        await bench.conn.execute("UPDATE rota.pauses SET until = now() + interval '0.5 s'")
        await bench.ends(job.id)


async def test_what_to_pause_has_to_be_said(bench: Bench) -> None:
    for wrong in ({}, {"kind": "a", "tenant": "b"}, {"kind": "a", "everything": True}, {"kind": ""}, {"tenant": ""}):
        with pytest.raises(EnqueueError):
            await bench.app.pause(**wrong)  # type: ignore[arg-type]
    with pytest.raises(EnqueueError, match="for_s"):
        await bench.app.pause("a", for_s=-1)
    assert await bench.app.resume("a") is None
