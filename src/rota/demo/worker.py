"""One worker process of the demo: `python -m rota.demo.worker DSN FFMPEG FFPROBE`. It reads no settings."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from rota.demo.handlers import make_app
from rota.io import log
from rota.io.ffmpeg import Tools
from rota.settings import Settings


async def main(dsn: str, ffmpeg: str, ffprobe: str) -> None:
    """Works until SIGTERM."""
    settings = Settings(dsn=dsn, poll_s=0.5, stop_grace_s=5, log_format="text")
    log.setup(settings)
    tools = Tools(ffmpeg=Path(ffmpeg), ffprobe=Path(ffprobe), source="settings")
    worker = make_app(settings, tools=tools).worker(ends_process=True)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    await worker.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
    os._exit(0)
