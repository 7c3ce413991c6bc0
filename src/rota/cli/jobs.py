"""`rota jobs`: look at jobs, and put them right."""

import asyncio
import dataclasses
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.text import Text

from rota.app import App
from rota.cli import history, retries
from rota.cli.options import Dsn, Json, Schema, read_settings
from rota.durations import measured
from rota.errors import JobNotFound, SettingsError
from rota.ids import SHORT_ID, JobId
from rota.io import terminal
from rota.queue.io.store import Store
from rota.queue.job import JobFilter, JobRow, State
from rota.queue.new_job import check_priority, check_times
from rota.queue.payload import check_text, readable

app = typer.Typer(
    help="Look at jobs, and put them right.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Ids = Annotated[list[str], typer.Argument(help="Job ids, or their first digits (8 or more).", metavar="ID…")]
PREFIX_DIGITS_MIN = 8


def _run(work: Callable[[Store], Awaitable[None]], *, dsn: str | None, schema: str | None) -> None:
    async def run() -> None:
        async with App(settings=read_settings(dsn=dsn, schema=schema)) as program:
            await work(await program.store())

    asyncio.run(run())


@app.command("list")
def list_jobs(  # noqa: PLR0917 - the options of a command
    kind: Annotated[
        list[str] | None, typer.Option("--kind", help="Only this kind; may be repeated.", metavar="KIND")
    ] = None,
    state: Annotated[
        list[State] | None,
        typer.Option("--state", help=f"Only this state ({', '.join(State)}); may be repeated.", metavar="STATE"),
    ] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant.", metavar="T")] = None,
    older: Annotated[
        str | None, typer.Option("--older", help="Added longer ago than this: 90s, 15m, 2h, 3d.", metavar="AGE")
    ] = None,
    newer: Annotated[
        str | None, typer.Option("--newer", "--since", help="Added within this time.", metavar="AGE")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="How many at most.", metavar="N")] = 20,
    after: Annotated[
        str | None, typer.Option("--after", help="Go on below this job: the next page.", metavar="ID")
    ] = None,
    as_json: Json = False,
    dsn: Dsn = None,
    schema: Schema = None,
) -> None:
    """List jobs, newest first."""
    for name in kind or ():
        check_text("--kind", name)
    check_text("--tenant", tenant)
    wanted = JobFilter(
        kinds=tuple(kind) if kind else None,
        states=tuple(state) if state else None,
        tenant=tenant,
        older_s=_age(older, "--older"),
        newer_s=_age(newer, "--newer"),
    )
    # Not looked up: the job may be gone by now, and its page goes on all the same.
    below = None if after is None else JobId(UUID(_digits(after).ljust(32, "0")))

    async def work(store: Store) -> None:
        rows = await store.page(wanted, limit=limit + 1, below=below)
        more, rows = len(rows) > limit, rows[:limit]
        if as_json:
            terminal.print_json(
                {"jobs": [_plain(row, whole=False) for row in rows], "next": str(rows[-1].id) if more else None}
            )
            return
        if not rows:
            terminal.out.print("No jobs" + (" like that." if wanted != JobFilter() or after else " yet."))
            return
        terminal.print_table(
            ("id", "kind", "state", "tries", "added", "about"),
            [
                (
                    str(row.id)[:SHORT_ID], row.kind, terminal.state(row.state), f"{row.tries}/{row.max_tries or '–'}",
                    terminal.between(row.created_at, row.now), _about(row),
                )
                for row in rows
            ],
            right=("tries",),
        )  # fmt: skip
        if more:
            terminal.out.print(f"More: --after {rows[-1].id}", style="dim", soft_wrap=True)

    _run(work, dsn=dsn, schema=schema)


@app.command(short_help="Show jobs whole, with their tries and logs.")
def show(
    ids: Ids,
    logs: Annotated[bool, typer.Option("--logs", help="Also what their handlers logged.")] = False,
    as_json: Json = False,
    dsn: Dsn = None,
    schema: Schema = None,
) -> None:
    """Show jobs whole, with the tries of those that did not simply succeed."""

    async def work(store: Store) -> None:
        rows = [await find(store, job_id) for job_id in ids]
        tries = await store.tries({row.id for row in rows})
        lines = await store.logs({row.id for row in rows}) if logs else None
        if as_json:
            terminal.print_json([history.plain(_plain(row, whole=True), row, tries, lines) for row in rows])
            return
        for number, row in enumerate(rows):
            if number:
                terminal.out.print()
            _print_job(row)
            history.print_tries(row, tries)
            if lines is not None:
                history.print_lines(row, lines)

    _run(work, dsn=dsn, schema=schema)


@app.command(short_help="Run ended jobs again, one by one or many at once.")
def retry(  # noqa: PLR0917 - the options of a command
    ids: Annotated[
        list[str] | None, typer.Argument(help="Job ids, or their first digits (8 or more).", metavar="ID…")
    ] = None,
    kind: Annotated[
        list[str] | None, typer.Option("--kind", help="Failed jobs of this kind; may be repeated.", metavar="KIND")
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="All failed jobs, in place of ids.")] = False,
    since: Annotated[
        str | None, typer.Option("--since", help="Failed within this time: 90s, 15m, 2h, 3d.", metavar="AGE")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before many are retried.")] = False,
    as_json: Json = False,
    dsn: Dsn = None,
    schema: Schema = None,
) -> None:
    """Run ended jobs again, with their tries at 0; a queued job that waits for its time becomes due.

    With --failed, --kind or --since: all failed jobs like that, after their number was shown and you have agreed.
    """
    many = failed or bool(kind) or since is not None
    if many == bool(ids):
        raise SettingsError("Give the ids of jobs, or --failed with --kind or --since, and not both.")
    if many and not failed:
        raise SettingsError("Only failed jobs are retried by --kind and --since: add --failed.")
    for name in kind or ():
        check_text("--kind", name)
    since_s = _age(since, "--since")

    async def work(store: Store) -> None:
        await (
            retries.retry_many(store, kinds=kind or None, since_s=since_s, yes=yes, as_json=as_json)
            if many
            else retries.retry_each(store, [(await find(store, job_id)).id for job_id in ids or ()], as_json=as_json)
        )

    _run(work, dsn=dsn, schema=schema)


@app.command(short_help="Cancel jobs, queued or running.")
def cancel(  # noqa: PLR0917 - the options of a command
    ids: Ids,
    reason: Annotated[
        str, typer.Option("--reason", help="Kept with the job.", metavar="TEXT")
    ] = "Cancelled by an operator",
    children: Annotated[bool, typer.Option("--children", help="Also what the jobs added as their children.")] = False,
    as_json: Json = False,
    dsn: Dsn = None,
    schema: Schema = None,
) -> None:
    """Cancel jobs: a queued one at once, a running one as soon as its worker answers."""

    check_text("--reason", reason)

    async def work(store: Store) -> None:
        found = [(await find(store, job_id)) for job_id in ids]
        states = await store.cancel([row.id for row in found], children=children, reason=reason)
        named = {row.id for row in found}
        others = {job_id: state for job_id, state in states.items() if job_id not in named}
        if as_json:
            terminal.print_json(
                [{"id": str(row.id), "state": states.get(row.id, row.state)} for row in found]
                + [{"id": str(job_id), "state": state} for job_id, state in sorted(others.items())]
            )
        for row in found:
            state = states.get(row.id)
            words = {
                State.CANCELLED: "is cancelled",
                State.LEASED: f"runs on {row.leased_by}, which was asked to stop it",
                None: f"has ended before: {row.state}",
            }[state]
            if not as_json:
                terminal.out.print(terminal.plain(f"{row.id} {words}"), soft_wrap=True)
        if others and not as_json:
            told = Counter(others.values())
            terminal.out.print(
                f"Their children: {told[State.CANCELLED]} cancelled, {told[State.LEASED]} running and asked to stop"
            )
        if any(row.id not in states for row in found) and not others:
            raise typer.Exit(1)

    _run(work, dsn=dsn, schema=schema)


@app.command(short_help="Give queued jobs another priority or time.")
def move(  # noqa: PLR0917 - the options of a command
    ids: Ids,
    priority: Annotated[
        int | None, typer.Option("--priority", help="The new priority; higher runs first.", metavar="N")
    ] = None,
    after: Annotated[
        str | None,
        typer.Option("--after", help="Not before so long from now: 90s, 15m, 2h, 3d; 0s makes it due.", metavar="TIME"),
    ] = None,
    as_json: Json = False,
    dsn: Dsn = None,
    schema: Schema = None,
) -> None:
    """Move queued jobs in the line: another priority, another time, or both."""
    if priority is None and after is None:
        raise SettingsError("Nothing to change: give --priority, --after, or both.")
    if priority is not None:
        check_priority(priority)
    delay_s = _age(after, "--after")
    check_times(None, delay_s)

    async def work(store: Store) -> None:
        found = [(await find(store, job_id)) for job_id in ids]
        states = await store.move([row.id for row in found], priority=priority, delay_s=delay_s)
        if as_json:
            terminal.print_json([{"id": str(row.id), "state": states.get(row.id, row.state)} for row in found])
        for row in found:
            words = {
                State.QUEUED: "is moved",
                State.LEASED: f"runs on {row.leased_by}; it was left alone",
                None: f"has ended before: {row.state}",
            }[states.get(row.id)]
            if not as_json:
                terminal.out.print(terminal.plain(f"{row.id} {words}"), soft_wrap=True)
        if any(states.get(row.id) is not State.QUEUED for row in found):
            raise typer.Exit(1)

    _run(work, dsn=dsn, schema=schema)


async def find(store: Store, text: str) -> JobRow:
    """The one job with this id, or whose id begins with these digits."""
    digits = _digits(text)
    rows = await store.show(JobId(UUID(digits.ljust(32, "0"))), JobId(UUID(digits.ljust(32, "f"))), limit=2)
    if not rows:
        raise JobNotFound(f"There is no job {text}. It may have ended longer ago than its retention.")
    if len(rows) > 1:
        some = " and ".join(str(row.id)[:SHORT_ID] for row in rows)
        raise SettingsError(f"More than one job begins with {text}, such as {some}: give more digits.")
    return rows[0]


def _digits(text: str) -> str:
    digits = text.lower().replace("-", "").strip()
    if not re.fullmatch(rf"[0-9a-f]{{{PREFIX_DIGITS_MIN},32}}", digits):
        raise SettingsError(f"{text!r} is no job id: give the id, or at least its first {PREFIX_DIGITS_MIN} digits.")
    return digits


def _about(row: JobRow) -> Text:
    """The one thing to know about a job in a list."""
    if row.state is State.LEASED:
        said = history.progress(row.progress, facts=False)
        moved = terminal.between(row.heartbeat_at, row.now)
        return terminal.plain(f"{said + ', ' if said else ''}on {row.leased_by}, last progress {moved}")
    if row.state is State.QUEUED and row.run_after > row.now:
        due = f"due {terminal.between(row.run_after, row.now)}"
        return terminal.plain(due if row.last_error is None else f"{due}; {row.last_error}")
    if row.state is State.DONE and row.finished_at is not None and row.started_at is not None:
        return terminal.plain(f"took {measured((row.finished_at - row.started_at).total_seconds())}")
    return terminal.plain(row.last_error)


def _print_job(row: JobRow) -> None:
    terminal.out.print(Text(str(row.id), style="bold"), soft_wrap=True)
    terminal.print_facts(
        [
            ("kind", row.kind),
            ("state", terminal.state(row.state)),
            ("tenant", row.tenant),
            ("priority", str(row.priority)),
            ("tries", f"{row.tries} of {row.max_tries or 'the default of its kind'}"),
            ("added", _time(row.created_at, row)),
            ("due", _time(row.run_after, row) if row.state is State.QUEUED else None),
            ("started", _time(row.started_at, row)),
            ("ended", _time(row.finished_at, row)),
            ("parent", None if row.parent_id is None else str(row.parent_id)),
            ("batch", None if row.batch_id is None else str(row.batch_id)),
            ("holder", row.leased_by),
            ("lease until", _time(row.lease_until, row)),
            ("epoch", str(row.lease_epoch) if row.lease_epoch else None),
            ("last progress", _time(row.heartbeat_at, row)),
            ("cancel asked", _time(row.cancel_asked_at, row)),
            ("key", f"{row.dedupe_key} ({row.dedupe_scope})" if row.dedupe_key else None),
            ("error", row.last_error),
            ("progress", history.progress(row.progress)),
            ("payload", row.payload),
            ("result", row.result),
        ]
    )


def _time(when: Any, row: JobRow) -> str | None:
    return None if when is None else f"{when:%Y-%m-%d %H:%M:%S} UTC ({terminal.between(when, row.now)})"


def _plain(row: JobRow, *, whole: bool) -> dict[str, Any]:
    values = dataclasses.asdict(row)
    for name in ("progress", "payload", "result"):
        if values[name] is not None:
            values[name] = readable(values[name])
    if not whole:
        for name in ("payload", "result", "trace", "execution_id"):
            del values[name]
    for name, value in values.items():
        if hasattr(value, "isoformat"):
            values[name] = value.isoformat()
    for name in ("id", "parent_id", "batch_id"):
        values[name] = None if values[name] is None else str(values[name])
    return values


def _age(text: str | None, option: str) -> float | None:
    try:
        return None if text is None else terminal.parse_age(text)
    except ValueError as error:
        raise SettingsError(f"{option}: {error}.") from None
