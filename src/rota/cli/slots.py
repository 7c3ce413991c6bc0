"""`rota slots`: every exec server that can be reached, its slots, who waits for them and what runs in them."""

import asyncio
from typing import Annotated

import msgspec
import typer
from rich.text import Text

from rota.cli.options import Json, read_settings
from rota.io import terminal
from rota.slots.io.from_settings import options_of
from rota.slots.io.survey import Seen, look_at
from rota.slots.messages import JobView, Overview

INSTANCE_SHOWN = 12


def slots(
    job: Annotated[
        str | None, typer.Option("--job", help="Only the calls of this job (the beginning of its id).", metavar="ID")
    ] = None,
    exec_addresses: Annotated[
        str | None,
        typer.Option("--exec-addresses", help="The exec servers. Else ROTA_EXEC_ADDRESSES.", metavar="HOST:PORT,…"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show exec servers: their slots, who waits for them, and what runs in them."""
    options = options_of(read_settings(exec_addresses=exec_addresses))
    found = asyncio.run(look_at(options.addresses, token=options.token, tls=options.tls))
    if as_json:
        terminal.print_json([_plain(seen, job) for seen in found])
    else:
        _show(found, job)
    if not any(seen.overview for seen in found):
        raise typer.Exit(1)


def _plain(seen: Seen, job: str | None) -> dict[str, object]:
    told: dict[str, object] = {"address": seen.address.shown}
    if seen.error is not None:
        told["error"] = seen.error
    if seen.overview is not None:
        told |= msgspec.to_builtins(seen.overview)
        told["jobs"] = [msgspec.to_builtins(view) for view in _of(seen.overview, job)]
    return told


def _of(overview: Overview, job: str | None) -> list[JobView]:
    return [view for view in overview.jobs if job is None or view.job_id.startswith(job)]


def _show(found: list[Seen], job: str | None) -> None:
    rows: list[tuple[str | Text, ...]] = []
    for seen in found:
        if seen.overview is None:
            continue
        name = seen.overview.instance_id[:INSTANCE_SHOWN] + (" (drains)" if seen.overview.draining else "")
        for waitgroup, view in sorted(seen.overview.waitgroups.items()):
            services = [service for service, told in seen.overview.services.items() if told.waitgroup == waitgroup]
            rows.append(
                (
                    seen.address.shown, name, waitgroup, f"{view.running + view.offered} of {view.processes}",
                    str(view.waiting), str(seen.overview.clients), ", ".join(sorted(services)),
                )
            )  # fmt: skip
    if rows:
        terminal.print_table(
            ("address", "instance", "waitgroup", "taken", "waiting", "clients", "services"), rows,
            right=("taken", "waiting", "clients"),
        )  # fmt: skip
    for seen in found:
        if seen.overview is None:
            terminal.out.print(Text(f"{seen.address.shown}: {seen.error}", style="red"), soft_wrap=True)
    calls = [(seen.overview, view) for seen in found if seen.overview for view in _of(seen.overview, job)]
    if calls:
        terminal.out.print()
        terminal.print_table(
            ("call", "service", "state", "for", "ahead", "priority", "client", "instance"),
            [
                (
                    view.job_id, view.service, Text(view.state, style=_STYLES.get(view.state, '')),
                    terminal.duration(view.for_s), "" if view.ahead is None else str(view.ahead), str(view.priority),
                    view.client, overview.instance_id[:INSTANCE_SHOWN],
                )
                for overview, view in calls
            ],
            right=("for", "ahead", "priority"),
        )  # fmt: skip
    if any(seen.overview and seen.overview.truncated for seen in found):
        terminal.out.print("There are more calls than are shown.", style="dim")


_STYLES = {"waiting": "cyan", "offered": "cyan", "running": "bold blue"}
