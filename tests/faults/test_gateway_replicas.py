"""The failure matrix of the runner fabric, row by row: two gateways behind nginx and HAProxy, runners that dial in by way
of either, and an engine, each a process. The table in docs/OPERATING.md says which test is which row's.

All cases share one environment; see `tests.faults.together`. Leases are shorter here than they are for people, and the
times that depend on them. Each op is counted where it is carried out.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rota.demo.balancers import NAMES, Balancer, Name, find
from rota.io.postgres import Database, Target
from tests.faults.runner_sites import TOKEN, Agent, Gateway, Op, RunnerSite, Session
from tests.faults.together import Cases, Outcomes, eventually
from tests.integration.programs import nothing_runs
from tests.postgres_servers import Server, unavailable

IDLE_S = 8
"""Of the balancers: less than a lease, and more than heartbeats are apart."""
CASES: "Cases[Fabric]" = Cases()


@dataclass
class Fabric(RunnerSite):
    """Two replicas behind two balancers."""

    gateways: tuple[Gateway, ...] = ()
    fronts: "dict[Name, str] | None" = None

    def front(self, name: Name) -> str:
        assert self.fronts is not None, "the balancers run"
        return self.fronts[name]

    async def owner(self, session: Session) -> Gateway:
        """The replica that has the runner of a session."""
        (row,) = await self.sql(
            "SELECT gateway_instance AS name FROM rota.runner_sessions WHERE session_id = $1::text::uuid",
            session.session_id,
        )
        for gateway in self.gateways:
            if await gateway.instance() == row["name"]:
                return gateway
        raise AssertionError(f"no replica that runs is {row['name']}")

    def other(self, gateway: Gateway) -> Gateway:
        (found,) = [each for each in self.gateways if each is not gateway]
        return found


@asynccontextmanager
async def fabric_of(dsn: str, folder: Path) -> AsyncIterator[Fabric]:
    folder.mkdir()
    database = Database(Target(dsn))
    with ExitStack() as stack:
        fabric = Fabric(dsn, folder, stack, database)
        try:
            fabric.gateways = (fabric.gateway(), fabric.gateway())
            places = [f"127.0.0.1:{gateway.port}" for gateway in fabric.gateways]
            balancers = [
                stack.enter_context(Balancer(name, folder / name, places, idle_s=IDLE_S, kind="gateways"))
                for name in NAMES
            ]
            fabric.fronts = {balancer.name: f"http://127.0.0.1:{balancer.port}" for balancer in balancers}
            fabric.url = fabric.front("nginx")
            await asyncio.gather(*(gateway.start() for gateway in fabric.gateways), fabric.engine())
            yield fabric
        finally:
            await fabric.close()
            await database.stop()
    nothing_runs(folder)


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, default_server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Outcomes]:
    for name in NAMES:
        if find(name) is None:
            unavailable(name, f"{name} is not installed")
    with default_server.database(template=default_server.template()) as dsn:
        yield CASES.run(request, fabric_of(dsn, tmp_path_factory.mktemp("replicas") / "fabric"))


# Runners in trouble. The gateways are well.


@CASES.case()
async def test_a_runner_that_is_killed_loses_its_session_and_its_next_start_cleans_up(fabric: Fabric) -> None:
    agent = await fabric.desktop("killed", "killed-1")
    session = await fabric.session("killed")
    await session.works()
    op = await session.op(hold=True)
    await op.began()
    await agent.kill()
    assert (await op.fails()).name == "SessionLost"
    job = await session.reaches("expired")
    assert job["lease_epoch"] == job["tries"] == 1
    (left,) = agent.sessions()
    assert list(left.rglob("op-*")), "what it had staged"
    await eventually(lambda: fabric.sql("SELECT 1 FROM rota.usage_records WHERE job_id = $1", job["id"]), "it is priced")
    await agent.start()
    assert not left.exists()
    await (await fabric.session("killed")).close()
    await eventually(lambda: not agent.sessions(), "its folder is gone")


@CASES.case()
async def test_a_one_shot_job_of_a_runner_that_is_killed_is_tried_again_by_another(fabric: Fabric) -> None:
    first = await fabric.desktop("shots", "shots-1")
    session = await fabric.session("shots", oneShot=True)
    op = await session.op(hold=True)
    await op.began()
    await first.kill()
    await fabric.desktop("shots", "shots-2")
    again = await fabric.taken(session.job_id, attempt=2)
    assert (await op.fails()).name == "SessionLost"
    assert again.session_id != session.session_id
    await again.works()
    await again.close()
    assert (await again.job())["tries"] == 2


@CASES.case()
async def test_a_runner_that_sleeps_beyond_its_lease_is_fenced_and_stops_its_work(fabric: Fabric) -> None:
    agent = await fabric.desktop("sleeper", "sleeper-1", url=fabric.front("haproxy"))
    session = await fabric.session("sleeper")
    op = await session.op(hold=True)
    await op.began()
    await agent.sleep()
    assert (await op.fails()).name == "SessionLost"
    before = await session.reaches("expired")
    await op.go()  # so the first that it finds is the end of its transfer
    agent.wake()
    await agent.tells("session ended")
    assert [told["reason"] for told in agent.told("session ended")] == ["the lease was not confirmed in time"]
    await eventually(lambda: not agent.sessions(), "its folder is gone")
    assert await session.job() == before, "nothing that it said counts"
    await (await fabric.session("sleeper")).close()


@CASES.case()
async def test_a_cancel_of_a_runner_that_stands_still_releases_its_op_at_once_s56(fabric: Fabric) -> None:
    agent = await fabric.desktop("deaf", "deaf-1")
    session = await fabric.session("deaf")
    op = await session.op(hold=True)
    await op.began()
    await agent.sleep()
    await fabric.call("cancel", session.job_id)
    assert (await op.fails()).name == "OpCancelled"
    assert (await session.job())["state"] == "leased", "its grace is not over"
    before = await session.reaches("cancelled")
    await op.go()
    agent.wake()
    await agent.tells("session ended")
    await eventually(lambda: not agent.sessions(), "its folder is gone")
    assert await session.job() == before, "what it said of the old epoch is thrown away"
    await (await fabric.session("deaf")).close()


@CASES.case()
async def test_two_replicas_that_name_each_other_pass_an_op_on_once_s58(fabric: Fabric) -> None:
    agent = await fabric.desktop("lost", "lost-1")
    session = await fabric.session("lost")
    await session.works()
    await agent.sleep()  # nothing ends the session for as long as its lease holds
    here, there = fabric.gateways
    for name, gateway in (("ghost-1", here), ("ghost-2", there)):
        await fabric.sql(
            "INSERT INTO rota.gateways (instance, address, seen_at) VALUES ($1, $2, now())", name, gateway.address
        )
    owner = await fabric.owner(session)
    for ghost in ("ghost-1", "ghost-2"):
        # Whoever is asked finds a name that is not its own, at either's address: its own, too.
        await fabric.sql(
            "UPDATE rota.runner_sessions SET gateway_instance = $2 WHERE session_id = $1::text::uuid",
            session.session_id, ghost,
        )  # fmt: skip
        status, code = await _asked(fabric.other(owner), session)
        assert (status, code) in ((502, "session_owner_unreachable"), (410, "session_lost"))
    agent.wake()
    await agent.tells("connected", count=1)


async def _asked(gateway: Gateway, session: Session) -> tuple[int, str]:
    """One request for an op, as it is answered."""
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as http:
        url = f"{gateway.address}/internal/v1/sessions/{session.session_id}/ops"
        async with http.post(url, json={"op": "stat", "args": {"path": "a"}}) as answer:
            return answer.status, (await answer.json())["code"]


@CASES.case()
async def test_a_runner_that_is_stopped_in_a_session_gives_it_up_at_once(fabric: Fabric) -> None:
    agent = await fabric.desktop("ends", "ends-1", url=fabric.front("haproxy"))
    session = await fabric.session("ends")
    op = await session.op(hold=True)
    await op.began()
    agent.running.signal(signal.SIGTERM)
    assert (await op.fails()).name == "SessionLost"
    assert await asyncio.to_thread(agent.running.status) == 0
    await session.reaches("expired")
    assert not list((agent.folder / "scratch").iterdir())


# Gateways in trouble, one after the other. Three runners are in sessions, each at an op.


@dataclass
class AtWork:
    """Three runners that dial by way of different balancers, and what the engine has of them; they end with the block."""

    agents: tuple[Agent, ...]
    sessions: tuple[Session, ...]

    @property
    def rows(self) -> Any:
        """What must not change while leases are kept: state, tries and epoch of each job."""

        async def read() -> list[tuple[str, int, int]]:
            jobs = [await session.job() for session in self.sessions]
            return [(job["state"], job["tries"], job["lease_epoch"]) for job in jobs]

        return read()

    async def at_ops(self) -> list[Op]:
        """Each is at an op that does not end by itself, and its lease was renewed: until then it is only lent."""
        ops = [await session.op(hold=True) for session in self.sessions]
        for op in ops:
            await op.began()
        for session in self.sessions:
            await session.renewed()
        return ops

    async def kept(self, ops: list[Op]) -> None:
        """Those ops end well, each session takes more of them, no lease was lost, and all is closed in order."""
        for op in ops:
            await op.go()
        for op in ops:
            await op.done()
        for session in self.sessions:
            await session.works()
        assert await self.rows == [("leased", 1, 1)] * len(self.sessions)
        for session in self.sessions:
            await session.close()
        for agent in self.agents:
            assert not agent.told("lease_over")


@asynccontextmanager
async def at_work(fabric: Fabric, name: str, *, by: "tuple[Name, Name]" = NAMES) -> AsyncIterator[AtWork]:
    one, two = (fabric.front(each) for each in by)
    agents = await asyncio.gather(
        fabric.desktop(f"{name}-a", f"{name}-1", url=one), fabric.desktop(f"{name}-b", f"{name}-2", url=two),
        fabric.pool_runner(f"{name}-3", url=one),
    )  # fmt: skip
    sessions = await asyncio.gather(
        fabric.session(f"{name}-a", url=one), fabric.session(f"{name}-b", url=two),
        fabric.session("", target="CloudPool", url=two),
    )  # fmt: skip
    yield AtWork(tuple(agents), tuple(sessions))
    await asyncio.gather(*(agent.end() for agent in agents))


@CASES.case(turn=2)
async def test_a_replica_is_killed_and_its_runners_go_on_at_the_other_s57(fabric: Fabric) -> None:
    async with at_work(fabric, "s57") as work:
        ops = await work.at_ops()
        dead = await fabric.owner(work.sessions[0])
        name = await dead.instance()
        alive = fabric.other(dead)
        await dead.kill()
        for session in work.sessions:
            await eventually(lambda session=session: _served_by(fabric, session, alive), "it is at the replica that lives")
        # The column may name the dead one: who holds the socket serves.
        await fabric.sql("UPDATE rota.runner_sessions SET gateway_instance = $1 WHERE closed_at IS NULL", name)
        await ops[0].go()
        await ops[0].done()
        await work.sessions[0].works(url=alive.address)
        await dead.start()
        await work.kept(ops)


async def _served_by(fabric: Fabric, session: Session, gateway: Gateway) -> bool:
    (row,) = await fabric.sql(
        "SELECT gateway_instance AS name FROM rota.runner_sessions WHERE session_id = $1::text::uuid",
        session.session_id,
    )
    return bool(row["name"] == await gateway.instance())


@CASES.case(turn=3)
async def test_a_rolling_restart_of_the_replicas_loses_no_lease(fabric: Fabric) -> None:
    async with at_work(fabric, "rolling") as work:
        ops = await work.at_ops()
        for gateway in fabric.gateways:
            await gateway.restart()
            await asyncio.gather(*(_online(fabric, agent) for agent in work.agents))
        await work.kept(ops)


async def _online(fabric: Fabric, agent: Agent) -> bool:
    """Waits until one of the replicas has this runner."""

    async def there() -> bool:
        for gateway in fabric.gateways:
            found = await fabric.call("runners", url=gateway.address)
            if any(agent.runner_id == each["runnerId"] for each in found["runners"]):
                return True
        return False

    return bool(await eventually(there, f"{agent.folder.name} is online"))


@CASES.case(turn=4)
async def test_a_replica_that_stands_still_is_left_and_does_no_harm_when_it_goes_on(fabric: Fabric) -> None:
    # By HAProxy, which looks after its servers: nginx goes on to deal every second dial to one that stands still.
    async with at_work(fabric, "still", by=("haproxy", "haproxy")) as work:
        ops = await work.at_ops()
        still = await fabric.owner(work.sessions[0])
        alive = fabric.other(still)
        still.running.signal(signal.SIGSTOP)
        for session in work.sessions:
            await eventually(lambda session=session: _served_by(fabric, session, alive), "it is at the other")
        await ops[0].go()
        await ops[0].done()
        still.running.signal(signal.SIGCONT)
        await work.kept(ops)


@CASES.case(turn=5)
async def test_all_replicas_are_killed_and_come_back_within_the_leases(fabric: Fabric) -> None:
    async with at_work(fabric, "both") as work:
        ops = await work.at_ops()
        await asyncio.gather(*(gateway.kill() for gateway in fabric.gateways))
        await asyncio.gather(*(gateway.start() for gateway in fabric.gateways))
        await work.kept(ops)


@CASES.case(turn=9)
async def test_no_op_is_carried_out_twice(fabric: Fabric) -> None:
    """Whatever happened in the cases before."""
    counts = await fabric.store("asked", "none")
    assert counts, "they were counted"
    assert {key: count for key, count in counts.items() if count > 1} == {}
