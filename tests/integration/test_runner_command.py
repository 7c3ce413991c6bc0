"""`rota runner pair` and `rota runner run` as a person calls them, with real ffmpeg, against a stand-in gateway."""

import asyncio
import hashlib
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rota.cli.main import app
from rota.errors import MediaError, RotaError
from rota.io.ffmpeg import find_tools
from rota.runners.io import running as running_of_runners
from tests.integration.object_stands import small_disk
from tests.integration.programs import ROTA, nothing_runs, running
from tests.integration.stand_in_gateway import Connection, StandIn, stand_in
from tests.postgres_servers import unavailable

JOB = "0197c0de-0000-7000-8000-000000000001"
PATHS = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}


def environ(folder: Path, gateway: StandIn, **more: str) -> dict[str, str]:
    told = {"ROTA_RUNNER_GATEWAY": f"ws://127.0.0.1:{gateway.port}", "ROTA_RUNNER_STATE": str(folder / "state")}
    return PATHS | told | {"ROTA_RUNNER_NAME": "mac-7", "ROTA_RUNNER_FLOOR_MIB": "0"} | more


async def rota(folder: Path, gateway: StandIn, *words: str) -> Result:
    """Calls a command in a thread of this process, while the gateway of this loop answers it."""
    return await asyncio.to_thread(CliRunner().invoke, app, list(words), env=environ(folder, gateway))


def error_of(result: Result) -> str:
    """What a person is told."""
    assert isinstance(result.exception, RotaError), result
    return str(result.exception)


async def paired(folder: Path, gateway: StandIn) -> None:
    gateway.codes["ABCD-EFGH-JKMN"] = "org-1"
    done = await rota(folder, gateway, "runner", "pair", "ABCD-EFGH-JKMN")
    assert done.exit_code == 0, done


async def welcomed(gateway: StandIn) -> Connection:
    connection = await gateway.connected()
    await connection.welcome()
    await connection.expect("ready")
    return connection


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "box"
    made.mkdir()
    return made


@pytest.fixture
def film(tmp_path: Path) -> bytes:
    """Two seconds of moving picture."""
    try:
        tools = find_tools()
    except MediaError as error:
        unavailable("ffmpeg", str(error))
    path = tmp_path / "film.mp4"
    source = ["-f", "lavfi", "-i", "testsrc=size=64x48:rate=10:duration=2", "-pix_fmt", "yuv420p"]
    subprocess.run([tools.ffmpeg, "-v", "error", *source, path], check=True, stdin=subprocess.DEVNULL)
    return path.read_bytes()


async def test_pairing_keeps_a_key_and_says_what_is_next(folder: Path) -> None:
    async with stand_in() as gateway:
        gateway.codes |= {"ABCD-EFGH-JKMN": "org-1", "ABCD-EFGH-JKMP": "org-2"}
        done = await rota(folder, gateway, "runner", "pair", " ABCD-EFGH-JKMN ")
        key = folder / "state" / "device.json"
        assert f"paired as mac-7 (device device-1) of org-1; its key is in {key}" in done.output
        assert "rota runner run" in done.output
        assert key.stat().st_mode & 0o777 == 0o600
        assert "--again" in error_of(await rota(folder, gateway, "runner", "pair", "ABCD-EFGH-JKMP"))
        anew = await rota(folder, gateway, "runner", "pair", "ABCD-EFGH-JKMP", "--again", "--json")
        assert (anew.exit_code, len(gateway.devices)) == (0, 2)
        told = json.loads(anew.stdout)
        assert (told["device_id"], told["org_id"], told["name"], told["file"]) == (
            "device-2",
            "org-2",
            "mac-7",
            str(key),
        )
        used = error_of(await rota(folder, gateway, "runner", "pair", "ABCD-EFGH-JKMP", "--again"))
        assert "Ask for a new one" in used
        assert "ABCD-EFGH" not in used


async def test_what_is_missing_is_said_with_the_next_step(folder: Path) -> None:
    async with stand_in() as gateway:
        assert "rota runner pair CODE" in error_of(await rota(folder, gateway, "runner", "run"))
        assert "ROTA_RUNNER_CREDENTIAL" in error_of(await rota(folder, gateway, "runner", "run", "--pool"))
        plain = ["runner", "pair", "CODE", "--gateway", "ws://runner.example"]
        assert "without TLS" in error_of(await rota(folder, gateway, *plain))


async def test_a_session_with_real_media_from_stage_to_publish_and_sigterm(folder: Path, film: bytes) -> None:
    async with stand_in() as gateway:
        await paired(folder, gateway)
        gateway.objects["in"] = film
        store = f"http://127.0.0.1:{gateway.port}/objects"
        with running([*ROTA, "runner", "run"], folder=folder, environ=environ(folder, gateway)) as program:
            connection = await welcomed(gateway)
            can = connection.hello["payload"]["capabilities"]
            assert set(can["jobTypes"]) == {"video.compile", "video.analyze.extract"}
            assert (can["container"], can["slots"], can["runtimeImageDigest"]) == ("none", 1, None)
            assert can["ffmpegVersion"][0].isdigit() or can["ffmpegVersion"].startswith(("n", "N"))
            assert (await connection.assign(JOB))["type"] == "accept"
            args: dict[str, Any] = {"url": f"{store}/in?signature=canary", "path": "in.mp4", "maxBytes": 10_000_000}
            staged = await connection.op(JOB, "stage", args)
            assert staged["result"] == {"bytes": len(film), "sha256": hashlib.sha256(film).hexdigest()}
            probe = ["-v", "error", "-show_entries", "format=duration", "-of", "csv=p=0", "in.mp4"]
            probed = await connection.op(JOB, "ffprobe", {"argv": probe, "timeoutSec": 60})
            assert probed["result"]["stdout"].strip() == "2.000000"
            cut = ["-i", "in.mp4", "-t", "1", "-c", "copy", "out.mp4"]
            made = await connection.op(JOB, "ffmpeg", {"argv": cut, "timeoutSec": 60})
            assert made["result"]["exitCode"] == 0, made
            evil = await connection.op(JOB, "ffmpeg", {"argv": ["-i", "/etc/passwd", "x.mp4"], "timeoutSec": 60})
            assert evil["error"]["code"] == "argv_not_allowed"
            args = {"path": "out.mp4", "putUrl": f"{store}/out?signature=canary", "maxBytes": 10_000_000}
            published = await connection.op(JOB, "publish", args | {"contentType": "video/mp4"})
            assert published["result"]["sha256"] == hashlib.sha256(gateway.objects["out"]).hexdigest()
            program.signal(signal.SIGTERM)
            await connection.expect("drain")
            await connection.expect("bye")
            assert await asyncio.to_thread(program.status) == 0
            said = program.out + program.err + (folder / "state" / "log" / "runner.log").read_text()
        assert not list((folder / "state" / "scratch").iterdir())
        assert "FIXTURE.job.token" not in said
        assert "canary" not in said
        nothing_runs(folder)


async def test_what_a_killed_runner_left_is_removed_by_the_next_which_resumes_nothing(folder: Path) -> None:
    """S82 with real processes, and the pool's way to connect."""
    async with stand_in() as gateway:
        await paired(folder, gateway)
        scratch = folder / "state" / "scratch"
        with running([*ROTA, "runner", "run"], folder=folder, environ=environ(folder, gateway), name="a") as first:
            connection = await welcomed(gateway)
            await connection.assign(JOB)
            await connection.op(JOB, "stat", {"path": "a"})
            (dead,) = scratch.iterdir()
            first.signal(signal.SIGKILL)
            await connection.ended()
        assert dead.is_dir()
        more = {"ROTA_RUNNER_CREDENTIAL": "rpool_canary"}
        pool = [*ROTA, "runner", "run", "--pool"]
        with running(pool, folder=folder, environ=environ(folder, gateway, **more), name="b") as live:
            connection = await welcomed(gateway)
            assert connection.hello["payload"]["auth"]["workerName"] == "mac-7"
            assert "running" not in connection.hello["payload"]
            (alive,) = scratch.iterdir()
            assert alive != dead
            live.signal(signal.SIGTERM)
            assert await asyncio.to_thread(live.status) == 0
            assert "rpool_canary" not in live.out + live.err
        assert not list(scratch.iterdir())


async def test_a_second_runner_with_the_same_key_does_not_begin(folder: Path) -> None:
    """Each would end the other's connections and sessions for ever."""
    async with stand_in() as gateway:
        await paired(folder, gateway)
        with running([*ROTA, "runner", "run"], folder=folder, environ=environ(folder, gateway)) as program:
            connection = await welcomed(gateway)
            refused = error_of(await rota(folder, gateway, "runner", "run"))
            assert "used by another runner" in refused and "ROTA_RUNNER_SLOTS" in refused
            program.signal(signal.SIGKILL)
            await connection.ended()
            await asyncio.to_thread(program.status)
        with running([*ROTA, "runner", "run"], folder=folder, environ=environ(folder, gateway)) as program:
            await welcomed(gateway)
            program.signal(signal.SIGTERM)
            assert await asyncio.to_thread(program.status) == 0
        nothing_runs(folder)


async def test_a_disk_that_is_full_at_the_start_is_told_and_waited_for(folder: Path) -> None:
    """It takes no more names, so not even the folder of sessions can be made."""
    more = {"ROTA_RUNNER_SCRATCH": str(folder / "disk")}
    with small_disk(folder / "disk", "nr_inodes=1"):
        async with stand_in() as gateway:
            await paired(folder, gateway)
            with running([*ROTA, "runner", "run"], folder=folder, environ=environ(folder, gateway, **more)) as program:
                connection = await welcomed(gateway)
                assert connection.hello["payload"]["capabilities"]["jobTypes"] == []
                program.signal(signal.SIGTERM)
                assert await asyncio.to_thread(program.status) == 0
                assert program.err.count("cannot be used: No space left") == 1, "what is urgent is told, and once"


async def test_what_happens_is_told_once(folder: Path) -> None:
    async with stand_in() as gateway:
        await paired(folder, gateway)
        with running([*ROTA, "runner", "run"], folder=folder, environ=environ(folder, gateway)) as program:
            connection = await welcomed(gateway)
            await connection.send("bye", {"reason": "moving house"})
            await connection.socket.close()
            await welcomed(gateway)
            program.signal(signal.SIGTERM)
            assert await asyncio.to_thread(program.status) == 0
            assert program.err.count("moving house") == 1


async def test_the_first_ctrl_c_lets_a_session_end(folder: Path) -> None:
    async with stand_in() as gateway:
        await paired(folder, gateway)
        with running([*ROTA, "runner", "run"], folder=folder, environ=environ(folder, gateway)) as program:
            connection = await welcomed(gateway)
            await connection.assign(JOB)
            program.signal(signal.SIGINT)
            await connection.expect("drain")
            assert (await connection.op(JOB, "stat", {"path": "a"}))["ok"]
            assert (await connection.op(JOB, "close", {}))["ok"]
            await connection.expect("bye")
            assert await asyncio.to_thread(program.status) == 0
            assert "session begins" in program.err
            assert running_of_runners.PATIENT in program.err
            assert running_of_runners.AT_ONCE not in program.err


async def test_a_terminal_that_closes_says_goodbye_and_a_hangup_after_ctrl_c_is_nothing(folder: Path) -> None:
    async with stand_in() as gateway:
        await paired(folder, gateway)
        with running([*ROTA, "runner", "run"], folder=folder, environ=environ(folder, gateway)) as program:
            connection = await welcomed(gateway)
            await connection.assign(JOB)
            program.signal(signal.SIGINT)
            await connection.expect("drain")
            program.signal(signal.SIGHUP)
            assert (await connection.op(JOB, "stat", {"path": "a"}))["ok"]
            assert (await connection.op(JOB, "close", {}))["ok"]
            await connection.expect("bye")
            assert await asyncio.to_thread(program.status) == 0
        with running([*ROTA, "runner", "run"], folder=folder, environ=environ(folder, gateway), name="b") as program:
            connection = await welcomed(gateway)
            await connection.assign(JOB)
            program.signal(signal.SIGHUP)
            await connection.expect("drain")
            await connection.expect("bye")
            assert await asyncio.to_thread(program.status) == 0
