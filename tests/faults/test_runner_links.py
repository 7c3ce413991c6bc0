"""The link between a runner and the gateways' balancer is cut in each way that there is, in network namespaces.

A gateway, nginx and the engine are on one side, each runner on a side of its own. All cuts go on at the same time; see
`tests.faults.together`. Without heartbeats, TCP would find out after a quarter of an hour, or never.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rota.demo.balancers import Balancer, find
from rota.io.postgres import Database, Target
from tests.faults.namespaces import Link, links
from tests.faults.runner_programs import Agent, Gateway, Place, here
from tests.faults.runner_sites import LEASE_S, RunnerSite, Session
from tests.faults.together import Cases, Outcomes, eventually
from tests.integration.programs import nothing_runs
from tests.postgres_servers import Server, unavailable

pytestmark = pytest.mark.timeout(600)  # the first test waits for all cases
CUTS = 5
CASES: "Cases[Site]" = Cases()


@dataclass
class Site(RunnerSite):
    """One side, and links to the others that are not used yet."""

    free: list[Link] = field(default_factory=list)
    here: Place = here
    gateways: list[Gateway] = field(default_factory=list)
    front_port: int = 0

    async def at_work(self, org: str, **body: bool) -> "Remote":
        """A runner on a link of its own, in a session whose lease was renewed."""
        link = self.free.pop()
        url = f"http://{link.address('server')}:{self.front_port}"
        agent = await self.desktop(org, f"{org}-1", url=url, place=lambda argv: link.argv("client", argv))
        session = await self.session(org, store_host=link.address("server"), **body)
        await session.works()
        await session.renewed()
        return Remote(link, agent, session)

    def left(self, agent: Agent) -> list[str]:
        """Why the gateway gave up connections of this runner."""
        return [
            str(told["reason"])
            for gateway in self.gateways
            for told in gateway.events("runner left")
            if told["runner_id"] == agent.runner_id
        ]


@dataclass
class Remote:
    """A runner, its link and its session."""

    link: Link
    agent: Agent
    session: Session

    async def goes_on(self) -> None:
        """It is connected again, and its lease was not lost."""
        await self.agent.tells("connected", count=2)
        await self.session.works()
        job = await self.session.job()
        assert (job["state"], job["tries"], job["lease_epoch"]) == ("leased", 1, 1)
        await self.session.close()


class OnOneSide(Balancer):
    """nginx in the namespace of the servers."""

    def __init__(self, link: Link, folder: Path, servers: Sequence[str]) -> None:
        super().__init__("nginx", folder, servers, kind="gateways", host="0.0.0.0")
        self._link = link

    def _argv(self, program: str) -> list[str]:
        return self._link.argv("server", super()._argv(program))

    def _answers(self) -> bool:
        return (self._folder / "nginx.pid").exists()


@asynccontextmanager
async def site_of(dsn: str, folder: Path) -> AsyncIterator[Site]:
    folder.mkdir()
    database = Database(Target(dsn))
    with ExitStack() as stack:
        free = stack.enter_context(links(CUTS))
        site = Site(dsn, folder, stack, database, free=free)
        side = free[0]
        site.here = lambda argv: side.argv("server", argv)
        try:
            names = ",".join(["127.0.0.1", *(link.address("server") for link in free)])
            gateway = site.gateway(place=site.here, names=names)
            site.gateways = [gateway]
            front = stack.enter_context(OnOneSide(side, folder / "nginx", [f"127.0.0.1:{gateway.port}"]))
            site.front_port, site.url = front.port, f"http://127.0.0.1:{front.port}"
            await asyncio.gather(gateway.start(), site.engine(host="0.0.0.0", place=site.here))
            yield site
        finally:
            await site.close()
            await database.stop()
    nothing_runs(folder)


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, default_server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Outcomes]:
    if find("nginx") is None:
        unavailable("nginx", "nginx is not installed")
    with default_server.database(template=default_server.template()) as dsn:
        yield CASES.run(request, site_of(dsn, tmp_path_factory.mktemp("links") / "site"))


@CASES.case()
async def test_a_link_that_drops_everything_is_noticed_by_silence_and_the_session_goes_on(site: Site) -> None:
    remote = await site.at_work("both")
    op = await remote.session.op(hold=True)
    await op.began()
    remote.link.drop("client", "server")
    await remote.agent.tells("silence")
    remote.link.heal()
    await op.go()
    await op.done()
    await remote.goes_on()


@CASES.case()
async def test_a_link_on_which_only_one_side_is_heard_is_noticed_and_the_session_goes_on(site: Site) -> None:
    to_server, to_client = await asyncio.gather(site.at_work("to-server"), site.at_work("to-client"))
    to_server.link.drop("server")
    to_client.link.drop("client")
    for remote in (to_server, to_client):
        await remote.agent.tells("silence")
        remote.link.heal()
    await asyncio.gather(to_server.goes_on(), to_client.goes_on())


@CASES.case()
async def test_a_connection_that_is_reset_is_dialled_anew_at_once(site: Site) -> None:
    remote = await site.at_work("reset")
    remote.link.reset("server")  # what it sends is answered so; on both sides, the resets would be dropped as well
    await remote.agent.tells("disconnected")
    remote.link.heal()
    await remote.goes_on()
    assert not remote.agent.told("silence")


@CASES.case()
async def test_a_runner_that_leaves_the_network_stops_by_itself_and_another_takes_its_job_s25_s62(site: Site) -> None:
    remote = await site.at_work("gone", oneShot=True)
    op = await remote.session.op(hold=True)
    await op.began()
    remote.link.drop("client", "server")
    # Nobody can tell it to stop.
    await remote.agent.tells("lease_over")
    await eventually(lambda: not remote.agent.sessions(), "its folder is gone")
    assert (await op.fails()).name == "SessionLost"
    said = f"nothing came for {LEASE_S:g} s"
    await eventually(lambda: said in site.left(remote.agent), "the gateway noticed by silence, too")
    # It is still away when another one of its organisation takes the job.
    await site.desktop("gone", "gone-2", place=site.here)
    again = await site.taken(remote.session.job_id, attempt=2)
    await again.works()
    await again.close()
    remote.link.heal()
    await remote.agent.tells("connected", count=2)
    assert len(remote.agent.told("session begins")) == 1, "what it held before is forgotten"


@CASES.case(turn=9)
async def test_no_op_is_carried_out_twice_across_broken_links(site: Site) -> None:
    """Whatever happened in the cases before."""
    counts = await site.store("asked", "none")
    assert counts, "they were counted"
    assert {key: count for key, count in counts.items() if count > 1} == {}
