"""`rota runner code|list|rename|revoke|credential|disable|enable|audit`: who may connect, as an operator sees it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from rota.app import App
from rota.cli.options import Dsn, Json, Schema, read_settings
from rota.io import terminal
from rota.runners import pairing
from rota.runners.io.devices import Devices

T = TypeVar("T")

Org = Annotated[str, typer.Option("--org", help="The organisation.", metavar="ORG")]
SomeOrg = Annotated[str | None, typer.Option("--org", help="Of this organisation alone.", metavar="ORG")]
DeviceId = Annotated[str, typer.Argument(help="The device, as rota runner list shows it.", metavar="DEVICE")]


def code(  # noqa: PLR0917 - the options of a command
    org: Org,
    name: Annotated[
        str, typer.Option("--name", help="What the device is called, unless it says.", metavar="NAME")
    ] = "desktop",
    minutes: Annotated[
        float,
        typer.Option("--minutes", min=0.1, max=pairing.VALID_S_MAX / 60, help="How long it is good.", metavar="N"),
    ] = pairing.VALID_S / 60,
    as_json: Json = False,
    dsn: Dsn = None,
    schema: Schema = None,
) -> None:
    """Make a one-time code that pairs one device to an organisation: rota runner pair CODE, on the device."""
    made = str(_run(lambda devices: devices.new_code(org, name, valid_s=minutes * 60), dsn, schema))
    _tell(made, as_json, {"code": made, "org_id": org, "name": name, "valid_s": minutes * 60})


def list_devices(org: SomeOrg = None, as_json: Json = False, dsn: Dsn = None, schema: Schema = None) -> None:
    """Show the paired devices."""
    found = _run(lambda devices: devices.devices(org), dsn, schema)
    if as_json:
        terminal.print_json(
            [
                {
                    "device_id": one.device_id, "org_id": one.org_id, "name": one.name,
                    "created_at": one.created_at.isoformat(),
                    "seen_at": None if one.seen_at is None else one.seen_at.isoformat(),
                    "revoked_at": None if one.revoked_at is None else one.revoked_at.isoformat(),
                    "org_disabled": one.org_disabled,
                }
                for one in found
            ]
        )  # fmt: skip
        return
    if not found:
        terminal.write("No device is paired. rota runner code --org ORG makes a code for one.\n")
        return
    terminal.print_table(
        ("device", "organisation", "name", "last connected", "state"),
        [
            (
                one.device_id, terminal.plain(one.org_id), terminal.plain(one.name),
                "never" if one.seen_at is None else f"{one.seen_at:%Y-%m-%d %H:%M}",
                "revoked" if one.revoked_at is not None else "disabled" if one.org_disabled else "paired",
            )
            for one in found
        ],
    )  # fmt: skip


def rename(
    device: DeviceId,
    name: Annotated[str, typer.Argument(help="Its new name.", metavar="NAME")],
    as_json: Json = False,
    dsn: Dsn = None,
    schema: Schema = None,
) -> None:
    """Give a device another name."""
    _run(lambda devices: devices.rename(device, name), dsn, schema)
    _tell(f"{device} is {name} now", as_json, {"device_id": device, "name": name})


def revoke(device: DeviceId, as_json: Json = False, dsn: Dsn = None, schema: Schema = None) -> None:
    """Revoke a device for ever: its connection is closed at once, and its jobs end."""
    _run(lambda devices: devices.revoke(device), dsn, schema)
    _tell(f"revoked {device}", as_json, {"device_id": device, "revoked": True})


def credential(
    overlap_minutes: Annotated[
        float, typer.Option("--overlap-minutes", min=0, help="How long those before are good.", metavar="N")
    ] = pairing.OVERLAP_S / 60,
    as_json: Json = False,
    dsn: Dsn = None,
    schema: Schema = None,
) -> None:
    """Make a secret for workers of the pool (ROTA_RUNNER_CREDENTIAL). It is shown once; those before end later."""
    made = _run(lambda devices: devices.new_credential(overlap_s=overlap_minutes * 60), dsn, schema)
    _tell(made, as_json, {"credential": made, "overlap_s": overlap_minutes * 60})


def disable(
    org: Annotated[str, typer.Argument(help="The organisation.", metavar="ORG")],
    reason: Annotated[
        str | None, typer.Option("--reason", help="Why; kept in the audit trail.", metavar="TEXT")
    ] = None,
    as_json: Json = False,
    dsn: Dsn = None,
    schema: Schema = None,
) -> None:
    """Cut an organisation off until it is enabled again."""
    pairing.check_name("organisation", org)
    _run(lambda devices: devices.disable_org(org, reason=reason and reason[:200]), dsn, schema)
    _tell(f"disabled {org}; rota runner enable lets it use runners again", as_json, {"org_id": org, "disabled": True})


def enable(
    org: Annotated[str, typer.Argument(help="The organisation.", metavar="ORG")],
    as_json: Json = False,
    dsn: Dsn = None,
    schema: Schema = None,
) -> None:
    """Let a disabled organisation use runners again."""
    was = _run(lambda devices: devices.enable_org(org), dsn, schema)
    told = {"org_id": org, "disabled": False, "was_disabled": was}
    _tell(f"{'enabled' if was else 'was not disabled:'} {org}", as_json, told)


def audit(
    org: Annotated[
        str | None, typer.Option("--org", help="The organisation; without it, the pool.", metavar="ORG")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many, newest first.", metavar="N")] = 50,
    as_json: Json = False,
    dsn: Dsn = None,
    schema: Schema = None,
) -> None:
    """Show what happened to an organisation's devices and jobs; without --org, to the pool."""
    rows = _run(lambda devices: devices.audit(org, limit=limit), dsn, schema)
    if as_json:
        terminal.print_json(
            [
                {
                    "at": row.at.isoformat(), "event": row.event, "runner_id": row.runner_id,
                    "job_id": None if row.job_id is None else str(row.job_id), "detail": row.detail,
                }
                for row in rows
            ]
        )  # fmt: skip
        return
    if not rows:
        terminal.write("Nothing has happened to " + (terminal.plain(org).plain if org else "the pool") + ".\n")
        return
    terminal.print_table(
        ("at", "event", "runner", "job", "detail"),
        [
            (
                f"{row.at:%Y-%m-%d %H:%M:%S}", row.event, terminal.plain(row.runner_id or ""), str(row.job_id or ""),
                terminal.plain(row.detail or ""),
            )
            for row in rows
        ],
    )  # fmt: skip


def _tell(words: str, as_json: bool, told: dict[str, object]) -> None:
    """What was done: as a line, or the same as JSON."""
    if as_json:
        terminal.print_json(told)
    else:
        terminal.write(f"{terminal.plain(words)}\n")


def _run(work: Callable[[Devices], Awaitable[T]], dsn: str | None, schema: str | None) -> T:
    async def run() -> T:
        async with App(settings=read_settings(dsn=dsn, schema=schema)) as program:
            return await work(Devices(await program.database()))

    return asyncio.run(run())
