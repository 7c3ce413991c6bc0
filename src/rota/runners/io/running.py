"""Puts a runner together from settings: who it is, what it can do, where its folders are; then runs it.

Spec: runners, "Overview and scope".
"""

import asyncio
import errno
import platform
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final, TypeVar

from rota.errors import SettingsError
from rota.io.memory import memory_bytes
from rota.io.scratch import Scratch
from rota.runners.agent import Agent
from rota.runners.agent_events import Tell
from rota.runners.dial import Gateway, is_here, parse_gateway
from rota.runners.io import proof
from rota.runners.io.agent_client import Runner, Shown
from rota.runners.io.disk import MIB, Room
from rota.runners.io.identity import Identity, read_identity
from rota.runners.io.media import MediaLimits, MediaSession
from rota.runners.io.probing import Ability
from rota.runners.io.ringlog import RingLog
from rota.runners.io.tool_run import MEMORY_SHARE, ToolRunner
from rota.runners.io.transfers import Transfers, TransferSettings
from rota.runners.io.trust import trusted
from rota.runners.messages import Assign
from rota.settings import Settings, path_of

Made = TypeVar("Made")

STATE: Final = "~/.rota/runner"
SESSIONS: Final = "runner-"
"""How the names of runners' folders of sessions begin."""

PATIENT: Final = "No new jobs are taken. What runs goes on until it is closed; Ctrl-C again ends it at once."
AT_ONCE: Final = "No new jobs are taken, and what runs ends at once."


@dataclass(frozen=True, slots=True)
class Who:
    """What a runner is at its gateway.

    Attributes:
        gateway: where it dials.
        prove: makes the proof of a hello.
        name: for people.
        pooled: a worker of the pool, and no paired device.
    """

    gateway: Gateway
    prove: proof.Prove
    name: str
    pooled: bool


def state_folder(settings: Settings) -> Path:
    """Where a runner keeps its key and its logs.

    Raises: SettingsError if nothing is set, and its user has no home folder.
    """
    return path_of(settings.runner_state or STATE)


def scratch_folder(settings: Settings) -> Path:
    """Where the folders of its sessions are; raises as `state_folder`."""
    named = settings.runner_scratch
    return path_of(named) if named else state_folder(settings) / "scratch"


def gateway_of(settings: Settings, kept: str | None = None) -> Gateway:
    """The gateway that the settings name; else the one of the pairing.

    Raises: SettingsError if there is none, or its address is no good.
    """
    named = settings.runner_gateway or kept
    if not named:
        raise SettingsError(
            "No gateway is set. Set ROTA_RUNNER_GATEWAY=wss://host, or put runner_gateway into rota.toml."
        )
    return parse_gateway(named, plain_allowed=settings.runner_tls == "development")


def name_of(settings: Settings) -> str:
    """What people call this runner."""
    return settings.runner_name or platform.node() or "runner"


def who(settings: Settings, *, pool: bool) -> Who:
    """What this runner is: a worker of the pool, or the device that was paired here.

    Raises: SettingsError that says what is missing.
    """
    if pool:
        if not settings.runner_credential:
            raise SettingsError("The pool's secret is missing. Set ROTA_RUNNER_CREDENTIAL.")
        name = name_of(settings)
        return Who(gateway_of(settings), proof.of_pool(settings.runner_credential, name), f"{name}, of the pool", True)
    identity = read_identity(state_folder(settings))
    if identity is None:
        raise SettingsError(
            "This machine is not paired. Get a code from your organisation and run `rota runner pair CODE`, "
            "or `rota runner run --pool` for a worker of the pool."
        )
    gateway = gateway_of(settings, identity.gateway)
    return Who(
        gateway,
        proof.of_device(_kept(state_folder(settings), identity), gateway),
        f"{identity.name}, of {identity.org_id}",
        False,
    )


def _kept(folder: Path, first: Identity) -> Callable[[], Identity]:
    """The pairing as it is kept now; as it was at the start, should it not be readable just now."""

    def read() -> Identity:
        try:
            return read_identity(folder) or first
        except SettingsError:
            return first

    return read


async def run_runner(settings: Settings, *, is_who: Who, ability: Ability, shown: Shown) -> int:
    """Runs a runner until it was drained by a signal, or its gateway refuses it for good.

    SIGTERM, and a second Ctrl-C, let no session go on; the first Ctrl-C lets those that run end. SIGHUP, of a terminal
    that closes, is like SIGTERM where it is the first of all, and nothing where it is not, or was ignored from the
    start (nohup).

    Returns: the exit status.
    """
    ring = await _usable(lambda: RingLog(state_folder(settings) / "log"), "runner_state", state_folder(settings))
    tls = trusted(settings.runner_ca)
    develops, gateway = settings.runner_tls == "development", is_who.gateway.host
    transfers = Transfers(TransferSettings(tls=tls, plain=develops, near=develops or is_here(gateway), gateway=gateway))
    tools = None
    if ability.tools and ability.isolation:
        tools = ToolRunner(ability.tools, ability.isolation, memory_bytes_max=_memory_bytes_of_one(settings))

    def make_media(files: Path, assign: Assign) -> MediaSession:
        assert tools is not None, "a runner without ffmpeg is given no jobs"
        bounds = MediaLimits(
            output_bytes_max=min(assign.limits.max_output_bytes, settings.runner_output_mib * MIB),
            session_bytes_max=settings.runner_quota_mib * MIB,
        )
        return MediaSession(files, tools, bounds, transfers)

    scratch = Scratch(scratch_folder(settings), prefix=SESSIONS, left=lambda path: ring.write("folder left", path=path))
    await _usable(lambda: _open(scratch), "runner_scratch", scratch_folder(settings))
    runner = Runner(
        agent=Agent(ability.capabilities, Random()),  # noqa: S311 - jitter, and ids for logs
        gateway=is_who.gateway,
        tls=tls,
        prove=is_who.prove,
        capabilities=ability.capabilities,
        scratch=scratch,
        make_media=make_media,
        room=Room(settings.runner_floor_mib * MIB, settings.runner_quota_mib * MIB),
        ring=ring,
        shown=shown,
    )
    _on_signals(runner.drain, shown)
    try:
        return await runner.run()
    finally:
        await transfers.close()
        if tools is not None:
            await tools.close()
        ring.close()


async def _usable(make: Callable[[], Made], setting: str, folder: Path) -> Made:
    try:
        return await asyncio.to_thread(make)
    except OSError as error:
        raise SettingsError(f"{setting}: {folder} cannot be used: {error.strerror}. Name another folder.") from None


def _open(scratch: Scratch) -> None:
    try:
        scratch.open()
    except OSError as error:
        # A disk that is full may have room again: the runner says so, and waits.
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


def _memory_bytes_of_one(settings: Settings) -> int:
    if settings.runner_memory_mib is not None:
        return settings.runner_memory_mib * MIB
    return int(memory_bytes() * MEMORY_SHARE) // settings.runner_slots


def _on_signals(drain: Callable[..., None], shown: Shown) -> None:
    asked: list[int] = []

    def stop(number: int) -> None:
        if number == signal.SIGHUP and asked:
            return
        patient = number == signal.SIGINT and not asked
        asked.append(number)
        shown.saw(Tell("draining", PATIENT if patient else AT_ONCE))
        drain("stopped here", deadline_s=None if patient else 0.0)

    loop = asyncio.get_running_loop()
    hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    for number in (signal.SIGTERM, signal.SIGINT, *hangup):
        loop.add_signal_handler(number, stop, number)
