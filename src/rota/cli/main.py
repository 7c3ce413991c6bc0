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
from rota.errors import DatabaseAway, RotaError, SettingsError
from rota.io.terminal import discard, fail, write
from rota.version import __version__

app = typer.Typer(
    name="rota",
    help="Background work for services that already run PostgreSQL.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)
app.command("worker", short_help="Run the jobs of a program until a signal stops it.")(worker.worker)
app.command("dev", short_help="Run a program on an embedded PostgreSQL.")(dev.dev)
app.command("top", short_help="Show the queue as it is now.")(top.top)
app.command("doctor", short_help="Say what is wrong with the database and the workers.")(doctor.doctor)
app.command("pause", short_help="Hold back a kind, a tenant or all; list what is paused.")(pause.pause)
app.command("resume", short_help="Let paused work go on.")(pause.resume)
app.command(
    "exec", short_help="Run a declared command in a slot of an exec server.",
    context_settings={"ignore_unknown_options": True},
)(exec_.exec_command)  # fmt: skip
app.command("slots", short_help="Show exec servers, who waits for them, and what runs.")(slots.slots)
app.command("execserver", short_help="Run declared commands for others, in slots.")(execserver.execserver)
app.command("gateway", short_help="Give runners their work: they dial in here.")(gateway.gateway)
app.add_typer(jobs.app, name="jobs")
jobs.app.command("why", short_help="Say what holds a job, and what would open it.")(why.why)
app.add_typer(passes.app, name="passes")
app.add_typer(admin.app, name="admin")
app.add_typer(migrate.app, name="migrate")
app.add_typer(execserver.config_app, name="config")
devices.register(runner.app)
app.add_typer(runner.app, name="runner")
app.add_typer(demo.app, name="demo")


def _version(asked: bool) -> None:
    if asked:
        write(f"rota {__version__}\n")
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
    except DatabaseAway as error:
        # Nobody was met at its address; somebody who answers and refuses says what to do.
        asks = " Is it running, and is its address (ROTA_DSN) right?" if isinstance(error.__cause__, OSError) else ""
        fail(f"{error}{asks}", status=1)
    except RotaError as error:
        fail(str(error), status=1)
    except OSError as error:
        discard()
        fail(f"{error}.", status=1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
