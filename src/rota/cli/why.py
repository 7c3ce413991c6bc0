"""`rota jobs why`: every gate that holds a job, in words, with what would open it."""

import asyncio
import contextlib
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.text import Text

from rota.app import App
from rota.cli.jobs import find
from rota.cli.options import Dsn, Json, Schema, read_settings
from rota.errors import JobNotFound, SettingsError
from rota.io import terminal
from rota.io.visible import visible
from rota.queue.explain import Explanation, explain, plain
from rota.queue.io.store import Store
from rota.queue.io.watch import Watch
from rota.queue.job import JobRow, Scope, State
from rota.queue.payload import check_text
from rota.queue.watching import KeyHolder
from rota.queue.why_facts import Facts
from rota.runners.explain import explain_runner
from rota.runners.io.survey import Survey
from rota.settings import Settings
from rota.slots.io.from_settings import options_of
from rota.slots.io.survey import JobCall, calls_of, look_at

INDENT = 2
KEY_WORDS = {
    Scope.OPEN: "holds the key while it is open: an enqueue with it answers with this job.",
    Scope.QUEUED: "holds the key while it is queued: an enqueue with it answers with this job.",
    Scope.FOREVER: "was added under this key, which adds a job once, ever: an enqueue with it answers with this job.",
}


def why(
    job_id: Annotated[
        str | None, typer.Argument(help="A job id, or its first digits (8 or more).", metavar="ID")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="The job that holds this key, and why it is there.", metavar="KEY")
    ] = None,
    as_json: Json = False,
    dsn: Dsn = None,
    schema: Schema = None,
) -> None:
    """Say what holds a job, and what would open it; or what refuses an enqueue with a key."""
    if (job_id is None) == (key is None):
        raise SettingsError("Give a job id, or a key as --key KEY.")
    check_text("--key", key)

    async def run() -> None:
        async with App(settings=read_settings(dsn=dsn, schema=schema)) as program:
            database = await program.database()
            watch, store = Watch(database), Store(database)
            if job_id is not None:
                found: list[tuple[KeyHolder | None, JobRow | None]] = [(None, await find(store, job_id))]
            else:
                found = [(one, await _row(store, one)) for one in await watch.key_holders(key or "")]
                if not found:
                    raise JobNotFound(f"No job holds the key {key!r}: an enqueue with it adds a job.")
            survey = Survey(database, program.settings)
            told = [(None, None) if row is None else await _explained(row, watch, survey) for _, row in found]
            said = [(*one, explanation) for one, (explanation, _) in zip(found, told, strict=True)]
            calls = [await _calls(facts, program.settings) for _, facts in told]
        if as_json:
            plains = [_plain(*entry) | _plain_calls(its) for entry, its in zip(said, calls, strict=True)]
            terminal.print_json(plains if key is not None else plains[0])
            return
        for number, entry in enumerate(said):
            if number:
                terminal.out.print()
            _show(*entry)
            for call in calls[number]:
                _line(call.words)

    asyncio.run(run())


async def _explained(row: JobRow, watch: Watch, survey: Survey) -> tuple[Explanation, Facts | None]:
    """Why a job is where it is: what a worker takes by the database alone, what a runner takes by its gateways too."""
    if row.place != "worker":
        # It may have been enqueued for a runner, past any gateway.
        with contextlib.suppress(JobNotFound):
            return explain_runner(row, *await survey.facts(row.id)), None
    facts = await watch.facts(row)
    return explain(facts), facts


async def _calls(facts: Facts | None, settings: Settings) -> list[JobCall]:
    """What a running job has exec servers do, or waits for there, where its worker has not told of it yet."""
    if facts is None or facts.job.state is not State.LEASED or settings.exec_addresses is None:
        return []
    if facts.calls and all(call.runs or call.place is not None for call in facts.calls):
        return []
    row = facts.job
    options = options_of(settings)
    return calls_of(str(row.id), await look_at(options.addresses, token=options.token, tls=options.tls))


def _plain_calls(calls: list[JobCall]) -> dict[str, Any]:
    return {"calls": [asdict(call) for call in calls]} if calls else {}


async def _row(store: Store, holder: KeyHolder) -> JobRow | None:
    rows = await store.show(holder.id)
    return rows[0] if rows else None


def _plain(holder: KeyHolder | None, row: JobRow | None, explanation: Explanation | None) -> dict[str, Any]:
    said: dict[str, Any] = {}
    if holder is not None:
        said |= {"id": str(holder.id), "scope": holder.scope, "exists": row is not None}
    if row is not None and explanation is not None:
        said |= {"id": str(row.id), "kind": row.kind, "state": row.state, **plain(explanation)}
    return said


def _show(holder: KeyHolder | None, row: JobRow | None, explanation: Explanation | None) -> None:
    if row is None or explanation is None:
        assert holder is not None, "a job that was asked for by its id was found"
        _line(f"Job {holder.id} {KEY_WORDS[holder.scope]} The job itself has ended and was removed.", indent=0)
        return
    kind = terminal.plain(row.kind)
    kind.stylize("bold")
    head = Text.assemble(kind, f"  {row.id}  ", terminal.plain(explanation.headline))
    terminal.out.print(head, soft_wrap=True)
    if holder is not None:
        _line(f"It {KEY_WORDS[holder.scope]}")
    for gate in explanation.gates:
        terminal.out.print()
        _line(gate.words)
        for detail in gate.details:
            _line(detail, indent=2 * INDENT)
        if gate.opens is not None:
            _line(f"→ {gate.opens}")
    if explanation.line is not None:
        terminal.out.print()
        _line(explanation.line)


def _line(words: str, *, indent: int = INDENT) -> None:
    """A paragraph that goes on below its own beginning; columns in it stay columns."""
    terminal.print_hanging(Text(), Text(visible(words)), indent=indent)
