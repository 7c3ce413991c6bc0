"""`rota execserver` as a whole: the configuration, the rules, the commands and the network put together, with a life.

What was learned of run times is kept in the state folder, once a minute while it changes and at the end. The file is
read at the start and at SIGHUP, and at no other time, so that a half-written one is never taken.
"""

import asyncio
import os
import shutil
import signal
import socket
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from rota.errors import SettingsError
from rota.ids import new_holder
from rota.io import collecting
from rota.io.log import get_logger
from rota.slots.broker import Broker
from rota.slots.config import ExecConfig, ServerSection
from rota.slots.io import legacy
from rota.slots.io.ceilings import data_limit_stands
from rota.slots.io.commands import Commands
from rota.slots.io.server import ExecServer, Listen
from rota.slots.io.state import StateFile
from rota.slots.io.watch import LOOK_S
from rota.slots.load import Load
from rota.slots.rules import Rules

TIMES_FILE: Final = "times.json"
COLLECT_OBJECTS: Final = 2_000
"""Between two collections: a stream leaves a hundred that hold each other, and kilobytes with them."""
AT_ANY_TIME: Final = frozenset(
    {"drain_s", "offer_timeout_s", "fast_reserve", "fair_by", "weights", "weight_max", "floor", "pipe_hosts"}
)
"""What SIGHUP may change of the table `server`; the rest is in use from the start on: sockets, folders, credentials."""
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
    config: ExecConfig,
    *,
    started: Callable[[ExecServer], None],
    on_signals: Callable[[Callable[[], None]], None],
    read_again: Callable[[], ExecConfig] | None = None,
) -> int:
    """Runs an exec server until a signal drains it; a second one ends what still runs.

    Args:
        config: its configuration.
        started: called when it listens.
        on_signals: registers what to call at each signal that ends it.
        read_again: reads the configuration anew at SIGHUP; None: it is read once.

    Returns: the exit status, 0.

    Raises: SettingsError if its address, certificate, token or state folder cannot be used.
    """
    section = config.server
    times = None if section.state is None else StateFile(Path(section.state) / TIMES_FILE)
    load = Load((times.load(dict[str, Any]) if times is not None else None) or {})
    instance_id = new_holder(host=socket.gethostname()[:60], pid=os.getpid())
    broker = Broker(rules_of(config, instance_id), load)
    made: list[Commands] = []

    def commands(ended: Any, moved: Any) -> Commands:
        runner = Commands(
            config.services, ended=ended, moved=moved,
            scratch=None if section.scratch is None else Path(section.scratch),
            state=None if section.state is None else Path(section.state),
            pipe_hosts=_pipe_hosts(config),
        )  # fmt: skip
        runner.open()
        made.append(runner)
        return runner

    listen = Listen(section.host, section.port, section.token, section.tls_cert, section.tls_key)
    older = legacy.Legacy()
    server = ExecServer(broker, listen, commands, routes=older.routes)
    asked, at_once = asyncio.Event(), asyncio.Event()
    stands = config

    def on_signal() -> None:
        (at_once if asked.is_set() else asked).set()

    def on_hangup() -> None:
        nonlocal stands
        assert read_again is not None, "it is asked for"
        try:
            told = read_again()
            check_redeclared(config, told)
        except SettingsError as error:
            log.error("the configuration is not taken; the one before stands", error=str(error))
            return
        stands = told
        _say_programs(told)
        for runner in made:
            runner.redeclare(told.services, pipe_hosts=_pipe_hosts(told))
        server.exchange.redeclare(rules_of(told, instance_id))
        log.info("configuration read again", services=len(told.services), waitgroups=len(told.waitgroups))

    on_signals(on_signal)
    await server.start()
    if read_again is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, on_hangup)
    collecting.settle(COLLECT_OBJECTS)
    saving = None if times is None else asyncio.create_task(_save(load, times))
    started(server)
    await _say_machine(config)
    await asked.wait()
    draining = asyncio.create_task(server.drain(stands.server.drain_s))
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


def without_program(config: ExecConfig) -> dict[str, str]:
    """The services whose program is not on this machine, each with it. It may be installed yet, so it is no mistake."""
    programs = {name: service.program for name, service in config.services.items()}
    return {
        name: program
        for name, program in programs.items()
        # One that is relative would be looked for in the command's own folder, which is empty.
        if ("/" in program and not os.path.isabs(program)) or shutil.which(program) is None
    }


def _say_programs(config: ExecConfig) -> None:
    for service, program in without_program(config).items():
        log.warning("a program is not on this machine", service=service, program=program)


def check_redeclared(before: ExecConfig, told: ExecConfig) -> None:
    """Whether a running exec server can take this configuration.

    Raises: SettingsError that names a setting which only a start can change.
    """
    for setting in fields(ServerSection):
        if setting.name not in AT_ANY_TIME and getattr(before.server, setting.name) != getattr(
            told.server, setting.name
        ):
            name = {"host": "listen", "port": "listen"}.get(setting.name, setting.name)
            raise SettingsError(f"server.{name} is not what it was at the start: only a restart can change it.")


def _pipe_hosts(config: ExecConfig) -> tuple[str, ...]:
    hosts = config.server.pipe_hosts
    # Clients of the older protocol get their streams through this machine itself.
    return (*hosts, legacy.HOST) if hosts else ()


async def _say_machine(config: ExecConfig) -> None:
    """Says which programs are not here, and what holds the memory of commands, where a service has a ceiling for it."""
    _say_programs(config)
    if all(service.limits.memory_bytes_max is None for service in config.services.values()):
        return
    stands = await asyncio.to_thread(data_limit_stands)
    log.info(
        "memory ceilings", together=f"looked at each {LOOK_S:g} s",
        each_process="limited by the system too" if stands else "not limited by this system",
    )  # fmt: skip


async def _save(load: Load, times: StateFile) -> None:
    saved = load.data()
    while True:
        await asyncio.sleep(SAVE_S)
        known = load.data()
        if known != saved:
            times.save(known)
            saved = known
