"""Handlers that cut real media on runners: gateway, pool runner and desktop runner as programs of their own, a folder
of objects that the gateway serves, and the queue's worker in the test."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

import rota
from rota.demo.runner_handlers import Cut, make_app
from rota.io.ffmpeg import Tools, find_tools
from rota.objects.io.from_settings import folder_of
from rota.queue.job import State
from rota.runners.io.devices import Devices
from rota.sessions import Target
from tests.integration.programs import nothing_runs
from tests.integration.runner_fabric import ORG, Fabric, fabric_of
from tests.pages import ROOT, blocks_of

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


class Site:
    """A program with a worker, the fabric that it uses, and the film in the store."""

    def __init__(self, fabric: Fabric, app: rota.App, devices: Devices) -> None:
        self.fabric, self.app, self.devices = fabric, app, devices
        self.store = folder_of(fabric.settings)

    async def keys(self) -> list[str]:
        return [key async for key in self.store.keys("")]

    async def runner_jobs(self) -> list[tuple[str, str, str, str]]:
        """Those that have ended: where, how, of which type and whose."""
        rows = await (await self.app.database()).fetch(
            "SELECT place, state, kind, tenant FROM rota.ended_jobs WHERE place <> 'worker' ORDER BY place"
        )
        return [(row["place"], row["state"], row["kind"], row["tenant"]) for row in rows]


@asynccontextmanager
async def site_of(dsn: str, folder: Path, film: Path) -> AsyncIterator[Site]:
    with fabric_of(dsn, folder) as fabric:
        await folder_of(fabric.settings).write("uploads/film.mp4", film.read_bytes(), content_type="video/mp4")
        async with make_app(fabric.settings) as app:
            app.job("cut_of_the_guide", lease_s=60)(_cut_of_the_guide())
            app.job("long", max_tries=3, lease_s=60, retry=rota.Fixed(0.1))(long)
            worker = app.worker()
            task = asyncio.create_task(worker.run())
            try:
                yield Site(fabric, app, Devices(await app.database()))
            finally:
                worker.stop(now=True)
                await task
    nothing_runs(folder)


def _cut_of_the_guide() -> Callable[..., Any]:
    """The handler that the guide shows."""
    (program,) = [block.text for block in blocks_of(ROOT / "docs/guide/runners.md") if block.program is not None]
    names: dict[str, Any] = {}
    exec(program, names)
    return names["cut"]  # type: ignore[no-any-return]


async def long(ctx: rota.Context, target: Target) -> str:
    """A cut that takes minutes in its first try, and no time in its second."""
    async with ctx.session("video.compile", target=target) as session:
        await session.stage("in.mp4", source="uploads/film.mp4")
        pace = ["-re", "-stream_loop", "100"] if ctx.job.tries == 1 else []
        await session.ffmpeg([*pace, "-i", "in.mp4", "-c", "copy", "out.mkv"])
        return (await session.publish("out.mkv", to="films/out.mkv")).key


async def test_the_pool_and_a_desktop_cut_films_that_are_verified_and_promoted(
    migrated_dsn: str, tmp_path: Path, film: tuple[Tools, Path]
) -> None:
    tools, source = film
    async with site_of(migrated_dsn, tmp_path / "fabric", source) as site:
        app = site.app
        await site.fabric.pool_runner(site.devices)
        await site.fabric.desktop(site.devices)
        pool = await app.enqueue("cut", Cut("uploads/film.mp4", "films/pool.mp4"), tenant=ORG)
        desktop = await app.enqueue("cut", Cut("uploads/film.mp4", "films/desk.mp4", "OrgRunner"), tenant=ORG)
        for job, key in ((pool, "films/pool.mp4"), (desktop, "films/desk.mp4")):
            result = await app.result(job, timeout_s=WAIT_S)
            assert result["key"] == key
            assert result["source_s"] == 8.0
        guided = await app.enqueue("cut_of_the_guide", "uploads/film.mp4")
        assert await app.result(guided, timeout_s=WAIT_S) == f"films/{guided.id}.mp4"
        # Nothing is left of the sessions but their outputs, and all jobs have ended well.
        assert await site.keys() == [
            f"films/{guided.id}.mp4", "films/desk.mp4", "films/pool.mp4", "uploads/film.mp4",
        ]  # fmt: skip
        await _until(lambda: _count(site, 3))
        assert sorted(await site.runner_jobs()) == [
            ("CloudPool", "done", "video.compile", ORG), ("CloudPool", "done", "video.compile", "default"),
            ("OrgRunner", "done", "video.compile", ORG),
        ]  # fmt: skip
        out = tmp_path / "pool.mp4"
        out.write_bytes(b"".join([chunk async for chunk in site.store.read("films/pool.mp4")]))
    length_s = subprocess.run(
        [tools.ffprobe, "-v", "error", "-show_entries", "format=duration", "-of", "csv=p=0", out],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert 3.9 < float(length_s) < 4.3


async def test_a_job_that_is_cancelled_takes_its_session_and_its_ffmpeg_with_it(
    migrated_dsn: str, tmp_path: Path, film: tuple[Tools, Path]
) -> None:
    async with site_of(migrated_dsn, tmp_path / "fabric", film[1]) as site:
        runner = await site.fabric.pool_runner(site.devices)
        job = await site.app.enqueue("long", "CloudPool", tenant=ORG)
        await _until(lambda: _ffmpegs_of(runner.pid))
        assert await site.app.cancel(job.id) is State.LEASED
        with pytest.raises(rota.JobCancelled):
            await site.app.result(job, timeout_s=WAIT_S)
        await _until(lambda: not _ffmpegs_of(runner.pid))
        await _until(lambda: _count(site, 1))
        assert [row[1] for row in await site.runner_jobs()] == ["cancelled"]
        assert await site.keys() == ["uploads/film.mp4"]


async def test_a_device_that_is_revoked_loses_its_session_and_the_job_is_tried_again_elsewhere(
    migrated_dsn: str, tmp_path: Path, film: tuple[Tools, Path]
) -> None:
    async with site_of(migrated_dsn, tmp_path / "fabric", film[1]) as site:
        first = await site.fabric.desktop(site.devices, "desk-1")
        job = await site.app.enqueue("long", "OrgRunner", tenant=ORG)
        await _until(lambda: _ffmpegs_of(first.pid))
        (device,) = await site.devices.devices(ORG)
        await site.devices.revoke(device.device_id)
        await site.fabric.desktop(site.devices, "desk-2")
        assert await site.app.result(job, timeout_s=WAIT_S) == "films/out.mkv"
        (row,) = await (await site.app.store()).show(job.id)
        assert row.tries == 2


async def _count(site: Site, count: int) -> bool:
    return len(await site.runner_jobs()) == count


def _ffmpegs_of(pid: int) -> list[int]:
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if "-progress" in process.cmdline():
                found.append(process.pid)
        except psutil.NoSuchProcess:
            continue
    return found


async def _until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            found = condition()
            if await found if isinstance(found, Awaitable) else found:
                return
            await asyncio.sleep(0.05)
