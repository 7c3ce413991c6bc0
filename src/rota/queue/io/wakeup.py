"""Wakes a sleeping worker when a job is added elsewhere: one connection that listens, made anew whenever it breaks.

A wake-up is a hint and nothing more: the worker looks once a second anyway, so a lost one costs a second and never a
job.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, Final

from rota.io.backoff import Backoff
from rota.io.log import get_logger
from rota.io.postgres import CONNECT_TIMEOUT_S, Target, channel, connect

ASK_EVERY_S: Final = 20.0
"""How often the listening connection is asked whether it still lives."""

log = get_logger("rota.worker")


class Wakeup:
    """Listens until cancelled.

    Args:
        target: the database.
        heard: told what was said: a kind, or `!` and the holder whose jobs somebody cancels.
        connected: told after each new connection, since anything may have been said before.
        random: for the jitter of waits.
        on: the channel; None: the workers'.
    """

    def __init__(
        self,
        target: Target,
        *,
        heard: Callable[[str], None],
        connected: Callable[[], None],
        random: Random,
        on: str | None = None,
    ) -> None:
        self._channel = on or channel(target.schema)
        self._target = replace(target, application="rota wake-up")
        self._heard = heard
        self._connected = connected
        self._backoff = Backoff(random)

    async def run(self) -> None:
        """Keeps one listening connection."""
        while True:
            try:
                await self._listen()
            except Exception as error:
                # Whatever it is: without wake-ups a job waits for a second, and the next connection may have them.
                log.warning("wake-ups are off until the database answers", error=str(error) or type(error).__name__)
            await asyncio.sleep(self._backoff.next_s())

    async def _listen(self) -> None:
        connection = await connect(self._target)
        gone = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _connection: gone.set())
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await connection.add_listener(self._channel, self._on_notification)
            self._backoff.reset()
            self._connected()
            while not await self._ends(gone):
                # A line that went dead somewhere between tells nobody.
                await connection.execute("SELECT 1", timeout=CONNECT_TIMEOUT_S)
        finally:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(connection.close(), timeout=2)

    async def _ends(self, gone: asyncio.Event) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ASK_EVERY_S):
                return await gone.wait()
        return False

    def _on_notification(self, _connection: Any, _pid: int, _channel: str, payload: str) -> None:
        self._heard(payload)
