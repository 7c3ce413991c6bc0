"""A real exec server inside the test: the broker, the network and real commands, from the text of an exec.toml."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette

from rota.slots.broker import Broker
from rota.slots.config import read_exec_config
from rota.slots.io.commands import Commands
from rota.slots.io.figures import Figures
from rota.slots.io.legacy import Legacy
from rota.slots.io.server import ExecServer, Listen
from rota.slots.load import Load
from rota.slots.rules import Rules

SERVICES = """
[waitgroups.all]
processes = 2
[services.cat]
command = ["cat"]
waitgroup = "all"
[services.say]
command = ["printf", "%s", "{text}"]
args = { text = "text" }
waitgroup = "all"
[services.fail]
command = ["sh", "-c", "printf '{{'; echo 'no such codec' >&2; exit 3"]
waitgroup = "all"
[services.break]
command = ["sh", "-c", "head -c 100000 /dev/zero; sleep 0.2; exit 4"]
waitgroup = "all"
[services.hang]
command = ["sleep", "600"]
waitgroup = "all"
"""


class OldExecServer(ExecServer):
    """One of the time before the broker: it has the two older routes alone."""

    def _app(self, figures: Figures) -> Starlette:
        assert self._routes is not None
        return Starlette(routes=list(self._routes(self)))


@asynccontextmanager
async def real_exec_server(
    text: str = SERVICES,
    *,
    old: bool = False,
    port: int = 0,
    name: str = "real",
    token: str | None = None,
    tls: tuple[str, str] | tuple[None, None] = (None, None),
    **rules: Any,
) -> AsyncIterator[ExecServer]:
    """It listens on loopback."""
    config = read_exec_config(text)
    told = Rules(
        name,
        {service.name: service.waitgroup for service in config.services.values()},
        {group.name: group.processes for group in config.waitgroups.values()},
        **rules,
    )
    legacy = Legacy()
    kind = OldExecServer if old else ExecServer
    server = kind(
        Broker(told, Load(learns=False)), Listen(port=port, token=token, tls_cert=tls[0], tls_key=tls[1]),
        lambda ended, moved: Commands(config.services, ended=ended, moved=moved), routes=legacy.routes,
    )  # fmt: skip
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
        await legacy.stop()


def slots_in_use(server: ExecServer) -> int:
    """Slots that are offered or taken."""
    return server.broker.in_use


def running(server: ExecServer) -> int:
    """Commands that have begun; an offer is no command yet."""
    return sum(call.state == "running" for group in server.broker.groups.values() for call in server.broker.busy(group))
