"""`rota execserver` as a whole: the configuration, the rules, the commands and the network put together, with a life.

What was learned of run times is kept in the state folder, once a minute while it changes and at the end.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rota.ids import new_holder
from rota.io import collecting
from rota.io.log import get_logger
from rota.slots.broker import Broker, Rules
from rota.slots.config import ExecConfig
from rota.slots.io import legacy
from rota.slots.io.commands import Commands
from rota.slots.io.server import ExecServer, Listen
from rota.slots.io.state import StateFile
from rota.slots.load import Load

TIMES_FILE: Final = "times.json"
COLLECT_OBJECTS: Final = 2_000
"""Between two collections: a stream leaves a hundred that hold each other, and kilobytes with them."""
SAVE_S: Final = 60.0
"""Between two savings of what was learned: a crash costs a minute of experience."""

log = get_logger("rota.execserver")


def rules_of(config: ExecConfig, instance_id: str) -> Rules:
    """What the configuration tells the broker."""
    server = config.server
    return Rules(
        instance_id=instance_id,
        services={name: service.waitgroup for name, service in config.services.items()},
        waitgroups={name: group.processes for name, group in config.waitgroups.items()},
        offer_timeout_s=server.offer_timeout_s,
        fair_by=server.fair_by,
        weights=server.weights,
        weight_max=server.weight_max,
        floor=server.floor,
        fast_reserve=server.fast_reserve,
        frame_bytes_max=server.frame_bytes_max,
    )


async def run_exec_server(
    config: ExecConfig, *, started: Callable[[ExecServer], None], on_signals: Callable[[Callable[[], None]], None]
) -> int:
    """Runs an exec server until a signal drains it; a second one ends what still runs.

    Args:
        config: its configuration.
        started: called when it listens.
        on_signals: registers what to call at each signal.

    Returns: the exit status, 0.

    Raises: SettingsError if its address, certificate, token or state folder cannot be used.
    """
    section = config.server
    times = None if section.state is None else StateFile(Path(section.state) / TIMES_FILE)
    load = Load((times.load(dict[str, Any]) if times is not None else None) or {})
    broker = Broker(rules_of(config, new_holder(host=socket.gethostname()[:60], pid=os.getpid())), load)

    def commands(ended: Any, moved: Any) -> Commands:
        made = Commands(
            config.services, ended=ended, moved=moved,
            scratch=None if section.scratch is None else Path(section.scratch),
            state=None if section.state is None else Path(section.state),
            # Clients of the older protocol get their streams through this machine itself.
            pipe_hosts=(*section.pipe_hosts, legacy.HOST) if section.pipe_hosts else (),
        )  # fmt: skip
        made.open()
        return made

    listen = Listen(section.host, section.port, section.token, section.tls_cert, section.tls_key)
    older = legacy.Legacy()
    server = ExecServer(broker, listen, commands, routes=older.routes)
    asked, at_once = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (at_once if asked.is_set() else asked).set()

    on_signals(on_signal)
    await server.start()
    collecting.settle(COLLECT_OBJECTS)
    saving = None if times is None else asyncio.create_task(_save(load, times))
    started(server)
    await asked.wait()
    draining = asyncio.create_task(server.drain(section.drain_s))
    hurry = asyncio.create_task(at_once.wait())
    await asyncio.wait({draining, hurry}, return_when=asyncio.FIRST_COMPLETED)
    hurry.cancel()
    await server.stop()
    await older.stop()
    await draining
    if saving is not None and times is not None:
        saving.cancel()
        times.save(load.data())
    return 0


async def _save(load: Load, times: StateFile) -> None:
    saved = load.data()
    while True:
        await asyncio.sleep(SAVE_S)
        known = load.data()
        if known != saved:
            times.save(known)
            saved = known
