"""Handlers that run commands on exec servers: what becomes of their jobs, and how many are claimed."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

import rota
from rota.queue.explain import Explanation, explain
from rota.queue.io import registry
from rota.queue.io.store import Store
from rota.queue.io.watch import Watch
from rota.queue.job import JobRow, State
from rota.settings import Settings
from rota.slots.admission import HEADROOM
from rota.slots.messages import Cancel, EndedBy, Receipt, Want
from rota.slots.output import digest_of
from tests.integration.exec_stand_in import StandIn, Streams, cat, fail, hang, say
from tests.integration.real_exec_server import real_exec_server
from tests.pages import ROOT, SOURCE, blocks_of

COMMANDS = {"cat": cat, "say": say, "fail": fail, "hang": hang}
WAIT_S = 60.0
"""Generous: only a failing test waits that long."""


class Bench:
    """A program, its worker, and its database as seen from outside."""

    def __init__(self, app: rota.App, store: Store, conn: asyncpg.Connection) -> None:
        self.app, self.store, self.conn = app, store, conn

    async def row(self, job_id: rota.JobId) -> JobRow:
        (row,) = await self.store.show(job_id)
        return row

    async def reaches(self, job_id: rota.JobId, condition: Any) -> JobRow:
        give_up_at = time.monotonic() + WAIT_S
        while not condition(row := await self.row(job_id)):
            assert time.monotonic() < give_up_at, f"the job is {row}"
            await asyncio.sleep(0.01)
        return row

    async def ends(self, job_id: rota.JobId) -> JobRow:
        return await self.reaches(job_id, lambda row: row.finished_at is not None)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[rota.Worker]:
        worker = self.app.worker()
        task = asyncio.create_task(worker.run())
        try:
            await asyncio.wait_for(worker.ready.wait(), WAIT_S)
            yield worker
        finally:
            worker.stop(now=True)
            await task


@asynccontextmanager
async def bench_of(dsn: str, *servers: StandIn, **settings: Any) -> AsyncIterator[Bench]:
    addresses = ",".join(f"127.0.0.1:{server.port}" for server in servers) or None
    app = rota.App(
        settings=Settings(dsn=dsn, **{"poll_s": 0.1, "stop_grace_s": 5.0, "exec_addresses": addresses, **settings})
    )
    conn = await asyncpg.connect(dsn)
    try:
        yield Bench(app, await app.store(), conn)
    finally:
        await conn.close()
        await app.stop()


async def test_a_coroutine_streams_and_a_thread_waits(migrated_dsn: str) -> None:
    async with StandIn(COMMANDS) as server, bench_of(migrated_dsn, server) as bench:

        @bench.app.job(exec=["cat"])
        async def copy(ctx: rota.Context, text: str) -> int:
            count = 0
            async with ctx.exec("cat", stdin=text.encode()) as run:
                async for chunk in run.stdout:
                    count += len(chunk)
            return count if run.receipt.ok else -1

        @bench.app.job(exec="say")
        def speak(ctx: rota.Context) -> str:
            return ctx.run_sync("say", ["hello"]).output.decode()

        @bench.app.job
        async def both(ctx: rota.Context) -> str:
            return (await ctx.run("cat", input=(await ctx.run("say", ["a", "b"])).output)).output.decode()

        async with bench.working():
            jobs = [await bench.app.enqueue(copy, "x" * 9000), await bench.app.enqueue(speak)]
            jobs.append(await bench.app.enqueue(both))
            results = [(await bench.ends(job.id)).result for job in jobs]
        assert results == ["9000", '"hello"', '"a b"']


async def test_a_want_has_the_jobs_priority_and_tenant_and_says_whose_it_is(migrated_dsn: str) -> None:
    async with StandIn(COMMANDS) as server, bench_of(migrated_dsn, server) as bench:

        @bench.app.job
        async def speak(ctx: rota.Context) -> None:
            await ctx.run("say", ["hello"])
            await ctx.run("say", ["hello"], priority=99, tenant=None)

        async with bench.working():
            job = await bench.app.enqueue(speak, priority=7, tenant="acme")
            await bench.ends(job.id)
        wants = [message for message in server.heard if isinstance(message, Want)]
        assert [(want.priority, want.tenant) for want in wants] == [(7, "acme"), (99, None)]
        assert all(want.job_id.startswith(f"{job.id}.") for want in wants)
        assert len({want.job_id for want in wants}) == 2


async def test_no_slot_sends_the_job_back_for_a_minute_and_counts_no_try(migrated_dsn: str) -> None:
    async with StandIn(COMMANDS, slots=0) as server, bench_of(migrated_dsn, server, exec_wait_s=0.2) as bench:

        @bench.app.job
        async def speak(ctx: rota.Context) -> None:
            await ctx.run("say", ["hello"])

        async with bench.working():
            job = await bench.app.enqueue(speak)
            row = await bench.reaches(job.id, lambda row: row.last_error is not None)
        assert (row.state, row.tries) == (State.QUEUED, 0)
        assert 50 < (row.run_after - row.now).total_seconds() <= 60
        assert "every slot for say was taken" in (row.last_error or "")


async def test_a_command_that_is_handed_back_counts_no_try_and_one_that_is_lost_does_s46(migrated_dsn: str) -> None:
    async def stopped(_streams: Streams, _args: Any) -> Receipt:
        return Receipt(ended_by=EndedBy.STOPPED, error="This exec server ends.", retryable=True)

    async with StandIn({**COMMANDS, "stopped": stopped}) as server, bench_of(migrated_dsn, server) as bench:

        @bench.app.job
        async def work(ctx: rota.Context, service: str) -> None:
            await ctx.run(service, input=b"x")

        async with bench.working():
            job = await bench.app.enqueue(work, "stopped")
            row = await bench.reaches(job.id, lambda row: row.last_error is not None)
            assert (row.state, row.tries) == (State.QUEUED, 0)
            job = await bench.app.enqueue(work, "hang")
            await server.until(lambda: server.running)
            await server.crash()
            row = await bench.reaches(job.id, lambda row: row.last_error is not None)
            assert (row.state, row.tries) == (State.QUEUED, 1), "requeued once"
            assert "broke while hang ran" in (row.last_error or "")


async def test_a_call_that_never_fits_fails_the_job_at_once(migrated_dsn: str) -> None:
    async def refused(_streams: Streams, _args: Any) -> Receipt:
        return Receipt(ended_by=EndedBy.REFUSED, error="There is no argument 'width'.")

    async with StandIn({"refused": refused}) as server, bench_of(migrated_dsn, server) as bench:

        @bench.app.job
        async def work(ctx: rota.Context) -> None:
            await ctx.run("refused")

        async with bench.working():
            row = await bench.ends((await bench.app.enqueue(work)).id)
        assert (row.state, row.tries) == (State.FAILED, 1)
        assert "no argument 'width'" in (row.last_error or "")


async def test_progress_and_the_wait_in_line_move_the_lease(migrated_dsn: str) -> None:
    """The lease is a second; the job waits and runs for longer, and lives because its call goes on."""
    goes_on = asyncio.Event()

    async def slow(streams: Streams, _args: Any) -> Receipt:
        while not goes_on.is_set():
            await streams.progress()
            await asyncio.sleep(0.05)
        return await streams.write(b"done")

    async with StandIn({"slow": slow}, slots=0) as server, bench_of(migrated_dsn, server) as bench:

        @bench.app.job(lease_s=3, heartbeat_s=0.5)
        async def work(ctx: rota.Context) -> str:
            return (await ctx.run("slow")).output.decode()

        async with bench.working():
            job = await bench.app.enqueue(work)
            first = await bench.reaches(job.id, lambda row: row.state is State.LEASED)
            waited = await bench.reaches(job.id, lambda row: row.heartbeat_at != first.heartbeat_at)
            assert server.count(Want) == 1
            server.slots = 1
            await server.deal()
            await server.until(lambda: server.running)
            ran = await bench.reaches(job.id, lambda row: row.heartbeat_at != waited.heartbeat_at)
            assert ran.state is State.LEASED
            goes_on.set()
            assert (await bench.ends(job.id)).tries == 1


async def test_cancelling_a_job_cancels_its_command_s43(migrated_dsn: str) -> None:
    async with StandIn(COMMANDS, slots=4) as server, bench_of(migrated_dsn, server) as bench:

        @bench.app.job
        async def coroutine(ctx: rota.Context) -> None:
            await ctx.run("hang")

        @bench.app.job
        def thread(ctx: rota.Context) -> None:
            ctx.run_sync("hang")

        async with bench.working():
            jobs = [await bench.app.enqueue(kind) for kind in (coroutine, thread)]
            await server.until(lambda: len(server.running) == 2)
            for job in jobs:
                await bench.app.cancel(job.id)
            rows = [await bench.ends(job.id) for job in jobs]
            await server.until(lambda: server.count(Cancel) == 2 and not server.running)
        assert [row.state for row in rows] == [State.CANCELLED, State.CANCELLED]


async def test_nothing_exec_bound_is_claimed_without_an_exec_server_and_a_share_with_one_s40(migrated_dsn: str) -> None:
    server = StandIn(COMMANDS, slots=3)
    await server.listen()
    await server.crash()
    async with bench_of(migrated_dsn, server) as bench:
        started: list[str] = []

        @bench.app.job(exec=["hang"])
        async def bound(ctx: rota.Context) -> None:
            started.append("bound")
            await ctx.run("hang")

        @bench.app.job
        async def free(ctx: rota.Context) -> None:
            started.append("free")

        async with bench.working():
            jobs = [await bench.app.enqueue(bound) for _ in range(9)]
            await bench.ends((await bench.app.enqueue(free)).id)
            assert started == ["free"]
            assert {(await bench.row(job.id)).state for job in jobs} == {State.QUEUED}
            await server.listen()
            await server.until(lambda: server.count(Want) == 3 + 2)
            await bench.ends((await bench.app.enqueue(free)).id)
            states = [(await bench.row(job.id)).state for job in jobs]
            assert states.count(State.LEASED) == 3 + 2, "three slots, one client, and the headroom"
    await server.crash()


async def test_calls_outside_of_jobs(migrated_dsn: str) -> None:
    async with StandIn(COMMANDS) as server, bench_of(migrated_dsn, server) as bench:
        assert (await bench.app.run("cat", input=b"abc")).output == b"abc"
        async with bench.app.exec("say", ["a"]) as run:
            assert [chunk async for chunk in run.stdout] == [b"a"]


async def test_without_an_address_the_error_says_what_to_set(migrated_dsn: str) -> None:
    async with bench_of(migrated_dsn) as bench:

        @bench.app.job(max_tries=1)
        async def work(ctx: rota.Context) -> None:
            await ctx.run("say")

        async with bench.working():
            row = await bench.ends((await bench.app.enqueue(work)).id)
        assert "ROTA_EXEC_ADDRESSES" in (row.last_error or "")


async def test_the_program_of_the_guide_does_what_it_says(migrated_dsn: str) -> None:
    blocks = blocks_of(ROOT / "docs/guide/exec-calls.md")
    (toml,) = [block.text for block in blocks if block.language == "toml"]
    (program,) = [block.text for block in blocks if block.program is not None]
    names: dict[str, Any] = {}
    exec(program, names)
    app: rota.App = names["app"]
    async with real_exec_server(toml) as server, bench_of(migrated_dsn) as bench:
        bench.app = app.override(dsn=migrated_dsn, exec_addresses=server.address, poll_s=0.1)
        async with bench.working():
            row = await bench.ends((await app.enqueue("measure", "12345")).id)
        assert row.result == "5"
        await app.stop()


def test_the_exec_events_of_the_page_are_those_of_the_code() -> None:
    page = (ROOT / "docs/OPERATING.md").read_text().partition("## Logs of exec calls")[2].partition("## ")[0]
    shown = dict(re.findall(r"^\| `([^`]+)` \| (\w+) \|", page, flags=re.MULTILINE))
    code = "".join((SOURCE / "slots/io" / name).read_text() for name in ("client.py", "links.py"))
    logged = re.findall(r'log\.(\w+)\(\s*"([^"]+)"', code)
    assert shown == {event: "error" if level == "exception" else level for level, event in logged}


async def test_a_place_in_line_counts_what_is_parked_and_what_no_worker_has_claimed(
    migrated_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "NEWS_EVERY_S", 0.05)
    runs: dict[rota.JobId, Any] = {}
    took_4_s = [Receipt(ended_by=EndedBy.EXIT, exit=0, duration_s=4.0, digest=digest_of(b""))]

    async def first_known(streams: Streams, args: Any) -> Receipt | None:
        return took_4_s.pop() if took_4_s else await hang(streams, args)

    async with StandIn({"hang": first_known}, slots=1) as server, bench_of(migrated_dsn, server) as bench:

        @bench.app.job(exec="hang")
        async def film(ctx: rota.Context) -> None:
            async with ctx.exec("hang") as run:
                runs[ctx.id] = run

        async def place(job: rota.Enqueued) -> tuple[int, int] | None:
            found = await bench.app.position(job)
            return None if found is None else (found.ahead, found.unclaimed)

        async def says(job: rota.Enqueued, *codes: str) -> Explanation:
            """Waits until these gates hold a job."""
            give_up_at = time.monotonic() + WAIT_S
            while True:
                facts = await Watch(await bench.app.database()).facts(await bench.row(job.id))
                explanation = explain(facts)
                if tuple(gate.code for gate in explanation.gates) == codes:
                    return explanation
                assert time.monotonic() < give_up_at, explanation
                await asyncio.sleep(0.05)

        async with bench.working():
            await bench.reaches((await bench.app.enqueue(film)).id, lambda row: row.state == "done")
            share = 1 + HEADROOM
            claimed = [await bench.app.enqueue(film) for _ in range(share)]
            await server.until(lambda: len(server.wants) == share - 1 and server.running)
            left = [await bench.app.enqueue(film) for _ in range(2)]
            urgent = await bench.app.enqueue(film, priority=5)
            held = await says(left[1], "exec_share")
            assert held.gates[0].details[0].endswith(f"{share} of {share}")
            assert held.line is not None and "2 of them by jobs that no worker has claimed yet" in held.line
            # Parked: two calls. In the database: one that is urgent and two that are not.
            assert [await place(job) for job in (urgent, *left)] == [(0, 0), (3, 1), (4, 2)]
            # Each takes 4 s, and there is one slot; what has it may be over at once, or have just begun.
            turns = [await bench.app.position(job) for job in (urgent, left[0])]
            assert [turn and (turn.eta_low_s, turn.eta_high_s) for turn in turns] == [(0.0, 4.0), (12.0, 16.0)]
            last = max((job for job in claimed), key=lambda job: job.id)
            waits = await bench.reaches(last.id, lambda row: row.leased_by is not None)
            own = await runs[waits.id].position()
            assert own is not None and (own.ahead, own.unclaimed) == (2, 1), "the exec server is asked at once"
            give_up_at = time.monotonic() + WAIT_S
            while await place(last) != (2, 1):
                assert time.monotonic() < give_up_at, await place(last)
                await asyncio.sleep(0.05)
            (gate,) = (await says(last, "running")).gates
            assert any("2 calls get one before it (1 of them by jobs" in detail for detail in gate.details)
            assert await place(claimed[0]) is None, "it has its slot"
            await server.crash()
            assert (await says(left[0], "no_exec_server")).gates[0].details
