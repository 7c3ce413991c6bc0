"""S66 with real programs: no secret is told anywhere, however loud everything is and however a session ends."""

import asyncio
import json
import re
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import asyncpg
import pytest

import rota
from rota.objects.io.from_settings import folder_of
from rota.runners.io.devices import Devices
from tests.integration import loud_program
from tests.integration.programs import Program, nothing_runs, run, running
from tests.integration.runner_fabric import ORG, TOKEN, Fabric

LOUD = (sys.executable, "-P", loud_program.__file__)
TURNED_UP = {
    "ROTA_LOG_LEVEL": "debug", "PYTHONASYNCIODEBUG": "1", "PYTHONPATH": ":".join(sys.path),
    "WEBSOCKETS_MAX_LOG_SIZE": "100000",
}  # fmt: skip
KEY = "gateway-key-canary-that-is-long-enough"
WAYS = ("good", "refused", "silent", "tls", "break", "crash")
JWT = re.compile(r"eyJ[\w-]{8,}\.[\w-]*")
SIGNATURE = re.compile(r"(?<![\w-])[\w-]{86}(?![\w-])")
"""An Ed25519 signature as a hello has it."""


class Loud:
    """The programs of one fabric."""

    def __init__(self, dsn: str, folder: Path, port: int, silent_port: int, stack: ExitStack) -> None:
        self.fabric = Fabric(dsn, folder, port, stack)
        self.folder = folder
        self._stack = stack
        self.programs: list[Program] = []
        settings = self.fabric.settings
        self.environ = TURNED_UP | {
            "ROTA_DSN": dsn, "ROTA_GATEWAY_TOKEN": TOKEN, "ROTA_GATEWAY_KEY": KEY,
            "ROTA_GATEWAY_URL": str(settings.gateway_url), "ROTA_OBJECTS": str(settings.objects),
            "ROTA_OBJECTS_URL": str(settings.objects_url), "SILENT_PORT": str(silent_port),
            "SIGNATURES": str(folder / "signatures"),
        }  # fmt: skip

    def start(self, name: str, *words: str, environ: dict[str, str]) -> Program:
        program = self._stack.enter_context(running([*LOUD, *words], folder=self.folder, environ=environ, name=name))
        self.programs.append(program)
        return program

    def runner(self, name: str, *words: str, **more: str) -> dict[str, str]:
        told = {
            "ROTA_RUNNER_GATEWAY": f"ws://127.0.0.1:{self.fabric.port}", "ROTA_RUNNER_NAME": name,
            "ROTA_RUNNER_STATE": str(self.folder / name), "ROTA_RUNNER_FLOOR_MIB": "1",
        }  # fmt: skip
        return TURNED_UP | told | more

    def said(self) -> dict[str, str]:
        """All that was printed or written down."""
        said = {program.output.name: program.out for program in self.programs}
        said |= {program.errors.name: program.err for program in self.programs}
        for path in self.folder.glob("*/log/*"):
            said[f"{path.parts[-3]} {path.name}"] = path.read_text()
        return said


@contextmanager
def loud_fabric(dsn: str, folder: Path) -> Iterator[Loud]:
    folder.mkdir()
    with ExitStack() as stack, socket.create_server(("127.0.0.1", 0)) as silent:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        loud = Loud(dsn, folder, port, silent.getsockname()[1], stack)
        loud.start("gateway", "cli", "gateway", "--port", str(port), environ=loud.environ).says("gateway at")
        yield loud
    nothing_runs(folder)


async def test_S66_no_secret_is_told_anywhere(migrated_dsn: str, tmp_path: Path) -> None:
    with loud_fabric(migrated_dsn, tmp_path / "fabric") as loud:
        await folder_of(loud.fabric.settings).write("in.txt", b"x" * 1000)
        async with rota.App(settings=loud.fabric.settings) as app:
            devices = Devices(await app.database())
            code = str(await devices.new_code(ORG, "desk-1"))
            credential = str(await devices.new_credential())
            paired = await asyncio.to_thread(
                run, [*LOUD, "cli", "runner", "pair", code], folder=loud.folder, environ=loud.runner("desk-1")
            )
            assert paired.status == 0, paired
            identity = json.loads((loud.folder / "desk-1" / "device.json").read_text())
            desk = loud.start("desk", "cli", "runner", "run", environ=loud.runner("desk-1"))
            pool = loud.start(
                "pool", "cli", "runner", "run", "--pool",
                environ=loud.runner("pool-1", ROTA_RUNNER_CREDENTIAL=credential),
            )  # fmt: skip
            engine = loud.start("engine", "engine", environ=loud.environ)
            told: dict[str, str] = {}
            for way, target in [*((way, "CloudPool") for way in WAYS), ("good", "OrgRunner")]:
                job = await app.enqueue("work", {"way": way, "target": target}, tenant=ORG)
                if way == "good":
                    assert (await app.result(job, timeout_s=120)).endswith(".txt"), target
                    continue
                with pytest.raises(rota.JobFailed) as failed:
                    await app.result(job, timeout_s=120)
                told[way] = str(failed.value)
            assert "403" in told["refused"] and "timeout" in told["silent"] + "timeout", told
            for program in (desk, pool, engine, *loud.programs[:1]):
                program.signal(signal.SIGUSR2)
                program.says("most recent call first")
            engine.signal(signal.SIGTERM)
            assert await asyncio.to_thread(engine.status) == 0
            for program in (desk, pool, loud.programs[0]):
                # A crash dump, and the end.
                program.signal(signal.SIGABRT)
                assert await asyncio.to_thread(program.status) == -signal.SIGABRT
        rows = await rows_of(migrated_dsn)
    said = loud.said() | {"pair": paired.out + paired.err, "database": rows, "results": repr(told)}
    everything = "\n".join(said.values())
    # It would not be worth much if nothing had been said.
    for logger in ("asyncio", "rota.runner", "Fatal Python error", "op ended", "RuntimeError: cannot get"):
        assert logger in everything, logger
    secrets = {
        "a URL's query": loud_program.CANARY, "the gateway's token": TOKEN, "its key": KEY, "the pool's": credential,
        "the code": code, "the code without its dashes": code.replace("-", ""),
        "the device's key": next(value for name, value in identity.items() if "key" in name.lower()),
    }  # fmt: skip
    signatures = (tmp_path / "fabric" / "signatures").read_text().split()
    assert len(set(signatures)) > 4
    secrets |= {f"a URL's signature {number}": signature for number, signature in enumerate(signatures)}
    found = [(name, place) for name, secret in secrets.items() for place, text in said.items() if secret in text]
    found += [("a job token", place) for place, text in said.items() if JWT.search(text)]
    found += [("a signature", place) for place, text in said.items() if SIGNATURE.search(text)]
    assert found == []


async def rows_of(dsn: str) -> str:
    """All rows of all tables, as text."""
    connection = await asyncpg.connect(dsn)
    try:
        tables = await connection.fetch(
            "SELECT c.oid::regclass::text AS name FROM pg_class c WHERE c.relkind IN ('r', 'p') "
            "AND c.relnamespace = 'rota'::regnamespace"
        )
        rows = [
            row["line"]
            for table in tables
            for row in await connection.fetch(f"SELECT t::text AS line FROM {table['name']} t")
        ]
    finally:
        await connection.close()
    assert len(rows) > 20
    return "\n".join(rows)
