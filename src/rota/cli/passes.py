"""`rota passes`: the work that comes by the clock: look at it, run it now, hold it back."""

from typing import Annotated, Any

import typer
from rich.text import Text

from rota.app import App
from rota.cli.options import Dsn, Json, Schema
from rota.cli.pause import For, Note, plain, seconds, with_program
from rota.errors import JobNotFound
from rota.io import terminal
from rota.queue.job import State
from rota.queue.pause import PauseScope
from rota.queue.periodic import PassRow

app = typer.Typer(
    help="Look at passes, run them now, hold them back.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Names = Annotated[list[str], typer.Argument(help="Names of passes.", metavar="PASS…")]


@app.command("list", short_help="List the passes, with the next run of each.")
def list_passes(as_json: Json = False, dsn: Dsn = None, schema: Schema = None) -> None:
    """List the passes that live code has, with the next run of each."""

    async def work(program: App) -> None:
        store = await program.store()
        rows = [row for row in await store.passes() if row.removed_at is None]
        orphans = {orphan.kind for orphan in await store.orphan_kinds()}
        if as_json:
            terminal.print_json([_plain(row, orphan=row.name in orphans) for row in rows])
        elif not rows:
            terminal.out.print("No passes. A worker adds those of its program: see @app.every and @app.cron.")
        else:
            terminal.print_table(
                ("pass", "schedule", "next run", "about"),
                [(row.name, row.schedule, _next(row), _about(row, orphan=row.name in orphans)) for row in rows],
            )

    with_program(work, dsn=dsn, schema=schema)


@app.command(short_help="Run passes now.")
def run(names: Names, as_json: Json = False, dsn: Dsn = None, schema: Schema = None) -> None:
    """Run passes now. The runs that their schedules name still come."""

    async def work(program: App) -> None:
        store = await program.store()
        await _require(program, names)
        answers = [(name, await store.run_pass(name)) for name in names]
        if as_json:
            terminal.print_json(
                [{"pass": name, "id": str(run[0]), "state": run[1].value} for name, run in answers if run is not None]
            )
            return
        for name, run in answers:
            if run is not None:
                says = "runs already" if run[1] is State.LEASED else "is due now"
                terminal.out.print(terminal.plain(f"{name} {says}: job {run[0]}"), soft_wrap=True)

    with_program(work, dsn=dsn, schema=schema)


@app.command(short_help="Hold passes back.")
def pause(  # noqa: PLR0917 - the options of a command
    names: Names,
    note: Note = None,
    span: For = None,
    as_json: Json = False,
    dsn: Dsn = None,
    schema: Schema = None,
) -> None:
    """Hold passes back, as `rota pause` does with a kind; a run whose time comes meanwhile waits."""
    for_s = seconds(span)

    async def work(program: App) -> None:
        await _require(program, names)
        for name in names:
            await program.pause(name, note=note, for_s=for_s)
            if not as_json:
                terminal.out.print(terminal.plain(f"{name} is paused."))
        if as_json:
            held = [held for held in await program.pauses() if held.scope is PauseScope.KIND and held.name in names]
            terminal.print_json([plain(pause) for pause in held])

    with_program(work, dsn=dsn, schema=schema)


@app.command(short_help="Let passes go on.")
def resume(names: Names, as_json: Json = False, dsn: Dsn = None, schema: Schema = None) -> None:
    """Let passes go on; a run that has become due starts at once, and only one."""

    async def work(program: App) -> None:
        await _require(program, names)
        ended = [(name, await program.resume(name)) for name in names]
        if as_json:
            terminal.print_json([{"pass": name, "was_paused": before is not None} for name, before in ended])
        for name, before in () if as_json else ended:
            terminal.out.print(terminal.plain(f"{name} goes on." if before else f"{name} was not paused."))
        if not all(before for _, before in ended):
            raise typer.Exit(1)

    with_program(work, dsn=dsn, schema=schema)


async def _require(program: App, names: list[str]) -> None:
    """Before anything is changed."""
    known = {row.name for row in await (await program.store()).passes() if row.removed_at is None}
    for name in names:
        if name not in known:
            raise JobNotFound(f"There is no pass {name!r}. `rota passes list` names them.")


def _next(row: PassRow) -> str | Text:
    if row.open_state == "leased":
        return Text("runs now", style="bold blue")
    when = row.due_at if row.open_run_after is None else row.open_run_after
    return f"{terminal.between(when, row.now)}, {when:%Y-%m-%d %H:%M:%S} UTC"


def _about(row: PassRow, *, orphan: bool) -> str:
    facts = []
    if row.paused:
        facts.append("paused")
    if row.missing_since is not None:
        facts.append("no live server has it in its code")
    elif orphan:
        facts.append("no live server takes it")
    if row.extra:
        facts.append("an extra run is open")
    if row.open_tries:
        facts.append(f"{row.open_tries} tries")
    return ", ".join(facts)


def _plain(row: PassRow, *, orphan: bool) -> dict[str, Any]:
    return {
        "name": row.name,
        "schedule": row.schedule,
        "priority": row.priority,
        "due_at": row.due_at.isoformat(),
        "extra": row.extra,
        "paused": row.paused,
        "taken": not orphan,
        "missing_since": row.missing_since.isoformat() if row.missing_since else None,
        "open": None
        if row.open_id is None or row.open_run_after is None
        else {"id": str(row.open_id), "state": row.open_state, "run_after": row.open_run_after.isoformat()},
    }
