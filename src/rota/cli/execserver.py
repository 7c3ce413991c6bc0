"""`rota execserver` runs an exec server; `rota config check` says whether configuration files are right."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from rota.cli.options import Json, read_settings
from rota.cli.worker import on_signals, run
from rota.errors import SettingsError
from rota.io import log, terminal
from rota.io.privacy import keep_private
from rota.slots.config import ExecConfig, read_exec_config
from rota.slots.io.execserver import run_exec_server, without_program
from rota.slots.io.server import ExecServer

FILE_NAME: Final = "exec.toml"

config_app = typer.Typer(help="Configuration files.", no_args_is_help=True)

Config = Annotated[
    Path, typer.Option("--config", help="The file with its services, waitgroups and limits.", metavar="FILE")
]


def execserver(
    config: Config = Path(FILE_NAME),
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=0, max=65_535, help="Another port than the file's; 0: any free one.", metavar="PORT"
        ),
    ] = None,
    tells: Annotated[
        Path | None, typer.Option("--address-file", help="Where to write its address once it listens.", metavar="FILE")
    ] = None,
) -> None:
    """Run declared commands for others, in slots: SIGTERM lets what runs end, a second one hands it back at once.

    SIGHUP reads the file again: other services, waitgroups and limits, and what runs goes on."""
    settings = read_settings()

    def told_by_file() -> ExecConfig:
        read = _read(config)
        section = read.server
        # A token in the environment keeps it out of a file that others may read.
        token, own_port = section.token or settings.exec_token, section.port if port is None else port
        return replace(read, server=replace(section, token=token, port=own_port))

    keep_private()  # commands are of the same user, and are not to read the token
    told = told_by_file()
    log.setup(settings)

    def started(server: ExecServer) -> None:
        terminal.write(f"exec server at {server.address}: {_summary(told)}\n")
        if tells is not None:
            tells.write_text(server.address + "\n", encoding="utf-8")

    raise typer.Exit(run(run_exec_server(told, started=started, on_signals=on_signals, read_again=told_by_file)))


@config_app.command("check", short_help="Say whether settings and an exec server's file are good.")
def check(config: Config = Path(FILE_NAME), as_json: Json = False) -> None:
    """Say whether rota.toml, the environment and an exec server's file are right, without starting anything."""
    settings = read_settings()
    if not as_json:
        terminal.write("settings (rota.toml, ROTA_*): fine\n")
    if not config.exists() and config == Path(FILE_NAME):
        if as_json:
            terminal.print_json({"settings": "fine", "config": None})
        else:
            terminal.write(f"{config}: there is none here; --config FILE names one\n")
        return
    told = _read(config)
    for setting in ("tls_cert", "tls_key"):
        value = getattr(told.server, setting)
        if value is not None and not os.path.isfile(value):
            raise SettingsError(f"{config}: server.{setting} names {value}, and there is no such file.")
    for setting in ("scratch", "state"):
        value = getattr(told.server, setting)
        if value is not None and not _could_be_made(Path(value)):
            raise SettingsError(f"{config}: server.{setting} names {value}, which cannot be a folder to write to.")
    ExecServer.check_listen(told.server.host, told.server.token or settings.exec_token)
    missing = [{"service": service, "program": program} for service, program in without_program(told).items()]
    if as_json:
        waitgroups = {group.name: group.processes for group in told.waitgroups.values()}
        found = {"file": str(config), "services": sorted(told.services), "waitgroups": waitgroups, "missing": missing}
        terminal.print_json({"settings": "fine", "config": found})
        return
    for each in missing:
        terminal.write(
            f"{config}: services.{each['service']}.command: there is no program {each['program']!r} on this machine\n"
        )
    terminal.write(f"{config}: fine, {_summary(told)}\n")


def _could_be_made(folder: Path) -> bool:
    """Whether a folder is there and can be written to, or could be made."""
    while not folder.exists():
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK)


def _read(path: Path) -> ExecConfig:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise SettingsError(
            f"{path} cannot be read: {reason}. It declares the services of an exec server; "
            "docs/guide/exec-servers.md shows one."
        ) from None
    return read_exec_config(text, source=str(path), cpus=os.cpu_count() or 1)


def _summary(config: ExecConfig) -> str:
    groups = ", ".join(f"{group.name} {group.processes}" for group in config.waitgroups.values())
    return f"{len(config.services)} services ({', '.join(sorted(config.services)[:8])}), slots: {groups}"
