"""The failure matrix of runners, row by row: two gateways behind nginx and HAProxy, runners that dial in by way of
either, and an engine, each a process. The table in docs/OPERATING.md says which test is which row's.

All cases share one environment; see `tests.faults.together`. Leases are shorter here than they are for people, and the
times that depend on them. Each op is counted where it is carried out.
"""

import asyncio
import itertools
import re
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from rota.demo.balancers import NAMES, Balancer, Name, find
from rota.io.postgres import Database, Target
from tests.faults.processes import ROOT
from tests.faults.runner_programs import TOKEN, Agent, Gateway
from tests.faults.runner_sites import CallFailed, Op, RunnerSite, Session
from tests.faults.together import Cases, Outcomes, eventually
from tests.integration.programs import nothing_runs
from tests.postgres_servers import Server, unavailable

IDLE_S = 8
"""Of the balancers: less than a lease, and more than heartbeats are apart."""
pytestmark = pytest.mark.timeout(600)  # the first test waits for all cases
LAST = 9
CASES: "Cases[Fabric]" = Cases()


@dataclass
class Fabric(RunnerSite):
    """Two replicas behind two balancers."""

    gateways: tuple[Gateway, ...] = ()
    fronts: dict[Name, str] = field(default_factory=dict)
    balancers: list[Balancer] = field(default_factory=list)
    team: list[tuple[Name, Agent]] = field(default_factory=list)

    async def owner(self, session: Session) -> Gateway:
        """The replica that has the runner of a session."""
        for gateway in self.gateways:
            if await gateway.instance() == await session.at():
                return gateway
        raise AssertionError(f"no replica that runs is {await session.at()}")

    async def all_at(self, gateway: Gateway, sessions: Sequence[Session]) -> None:
        """Waits until the runners of these sessions are at this replica."""
        name = await gateway.instance()

        async def there() -> bool:
            return {await session.at() for session in sessions} == {name}

        await eventually(there, f"all are at {name}")

    async def online(self, agent: Agent, *, wanted: bool = True) -> None:
        """Waits until one of the replicas has this runner, or none."""

        async def there() -> bool:
            found = [await self.call("runners", url=gateway.address) for gateway in self.gateways]
            return any(agent.runner_id == each["runnerId"] for one in found for each in one["runners"]) is wanted

        await eventually(there, f"{agent.folder.name} is {'online' if wanted else 'offline'}")

    async def dealt(self, gateway: Gateway) -> None:
        """Waits until each balancer leads to this replica: one that was started lately may still count as down."""
        name = await gateway.instance()

        async def answers(url: str) -> bool:
            try:
                return bool((await self.call("runners", url=url))["gatewayInstance"] == name)
            except CallFailed:
                return False  # on a busy machine, one that is late with its answers counts as down, too

        for front, url in self.fronts.items():
            await eventually(partial(answers, url), f"{front} leads to {name}")

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
            fabric.balancers = [
                stack.enter_context(Balancer(name, folder / name, places, idle_s=IDLE_S, kind="gateways"))
                for name in NAMES
            ]
            fabric.fronts = {balancer.name: f"http://127.0.0.1:{balancer.port}" for balancer in fabric.balancers}
            fabric.url = fabric.fronts["nginx"]
            # All at once: runners dial until there is a gateway.
            by: tuple[Name, ...] = ("nginx", "haproxy", "haproxy")
            one, two, three = (fabric.fronts[name] for name in by)
            team = asyncio.gather(
                fabric.desktop("team-1", "team-1", url=one), fabric.desktop("team-2", "team-2", url=two),
                fabric.pool_runner("team-3", url=three),
            )  # fmt: skip
            await asyncio.gather(*(gateway.start() for gateway in fabric.gateways), fabric.engine(), team)
            fabric.team = list(zip(by, team.result(), strict=True))
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
    await eventually(
        lambda: fabric.sql("SELECT 1 FROM rota.usage_records WHERE job_id = $1", job["id"]), "it is priced"
    )
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
    agent = await fabric.desktop("sleeper", "sleeper-1", url=fabric.fronts["haproxy"])
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
    await agent.kill()  # and its lease holds for a while
    await fabric.online(agent, wanted=False)
    for name, gateway in zip(("ghost-1", "ghost-2"), fabric.gateways, strict=True):
        await fabric.sql(
            "INSERT INTO rota.gateways (instance, address, seen_at) VALUES ($1, $2, now())", name, gateway.address
        )
        # Whoever is asked finds a name that is not its own, at an address that is its own, or the other's.
        await fabric.sql(
            "UPDATE rota.runner_sessions SET gateway_instance = $2 WHERE session_id = $1::text::uuid",
            session.session_id, name,
        )  # fmt: skip
        answers = await asyncio.gather(*(_asked(each, session) for each in fabric.gateways))
        assert answers == [(502, "session_owner_unreachable")] * 2
    assert (await session.job())["state"] == "leased"


async def _asked(gateway: Gateway, session: Session) -> tuple[int, str]:
    """One request for an op, as it is answered."""
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as http:
        url = f"{gateway.address}/internal/v1/sessions/{session.session_id}/ops"
        async with http.post(url, json={"op": "stat", "opId": "s58", "args": {"path": "a"}}) as answer:
            return answer.status, (await answer.json())["code"]


@CASES.case()
async def test_a_runner_that_is_stopped_in_a_session_gives_it_up_at_once(fabric: Fabric) -> None:
    agent = await fabric.desktop("ends", "ends-1", url=fabric.fronts["haproxy"])
    session = await fabric.session("ends")
    op = await session.op(hold=True)
    await op.began()
    agent.running.signal(signal.SIGTERM)
    assert (await op.fails()).name == "SessionLost"
    assert await asyncio.to_thread(agent.running.status) == 0
    await session.reaches("expired")
    assert not list((agent.folder / "scratch").iterdir())


# Gateways in trouble, one after the other. Runners that dial by way of either balancer are in sessions, each at an op.


@dataclass
class AtWork:
    """What the engine has of the team: each is at an op that does not end by itself.

    Its lease was renewed once: until then it is only lent, for less than its whole time.
    """

    agents: tuple[Agent, ...]
    sessions: tuple[Session, ...]
    ops: tuple[Op, ...]

    @classmethod
    async def begin(cls, fabric: Fabric, *, by: tuple[Name, ...] = NAMES) -> "AtWork":
        """All of the team that dial by one of these balancers."""
        agents = [agent for name, agent in fabric.team if name in by]
        sessions = await asyncio.gather(
            *(fabric.session(agent.org, target=agent.target, url=agent.url) for agent in agents)
        )
        ops = [await session.op(hold=True) for session in sessions]
        for op in ops:
            await op.began()
        await asyncio.gather(*(session.renewed() for session in sessions))
        return cls(tuple(agents), tuple(sessions), tuple(ops))

    async def kept(self) -> None:
        """Those ops end well, each session takes more of them, no lease was lost, and all is closed in order."""
        for op in self.ops:
            await op.go()
            await op.done()
        for session in self.sessions:
            await session.works()
            job = await session.job()
            assert (job["state"], job["tries"], job["lease_epoch"]) == ("leased", 1, 1)
        await asyncio.gather(*(session.close() for session in self.sessions))
        assert not any(agent.told("lease_over") for agent in self.agents)


@CASES.case(turn=2)
async def test_a_replica_is_killed_and_its_runners_go_on_at_the_other_s57(fabric: Fabric) -> None:
    work = await AtWork.begin(fabric)
    dead = await fabric.owner(work.sessions[0])
    name, alive = await dead.instance(), fabric.other(dead)
    await dead.kill()
    await fabric.all_at(alive, work.sessions)
    # The column may name the dead one: who holds the socket serves.
    await fabric.sql("UPDATE rota.runner_sessions SET gateway_instance = $1 WHERE closed_at IS NULL", name)
    await work.ops[0].go()
    await work.ops[0].done()
    await work.sessions[0].works(url=alive.address)
    await dead.start()
    await work.kept()


@CASES.case(turn=3)
async def test_a_rolling_restart_of_the_replicas_loses_no_lease(fabric: Fabric) -> None:
    gates = [fabric.folder / f"next-{gateway.port}" for gateway in fabric.gateways]
    spares = await asyncio.gather(*map(Gateway.spare, fabric.gateways, gates))
    work = await AtWork.begin(fabric)
    for gateway, gate, spare in zip(fabric.gateways, gates, spares, strict=True):
        # As whoever deploys has to: the next is stopped when both balancers know that another is there.
        await fabric.dealt(fabric.other(gateway))
        await gateway.stop()
        gate.touch()
        await gateway.is_now(spare)
        await asyncio.gather(*(fabric.online(agent) for agent in work.agents))
    await work.kept()


@CASES.case(turn=4)
async def test_a_replica_that_stands_still_is_left_and_does_no_harm_when_it_goes_on(fabric: Fabric) -> None:
    # By HAProxy, which looks after its servers: nginx goes on to deal every second dial to one that stands still.
    work = await AtWork.begin(fabric, by=("haproxy",))
    still = await fabric.owner(work.sessions[0])
    still.running.signal(signal.SIGSTOP)
    await fabric.all_at(fabric.other(still), work.sessions)
    await work.ops[0].go()
    await work.ops[0].done()
    still.running.signal(signal.SIGCONT)
    await work.kept()


@CASES.case(turn=5)
async def test_all_replicas_are_killed_and_come_back_within_the_leases(fabric: Fabric) -> None:
    gate = fabric.folder / "gate"
    spares = await asyncio.gather(*(gateway.spare(gate) for gateway in fabric.gateways))
    work = await AtWork.begin(fabric)
    await asyncio.gather(*(gateway.kill() for gateway in fabric.gateways))
    gate.touch()
    await asyncio.gather(*(one.is_now(spare) for one, spare in zip(fabric.gateways, spares, strict=True)))
    await work.kept()


@CASES.case(turn=6)
async def test_a_balancer_that_is_started_anew_costs_no_session(fabric: Fabric) -> None:
    """It cuts all connections at once, of runners and of the engine."""
    work = await AtWork.begin(fabric)
    for op in work.ops:
        await op.go()
        await op.done()
    for balancer in fabric.balancers:
        balancer.__exit__()
    # Asked while nobody has the runners: at either gateway, so that some are passed on.
    asked = [
        await session.op(url=gateway.address)
        for session, gateway in zip(work.sessions, itertools.cycle(fabric.gateways), strict=False)
    ]
    await asyncio.gather(*(asyncio.to_thread(balancer.__enter__) for balancer in fabric.balancers))
    for op in asked:
        await op.done()
    await work.kept()


@CASES.case(turn=LAST)
async def test_no_op_is_carried_out_twice(fabric: Fabric) -> None:
    """Whatever happened in the cases before."""
    counts = await fabric.store("asked", "none")
    assert counts, "they were counted"
    assert {key: count for key, count in counts.items() if count > 1} == {}


def test_the_table_of_the_matrix_names_tests_that_exist() -> None:
    table = (ROOT / "docs" / "OPERATING.md").read_text(encoding="utf-8")
    table = table.partition("## The failure matrix of runners")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(test_\w+)`", table))
    files = set(re.findall(r"`(tests/\S+)`", table))
    found = {name for file in files for name in re.findall(r"def (test_\w+)", (ROOT / file).read_text("utf-8"))}
    assert len(named) >= 20
    assert named <= found
    assert {name for name, turn in CASES.turns.items() if turn < LAST} <= named, "each case is a row"
