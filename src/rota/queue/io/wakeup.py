"""Wakes a sleeping worker when a job is added elsewhere: one connection that listens, made anew whenever it breaks.

A wake-up is a hint and nothing more: the worker looks once a second anyway, so a lost one costs a second and never a
job.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from rota.errors import RotaError
from rota.io.backoff import Backoff
from rota.io.log import get_logger
from rota.io.postgres import Target, channel, connect

log = get_logger("rota.worker")


class Wakeup:
    """Listens until cancelled.

    Args:
        target: the database.
        heard: told what was said: a kind, or `!` and the holder whose jobs somebody cancels.
        connected: told after each new connection, since anything may have been said before.
        random: for the jitter of waits.
    """

    def __init__(
        self, target: Target, *, heard: Callable[[str], None], connected: Callable[[], None], random: Random
    ) -> None:
        self._target = replace(target, application="rota wake-up")
        self._heard = heard
        self._connected = connected
        self._backoff = Backoff(random)

    async def run(self) -> None:
        """Keeps one listening connection."""
        while True:
            try:
                await self._listen()
            except (RotaError, OSError) as error:
                log.warning("wake-ups are off until the database answers", error=str(error))
            await asyncio.sleep(self._backoff.next_s())

    async def _listen(self) -> None:
        connection = await connect(self._target)
        gone = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _connection: gone.set())
            await connection.add_listener(channel(self._target.schema), self._on_notification)
            self._backoff.reset()
            self._connected()
            await gone.wait()
        finally:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(connection.close(), timeout=2)

    def _on_notification(self, _connection: Any, _pid: int, _channel: str, payload: str) -> None:
        self._heard(payload)
