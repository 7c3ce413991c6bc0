"""`rota gateway` runs one replica of the gateway; what an operator does with devices is in `cli/devices.py`."""

import asyncio
import os
import socket
from pathlib import Path
from typing import Annotated

import typer

from rota.app import App
from rota.cli.options import Dsn, Schema, read_settings
from rota.cli.worker import on_signals, run
from rota.ids import new_holder
from rota.io import log, terminal
from rota.io.open_files import raise_limit
from rota.objects.io.from_settings import routes_of
from rota.runners.io.replica import Replica


def gateway(
    host: Annotated[
        str | None,
        typer.Option("--host", help="Where to listen. Else ROTA_GATEWAY_HOST, else 127.0.0.1.", metavar="HOST"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=0, max=65_535, help="0: any free one. Else ROTA_GATEWAY_PORT, else 8760.", metavar="PORT"
        ),
    ] = None,
    tells: Annotated[
        Path | None, typer.Option("--address-file", help="Where to write its address once it listens.", metavar="FILE")
    ] = None,
    dsn: Dsn = None,
    schema: Schema = None,
) -> None:
    """Hand work to runners, which dial in: SIGTERM says goodbye to them, and they go on at another replica."""
    settings = read_settings(dsn=dsn, schema=schema, gateway_host=host, gateway_port=port)
    log.setup(settings)
    raise_limit()  # each runner is an open file

    async def serve() -> int:
        async with App(settings=settings) as program:
            await program.database()
            instance = new_holder(host=socket.gethostname(), pid=os.getpid())
            replica = Replica(settings, program.target, instance=instance, more=routes_of(settings))
            asked = asyncio.Event()
            on_signals(asked.set)
            await replica.start()
            try:
                address = replica.server.serving.address
                terminal.write(f"gateway at {address}\n")
                if tells is not None:
                    tells.write_text(address + "\n", encoding="utf-8")
                await asked.wait()
            finally:
                await replica.stop()
        return 0

    raise typer.Exit(run(serve()))
