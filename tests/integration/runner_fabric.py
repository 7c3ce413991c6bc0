"""The whole fabric as real programs: a gateway, runners of the pool and of an organisation, and a folder of objects."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rota.runners.io.devices import Devices
from rota.settings import Settings
from tests.integration.programs import ROTA, Program, run, running

TOKEN = "engine-token-of-tests"
ORG = "acme"


@dataclass(slots=True)
class Fabric:
    """What runs, and how to get more of it."""

    dsn: str
    folder: Path
    port: int
    stack: ExitStack
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        """What a program needs to use the fabric."""
        return Settings(
            dsn=self.dsn, gateway_url=f"http://127.0.0.1:{self.port}", gateway_token=TOKEN, gateway_wait_s=60,
            objects=f"folder:{self.folder / 'objects'}", objects_url=f"http://127.0.0.1:{self.port}/objects",
        )  # fmt: skip

    async def pool_runner(self, devices: Devices, name: str = "pool-1") -> Program:
        """Starts a worker of the pool."""
        credential = str(await devices.new_credential())
        return self._runner(name, ("--pool",), {"ROTA_RUNNER_CREDENTIAL": credential})

    async def desktop(self, devices: Devices, name: str = "desk-1") -> Program:
        """Pairs a device, and starts it."""
        code = str(await devices.new_code(ORG, name))
        done = await asyncio.to_thread(
            run, [*ROTA, "runner", "pair", code], folder=self.folder, environ=self._runner_environ(name)
        )
        assert done.status == 0, done.out + done.err
        return self._runner(name, (), {})

    def _runner_environ(self, name: str) -> dict[str, str]:
        return {
            "ROTA_RUNNER_GATEWAY": f"ws://127.0.0.1:{self.port}", "ROTA_RUNNER_NAME": name,
            "ROTA_RUNNER_STATE": str(self.folder / name), "ROTA_RUNNER_FLOOR_MIB": "1",
            "ROTA_RUNNER_TLS": "development",
        }  # fmt: skip

    def _runner(self, name: str, options: tuple[str, ...], more: dict[str, str]) -> Program:
        # A runner has no database.
        environ = self._runner_environ(name) | more
        return self.stack.enter_context(
            running([*ROTA, "runner", "run", *options], folder=self.folder, environ=environ, name=name)
        )


@contextmanager
def fabric_of(dsn: str, folder: Path) -> Iterator[Fabric]:
    """A gateway that serves a folder of objects; runners are started on it."""
    folder.mkdir(exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with ExitStack() as stack:
        fabric = Fabric(dsn, folder, port, stack)
        settings = fabric.settings
        fabric.environ = {
            "ROTA_DSN": dsn, "ROTA_GATEWAY_TOKEN": TOKEN, "ROTA_GATEWAY_KEY": "a key of tests that is long enough",
            "ROTA_OBJECTS": str(settings.objects), "ROTA_OBJECTS_URL": str(settings.objects_url),
        }  # fmt: skip
        gateway = stack.enter_context(
            running([*ROTA, "gateway", "--port", str(port)], folder=folder, environ=fabric.environ, name="gateway")
        )
        gateway.says("gateway at")
        yield fabric
