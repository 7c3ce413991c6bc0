"""A part of the measurement in a process of its own: a gateway, a server of bare websockets, or a crowd of runners.

It says what it is in one line of JSON, and answers each line that comes with one line: what it has by then.
"""

import asyncio
import gc
import json
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final

import msgspec
import psutil
import uvloop
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from bench.runners.crowd import Crowd, Facts, Told
from rota.io.open_files import raise_limit
from rota.io.postgres import Target
from rota.io.serving import Place, Serving
from rota.runners.frames import SUBPROTOCOL
from rota.runners.io.replica import Replica
from rota.settings import Settings

LAG_EVERY_S: Final = 0.01
TOKEN: Final = "a token of the bench"
KEY: Final = "a key of the bench that is long enough"

Answers = Callable[[str], Awaitable[dict[str, Any]]]


class Loop:
    """How late the event loop is, and what its process takes."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._late: list[float] = []
        self._task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(LAG_EVERY_S)
            self._late.append(time.perf_counter() - begun - LAG_EVERY_S)

    def read(self, word: str) -> dict[str, Any]:
        """What there is since the last time; `memory` collects first what nobody needs, which takes a while."""
        if word == "memory":
            gc.collect()
        late, self._late = sorted(self._late) or [0.0], []
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "rss_bytes": self._process.memory_info().rss,
            "cpu_s": used.ru_utime + used.ru_stime,
            "lag_p99_s": late[int(0.99 * (len(late) - 1))],
            "lag_max_s": late[-1],
        }


async def gateway(told: dict[str, Any]) -> tuple[dict[str, Any], Answers, Callable[[], Awaitable[None]]]:
    """One replica. `kill` is left to whoever started it."""
    settings = Settings(gateway_port=told.get("port", 0), gateway_token=TOKEN, gateway_key=KEY)
    replica = Replica(settings, Target(told["dsn"]), instance=told["instance"])
    await replica.start()
    loop = Loop()

    async def answer(word: str) -> dict[str, Any]:
        return {"connected": len(replica.exchange.gateway.registry.of_runner), **loop.read(word)}

    return {"port": replica.server.serving.port}, answer, replica.stop


async def bare(_told: dict[str, Any]) -> tuple[dict[str, Any], Answers, Callable[[], Awaitable[None]]]:
    """The same stack, with the same options and nothing on it: each text comes back."""
    connected = 0

    async def hold(websocket: WebSocket) -> None:
        nonlocal connected
        await websocket.accept(subprotocol=SUBPROTOCOL)
        connected += 1
        async for text in websocket.iter_text():
            await websocket.send_text(text)
        connected -= 1

    serving = Serving("The echo", Place(), ws_ping_interval=None, ws_ping_timeout=None, ws_per_message_deflate=False)
    await serving.start(Starlette(routes=[WebSocketRoute("/v1/connect", hold)]))
    loop = Loop()

    async def answer(word: str) -> dict[str, Any]:
        return {"connected": connected, **loop.read(word)}

    return {"port": serving.port}, answer, serving.stop


async def crowd(told: dict[str, Any]) -> tuple[dict[str, Any], Answers, Callable[[], Awaitable[None]]]:
    """Runners, or connections that only say and hear, where `told` names no credential."""
    made = Crowd(msgspec.convert(told["crowd"], Told), Random(told["seed"]))

    async def answer(word: str) -> dict[str, Any]:
        if word == "come":
            made.come(told["within_s"])
        elif word == "cut":
            made.cut()
        elif word == "forget":
            made.facts = Facts(connected=made.facts.connected, held=made.facts.held)
        facts: dict[str, Any] = msgspec.to_builtins(made.facts)
        return facts

    return {}, answer, made.stop


async def main(role: str, told: dict[str, Any]) -> None:
    """Answers until its stdin ends."""
    raise_limit()
    says, answer, stop = await {"gateway": gateway, "bare": bare, "crowd": crowd}[role](told)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    print(json.dumps(says), flush=True)
    while line := await lines.readline():
        print(json.dumps(await answer(line.decode().strip())), flush=True)
    await stop()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], json.loads(sys.argv[2])))
