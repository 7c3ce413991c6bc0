"""`rota jobs why` on real jobs: each gate is read from the database as it is, and said at the terminal."""

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rota.ids import Holder, JobId
from rota.io.postgres import Database, Target
from rota.queue.explain import Explanation, explain
from rota.queue.io.store import Store
from rota.queue.io.watch import Watch
from rota.queue.job import Ask, Finish, NewJob, Outcome, forever_key, open_key, queued_key
from rota.queue.pause import PauseScope
from rota.queue.server import Server
from tests.integration.programs import ROTA, Done, run, running

FLEET = {"film": {"fleet": 2, "tenant": 1, "fair": True}}


class Shop:
    """A queue, and what is explained of its jobs."""

    def __init__(self, database: Database, dsn: str) -> None:
        self.dsn = dsn
        self.database = database
        self.store = Store(database)
        self.watch = Watch(database)

    async def add(self, kind: str = "film", **options: Any) -> JobId:
        return (await self.store.enqueue(NewJob(kind, **options))).id

    async def serve(self, name: str = "web-1", *, draining: bool = False, limits: Any = None, **kinds: int) -> Holder:
        holder = Holder(f"{name}:1:aa")
        server = Server(holder, name, 1, "1", "all", "d", kinds=kinds or {"film": 2}, passes={}, limits=limits or {})
        await self.store.serve(server, running={}, draining=draining)
        return holder

    async def claim(self, holder: Holder, count: int = 1, kind: str = "film") -> list[Any]:
        return await self.store.claim([Ask(kind, count, 300.0, 3)], holder=holder)

    async def why(self, job_id: JobId) -> Explanation:
        (row,) = await self.store.show(job_id)
        return explain(await self.watch.facts(row))

    async def gates(self, job_id: JobId) -> list[str]:
        return [gate.code for gate in (await self.why(job_id)).gates]


@pytest.fixture
async def shop(any_migrated_dsn: str) -> AsyncIterator[Shop]:
    database = Database(Target(any_migrated_dsn), size=2)
    try:
        yield Shop(database, any_migrated_dsn)
    finally:
        await database.stop()


async def test_each_gate_is_seen_and_opens(shop: Shop) -> None:
    job_id = await shop.add(tenant="acme")
    assert await shop.gates(job_id) == ["no_server"]
    await shop.serve("api", mail=1)
    assert await shop.gates(job_id) == ["no_taker"]
    await shop.serve("web-1", draining=True)
    assert await shop.gates(job_id) == ["draining"]
    await shop.serve("web-2")
    assert await shop.gates(job_id) == ["free"]
    for scope, name in ((PauseScope.ALL, ""), (PauseScope.KIND, "film"), (PauseScope.TENANT, "acme")):
        await shop.store.pause(scope, name, note="why", paused_by="ann", for_s=600)
    await shop.store.pause(PauseScope.KIND, "mail", paused_by="ann")
    assert await shop.gates(job_id) == ["paused"] * 3
    for gate in (await shop.why(job_id)).gates:
        assert "was paused by ann" in gate.words and "for another 10 min: why." in gate.words
    later = await shop.add(delay_s=3600)
    assert await shop.gates(later) == ["not_due", "paused", "paused"]


async def test_full_servers_are_named_with_what_they_run(shop: Shop) -> None:
    one, two = await shop.serve("web-1"), await shop.serve("web-2", film=1)
    first, *_ = [await shop.add() for _ in range(3)]
    await shop.claim(one, 2)
    assert await shop.gates(await shop.add()) == ["line"], "web-2 has a slot, and another job is before it"
    await shop.claim(two)
    (full,) = (await shop.why(await shop.add())).gates
    assert full.code == "server_limit"
    assert [line.split("   ")[:2] for line in full.details] == [["web-1:1:aa", "2 of 2"], ["web-2:1:aa", "1 of 1"]]
    assert f"oldest {str(first)[:18]} runs" in full.details[0] and "last progress" in full.details[0]


async def test_the_place_in_line_is_that_of_the_claim(shop: Shop) -> None:
    holder = await shop.serve(film=1)
    await shop.add()
    await shop.claim(holder)
    jobs = [await shop.add(priority=priority) for priority in (5, 0, 5, 0)]
    await shop.add("mail", priority=9)
    await shop.add(priority=9, delay_s=60)
    facts = {job: await shop.watch.facts((await shop.store.show(job))[0]) for job in jobs}
    assert [(facts[job].ahead, facts[job].ahead_higher) for job in jobs] == [(0, 0), (2, 2), (1, 0), (3, 2)]
    assert [facts[job].ahead_top for job in jobs] == [None, 5, 5, 5]
    assert (await shop.why(jobs[0])).line == "It is the next in line."
    assert "nobody can say when" in ((await shop.why(jobs[3])).line or "")


async def test_the_pace_of_the_last_hour_tells_when_it_starts(shop: Shop) -> None:
    holder = await shop.serve(film=1)
    for _ in range(4):
        await shop.add()
    for job in await shop.claim(holder, 4):
        await shop.store.finish([Finish(job.lease, Outcome.DONE)])
    await shop.database.fetch(
        "UPDATE rota.ended_jobs SET started_at = now() - interval '400 s', finished_at = now() - interval '10 s'"
    )
    await shop.add()
    await shop.claim(holder)
    await shop.add()
    why = await shop.why(await shop.add())
    assert why.starts_in_s is not None
    assert why.starts_in_s == pytest.approx((75, 125), rel=0.2)


async def test_limits_over_all_servers_are_seen_as_the_servers_have_them(shop: Shop) -> None:
    holder = await shop.serve(limits=FLEET, film=9)
    first = await shop.add(tenant="a")
    assert await shop.gates(first) == ["free"]
    await shop.claim(holder)
    second = await shop.add(tenant="a")
    (gate,) = (await shop.why(second)).gates
    assert gate.code == "tenant_limit" and gate.details[0].startswith(f"{str(first)[:18]} runs ")
    await shop.add(tenant="b")
    third = await shop.add(tenant="b")
    assert "turn" in await shop.gates(third)
    await shop.claim(holder, 2)
    assert {"fleet_limit", "tenant_limit"} <= set(await shop.gates(third))


async def test_a_rate_says_when_the_next_may_start(shop: Shop) -> None:
    await shop.serve(limits={"film": {"rate_count": 3, "rate_s": 60.0}})
    job_id = await shop.add()
    assert await shop.gates(job_id) == ["free"]
    await shop.database.fetch("INSERT INTO rota.starts VALUES ('film', rota.slice_at(now() - interval '30 s', 60), 3)")
    (rate,) = (await shop.why(job_id)).gates
    assert "at most 3 jobs in 60 s, and 3 started in the last; the next may start in " in rate.words
    opens_in_s = (await shop.watch.facts((await shop.store.show(job_id))[0])).fleet.rate_opens_in_s
    assert opens_in_s is not None and 0 < opens_in_s <= 31


async def test_a_running_job_and_one_whose_holder_is_gone(shop: Shop) -> None:
    holder = await shop.serve()
    job_id, other = await shop.add(), await shop.add()
    await shop.claim(holder)
    (gate,) = (await shop.why(job_id)).gates
    assert gate.code == "running" and gate.words == "It runs on web-1:1:aa."
    assert not any("may be gone" in line for line in gate.details)
    await shop.claim(Holder("nobody:1:a"))
    (gate,) = (await shop.why(other)).gates
    assert "may be gone" in gate.details[-1]


async def test_ended_jobs_say_how(shop: Shop) -> None:
    holder = await shop.serve()
    job_id = await shop.add()
    (job,) = await shop.claim(holder)
    await shop.store.finish([Finish(job.lease, Outcome.FAILED, error="ValueError: no")])
    (gate,) = (await shop.why(job_id)).gates
    assert (gate.code, gate.details) == ("failed", ("Reason: ValueError: no",))


# At the terminal


@pytest.fixture
async def one_shop(migrated_dsn: str) -> AsyncIterator[Shop]:
    database = Database(Target(migrated_dsn), size=2)
    try:
        yield Shop(database, migrated_dsn)
    finally:
        await database.stop()


def rota(shop: Shop, folder: Path, *args: str) -> Done:
    return run([*ROTA, "jobs", "why", *args], folder=folder, environ={"ROTA_DSN": shop.dsn})


async def test_what_would_drive_a_terminal_is_made_visible(one_shop: Shop, tmp_path: Path) -> None:
    job_id = await one_shop.add("film\x1b[2J", tenant="acme\x1b]0;title\x07\u202e", dedupe=open_key("k\x1b[31m"))
    for ask in ([str(job_id)], ["--key", "k\x1b[31m"]):
        done = rota(one_shop, tmp_path, *ask)
        assert done.status == 0
        assert [char for char in done.out + done.err if not char.isprintable() and char != "\n"] == []
        first = done.out.splitlines()[0]
        assert first.startswith("film\\x1b[2J  ") and "tenant acme\\x1b]0;title\\x07\\x202e" in first


async def test_it_is_said_at_the_terminal(one_shop: Shop, tmp_path: Path) -> None:
    shop = one_shop
    await shop.serve()
    await shop.store.pause(PauseScope.KIND, "film", note="bad codec", paused_by="ann@ops")
    job_id = await shop.add(priority=20)
    done = rota(shop, tmp_path, str(job_id)[:18])
    assert (done.status, done.err) == (0, "")
    lines = [line.rstrip() for line in done.out.splitlines()]
    assert lines[0].startswith(f"film  {job_id}  queued ") and lines[0].endswith("priority 20")
    assert re.fullmatch(r"  Kind film was paused by ann@ops \d+ s ago: bad codec\.", lines[2])
    assert [lines[1], *lines[3:]] == ["", "  → rota resume film", "", "  It is the next in line."]
    said = json.loads(rota(shop, tmp_path, str(job_id), "--json").out)
    assert (said["id"], said["kind"], said["state"]) == (str(job_id), "film", "queued")
    assert [gate["code"] for gate in said["gates"]] == ["paused"]


async def test_a_key_names_the_job_that_refuses_an_enqueue(one_shop: Shop, tmp_path: Path) -> None:
    shop = one_shop
    for number, key in enumerate((open_key("o"), queued_key("q"), forever_key("f"))):
        await shop.add(dedupe=key, priority=number)
    for key, scope in (("o", "open"), ("q", "queued"), ("f", "forever")):
        (said,) = json.loads(rota(shop, tmp_path, "--key", key, "--json").out)
        assert (said["scope"], said["exists"], said["state"]) == (scope, True, "queued")
    assert (
        "holds the key while it is open: an enqueue with it answers with this job."
        in rota(shop, tmp_path, "--key", "o").out
    )
    await shop.database.fetch("DELETE FROM rota.open_jobs WHERE dedupe_key = 'f'")
    done = rota(shop, tmp_path, "--key", "f")
    assert (done.status, done.err) == (0, "") and "has ended and was removed" in done.out


async def test_what_cannot_be_explained_is_refused_in_a_sentence(one_shop: Shop, tmp_path: Path) -> None:
    shop = one_shop
    for args, status, said in (
        ((), 2, "Give a job id, or a key as --key KEY."),
        (("0197c0de", "--key", "k"), 2, "Give a job id, or a key as --key KEY."),
        (("--key", "nobody's"), 1, "No job holds the key"),
        (("0197c0de",), 1, "There is no job 0197c0de."),
    ):
        done = rota(shop, tmp_path, *args)
        assert (done.status, done.out) == (status, "") and said in done.err, done


async def test_a_worker_says_the_limits_that_its_program_sets(one_shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "import rota\napp = rota.App()\n"
        "@app.job(fleet_limit=1, rate=rota.Rate(3, per_s=60))\nasync def film(ctx): ...\n"
        "@app.job()\nasync def mail(ctx): ...\n"
    )
    environ = {"ROTA_DSN": one_shop.dsn}
    with running([*ROTA, "worker", "shop:app", "--alone"], folder=tmp_path, environ=environ) as worker:
        worker.says("worker started")
        async with asyncio.timeout(60):
            while not (servers := await one_shop.store.servers()):
                await asyncio.sleep(0.02)
        assert servers[0].limits == {"film": {"fleet": 1, "rate_count": 3, "rate_s": 60}}
        worker.signal(signal.SIGTERM)
        assert worker.status() == 0
