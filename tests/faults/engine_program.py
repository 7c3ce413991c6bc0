"""An engine as a process of its own, and the object store that its runners stage from: both do what a test says.

The test speaks to it through a socket in its folder, which works from any network namespace. The engine speaks to the
gateways as handlers do, with `GatewayClient`. Each op is a `stage` of an object of its own, so how often the store was
asked for it is how often the op was carried out; the store may hold an answer back for as long as the test likes.
"""

import argparse
import asyncio
import signal
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from rota.errors import RotaError
from rota.runners.io.gateway_client import GatewayClient

CONTENT = b"of an object"
SOCKET = "engine.sock"


class Store:
    """Objects that are there whatever their name is, and how often each was asked for."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self._came: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._held: dict[str, asyncio.Event] = {}

    async def get(self, request: web.Request) -> web.Response:
        key = request.match_info["key"]
        self.asked[key] += 1
        self._came[key].set()
        held = self._held.get(key)
        if held is not None:
            await held.wait()
        return web.Response(body=CONTENT)

    async def control(self, request: web.Request) -> web.Response:
        key = request.match_info["key"]
        match request.match_info["what"]:
            case "hold":
                self._held[key] = asyncio.Event()
            case "go":
                self._held[key].set()
            case "came":
                await self._came[key].wait()
        return web.json_response(self.asked)


class Engine:
    """Calls of gateways, by way of whichever balancer the test names."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._clients: dict[str, GatewayClient] = {}

    async def call(self, request: web.Request) -> web.Response:
        asked = await request.json()
        url = asked["url"]
        client = self._clients.setdefault(url, GatewayClient(url, token=self._token))
        try:
            found = await getattr(client, asked["method"])(*asked["args"], **asked["options"])
        except RotaError as error:
            said: dict[str, Any] = {
                "error": type(error).__name__, "text": str(error), "reason": getattr(error, "reason", None),
            }  # fmt: skip
            return web.json_response(said)
        return web.json_response({"value": msgspec.to_builtins(found)})

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()


async def serve(folder: Path, host: str, token: str) -> None:
    """Serves until a signal; says at which port the store is."""
    store, engine = Store(), Engine(token)
    objects, control = web.Application(), web.Application()
    objects.add_routes([web.get("/objects/{key}", store.get)])
    control.add_routes([web.post("/store/{what}/{key}", store.control), web.post("/call", engine.call)])
    runners = [web.AppRunner(app, shutdown_timeout=0.1) for app in (objects, control)]
    for runner in runners:
        await runner.setup()
    await web.TCPSite(runners[0], host, 0).start()
    await web.UnixSite(runners[1], str(folder / SOCKET)).start()
    print(f"objects at {runners[0].addresses[0][1]}", flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    for runner in runners:
        await runner.cleanup()
    await engine.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("host")
    parser.add_argument("token")
    told = parser.parse_args()
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(told.folder, told.host, told.token))
