"""Handlers that cut real media on runners: gateway, pool runner and desktop runner as programs of their own, a folder
of objects that the gateway serves, and the queue's worker in the test."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

import rota
from rota.demo.runner_handlers import Cut, make_app
from rota.io.ffmpeg import Tools, find_tools
from rota.objects.io.from_settings import folder_of
from rota.queue.job import State
from tests.integration.programs import nothing_runs
from tests.integration.runner_fabric import ORG, Fabric, fabric_of

WAIT_S = 60.0
"""Generous: only a failing test waits that long."""


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tools, Path]:
    """Eight seconds of a moving picture, with sound."""
    tools = find_tools()
    path = tmp_path_factory.mktemp("film") / "film.mp4"
    subprocess.run(
        [tools.ffmpeg, "-v", "error", "-f", "lavfi", "-i", "testsrc2=size=320x180:rate=25", "-f", "lavfi", "-i",
         "sine=frequency=440", "-t", "8", "-c:v", "mpeg4", "-c:a", "aac", path],
        check=True,
    )  # fmt: skip
    return tools, path


@asynccontextmanager
async def working(fabric: Fabric, film: Path) -> AsyncIterator[rota.App]:
    """The demo's program with a worker, and the film in the store."""
    store = folder_of(fabric.settings)
    await store.write("uploads/film.mp4", film.read_bytes(), content_type="video/mp4")
    async with make_app(fabric.settings) as app:
        worker = app.worker()
        task = asyncio.create_task(worker.run())
        try:
            yield app
        finally:
            worker.stop(now=True)
            await task


async def test_the_pool_and_a_desktop_cut_films_that_are_verified_and_promoted(
    migrated_dsn: str, tmp_path: Path, film: tuple[Tools, Path]
) -> None:
    tools, source = film
    folder = tmp_path / "fabric"
    with fabric_of(migrated_dsn, folder) as fabric:
        fabric.pool_runner()
        fabric.desktop()
        async with working(fabric, source) as app:
            pool = await app.enqueue("cut", Cut("uploads/film.mp4", "films/pool.mp4"), tenant=ORG)
            desktop = await app.enqueue("cut", Cut("uploads/film.mp4", "films/desk.mp4", "OrgRunner"), tenant=ORG)
            for job, key in ((pool, "films/pool.mp4"), (desktop, "films/desk.mp4")):
                result = await app.result(job, timeout_s=WAIT_S)
                assert result["key"] == key
                assert result["source_s"] == 8.0
            store = folder_of(fabric.settings)
            keys = [key async for key in store.keys("")]
            assert keys == ["films/desk.mp4", "films/pool.mp4", "uploads/film.mp4"]
            out = tmp_path / "pool.mp4"
            out.write_bytes(b"".join([chunk async for chunk in store.read("films/pool.mp4")]))
            length_s = subprocess.run(
                [tools.ffprobe, "-v", "error", "-show_entries", "format=duration", "-of", "csv=p=0", out],
                check=True, capture_output=True, text=True,
            ).stdout  # fmt: skip
            assert 3.9 < float(length_s) < 4.3
            # Nothing is left of the sessions: their jobs have ended, well.
            database = await app.database()
            rows = await database.fetch(
                "SELECT place, state, kind, tenant FROM rota.ended_jobs WHERE place <> 'worker'"
            )
            assert sorted((row["place"], row["state"], row["kind"], row["tenant"]) for row in rows) == [
                ("CloudPool", "done", "video.compile", ORG), ("OrgRunner", "done", "video.compile", ORG),
            ]  # fmt: skip
    nothing_runs(folder)


async def test_a_job_that_is_cancelled_takes_its_session_and_its_ffmpeg_with_it(
    migrated_dsn: str, tmp_path: Path, film: tuple[Tools, Path]
) -> None:
    folder = tmp_path / "fabric"
    with fabric_of(migrated_dsn, folder) as fabric:
        runner = fabric.pool_runner()
        async with working(fabric, film[1]) as app:
            job = await app.enqueue("cut", Cut("uploads/film.mp4", "films/out.mp4", slowly=True), tenant=ORG)
            await _until(lambda: _ffmpegs_of(runner.pid))
            assert await app.cancel(job.id) is State.LEASED
            with pytest.raises(rota.JobCancelled):
                await app.result(job, timeout_s=WAIT_S)
            await _until(lambda: not _ffmpegs_of(runner.pid))
            database = await app.database()

            async def ended() -> list[str]:
                rows = await database.fetch("SELECT state FROM rota.ended_jobs WHERE place <> 'worker'")
                return [row["state"] for row in rows]

            async with asyncio.timeout(WAIT_S):
                while not (states := await ended()):
                    await asyncio.sleep(0.05)
            assert states == ["cancelled"]
            assert [key async for key in folder_of(fabric.settings).keys("")] == ["uploads/film.mp4"]
    nothing_runs(folder)


async def test_a_device_that_is_revoked_loses_its_session_and_the_job_is_tried_again_elsewhere(
    migrated_dsn: str, tmp_path: Path, film: tuple[Tools, Path]
) -> None:
    folder = tmp_path / "fabric"
    with fabric_of(migrated_dsn, folder) as fabric:
        first = fabric.desktop("desk-1")
        async with working(fabric, film[1]) as app:
            job = await app.enqueue(
                "cut", Cut("uploads/film.mp4", "films/out.mp4", "OrgRunner", slowly=True), tenant=ORG
            )
            await _until(lambda: _ffmpegs_of(first.pid))
            (device,) = await asyncio.to_thread(_devices, fabric)
            await asyncio.to_thread(fabric.said, "runner", "revoke", device)
            await asyncio.to_thread(fabric.desktop, "desk-2")
            assert (await app.result(job, timeout_s=WAIT_S))["key"] == "films/out.mp4"
            (row,) = await (await app.store()).show(job.id)
            assert row.tries == 2
    nothing_runs(folder)


def _devices(fabric: Fabric) -> list[str]:
    return [line.split()[0] for line in fabric.said("runner", "list", "--org", ORG).splitlines() if "paired" in line]


def _ffmpegs_of(pid: int) -> list[int]:
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if "-progress" in process.cmdline():
                found.append(process.pid)
        except psutil.NoSuchProcess:
            continue
    return found


async def _until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.02)
