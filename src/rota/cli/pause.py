"""`rota pause` and `rota resume`: hold back a kind, a tenant, or all work, and let it go on."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer

from rota.app import App
from rota.cli.options import Dsn, Json, Schema, read_settings
from rota.errors import SettingsError
from rota.io import terminal
from rota.queue.pause import Pause, PauseScope

Kind = Annotated[str | None, typer.Argument(help="The kind, or the name of a pass.", metavar="KIND")]
Tenant = Annotated[str | None, typer.Option("--tenant", help="A tenant's jobs, of all kinds.", metavar="T")]
All = Annotated[bool, typer.Option("--all", help="All jobs.")]
Note = Annotated[str | None, typer.Option("--note", help="Why, for those who wonder.", metavar="TEXT")]
For = Annotated[
    str | None,
    typer.Option("--for", help="For how long: 90s, 15m, 2h, 3d. Else until `rota resume`.", metavar="TIME"),
]


def pause(  # noqa: PLR0917 - the options of a command
    kind: Kind = None,
    tenant: Tenant = None,
    everything: All = False,
    note: Note = None,
    span: For = None,
    as_json: Json = False,
    dsn: Dsn = None,
    schema: Schema = None,
) -> None:
    """Claim no job of a kind, of a tenant, or at all; without any of them, list what is paused. Running jobs go on."""
    for_s = seconds(span)
    listed = kind is None and tenant is None and not everything and note is None and for_s is None
    if not listed:
        _require_one(kind, tenant, everything)

    async def work(program: App) -> None:
        if not listed:
            await program.pause(kind, tenant=tenant, everything=everything, note=note, for_s=for_s)
        held = await program.pauses()
        if as_json:
            terminal.print_json([plain(pause) for pause in held])
        elif not held:
            terminal.out.print("Nothing is paused.")
        else:
            terminal.print_table(
                ("paused", "since (UTC)", "until (UTC)", "by", "note"),
                [
                    (words(pause), _time(pause.paused_at), _time(pause.until), pause.paused_by, pause.note or "")
                    for pause in held
                ],
            )

    with_program(work, dsn=dsn, schema=schema)


def resume(  # noqa: PLR0917 - the options of a command
    kind: Kind = None,
    tenant: Tenant = None,
    everything: All = False,
    as_json: Json = False,
    dsn: Dsn = None,
    schema: Schema = None,
) -> None:
    """Let paused work go on."""
    _require_one(kind, tenant, everything)

    async def work(program: App) -> None:
        ended = await program.resume(kind, tenant=tenant, everything=everything)
        if as_json:
            terminal.print_json(None if ended is None else plain(ended))
            if ended is None:
                raise typer.Exit(1)
            return
        if ended is None:
            terminal.out.print("That was not paused. `rota pause` lists what is.")
            raise typer.Exit(1)
        terminal.out.print(terminal.plain(f"{words(ended)} goes on; it was paused by {ended.paused_by}."))

    with_program(work, dsn=dsn, schema=schema)


def _require_one(kind: str | None, tenant: str | None, everything: bool) -> None:
    if (kind is not None) + (tenant is not None) + everything != 1:
        raise SettingsError("Name one thing: a kind, --tenant T, or --all.")


def with_program(work: Callable[[App], Awaitable[None]], *, dsn: str | None, schema: str | None) -> None:
    """Runs a command's work on a program that has these settings and no handlers."""

    async def run() -> None:
        async with App(settings=read_settings(dsn=dsn, schema=schema)) as program:
            await work(program)

    asyncio.run(run())


def seconds(span: str | None) -> float | None:
    """The time of `--for`.

    Raises: SettingsError.
    """
    try:
        return None if span is None else terminal.parse_age(span)
    except ValueError as error:
        raise SettingsError(f"--for: {error}.") from None


def words(pause: Pause) -> str:
    """What a pause holds back."""
    match pause.scope:
        case PauseScope.ALL:
            return "all work"
        case PauseScope.KIND:
            return f"kind {pause.name}"
        case PauseScope.TENANT:
            return f"tenant {pause.name}"


def plain(pause: Pause) -> dict[str, Any]:
    """A pause as JSON values."""
    return {
        "scope": pause.scope.value,
        "name": pause.name,
        "note": pause.note,
        "paused_by": pause.paused_by,
        "paused_at": pause.paused_at.isoformat(),
        "until": pause.until.isoformat() if pause.until else None,
    }


def _time(when: Any) -> str:
    return "until resumed" if when is None else f"{when:%Y-%m-%d %H:%M}"
