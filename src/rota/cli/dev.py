"""`rota dev`: a database, its schema and the workers of a program in one process tree, for a laptop."""

import asyncio
import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from rota.app import EMBEDDED, App
from rota.cli.options import load_app, read_settings
from rota.cli.scrapes import meters_folder
from rota.cli.worker import on_signals, run, supervise, worker_commands
from rota.io import log, migrate
from rota.io.embedded import EmbeddedPostgres
from rota.io.terminal import out

DEFAULT_FOLDER = ".rota"


def dev(
    program: Annotated[
        str | None,
        typer.Argument(help="module:attribute of your rota.App; without it, the database alone", metavar="APP"),
    ] = None,
    processes: Annotated[int, typer.Option("--processes", min=1, max=64, help="Worker processes.", metavar="N")] = 1,
    folder: Annotated[Path, typer.Option("--folder", help="Where the database lives.", metavar="DIR")] = Path(
        DEFAULT_FOLDER
    ),
    dsn: Annotated[
        str | None, typer.Option("--dsn", help="Use this database in place of an embedded one.", metavar="DSN")
    ] = None,
) -> None:
    """Start an embedded PostgreSQL, bring its schema up to date, and run the workers of a program. Ctrl-C ends all."""
    address = read_settings(dsn=dsn).dsn or f"{EMBEDDED}{folder}"
    app = App(dsn=address)
    if program is not None:
        app = load_app(program, dsn=address)
        # Faults of the program show before a database is started.
        app.taken()
    log.setup(app.settings)
    sys.exit(run(_run(app, address=address, program=program, processes=processes)))


async def _run(app: App, *, address: str, program: str | None, processes: int) -> int:
    with contextlib.ExitStack() as stack:
        shared = False
        if address.startswith(EMBEDDED):
            server = stack.enter_context(EmbeddedPostgres(Path(address.removeprefix(EMBEDDED))))
            app.override(dsn=server.dsn)
            shared = not server.owner
        target = app.target
        for step in await migrate.up(target):
            out.print(f"applied {step.number:04}_{step.name}")
        if shared:
            out.print("The database of this folder was started by another program, and ends with it.", soft_wrap=True)
        out.print(f"ROTA_DSN='{target.dsn}'", soft_wrap=True)
        if program is not None:
            folder = stack.enter_context(meters_folder(app.settings))
            settings = replace(app.settings, dsn=target.dsn)
            commands = worker_commands(program, count=processes, settings=settings, meters=folder)
            return await supervise(app, commands, meters=folder)
        if not shared:
            stopping = asyncio.Event()
            on_signals(stopping.set)
            await stopping.wait()
        return 0
