"""`rota demo`: the main job on real input, in one command."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from rota.cli.options import read_settings
from rota.demo.run import run
from rota.demo.runners import run as run_runners
from rota.io import log
from rota.io.terminal import out

DEFAULT_FOLDER = Path("rota-demo")


def demo(
    files: Annotated[list[Path] | None, typer.Argument(help="Media files; without any, some are made.")] = None,
    folder: Annotated[Path, typer.Option("--folder", help="Where the database and the results go.")] = DEFAULT_FOLDER,
    kill: Annotated[bool, typer.Option("--kill/--no-kill", help="Kill one of the two workers in the middle.")] = True,
    runners: Annotated[bool, typer.Option("--runners", help="Show a gateway and its runners instead.")] = False,
) -> None:
    """Run real work on media files with an embedded PostgreSQL and two workers, one of which is killed on the way."""
    settings = read_settings()
    # What the process tree says of the worker that is killed on purpose is no news here.
    log.setup_as("text", "error")
    if runners:
        if files:
            raise typer.BadParameter("the demo of runners makes its own film", param_hint="FILES")
        sys.exit(asyncio.run(run_runners(folder=folder.absolute(), console=out, ffmpeg=settings.ffmpeg, kill=kill)))
    sys.exit(asyncio.run(run(files or [], folder=folder.absolute(), console=out, ffmpeg=settings.ffmpeg, kill=kill)))
