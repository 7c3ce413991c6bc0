"""A whole runner in this process against a stand-in gateway over real sockets: what is said, when, and what is left."""

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from aiohttp import web

from rota.errors import SettingsError
from rota.io.clock import lease_clock
from rota.io.scratch import Scratch
from rota.runners.agent import Agent
from rota.runners.agent_events import Command, Event, SessionEnded, Tell
from rota.runners.dial import parse_gateway
from rota.runners.io import agent_client, proof
from rota.runners.io.agent_client import Runner
from rota.runners.io.disk import Room
from rota.runners.io.identity import Identity, new_key
from rota.runners.io.probing import Ability
from rota.runners.io.ringlog import FILE_NAME, RingLog
from rota.runners.io.running import run_runner, who
from rota.runners.io.shown import LinesShown
from rota.runners.io.trust import trusted
from rota.runners.messages import Capabilities
from rota.settings import Settings
from tests.integration.stand_in_gateway import WAIT_S, Connection, StandIn, stand_in
from tests.runner_media import Made

JOB = "0197c0de-0000-7000-8000-000000000001"
OTHER = "0197c0de-0000-7000-8000-000000000002"
CAPABILITIES = Capabilities(
    protocol_version="1.0", agent_version="1.0", os="linux", arch="amd64", slots=2, container="none",
    runtime_image_digest=None, ffmpeg_version="8.0", fontset_version="1", job_types=("video.compile",),
    max_output_bytes=1 << 40,
)  # fmt: skip


class Watched:
    """What the runner shows, for tests that wait for something."""

    def __init__(self) -> None:
        self.seen: list[Event | Command] = []
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    def saw(self, what: Event | Command) -> None:
        self.seen.append(what)
        task = asyncio.ensure_future(self._tell())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def until(self, wanted: Callable[[Event | Command], bool]) -> Event | Command:
        async with asyncio.timeout(WAIT_S), self._changed:
            while not (found := [what for what in self.seen if wanted(what)]):
                await self._changed.wait()
            return found[0]


class Started:
    """A runner that runs, and what a test needs of it."""

    def __init__(self, gateway: StandIn, folder: Path, room: Room) -> None:
        identity = Identity("", f"device-{len(gateway.devices) + 1}", "org-1", "test", new_key()[0])
        gateway.devices[identity.device_id] = identity.key.public_key().public_bytes_raw()
        at = parse_gateway(f"ws://127.0.0.1:{gateway.port}")
        self.made = Made()
        self.shown = Watched()
        self.ahead_s = 0.0
        self.folder = folder
        self.ring = RingLog(folder / "log")
        scratch = Scratch(folder / "scratch", prefix="runner-")
        self.runner = Runner(
            agent=Agent(CAPABILITIES, Random(1)), gateway=at, tls=trusted(None),
            prove=proof.of_device(lambda: identity, at), capabilities=CAPABILITIES, scratch=scratch,
            make_media=self.made, room=room, ring=self.ring, shown=self.shown,
            clock=lambda: lease_clock() + self.ahead_s,
        )  # fmt: skip
        self.task = asyncio.create_task(self.runner.run())

    async def status(self) -> int:
        async with asyncio.timeout(WAIT_S):
            return await self.task

    def sessions(self) -> list[Path]:
        return [path for path in (self.folder / "scratch").glob("runner-*/*") if path.is_dir()]


@contextlib.asynccontextmanager
async def running(
    folder: Path, *, floor_bytes: int = 0, quota_bytes: int = 1 << 40
) -> AsyncIterator[tuple[StandIn, Started]]:
    async with stand_in() as gateway:
        started = Started(gateway, folder, Room(floor_bytes, quota_bytes))
        try:
            yield gateway, started
        finally:
            started.runner.drain("the test is over", deadline_s=0.0)
            started.task.cancel()
            await asyncio.wait([started.task])
            started.ring.close()


async def welcomed(gateway: StandIn) -> Connection:
    connection = await gateway.connected()
    await connection.welcome()
    await connection.expect("ready")
    return connection


async def test_a_session_from_assign_to_close(tmp_path: Path) -> None:
    async with running(tmp_path) as (gateway, started):
        connection = await gateway.connected()
        hello = connection.hello["payload"]
        assert hello["capabilities"]["jobTypes"] == ["video.compile"]
        assert "running" not in hello
        assert connection.seen == [], "nothing before welcome"
        await connection.welcome()
        assert (await connection.expect("ready"))["payload"] == {"freeSlots": 2}
        accept = await connection.assign(JOB)
        assert (accept["type"], accept["jobId"]) == ("accept", JOB)
        assert accept["payload"] == {"leaseEpoch": 1, "jobToken": "FIXTURE.job.token"}
        staged = await connection.op(JOB, "stage", {"url": "https://s.invalid/a", "path": "a", "maxBytes": 99})
        assert staged["ok"], staged
        assert staged["result"]["bytes"] == 19
        assert (staged["leaseEpoch"], staged["jobToken"]) == (1, "FIXTURE.job.token")
        unknown = await connection.op(JOB, "invented", {})
        assert unknown["error"]["code"] == "unsupported_op"
        closed = await connection.op(JOB, "close", {})
        assert (closed["ok"], closed["result"]) == (True, {})
        complete = await connection.expect("complete")
        assert complete["payload"]["outcome"] == "succeeded"
        await started.shown.until(lambda what: isinstance(what, SessionEnded))
        await until(lambda: started.sessions() == [])
        assert "FIXTURE" not in (tmp_path / "log" / FILE_NAME).read_text()


async def test_progress_goes_out_and_cancel_ends_the_op_and_the_folder(tmp_path: Path) -> None:
    """S59 and S60 as far as a runner is concerned: its media end the programs."""
    async with running(tmp_path) as (gateway, started):
        connection = await welcomed(gateway)
        await connection.assign(JOB)
        await connection.ask(JOB, "ffmpeg", {"argv": ["wait"], "timeoutSec": 60}, op_id="op-1")
        progress = (await connection.expect("progress"))["payload"]
        assert (progress["opId"], progress["percent"], progress["stage"]) == ("op-1", 25, "ffmpeg")
        await connection.send("cancel", {"reason": "user", "graceSec": 10}, job=JOB)
        complete = await connection.expect("complete")
        assert (complete["jobId"], complete["payload"]["outcome"]) == (JOB, "cancelled")
        assert started.made.sessions[0].closed
        await until(lambda: started.sessions() == [])


async def test_a_runner_that_comes_back_resumes_and_repeats_no_op(tmp_path: Path) -> None:
    async with running(tmp_path) as (gateway, started):
        first = await welcomed(gateway)
        await first.assign(JOB, epoch=3)
        kept = await first.op(JOB, "stat", {"path": "a"}, op_id="op-1")
        await first.ask(JOB, "ffmpeg", {"argv": ["wait"], "timeoutSec": 60}, op_id="op-2")
        await first.expect("progress")
        transport = first.transport()
        transport.abort()
        second = await gateway.connected()
        assert second.hello["payload"]["running"] == [{"jobId": JOB, "leaseEpoch": 3}]
        await second.welcome(resumed=second.hello["payload"]["running"])
        await second.expect("ready")
        await second.ask(JOB, "ffmpeg", {"argv": ["wait"], "timeoutSec": 60}, op_id="op-2")
        started.made.sessions[0].go_on.set()
        answer = (await second.expect("op.response"))["payload"]
        assert (answer["opId"], answer["ok"]) == ("op-2", True)
        assert await second.op(JOB, "stat", {"path": "a"}, op_id="op-1") == kept
        assert (await second.op(JOB, "ffmpeg", {"argv": ["wait"], "timeoutSec": 60}, op_id="op-2")) == answer
        assert started.made.sessions[0].ran == ["stat", "ffmpeg"]


async def test_the_257th_op_ages_the_first_answer_out(tmp_path: Path) -> None:
    """S63."""
    async with running(tmp_path) as (gateway, started):
        connection = await welcomed(gateway)
        await connection.assign(JOB)
        for number in range(257):
            await connection.op(JOB, "stat", {"path": f"file-{number}"}, op_id=f"op-{number}")
        expired = await connection.op(JOB, "stat", {"path": "file-0"}, op_id="op-0")
        assert expired["error"]["code"] == "op_expired"
        stored = await connection.op(JOB, "stat", {"path": "file-1"}, op_id="op-1")
        assert stored["result"] == {"exists": False, "bytes": 0}
        assert len(started.made.sessions[0].ran) == 257


async def test_a_job_that_nobody_confirms_is_stopped_by_the_runner_itself(tmp_path: Path) -> None:
    """S62: 45 seconds after the last confirmed lease, by a clock that no wall clock moves."""
    async with running(tmp_path) as (gateway, started):
        connection = await welcomed(gateway)
        await connection.assign(JOB)
        await connection.ask(JOB, "ffmpeg", {"argv": ["wait"], "timeoutSec": 60}, op_id="op-1")
        await connection.expect("progress")
        connection.answers_heartbeats = False
        gateway.refuses = web.Response(status=503)
        connection.transport().abort()
        await started.shown.until(
            lambda what: isinstance(what, Tell) and what.event in ("disconnected", "no_connection")
        )
        started.ahead_s += 46.0
        ended = await started.shown.until(lambda what: isinstance(what, SessionEnded))
        assert ended == SessionEnded(JOB, 1)
        await until(lambda: started.sessions() == [])
        gateway.refuses = None
        second = await gateway.connected()
        assert "running" not in second.hello["payload"]


async def test_a_machine_that_slept_dials_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as (gateway, started):
        first = await welcomed(gateway)
        began_at = time.monotonic()
        started.ahead_s += 600.0
        second = await welcomed(gateway)
        assert (await first.ended()) is not None
        assert second.hello["payload"]["auth"]["nonce"] != first.hello["payload"]["auth"]["nonce"]
        assert time.monotonic() - began_at < WAIT_S
        assert any(isinstance(what, Tell) and what.event == "slept" for what in started.shown.seen)


async def test_a_lost_lease_stops_its_job_and_only_it(tmp_path: Path) -> None:
    async with running(tmp_path) as (gateway, started):
        connection = await welcomed(gateway)
        connection.answers_heartbeats = False
        await connection.assign(JOB)
        await connection.assign(OTHER, epoch=4)
        started.ahead_s += 5.0
        while {held["jobId"] for held in (await beat_of(connection, started))["payload"]["running"]} != {JOB, OTHER}:
            pass
        leases = [{"jobId": JOB, "ok": False}, {"jobId": OTHER, "ok": True}]
        for _ in range(3):
            await connection.send("heartbeat", {"serverTime": "2026-01-02T03:04:05Z", "leases": leases})
        assert await started.shown.until(lambda what: isinstance(what, SessionEnded)) == SessionEnded(JOB, 1)
        stat = await connection.op(OTHER, "stat", {"path": "a"})
        assert stat["ok"]
        assert not any(frame["type"] in ("complete", "fail") for frame in connection.seen)


async def beat_of(connection: Connection, started: Started) -> dict[str, object]:
    started.ahead_s += 8.0
    return await connection.expect("heartbeat")


async def test_sigterm_while_an_assign_is_on_the_wire(tmp_path: Path) -> None:
    """S65: drain is said, the assign that crosses it is declined with `shutting_down`, then goodbye, and status 0."""
    async with running(tmp_path) as (gateway, started):
        connection = await welcomed(gateway)
        started.runner.drain("stopped here", deadline_s=0.0)
        answer = await connection.assign(JOB)
        assert (answer["type"], answer["payload"]["reason"]) == ("reject", "shutting_down")
        await connection.expect("bye")
        assert await connection.ended() == 1000
        assert await started.status() == 0
        kinds = [frame["type"] for frame in connection.seen]
        assert kinds.index("drain") < kinds.index("reject") < kinds.index("bye")
        assert not list((tmp_path / "scratch").iterdir())


async def test_a_patient_drain_lets_the_session_end_and_an_impatient_one_does_not(tmp_path: Path) -> None:
    async with running(tmp_path) as (gateway, started):
        connection = await welcomed(gateway)
        await connection.assign(JOB)
        started.runner.drain("stopped here", deadline_s=None)
        await connection.expect("drain")
        assert (await connection.op(JOB, "stat", {"path": "a"}))["ok"]
        started.runner.drain("stopped here", deadline_s=0.0)
        await connection.expect("bye")
        assert await started.status() == 0
        assert not list((tmp_path / "scratch").iterdir())


async def test_below_the_floor_of_free_disk_it_takes_no_work(tmp_path: Path) -> None:
    async with running(tmp_path, floor_bytes=1 << 62) as (gateway, started):
        await started.shown.until(lambda what: isinstance(what, Tell) and what.event == "no room on disk")
        connection = await gateway.connected()
        assert connection.hello["payload"]["capabilities"]["jobTypes"] == []
        await connection.welcome()
        assert (await connection.expect("ready"))["payload"] == {"freeSlots": 0}
        reject = await connection.assign(JOB)
        assert reject["type"] == "reject"
        assert started.sessions() == []


async def test_a_full_quota_breaks_the_largest_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S80: no session can fill the machine."""
    monkeypatch.setattr(agent_client, "ROOM_EVERY_S", 0.01)
    async with running(tmp_path, quota_bytes=1_000_000) as (gateway, started):
        connection = await welcomed(gateway)
        await connection.assign(JOB)
        await until(lambda: len(started.made.sessions) == 1)
        (started.made.sessions[0].folder / "big").write_bytes(b"x" * 4_000_000)
        fail = (await connection.expect("fail"))["payload"]
        assert (fail["class"], fail["code"]) == ("runner", "disk_full")
        await until(lambda: started.sessions() == [])


async def test_a_folder_that_is_removed_is_made_anew_and_takes_work(tmp_path: Path) -> None:
    """What cleans up temp folders may remove it while nothing runs."""
    async with running(tmp_path) as (gateway, started):
        connection = await welcomed(gateway)
        shutil.rmtree(tmp_path / "scratch")
        await connection.assign(JOB)
        assert (await connection.op(JOB, "stat", {"path": "a"}))["ok"]
        (session,) = started.sessions()
        assert session.is_dir()


@pytest.mark.parametrize(
    ("setting", "folder"),
    [
        ("runner_state", "file"),
        ("runner_state", "file/below"),
        ("runner_scratch", "file"),
        ("runner_scratch", "/proc/none"),
    ],
)
async def test_a_folder_that_cannot_be_used_is_named_with_its_setting(
    setting: str, folder: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    plain = Settings(runner_gateway="ws://127.0.0.1:1", runner_credential="c", runner_state=str(tmp_path / "state"))
    settings, ability = replace(plain, **{setting: str(tmp_path / folder)}), Ability(CAPABILITIES, None)
    with pytest.raises(SettingsError, match=f"{setting}: .* cannot be used: "):
        await run_runner(settings, is_who=who(settings, pool=True), ability=ability, shown=LinesShown())


async def test_a_clock_that_is_off_is_told_and_tried_once_more(tmp_path: Path) -> None:
    """S52: the gateway's goodbye tells its time, and the runner tries once with the difference applied."""
    async with running(tmp_path) as (gateway, started):
        first = await gateway.connected()
        await first.send("bye", {"reason": "the runner's clock is 300 s behind", "serverTime": "2031-01-02T03:04:05Z"})
        await first.socket.close(code=4401)
        second = await gateway.connected()
        assert second.hello["payload"]["auth"]["ts"].startswith("2031-01-02T03:04:")
        assert any(isinstance(what, Tell) and what.event == "clock" for what in started.shown.seen)


async def until(holds: Callable[[], bool]) -> None:
    """Waits for what a thread does."""
    async with asyncio.timeout(WAIT_S):
        while not holds():
            await asyncio.sleep(0.01)
