"""`rota demo`: the main job on real input, in one command; `rota demo slots` shows exec servers at work,
`rota demo runners` a gateway and its runners."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rota.cli.options import Json, read_settings
from rota.demo import slots_run
from rota.demo.run import run
from rota.demo.runners import run as run_runners
from rota.io import log, terminal
from rota.io.terminal import out

DEFAULT_FOLDER = Path("rota-demo")
MEDIA = "media"

Files = Annotated[list[Path] | None, typer.Argument(help="Media files; without any, some are made.", metavar="FILES…")]
Folder = Annotated[Path, typer.Option("--folder", help="Where the database and the results go.", metavar="DIR")]


class _Demos(TyperGroup):
    """What names no demo is of the first one: files and options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = [MEDIA, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Demos,
    help="Run real work on media files in front of you.",
    add_completion=False,
)


@app.command(
    MEDIA, hidden=True, epilog="`rota demo slots` shows exec servers behind a balancer, `rota demo runners` runners."
)
def demo(
    files: Files = None,
    folder: Folder = DEFAULT_FOLDER,
    kill: Annotated[bool, typer.Option("--kill/--no-kill", help="Kill one of the two workers in the middle.")] = True,
) -> None:
    """Run real work on media files with an embedded PostgreSQL and two workers, one of which is killed on the way."""
    settings = read_settings()
    # What the process tree says of the worker that is killed on purpose is no news here.
    log.setup_as("text", "error")
    sys.exit(asyncio.run(run(files or [], folder=folder.absolute(), console=out, ffmpeg=settings.ffmpeg, kill=kill)))


@app.command("slots")
def slots(files: Files = None, folder: Folder = DEFAULT_FOLDER, as_json: Json = False) -> None:
    """Run media commands in the slots of three exec servers behind a balancer, one of which is killed on the way."""
    settings = read_settings()
    log.setup_as("text", "error")
    console = None if as_json else out
    told = asyncio.run(
        slots_run.run(files or [], folder=folder.absolute(), console=console, ffmpeg=settings.ffmpeg)
    )  # fmt: skip
    if as_json:
        terminal.print_json(told)
    else:
        slots_run.report(told, out)
    sys.exit(0 if told["ok"] else 1)


@app.command("runners")
def runners(
    folder: Folder = DEFAULT_FOLDER,
    kill: Annotated[bool, typer.Option("--kill/--no-kill", help="Kill one runner, and put one to sleep.")] = True,
) -> None:
    """Cut films on a runner of the pool and on a paired desktop; one is killed, one sleeps and is fenced."""
    settings = read_settings()
    log.setup_as("text", "error")
    sys.exit(asyncio.run(run_runners(folder=folder.absolute(), console=out, ffmpeg=settings.ffmpeg, kill=kill)))
