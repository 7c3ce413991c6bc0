"""One process of the demo of slots. It reads no settings.

python -m rota.demo.slots_host exec CONFIG PORT     an exec server
python -m rota.demo.slots_host worker DSN ADDRESSES a worker
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rota.demo.slots_program import make_app
from rota.io import log
from rota.settings import Settings
from rota.slots.config import read_exec_config
from rota.slots.io.execserver import run_exec_server


async def exec_server(config: str, port: str) -> None:
    """Runs commands until SIGTERM."""
    told = read_exec_config(await asyncio.to_thread(Path(config).read_text, encoding="utf-8"), source=config)
    told = replace(told, server=replace(told.server, port=int(port)))
    log.setup(Settings(log_format="text"))

    def on_signals(call: Callable[[], None]) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, call)

    await run_exec_server(told, started=lambda _server: None, on_signals=on_signals)


async def worker(dsn: str, addresses: str) -> None:
    """Works until SIGTERM."""
    settings = Settings(
        dsn=dsn, poll_s=0.5, stop_grace_s=5, log_format="text", exec_addresses=addresses, exec_wait_s=600
    )  # fmt: skip
    log.setup(settings)
    runs = make_app(settings).worker(ends_process=True)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, runs.stop)
    await runs.run()


if __name__ == "__main__":
    asyncio.run({"exec": exec_server, "worker": worker}[sys.argv[1]](*sys.argv[2:]))
    os._exit(0)
