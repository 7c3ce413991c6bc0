"""Object stores for tests: a folder that is served, an S3-compatible server, bad servers; and a disk that is small."""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from rota.objects.io.folder import FolderStore
from rota.objects.io.folder_server import FolderServer
from rota.objects.io.s3 import S3Settings

START_S_MAX = 60.0


class _Quiet(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def served(app: Starlette) -> AsyncIterator[str]:
    """The address of an app that is served on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = _Quiet(
            uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1)
        )
        serving = asyncio.create_task(server.serve([listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


@contextlib.asynccontextmanager
async def folder_store(
    folder: Path, *, clock: Callable[[], float] = time.time, upload_bytes_max: int = 1 << 30
) -> AsyncIterator[FolderStore]:
    """A folder store whose URLs work."""
    app = Starlette()
    async with served(app) as address:
        store = FolderStore(folder, base_url=f"{address}/objects", clock=clock)
        app.routes.append(Mount("/objects", FolderServer(store, upload_bytes_max=upload_bytes_max).app()))
        yield store


Answer = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def raw_server(answer: Answer) -> AsyncIterator[str]:
    """A server that says whatever a test wants; `answer` is given the request's head."""
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await answer(await reader.readuntil(b"\r\n\r\n"), reader, writer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client went away, or the test is over
        finally:
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()
            tasks.discard(task)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        left = list(tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


@contextlib.contextmanager
def small_disk(folder: Path, options: str = "size=2m") -> Iterator[Path]:
    """A disk of two MiB, or of other `options` of a tmpfs; it takes root."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


class S3Server:
    """SeaweedFS with one bucket, `media`."""

    def __init__(self, folder: Path) -> None:
        program = Path(sys.executable).with_name("weed")
        keys = {"accessKey": "FIXTUREKEY", "secretKey": "fixture-secret"}
        config = folder / "s3.json"
        config.write_text(
            json.dumps(
                {"identities": [{"name": "tests", "credentials": [keys], "actions": ["Admin", "Read", "Write"]}]}
            )
        )
        (folder / "data").mkdir()
        ports = iter(_free_ports(16))
        port = next(ports)
        names = (
            "admin.port", "admin.port.grpc", "filer.port", "filer.port.grpc", "master.port", "master.port.grpc",
            "s3.port.grpc", "s3.port.https", "s3.port.iceberg", "s3.port.lance", "volume.port", "volume.port.grpc",
            "webdav.port",
        )  # fmt: skip
        self.settings = S3Settings(
            endpoint=f"http://127.0.0.1:{port}", bucket="media", access_key_id=keys["accessKey"],
            secret_access_key=keys["secretKey"],
        )  # fmt: skip
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    program, "mini", "-dir", folder / "data", "-ip", "127.0.0.1", "-ip.bind", "127.0.0.1",
                    "-s3.config", config, "-s3.port", str(port), "-webdav=false", "-admin.ui=false", "-s3.iam=false",
                    *(word for name in names for word in (f"-{name}", str(next(ports)))),
                ],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=folder,
            )  # fmt: skip
        self._wait(folder)

    def _wait(self, folder: Path) -> None:
        until = time.monotonic() + START_S_MAX
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.settings.endpoint}/healthz", timeout=5):
                return
            if self._process.poll() is not None or time.monotonic() > until:
                self.stop()
                raise AssertionError(f"the S3 server did not start:\n{(folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Ends it at once: its files are thrown away."""
        self._process.kill()
        self._process.wait()


def _free_ports(count: int) -> list[int]:
    """Ports below those that the system gives to clients: the admin server adds 10,000 to its own."""
    with contextlib.ExitStack() as stack:
        held = []
        while len(held) < count:
            listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            held.append(listening.getsockname()[1])
        return held
