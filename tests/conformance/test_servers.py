"""Who works here (serve, leave, servers), and what waits that nobody takes (orphan_kinds)."""

from dataclasses import replace

from rota.commands import CallInLine, KindShare, Place, Standing
from rota.ids import Holder
from rota.queue.periodic import Declared, Put
from rota.queue.server import LIVE_S, STALE_S, OrphanKind, Server, ServerRow
from rota.queue.standing import ServerFacts
from tests.conformance.queues import HOLDER, OTHER, Queue

HERE = Server(
    HOLDER, "here", 1, "1.2.3", "all", "digest", kinds={"work": 4, "more": 1},
    passes={"nightly": Declared("cron 0 3 * * * UTC", 10), "hourly": Declared("every 3600 s", 0, 5.0)},
    limits={"work": {"fleet": 9, "tenant": 2, "fair": True, "rate_count": 5, "rate_s": 60.0}},
)  # fmt: skip
THERE = replace(HERE, holder=OTHER, host="there", pid=2, role="builds", kinds={"build": 2}, passes={})


async def serve(queue: Queue, server: Server, *, draining: bool = False, **running: int) -> None:
    await queue.call("serve", server, running=running, draining=draining, now=queue.now)


async def servers(queue: Queue) -> list[ServerRow]:
    rows: list[ServerRow] = await queue.call("servers", now=queue.now)
    return rows


async def orphans(queue: Queue) -> list[OrphanKind]:
    found: list[OrphanKind] = await queue.call("orphan_kinds", now=queue.now)
    return found


async def test_nobody_is_there(queue: Queue) -> None:
    assert await servers(queue) == []
    await queue.call("leave", HOLDER)


async def test_a_server_is_seen_as_it_said(queue: Queue) -> None:
    await serve(queue, THERE)
    started_at = queue.now
    await serve(queue, HERE, work=2)
    mine, other = await servers(queue)
    facts = {name: getattr(mine, name) for name in Server.__dataclass_fields__}
    assert Server(**facts) == HERE
    assert (mine.running, mine.draining, mine.live) == ({"work": 2}, False, True)
    assert (mine.started_at, mine.seen_at) == (started_at, started_at)
    assert (other.holder, other.role, other.kinds, other.passes) == (OTHER, "builds", {"build": 2}, {})


async def test_saying_it_again_moves_what_changes(queue: Queue) -> None:
    await serve(queue, HERE, work=2)
    started_at = queue.now
    queue.later(15)
    await serve(queue, HERE, more=1, draining=True)
    (row,) = await servers(queue)
    assert (row.started_at, row.seen_at) == (started_at, queue.now)
    assert (row.running, row.draining) == ({"more": 1}, True)


FACTS = ServerFacts(
    cpus=4, cpus_kept=1, cpu_kinds={"work": 9, "more": None},
    exec=Standing(
        2, {"film": KindShare(("cut", "mix"), ("cut", "mix", "probe"), 5)},
        (
            CallInLine("0197c0de-0000-7000-8000-000000000001", "cut", 7, 1.5, Place(3, 2, 1.0, None, 1)),
            CallInLine("0197c0de-0000-7000-8000-000000000002", "cut", 0, 2.5, None, True),
        ), (("cut", 0, 12), ("cut", 7, 1)),
    ),
)  # fmt: skip


async def test_what_holds_its_jobs_back_is_told_with_its_row(queue: Queue) -> None:
    await serve(queue, HERE)
    assert (await servers(queue))[0].facts == ServerFacts()
    await queue.call("serve", HERE, running={}, facts=FACTS, now=queue.now)
    assert (await servers(queue))[0].facts == FACTS
    await serve(queue, HERE)
    assert (await servers(queue))[0].facts == ServerFacts(), "the last word counts"


async def test_a_silent_server_is_not_live_and_then_gone(queue: Queue) -> None:
    await serve(queue, HERE)
    queue.later(LIVE_S)
    assert [row.live for row in await servers(queue)] == [True]
    queue.later(0.001)
    assert [row.live for row in await servers(queue)] == [False]
    await serve(queue, THERE)
    assert [row.holder for row in await servers(queue)] == [HOLDER, OTHER]
    queue.later(STALE_S)
    await serve(queue, THERE)
    assert [row.holder for row in await servers(queue)] == [OTHER]


async def test_leaving(queue: Queue) -> None:
    await serve(queue, HERE)
    await serve(queue, THERE)
    await queue.call("leave", HOLDER)
    await queue.call("leave", HOLDER)
    assert [row.holder for row in await servers(queue)] == [OTHER]


# Kinds that nobody takes


async def test_due_work_of_a_kind_that_no_live_server_takes(queue: Queue) -> None:
    await serve(queue, HERE)
    await serve(queue, THERE)
    await queue.add("work")
    await queue.add("build")
    await queue.add("lonely", priority=5)
    oldest = queue.at(-10)
    await queue.add("lonely", run_after=oldest)
    await queue.add("later", run_after=queue.at(60))
    assert await orphans(queue) == [OrphanKind("lonely", oldest, is_pass=False)]
    queue.later(LIVE_S + 1)
    await serve(queue, HERE)
    assert [orphan.kind for orphan in await orphans(queue)] == ["build", "later", "lonely"]


async def test_a_draining_server_takes_nothing(queue: Queue) -> None:
    await serve(queue, HERE, draining=True)
    await queue.add("work")
    assert [orphan.kind for orphan in await orphans(queue)] == ["work"]


async def test_work_that_runs_is_no_orphan(queue: Queue) -> None:
    job_id = await queue.add("work")
    await queue.take(job_id, holder=Holder("gone:3:cc"))
    assert await orphans(queue) == []


async def test_a_pass_that_no_live_server_takes_is_told_before_it_is_due(queue: Queue) -> None:
    due_at = queue.at(3600)
    await queue.call("put_pass", Put("nightly", Declared("cron 0 3 * * * UTC"), due_at, None), now=queue.now)
    await serve(queue, HERE)
    assert await orphans(queue) == [OrphanKind("nightly", due_at, is_pass=True)]
    await serve(queue, replace(HERE, holder=OTHER, kinds={"nightly": 1}))
    assert await orphans(queue) == []
