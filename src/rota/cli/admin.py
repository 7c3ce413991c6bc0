"""`rota admin`: the queue as an administrator sees it."""

import asyncio
from typing import Annotated

import typer
from rich.text import Text

from rota.app import App
from rota.cli.options import Dsn, Json, Schema, read_settings
from rota.ids import SHORT_ID
from rota.io import terminal
from rota.queue.io.watch import Watch
from rota.queue.job import State
from rota.queue.payload import check_text
from rota.queue.watching import EVERYTHING, Overview, Viewer

app = typer.Typer(
    help="The queue as an administrator sees it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def _root() -> None:
    """The queue as an administrator sees it."""


@app.command(short_help="Show the jobs by kind and state, and the last 20 that failed.")
def jobs(
    tenant: Annotated[
        str | None,
        typer.Option(
            "--tenant", help="As an administrator of this tenant: its jobs and the deployment's.", metavar="T"
        ),
    ] = None,
    as_json: Json = False,
    dsn: Dsn = None,
    schema: Schema = None,
) -> None:
    """Show the jobs by kind and state, and the last 20 that failed."""
    check_text("--tenant", tenant)
    viewer = EVERYTHING if tenant is None else Viewer.of_tenant(tenant)

    async def run() -> Overview:
        async with App(settings=read_settings(dsn=dsn, schema=schema)) as program:
            return await Watch(await program.database()).overview(viewer)

    overview = asyncio.run(run())
    if as_json:
        terminal.print_json(overview.plain())
        return
    if not overview.counts:
        terminal.out.print("No jobs yet.")
        return
    kinds = sorted({one.kind for one in overview.counts})
    numbers = {(one.kind, one.state): one.count for one in overview.counts}
    states = [state for state in State if any((kind, state) in numbers for kind in kinds)]
    terminal.print_table(
        ("kind", *states),
        [(kind, *(_number(numbers.get((kind, state), 0)) for state in states)) for kind in kinds],
        right=tuple(states),
    )
    if overview.failed:
        terminal.out.print()
        terminal.print_table(
            ("failed", "id", "kind", "tenant", "tries", "error"),
            [
                (
                    f"{one.finished_at:%Y-%m-%d %H:%M}", str(one.id)[: SHORT_ID], one.kind, one.tenant or "",
                    str(one.tries), terminal.plain(one.error),
                )
                for one in overview.failed
            ],
            right=("tries",),
        )  # fmt: skip


def _number(count: int) -> Text:
    return Text(f"{count:,}" if count else "·", style="" if count else "dim")
