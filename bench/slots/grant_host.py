"""An exec server whose commands are no processes, and an echo on the same stack: python -m bench.slots.grant_host SLOTS

It writes its port on standard output, and ends when standard input does.
"""

import asyncio
import sys
from collections.abc import Callable

import uvloop
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from rota.slots.broker import Broker
from rota.slots.io.server import ExecServer, Listen
from rota.slots.load import Load
from rota.slots.messages import Receipt, Work
from rota.slots.rules import Rules

RECEIPT = Receipt(ended_by="exit", exit=0, duration_s=0.001)


class Instant:
    """Commands that are over as they begin."""

    def __init__(self, ended: Callable[[str, Receipt], None], _moved: object) -> None:
        self._ended = ended

    def start(self, job_id: str, service: str, job: Work) -> None:
        """Begins and ends."""
        self._ended(job_id, RECEIPT)

    def cancel(self, job_id: str) -> None:
        """Nothing is there that could be ended."""

    async def stop(self, grace_s: float = 0.0) -> None:
        """Nothing is there that could be ended."""


async def echo(websocket: WebSocket) -> None:
    """Gives each frame back: the least that a round trip on this stack can cost."""
    await websocket.accept()
    try:
        while True:
            await websocket.send_text(await websocket.receive_text())
    except WebSocketDisconnect:
        return


async def main() -> None:
    """Serves until standard input ends."""
    broker = Broker(Rules("bench", {"cut": "cpu"}, {"cpu": int(sys.argv[1])}), Load())
    server = ExecServer(broker, Listen(), Instant, routes=lambda _: [WebSocketRoute("/echo", echo)])
    await server.start()
    print(server.port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop()


if __name__ == "__main__":
    uvloop.run(main())
