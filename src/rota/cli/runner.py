"""`rota runner pair|rotate|run`: makes this machine a runner of a gateway, and runs it."""

import asyncio
from typing import Annotated

import typer

from rota.cli.options import Json, read_settings
from rota.cli.worker import run as run_loop
from rota.errors import SettingsError
from rota.io import log, terminal
from rota.runners.io.alone import alone
from rota.runners.io.identity import FILE_NAME, read_identity
from rota.runners.io.pairing import pair as pair_with
from rota.runners.io.pairing import rotate as rotate_with
from rota.runners.io.probing import probe, system
from rota.runners.io.running import gateway_of, name_of, run_runner, state_folder, who
from rota.runners.io.shown import facts_of, shown_for
from rota.runners.io.trust import trusted
from rota.runners.pairing import OVERLAP_S_MAX
from rota.settings import Settings

app = typer.Typer(
    help="A runner: this machine works for a gateway, which it dials.",
    no_args_is_help=True,
)

Gateway = Annotated[
    str | None, typer.Option("--gateway", help="The gateway, wss://host. Else ROTA_RUNNER_GATEWAY.", metavar="URL")
]
Name = Annotated[
    str | None, typer.Option("--name", help="What people call it; else the machine's name.", metavar="NAME")
]


@app.command("pair", short_help="Pair this machine with a gateway, by a one-time code.")
def pair(
    code: Annotated[str, typer.Argument(help="The one-time code from your organisation.", metavar="CODE")],
    gateway: Gateway = None,
    name: Name = None,
    again: Annotated[bool, typer.Option("--again", help="Replace the pairing that this machine has.")] = False,
    as_json: Json = False,
) -> None:
    """Pair this machine with a gateway: makes its key, which stays here, and registers it with a one-time code."""
    settings = _settings(gateway, name)
    folder = state_folder(settings)
    if not again and (held := read_identity(folder)) is not None:
        raise SettingsError(
            f"This machine is paired already, as {held.name} with {held.gateway}. Use --again to pair it anew, "
            "and let your organisation revoke the old device."
        )
    at = gateway_of(settings)
    os, arch = system()
    tls = trusted(settings.runner_ca)
    made = asyncio.run(pair_with(at, code.strip(), folder, name=name_of(settings), os=os, arch=arch, tls=tls))
    path = folder / FILE_NAME
    if as_json:
        terminal.print_json(
            {"device_id": made.device_id, "org_id": made.org_id, "name": made.name, "gateway": made.gateway,
             "file": str(path)}
        )  # fmt: skip
        return
    terminal.write(f"paired as {made.name} (device {made.device_id}) of {made.org_id}; its key is in {path}\n")
    terminal.write("next: rota runner run\n")


@app.command("rotate", short_help="Give this paired machine a new key.")
def rotate(
    gateway: Gateway = None,
    overlap_minutes: Annotated[
        int | None,
        typer.Option(
            "--overlap-minutes", min=0, max=OVERLAP_S_MAX // 60, help="How long the key before is good.", metavar="N"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Give this paired machine a new key. A runner that runs here uses it from its next connection on."""
    settings = _settings(gateway, None)
    folder = state_folder(settings)
    held = read_identity(folder)
    if held is None:
        raise SettingsError("This machine is not paired. Get a code and run `rota runner pair CODE`.")
    at = gateway_of(settings, held.gateway)
    overlap_s = None if overlap_minutes is None else overlap_minutes * 60
    path = asyncio.run(rotate_with(at, folder, tls=trusted(settings.runner_ca), overlap_s=overlap_s))
    if as_json:
        terminal.print_json({"device_id": held.device_id, "file": str(path)})
    else:
        terminal.write(f"rotated: the new key is in {path}\n")


@app.command("run", short_help="Work for a gateway until a signal stops it.")
def run(
    pool: Annotated[bool, typer.Option("--pool", help="As a worker of the pool, with ROTA_RUNNER_CREDENTIAL.")] = False,
    gateway: Gateway = None,
    name: Name = None,
) -> None:
    """Work for a gateway until a signal stops it: Ctrl-C lets sessions end, a second one or SIGTERM does not."""
    settings = _settings(gateway, name)
    is_who = who(settings, pool=pool)
    with alone(state_folder(settings)):
        log.setup(settings)
        ability = probe(settings)
        terminal.print_facts(facts_of(ability, gateway=is_who.gateway.shown, who=is_who.name))
        shown = shown_for()
        try:
            status = run_loop(run_runner(settings, is_who=is_who, ability=ability, shown=shown))
        finally:
            shown.close()
    raise typer.Exit(status)


def _settings(gateway: str | None, name: str | None) -> Settings:
    return read_settings(runner_gateway=gateway, runner_name=name)
