"""`rota migrate`: what the schema is, and bringing it up to date."""

import asyncio
from typing import Annotated

import typer

from rota.app import App
from rota.cli.options import Dsn, Json, Schema, read_settings
from rota.io import migrate as migrations
from rota.io.terminal import out, print_json, print_table, write

app = typer.Typer(
    help="Bring the schema up to date.",
    invoke_without_command=True,
    rich_markup_mode=None,
)


@app.callback()
def migrate(
    context: typer.Context,
    sql: Annotated[bool, typer.Option("--sql", help="Print the whole schema as SQL, and do nothing.")] = False,
    schema: Schema = None,
    dsn: Dsn = None,
) -> None:
    """Bring the schema up to date; without a subcommand, as `up`."""
    if sql:
        write(migrations.script(read_settings(schema=schema).schema))
        raise typer.Exit
    if context.invoked_subcommand is None:
        up(context, dsn=dsn, schema=schema)


@app.command(short_help="Apply what is missing.")
def up(context: typer.Context, dsn: Dsn = None, schema: Schema = None, as_json: Json = False) -> None:
    """Apply what is missing. Safe while other processes do the same."""

    async def run(program: App) -> None:
        try:
            done = await migrations.up(program.target)
        finally:
            await program.stop()
        if as_json:
            print_json({"applied": [{"number": step.number, "name": step.name} for step in done]})
            return
        for step in done:
            out.print(f"applied {step.number:04}_{step.name}")
        if not done:
            out.print("The schema is up to date.")

    asyncio.run(run(_app(context, dsn=dsn, schema=schema)))


@app.command(short_help="Show what is applied and what is missing.")
def status(context: typer.Context, dsn: Dsn = None, schema: Schema = None, as_json: Json = False) -> None:
    """Show what is applied and what is missing."""

    async def run(program: App) -> None:
        try:
            applied, missing = await migrations.status(program.target)
        finally:
            await program.stop()
        if as_json:
            print_json(
                {
                    "applied": [
                        {"number": s.number, "name": s.name, "at": s.applied_at.isoformat(), "by": s.by}
                        for s in applied
                    ],
                    "missing": [{"number": s.number, "name": s.name} for s in missing],
                }
            )
            return
        print_table(
            ("migration", "applied", "by"),
            [(f"{s.number:04}_{s.name}", f"{s.applied_at:%Y-%m-%d %H:%M}", f"Rota {s.by}") for s in applied]
            + [(f"{s.number:04}_{s.name}", "missing", "run: rota migrate up") for s in missing],
        )

    asyncio.run(run(_app(context, dsn=dsn, schema=schema)))


def _app(context: typer.Context, **flags: str | None) -> App:
    """The program of a command, whose options may also stand before it: `rota migrate --dsn … status`."""
    before = context.parent.params if context.parent is not None else {}
    return App(settings=read_settings(**{name: value or before.get(name) for name, value in flags.items()}))
