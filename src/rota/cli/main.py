"""The `rota` command: puts the groups together, and turns what goes wrong into one sentence and an exit status.

Exit statuses: 0 fine, 1 it did not work, 2 it was called or set up wrongly, 130 interrupted.
"""

import io
import sys
from typing import Annotated

import typer

from rota.cli import (
    admin,
    demo,
    dev,
    devices,
    doctor,
    execserver,
    gateway,
    jobs,
    migrate,
    passes,
    pause,
    runner,
    slots,
    top,
    why,
    worker,
)
from rota.cli import exec as exec_
from rota.errors import RotaError, SettingsError
from rota.io.terminal import discard, fail
from rota.version import __version__

app = typer.Typer(
    name="rota",
    help="Background work for services that already run PostgreSQL.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)
app.add_typer(jobs.app, name="jobs")
jobs.app.command("why")(why.why)
app.add_typer(migrate.app, name="migrate")
app.add_typer(passes.app, name="passes")
app.command("pause")(pause.pause)
app.command("resume")(pause.resume)
app.add_typer(admin.app, name="admin")
app.command("worker")(worker.worker)
app.command("doctor")(doctor.doctor)
app.command("top")(top.top)
app.command("exec", context_settings={"ignore_unknown_options": True})(exec_.exec_command)
app.command("execserver")(execserver.execserver)
app.add_typer(execserver.config_app, name="config")
app.command("slots")(slots.slots)
devices.register(runner.app)
app.add_typer(runner.app, name="runner")
app.command("gateway")(gateway.gateway)
app.command("dev")(dev.dev)
app.add_typer(demo.app, name="demo")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"rota {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Background work for services that already run PostgreSQL."""


def main() -> None:
    """Entry point of the `rota` script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character is no reason to end.
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except SettingsError as error:
        fail(str(error), status=2)
    except RotaError as error:
        fail(str(error), status=1)
    except OSError as error:
        discard()
        fail(f"{error}.", status=1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
