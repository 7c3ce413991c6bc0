"""Request and reply over NATS in the peers' own environment: this process asks and answers, on two connections."""

import asyncio
import json
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

import nats

BODY = json.dumps({"opId": "op-1", "op": "stat", "args": {"path": "in.mp4"}, "timeoutSec": 30}).encode()


async def measure(address: str, times: int) -> float:
    """The median of so many requests, in milliseconds."""
    asking, answering = await nats.connect(address), await nats.connect(address)

    async def answer(message: "nats.aio.msg.Msg") -> None:
        await message.respond(message.data)

    await answering.subscribe("runner.1", cb=answer)
    await answering.flush()
    taken = []
    for number in range(times + times // 10):
        begun = time.perf_counter()
        await asking.request("runner.1", BODY, timeout=30)
        if number >= times // 10:
            taken.append(time.perf_counter() - begun)
    await asking.close()
    await answering.close()
    return 1000 * statistics.median(taken)


def main(times: int) -> None:
    """Starts a server beside this Python, measures, and prints one line of JSON."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = Path(sys.executable).parent / "nats-server"
    server = subprocess.Popen([program, "-a", "127.0.0.1", "-p", str(port)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(500):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.02)
        print(json.dumps({"op": asyncio.run(measure(f"nats://127.0.0.1:{port}", times))}))
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main(int(sys.argv[1]))
