"""The engine against a small gateway: what its sessions send, what they make of answers, and how they end."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import rota
from rota.objects.io.folder import FolderStore
from rota.runners.io import gateway_client
from rota.runners.io.engine import Engine, EngineOptions
from rota.runners.io.engine_session import Means
from rota.runners.io.gateway_client import GatewayClient
from rota.runners.io.promoting import Promoting
from rota.runners.records import idempotency_key
from rota.sessions import FfmpegProgress, Session, SessionAsk, Stat
from tests.integration.gateway_stand_in import TOKEN, GatewayStandIn, no, ok, serving

MEDIA = b"a film" * 1000


def asks(**options: Any) -> SessionAsk:
    return SessionAsk("video.compile", "CloudPool", "acme", execution_id=options.pop("execution_id", "e1"), **options)


@asynccontextmanager
async def engine_of(
    gateway: GatewayStandIn, folder: Path, *, wait_s: float = 30.0, lost_s: float = 30.0, token: str | None = TOKEN
) -> AsyncIterator[Engine]:
    async with serving(gateway):
        objects = FolderStore(folder, base_url="https://objects.invalid")
        await objects.write("uploads/in.mp4", MEDIA)
        means = Means(
            GatewayClient(gateway.url, token=token, lost_s=lost_s),
            objects,
            Promoting(objects),
            look_s=0.01,
        )
        engine = Engine(means, EngineOptions(wait_s=wait_s))
        try:
            yield engine
        finally:
            await engine.stop()


class Runner:
    """What the stand-in's runner has: files that were staged, and where it puts what it publishes."""

    def __init__(self, store: FolderStore | None = None) -> None:
        self.store = store
        self.files: dict[str, bytes] = {}
        self.urls: list[str] = []

    def stage(self, args: dict[str, Any]) -> dict[str, Any]:
        self.urls.append(args["url"])
        self.files[args["path"]] = MEDIA
        return ok(bytes=len(MEDIA), sha256=hashlib.sha256(MEDIA).hexdigest().upper())

    def stat(self, args: dict[str, Any]) -> dict[str, Any]:
        there = args["path"] in self.files
        return ok(exists=there, bytes=len(self.files.get(args["path"], b"")))

    async def publish(self, args: dict[str, Any]) -> dict[str, Any]:
        """As the bytes would arrive through the URL."""
        assert self.store is not None
        self.urls.append(args["putUrl"])
        key = args["putUrl"].partition("?")[0].removeprefix("https://objects.invalid/")
        await self.store.write(key, MEDIA)
        return ok(bytes=len(MEDIA), sha256=hashlib.sha256(MEDIA).hexdigest())


async def test_a_session_stages_looks_and_closes(tmp_path: Path) -> None:
    runner = Runner()
    gateway = GatewayStandIn(stage=runner.stage, stat=runner.stat)
    async with engine_of(gateway, tmp_path) as engine:
        async with engine.session(asks(iteration="7", priority=3, fontset="2.1", spec={"mode": "Reencode"})) as session:
            staged = await session.stage("in.mp4", source="uploads/in.mp4")
            assert (staged.bytes, staged.sha256) == (len(MEDIA), hashlib.sha256(MEDIA).hexdigest())
            assert await session.stat("in.mp4") == Stat(True, len(MEDIA))
        await gateway.until(lambda: gateway.states() == ["Succeeded"])
        (body,) = gateway.bodies
        assert body["idempotencyKey"] == idempotency_key("e1", "session-1", "7", "session")
        assert (body["target"], body["orgId"], body["jobType"], body["priority"]) == (
            "CloudPool", "acme", "video.compile", 3,
        )  # fmt: skip
        assert body["requires"] == {"fontsetVersion": "2.1"}
        assert body["spec"] == {"executionId": "e1", "stepId": "session-1", "mode": "Reencode"}
        assert [op["op"] for op in gateway.asked] == ["stage", "stat", "close"]
        assert gateway.asked[0]["args"]["maxBytes"] == len(MEDIA)
        assert runner.urls[0].startswith("https://objects.invalid/uploads/in.mp4?")
        assert len({op["opId"] for op in gateway.asked}) == 3


async def test_an_output_is_promoted_to_a_key_that_its_runner_cannot_reach(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, base_url="https://objects.invalid")
    runner = Runner(store)
    async with engine_of(GatewayStandIn(publish=runner.publish), tmp_path) as engine:
        async with engine.session(asks()) as session:
            one = await session.publish("cut.mp4", to="films/cut.mp4")
            two = await session.publish("cut.mp4")
            job_id = session.job_id
        assert one.key == "films/cut.mp4"
        assert two.key.startswith(f"outputs/{job_id}/")
        assert (one.bytes, one.sha256) == (len(MEDIA), hashlib.sha256(MEDIA).hexdigest())
        assert b"".join([chunk async for chunk in store.read("films/cut.mp4")]) == MEDIA
        assert [key async for key in store.keys("runner-")] == []
        # One staging key for each op, and none of them twice.
        assert len({url.partition("?")[0] for url in runner.urls}) == 2
        assert all(f"/runner-staging/{job_id}/" in url for url in runner.urls)


@pytest.mark.parametrize("to", ["", "a//b", "../x", "runner-staging/x/1", "runner-verifying/x"])
async def test_a_key_that_is_none_is_refused_before_anything_is_published(tmp_path: Path, to: str) -> None:
    store = FolderStore(tmp_path, base_url="https://objects.invalid")
    runner = Runner(store)
    gateway = GatewayStandIn(publish=runner.publish)
    async with engine_of(gateway, tmp_path) as engine, engine.session(asks()) as session:
        with pytest.raises(rota.RotaError, match=r"key|lies where runners write"):
            await session.publish("cut.mp4", to=to)
    assert runner.urls == []


async def test_an_output_that_is_not_what_was_said_is_removed(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, base_url="https://objects.invalid")
    runner = Runner(store)

    async def lies(args: dict[str, Any]) -> dict[str, Any]:
        await runner.publish(args)
        return ok(bytes=len(MEDIA), sha256="0" * 64)

    gateway = GatewayStandIn(publish=lies)
    async with engine_of(gateway, tmp_path) as engine:
        async with engine.session(asks()) as session:
            with pytest.raises(rota.VerificationFailed):
                await session.publish("cut.mp4", to="films/cut.mp4")
            with pytest.raises(rota.SessionLost):
                await session.stat("cut.mp4")
        assert [key async for key in store.keys("")] == ["uploads/in.mp4"]
        # Its job failed before anybody could close the session as if all were well.
        assert gateway.states() == ["Failed"] and "not the one" in gateway.verdicts[0]
        assert [op["op"] for op in gateway.asked] == ["publish"]


async def test_s89_a_transfer_is_issued_anew_with_a_fresh_url_and_op_id(tmp_path: Path) -> None:
    runner, refusals = Runner(), [no("stage_failed", retryable=True)]

    def stage(args: dict[str, Any]) -> dict[str, Any]:
        done = runner.stage(args)
        return refusals.pop() if refusals else done

    gateway = GatewayStandIn(stage=stage)
    async with engine_of(gateway, tmp_path) as engine, engine.session(asks()) as session:
        await session.stage("in.mp4", source="uploads/in.mp4")
        assert len({op["opId"] for op in gateway.asked}) == 2


async def test_an_op_that_failed_for_good_says_its_code_and_is_not_issued_again(tmp_path: Path) -> None:
    gateway = GatewayStandIn(
        stage=lambda _args: no("file_too_large"), ffprobe=lambda _args: no("argv_not_allowed"),
        read=lambda _args: no("op_expired"),
    )  # fmt: skip
    async with engine_of(gateway, tmp_path) as engine, engine.session(asks()) as session:
        with pytest.raises(rota.OpFailed) as caught:
            await session.stage("in.mp4", source="uploads/in.mp4")
        assert (caught.value.code, caught.value.retryable) == ("file_too_large", False)
        with pytest.raises(rota.OpFailed, match="argv_not_allowed"):
            await session.ffprobe(["-i", "http://example.invalid/x"])
        # The engine reads op_expired as the loss of the session.
        with pytest.raises(rota.SessionLost) as lost:
            await session.read("small.txt")
        assert lost.value.reason == "op_expired"
        assert [op["op"] for op in gateway.asked] == ["stage", "ffprobe", "read"]
        with pytest.raises(rota.OpFailed, match="no object"):
            await session.stage("in.mp4", source="uploads/absent.mp4")


async def test_ffmpeg_shows_its_progress_and_its_end(tmp_path: Path) -> None:
    going, moved = asyncio.Event(), 0

    async def ffmpeg(args: dict[str, Any]) -> dict[str, Any]:
        await going.wait()
        return ok(exitCode=0 if args["argv"][-1] == "out.mp4" else 1, stderrTail="moov atom not found", durationMs=1500)

    def count() -> None:
        nonlocal moved
        moved += 1

    gateway = GatewayStandIn(ffmpeg=ffmpeg)
    async with engine_of(gateway, tmp_path) as engine, engine.session(asks(moved=count)) as session:
        run = session.ffmpeg(["-i", "in.mp4", "out.mp4"])
        with pytest.raises(RuntimeError):
            _ = run.done
        seen, before = [], moved
        told = asyncio.create_task(_tell_progress(gateway, session, 40))
        async for progress in run:
            seen.append(progress)
            going.set()
        await told
        assert seen == [FfmpegProgress("encode", 0.4)]
        assert moved > before
        assert (run.done.exit_code, run.done.duration_s) == (0, 1.5)
        assert await run is run.done
        with pytest.raises(rota.ProgramFailed, match="moov atom") as caught:
            await session.ffmpeg(["-i", "in.mp4", "bad.mp4"])
        assert caught.value.exit_code == 1
        assert (await session.ffmpeg(["-i", "in.mp4", "bad.mp4"], check=False)).exit_code == 1


async def _tell_progress(gateway: GatewayStandIn, session: Session, percent: int) -> None:
    while not gateway.asked:
        await asyncio.sleep(0.005)
    await gateway.set(
        session.job_id, progress={"opId": gateway.asked[0]["opId"], "stage": "encode", "percent": percent}
    )


async def test_a_lost_answer_is_asked_for_again_and_nothing_is_done_twice(tmp_path: Path) -> None:
    runner, runs = Runner(), 0

    def stage(args: dict[str, Any]) -> dict[str, Any]:
        nonlocal runs
        runs += 1
        return runner.stage(args)

    gateway = GatewayStandIn(stage=stage)
    gateway.lose = 1
    async with engine_of(gateway, tmp_path) as engine, engine.session(asks()) as session:
        assert len(gateway.bodies) == 2
        assert len(gateway.jobs) == 1
        gateway.lose = 2
        await session.stage("in.mp4", source="uploads/in.mp4")
        assert runs == 1
        assert len({op["opId"] for op in gateway.asked}) == 1
        gateway.refuse = [(502, {"code": "session_owner_unreachable", "message": "away"})]
        assert (await session.stage("in.mp4", source="uploads/in.mp4")).bytes == len(MEDIA)
        assert runs == 2


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (404, {"code": "session_not_found"}, rota.SessionNotFound),
        (410, {"code": "session_lost", "reason": "lease_lost"}, rota.SessionLost),
        (410, {"error": {"code": "session_lost", "reason": "lease_lost"}}, rota.SessionLost),
        (409, {"code": "op_in_flight"}, rota.OpInFlight),
        (409, {"code": "op_cancelled"}, rota.OpCancelled),
        (400, {"code": "bad_request", "message": "timeoutSec is no number"}, rota.GatewayRefused),
        (418, {"code": "something_new"}, rota.GatewayRefused),
        (500, {"code": "internal_error"}, rota.GatewayRefused),
    ],
)
async def test_each_refusal_has_its_error(
    tmp_path: Path, status: int, body: dict[str, Any], error: type[rota.RotaError]
) -> None:
    gateway = GatewayStandIn(stat=lambda _args: ok(exists=False, bytes=0))
    async with engine_of(gateway, tmp_path) as engine, engine.session(asks()) as session:
        gateway.refuse = [(status, body)]
        with pytest.raises(error):
            await session.stat("in.mp4")
        # It was asked once: the engine must not retry what is not its own to retry.
        assert len(gateway.asked) == 1


async def test_an_op_that_a_gateway_gives_up_before_its_time_is_asked_again_and_after_it_is_not(tmp_path: Path) -> None:
    """The one means that the gateway ends, the other that the runner is too slow."""
    gateway = GatewayStandIn(stat=lambda _args: ok(exists=False, bytes=0))
    async with engine_of(gateway, tmp_path) as engine, engine.session(asks()) as session:
        gateway.refuse = [(504, {"code": "op_timeout", "reason": "this gateway ends"})] * 2
        assert not (await session.stat("in.mp4")).exists
        assert len({op["opId"] for op in gateway.asked}) == 1
        gateway.refuse = [(504, {"code": "op_timeout"})]
        with pytest.raises(rota.OpTimeout):
            await engine.client.op(session.id, op_id="late", op="stat", args={}, timeout_s=0)


async def test_what_a_balancer_cuts_off_after_a_while_is_asked_for_as_long_as_the_op_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each wait is longer than a request may be lost for; a gateway that is not there would be given up."""
    monkeypatch.setattr(gateway_client, "HELD_S", 0.1)
    gateway = GatewayStandIn(stat=lambda _args: ok(exists=False, bytes=0))
    gateway.refuses_after_s = 0.3
    async with engine_of(gateway, tmp_path, lost_s=0.25) as engine, engine.session(asks()) as session:
        gateway.refuse = [(504, {})] * 3
        assert not (await session.stat("in.mp4")).exists


async def test_an_answer_that_is_none_is_an_error_and_not_a_result(tmp_path: Path) -> None:
    gateway = GatewayStandIn(
        stat=lambda _args: ok(exists="perhaps"), read=lambda _args: ok(content="abc", encoding="utf8", bytes=7),
    )  # fmt: skip
    async with engine_of(gateway, tmp_path) as engine, engine.session(asks()) as session:
        with pytest.raises(rota.RotaError, match="result of stat"):
            await session.stat("in.mp4")
        with pytest.raises(rota.OpFailed) as caught:
            await session.read("in.txt")
        assert caught.value.code == "invalid_result"


async def test_without_a_token_there_is_no_gateway_and_a_handler_can_do_without(tmp_path: Path) -> None:
    gateway = GatewayStandIn()
    gateway.token = None
    async with engine_of(gateway, tmp_path) as engine:
        with pytest.raises(rota.GatewayAbsent):
            async with engine.session(asks()):
                pass
        assert gateway.requests == ["POST /internal/v1/jobs"]


async def test_a_wrong_token_is_said_at_once(tmp_path: Path) -> None:
    gateway = GatewayStandIn()
    async with engine_of(gateway, tmp_path, token="wrong") as engine:
        with pytest.raises(rota.GatewayRefused, match="401"):
            async with engine.session(asks()):
                pass


async def test_no_runner_in_time_gives_the_job_back_and_cancels_it(tmp_path: Path) -> None:
    gateway = GatewayStandIn()
    gateway.runner = False
    async with engine_of(gateway, tmp_path, wait_s=0.05) as engine:
        with pytest.raises(rota.NoRunner) as caught:
            async with engine.session(asks()):
                pass
        assert isinstance(caught.value, rota.NotNow)
        await gateway.until(lambda: gateway.states() == ["Cancelled"])


async def test_a_gateway_that_is_away_is_said_after_a_while(tmp_path: Path) -> None:
    objects = FolderStore(tmp_path, base_url="https://objects.invalid")
    client = GatewayClient("http://127.0.0.1:9", token=TOKEN, lost_s=0.05)
    engine = Engine(Means(client, objects, Promoting(objects)))
    with pytest.raises(rota.GatewayAway):
        async with engine.session(asks()):
            pass
    await engine.stop()
    await engine.stop()


async def test_who_leaves_by_an_error_cancels_at_once_and_releases_the_waiting_op(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def ffmpeg(_args: dict[str, Any]) -> dict[str, Any]:
        begun.set()
        await asyncio.sleep(3600)
        raise AssertionError

    gateway = GatewayStandIn(ffmpeg=ffmpeg)
    async with engine_of(gateway, tmp_path) as engine:

        async def handler() -> None:
            async with engine.session(asks()) as session:
                await session.ffmpeg(["-i", "in.mp4", "out.mp4"])

        task = asyncio.create_task(handler())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await gateway.until(lambda: gateway.states() == ["Cancelled"])


async def test_a_handler_that_is_thrown_away_leaves_no_session(tmp_path: Path) -> None:
    """A stopped handler takes no further step: what is left is done without it."""
    gateway = GatewayStandIn()
    async with engine_of(gateway, tmp_path) as engine:
        entered = engine.session(asks())
        await entered.__aenter__()
        leaving = entered.__aexit__(LookupError, LookupError("stop"), None)
        with pytest.raises(StopIteration):
            leaving.send(None)
        await gateway.until(lambda: gateway.states() == ["Cancelled"])


async def test_one_session_of_an_execution_is_open_and_the_next_waits_until_its_job_has_ended(tmp_path: Path) -> None:
    gateway = GatewayStandIn()
    async with engine_of(gateway, tmp_path) as engine:
        order: list[str] = []
        leave = asyncio.Event()

        async def use(name: str, execution: str) -> None:
            async with engine.session(asks(execution_id=execution)):
                order.append(f"in {name}")
                await leave.wait()
                order.append(f"out {name}")

        first = asyncio.create_task(use("a", "e1"))
        await gateway.until(lambda: len(gateway.jobs) == 1)
        second, third = asyncio.create_task(use("b", "e1")), asyncio.create_task(use("c", "e2"))
        await gateway.until(lambda: len(gateway.jobs) == 2)
        # Another execution does not queue behind this one; the second session of this one has not even been created.
        assert [job["body"]["executionId"] for job in gateway.jobs.values()] == ["e1", "e2"]
        leave.set()
        await asyncio.gather(first, second, third)
        assert order.index("out a") < order.index("in b")
        # It is another session, with a key of its own.
        assert len(gateway.jobs) == 3


async def test_a_session_in_a_session_of_its_own_says_so_and_does_not_wait_for_ever(tmp_path: Path) -> None:
    async with engine_of(GatewayStandIn(), tmp_path) as engine, engine.session(asks()):
        with pytest.raises(rota.SessionError, match="wait for itself"):
            async with engine.session(asks()):
                pass


async def test_s81_close_twice_and_an_op_after_close(tmp_path: Path) -> None:
    gateway = GatewayStandIn()
    async with engine_of(gateway, tmp_path) as engine, engine.session(asks()) as session:
        await session.close()
        await session.close()
        with pytest.raises(rota.SessionLost):
            await session.stat("in.mp4")
    assert [op["op"] for op in gateway.asked] == ["close"]


async def test_what_is_asked_twice_is_one_session(tmp_path: Path) -> None:
    """S91: the key is of execution, name, iteration and purpose, whichever engine asks."""
    gateway = GatewayStandIn()
    async with engine_of(gateway, tmp_path) as engine, engine.session(asks(name="cut")) as session:
        first = session.job_id
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as http:
            response = await http.post(gateway.url + "/internal/v1/jobs", json=gateway.bodies[0])
            assert (response.status, (await response.json())["jobId"]) == (200, first)


async def test_a_target_or_an_organisation_that_is_none_is_refused_here(tmp_path: Path) -> None:
    gateway = GatewayStandIn()
    async with engine_of(gateway, tmp_path) as engine:
        for ask in (
            SessionAsk("video.compile", "Moon", "acme", execution_id="e"),
            SessionAsk("video.compile", "OrgRunner", "", execution_id="e"),
        ):
            with pytest.raises(rota.GatewayRefused):
                async with engine.session(ask):
                    pass
        assert gateway.requests == []
