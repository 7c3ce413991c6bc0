"""`rota slots`: every exec server that can be reached, its slots, who waits for them and what runs in them.

With a database also how many jobs need such slots that no worker has claimed: they stand in no line yet.
"""

import asyncio
from typing import Annotated

import typer
from msgspec import structs
from rich.text import Text

from rota.cli.options import Json, read_settings
from rota.cli.unclaimed import Unclaimed, of_services
from rota.durations import measured, span
from rota.io import terminal
from rota.io.visible import visible
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
    settings = read_settings(exec_addresses=exec_addresses)
    options = options_of(settings)

    async def look() -> tuple[list[Seen], Unclaimed | None]:
        seen, unclaimed = await asyncio.gather(
            look_at(options.addresses, token=options.token, tls=options.tls), of_services(settings)
        )
        return seen, unclaimed

    found, unclaimed = asyncio.run(look())
    if as_json:
        terminal.print_json([_plain(seen, job, unclaimed) for seen in found])
    else:
        _show(found, job, unclaimed)
    if not any(seen.overview for seen in found):
        raise typer.Exit(1)


def _plain(seen: Seen, job: str | None, unclaimed: Unclaimed | None) -> dict[str, object]:
    told: dict[str, object] = {"address": seen.address.shown}
    if seen.error is not None:
        told["error"] = seen.error
    if seen.overview is not None:
        # Whole, also what the wire leaves out.
        told |= structs.asdict(seen.overview)
        told["waitgroups"] = {name: structs.asdict(view) for name, view in seen.overview.waitgroups.items()}
        told["services"] = {name: structs.asdict(view) for name, view in seen.overview.services.items()}
        told["jobs"] = [structs.asdict(view) for view in _of(seen.overview, job)]
        if unclaimed is not None:
            told["unclaimed"] = {name: unclaimed(_services(seen.overview, name)) for name in seen.overview.waitgroups}
    return told


def _services(overview: Overview, waitgroup: str) -> list[str]:
    return sorted(service for service, told in overview.services.items() if told.waitgroup == waitgroup)


def _of(overview: Overview, job: str | None) -> list[JobView]:
    return [view for view in overview.jobs if job is None or view.job_id.startswith(job)]


def _show(found: list[Seen], job: str | None, unclaimed: Unclaimed | None) -> None:
    rows: list[tuple[str | Text, ...]] = []
    for seen in found:
        if seen.overview is None:
            continue
        name = seen.overview.instance_id[:INSTANCE_SHOWN] + (" (drains)" if seen.overview.draining else "")
        for waitgroup, view in sorted(seen.overview.waitgroups.items()):
            services = _services(seen.overview, waitgroup)
            rows.append(
                (
                    seen.address.shown, name, waitgroup, f"{view.running + view.offered} of {view.processes}",
                    str(view.waiting), *([] if unclaimed is None else [str(unclaimed(services))]),
                    str(seen.overview.clients), ", ".join(services),
                )
            )  # fmt: skip
    if rows:
        terminal.print_table(
            ("address", "instance", "waitgroup", "taken", "waiting", *(() if unclaimed is None else ("unclaimed",)),
             "clients", "services"), rows, right=("taken", "waiting", "unclaimed", "clients"),
        )  # fmt: skip
    for seen in found:
        if seen.overview is None:
            terminal.out.print(Text(visible(f"{seen.address.shown}: {seen.error}"), style="red"), soft_wrap=True)
    calls = [(seen.overview, view) for seen in found if seen.overview for view in _of(seen.overview, job)]
    if calls:
        terminal.out.print()
        terminal.print_table(
            ("call", "service", "state", "for", "ahead", "turn in", "priority", "client", "instance"),
            [
                (
                    view.job_id, view.service, Text(view.state, style=_STYLES.get(view.state, '')),
                    measured(view.for_s), "" if view.ahead is None else str(view.ahead), _turn(view),
                    str(view.priority), view.client, overview.instance_id[:INSTANCE_SHOWN],
                )
                for overview, view in calls
            ],
            right=("for", "ahead", "turn in", "priority"),
        )  # fmt: skip
    if any(seen.overview and seen.overview.truncated for seen in found):
        terminal.out.print("There are more calls than are shown.", style="dim")


def _turn(view: JobView) -> str:
    if view.eta_low_s is None or view.eta_high_s is None:
        return "" if view.ahead is None else "?"
    return span(view.eta_low_s, view.eta_high_s)


_STYLES = {"waiting": "cyan", "offered": "cyan", "running": "bold blue"}
