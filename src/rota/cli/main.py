"""The `rota` command: puts the groups together, and turns what goes wrong into one sentence and an exit status.

Exit statuses: 0 fine, 1 it did not work, 2 it was called or set up wrongly, 130 interrupted.
"""

import io
import sys
from typing import Annotated, Final

import typer

from rota.cli.later import Entry, LaterGroup
from rota.errors import DatabaseAway, RotaError, SettingsError
from rota.io.terminal import discard, fail, write
from rota.version import __version__

COMMANDS: Final = {
    "worker": Entry("worker", "worker", "Run the jobs of a program until a signal stops it."),
    "dev": Entry("dev", "dev", "Run a program on an embedded PostgreSQL."),
    "top": Entry("top", "top", "Show the queue as it is now."),
    "doctor": Entry("doctor", "doctor", "Say what is wrong with the database and the workers."),
    "pause": Entry("pause", "pause", "Hold back a kind, a tenant or all; list what is paused."),
    "resume": Entry("pause", "resume", "Let paused work go on."),
    "exec": Entry(
        "exec", "exec_command", "Run a declared command in a slot of an exec server.", takes_unknown_options=True
    ),
    "slots": Entry("slots", "slots", "Show exec servers, who waits for them, and what runs."),
    "execserver": Entry("execserver", "execserver", "Run declared commands for others, in slots."),
    "gateway": Entry("gateway", "gateway", "Give runners their work: they dial in here."),
    "jobs": Entry(
        "jobs", "app", "Look at jobs, and put them right.",
        adds={"why": Entry("why", "why", "Say what holds a job, and what would open it.")},
    ),
    "passes": Entry("passes", "app", "Look at passes, run them now, hold them back."),
    "admin": Entry("admin", "app", "The queue as an administrator sees it."),
    "migrate": Entry("migrate", "app", "Bring the schema up to date."),
    "config": Entry("execserver", "config_app", "Configuration files."),
    "runner": Entry(
        "runner", "app", "A runner: this machine works for a gateway, which it dials.",
        adds={
            "check-argv": Entry(
                "check_argv", "check_argv", "Show what the argv gate makes of command lines.",
                takes_unknown_options=True,
            ),
            "code": Entry("devices", "code", "Make a one-time code that pairs one device."),
            "list": Entry("devices", "list_devices", "Show the paired devices."),
            "rename": Entry("devices", "rename", "Give a device another name."),
            "revoke": Entry("devices", "revoke", "Revoke a device for ever."),
            "credential": Entry("devices", "credential", "Make a secret for workers of the pool."),
            "disable": Entry("devices", "disable", "Cut an organisation off."),
            "enable": Entry("devices", "enable", "Let a disabled organisation use runners again."),
            "audit": Entry("devices", "audit", "Show what happened to an organisation's devices and jobs."),
        },
    ),
    "demo": Entry("demo", "app", "Run real work on media files in front of you."),
}  # fmt: skip
"""What `rota` can do, in the order of its help. Each is loaded when it is called: none pays for the others."""


class _Root(LaterGroup):
    entries = COMMANDS


app = typer.Typer(
    name="rota",
    cls=_Root,
    help="Background work for services that already run PostgreSQL.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)


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
