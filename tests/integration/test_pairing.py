"""Pairing that is cut off on its way: a code and a key that have met are a device, whoever heard of it."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rota.errors import RunnerError
from rota.runners.dial import parse_gateway
from rota.runners.io.identity import BEGUN_NAME, FILE_NAME, read_identity
from rota.runners.io.pairing import pair
from rota.runners.io.replica import Replica
from rota.runners.io.trust import trusted
from tests.integration.gateways import ACME, WAIT_S, Device, connected, gateway
from tests.integration.programs import ROTA, nothing_runs, running


@pytest.fixture
async def replica(migrated_dsn: str) -> AsyncIterator[Replica]:
    async with gateway(migrated_dsn) as started:
        yield started


@contextlib.asynccontextmanager
async def deaf_line(port: int, *, cuts: bool) -> AsyncIterator[tuple[int, asyncio.Event]]:
    """A line on which the gateway is told and not heard: its answer is cut off, or never comes.

    Yields: its port, and the event that the gateway has answered."""
    answered = asyncio.Event()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.closing(back), contextlib.closing(writer):
            back.write(await reader.read(65_536))
            await there.read(65_536)
            answered.set()
            if not cuts:
                await reader.read()  # until the other side has gone

    server = await asyncio.start_server(carry, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], answered


async def test_a_pairing_whose_answer_was_lost_is_completed_with_the_same_code(
    replica: Replica, tmp_path: Path
) -> None:
    devices, port = replica.exchange.devices, replica.server.serving.port
    code = str(await devices.new_code(ACME, "d"))
    async with deaf_line(port, cuts=True) as (line, _):
        with pytest.raises(RunnerError, match="was not reached"):
            await pair(
                parse_gateway(f"ws://127.0.0.1:{line}"), code, tmp_path, name="n", os="linux", arch="amd64",
                tls=trusted(None),
            )  # fmt: skip
    (registered,) = await devices.devices(ACME)
    assert (tmp_path / BEGUN_NAME).stat().st_mode & 0o777 == 0o600 and code not in (tmp_path / BEGUN_NAME).read_text()
    made = await pair(
        parse_gateway(f"ws://127.0.0.1:{port}"), code.lower(), tmp_path, name="n", os="linux", arch="amd64",
        tls=trusted(None),
    )  # fmt: skip
    assert made.device_id == registered.device_id and await devices.devices(ACME) == [registered]
    assert read_identity(tmp_path) == made and not (tmp_path / BEGUN_NAME).exists()
    async with connected(replica, Device(made.device_id, made.key).auth()):
        pass


async def test_a_pairing_that_is_terminated_is_completed_by_the_next(replica: Replica, tmp_path: Path) -> None:
    devices, port = replica.exchange.devices, replica.server.serving.port
    code, state = str(await devices.new_code(ACME, "d")), tmp_path / "state"
    environ = {"ROTA_RUNNER_STATE": str(state), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    async with deaf_line(port, cuts=False) as (line, answered):
        words = [*ROTA, "runner", "pair", code, "--gateway", f"ws://127.0.0.1:{line}"]
        with running(words, folder=tmp_path, environ=environ) as program:
            async with asyncio.timeout(WAIT_S):
                await answered.wait()
            program.signal(signal.SIGTERM)
            assert await asyncio.to_thread(program.status) != 0
            assert not (state / FILE_NAME).exists()
    words[-1] = f"ws://127.0.0.1:{port}"
    with running(words, folder=tmp_path, environ=environ) as program:
        assert await asyncio.to_thread(program.status) == 0, program.err
        (registered,) = await devices.devices(ACME)
        assert registered.device_id in program.out
    nothing_runs(tmp_path)
