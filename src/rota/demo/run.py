"""The demo: real work on real files, with one worker killed on the way.

It needs nothing but this package: PostgreSQL is run from a folder, ffmpeg is found or comes with `rota[media]`. It
leaves files in that folder and nothing running.
"""

import asyncio
import json
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from rota.app import App
from rota.demo.files import remove_leftovers
from rota.demo.handlers import KINDS, MediaJob, make_app, result_name
from rota.demo.page import DemoPage, JobLine, MediaCard, render
from rota.demo.samples import make_samples
from rota.demo.view import LiveView, PlainView, View, fraction_of, worker_of
from rota.durations import measured
from rota.errors import MediaError
from rota.ids import SHORT_ID, JobId
from rota.io import migrate
from rota.io.clock import lease_clock
from rota.io.embedded import EmbeddedPostgres
from rota.io.ffmpeg import Tools, find_tools
from rota.io.processes import Command, ProcessTree
from rota.io.terminal import print_table, state
from rota.queue.io.store import Store
from rota.queue.job import ENDED, JobFilter, JobRow, State
from rota.settings import Settings

WORKERS: Final = 2
LOOK_S: Final = 0.15
KILL_FROM: Final = 0.1
"""How far a job must be for its worker to be worth killing: it is seen to begin again."""
KILL_ANYHOW: Final = 0.5
"""The share of ended jobs at which any busy worker will do."""
TIMEOUT_S: Final = 1800.0
IDS_WIDTH: Final = 100
"""From so many columns on the table at the end has room for ids."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One job of the demo: its file's number and what it makes."""

    number: int
    source: Path
    kind: str
    out: str


async def run(files: Sequence[Path], *, folder: Path, console: Console, ffmpeg: str | None, kill: bool) -> int:
    """Does everything. Returns: the exit status, 0 if every job is done.

    Raises: MediaError, EmbeddedError, DatabaseError.
    """
    given = [_checked(file) for file in files]
    tools = find_tools(ffmpeg)
    results = folder / "results"
    results.mkdir(parents=True, exist_ok=True)
    sources = given or await _samples(folder / "samples", tools=tools, console=console)
    with EmbeddedPostgres(folder / "postgres") as server:
        settings = Settings(dsn=server.dsn)
        app = make_app(settings, tools=tools)
        try:
            await migrate.up(app.target)
            await _clear_away(await app.store())
            began = lease_clock()
            planned = await _enqueue(app, sources, results)
            console.print(f"Enqueued {len(planned)} jobs for {len(sources)} files in one transaction.", soft_wrap=True)
            tree = ProcessTree(_commands(server.dsn, tools, folder), grace_s=10, restart=False)
            running = asyncio.create_task(tree.run())
            try:
                workers, rows = await _watch(
                    await app.store(), planned, tree=tree, running=running, console=console, kill=kill
                )
            finally:
                tree.stop()
                await running
            elapsed_s = lease_clock() - began
        finally:
            await app.stop()
    # A killed worker leaves what it had begun to write.
    remove_leftovers(results)
    page = _page(planned, rows, workers=workers, elapsed_s=elapsed_s)
    (results / "index.html").write_text(render(page), encoding="utf-8")
    _report(planned, rows, workers=workers, elapsed_s=elapsed_s, folder=folder, console=console)
    return 0 if all(row.state is State.DONE for row in rows) else 1


def _checked(file: Path) -> Path:
    if not file.is_file():
        raise MediaError(f"{file} is no file. Name media files, or none: then the demo makes some.")
    return file.absolute()


async def _samples(folder: Path, *, tools: Tools, console: Console) -> list[Path]:
    with Progress(
        TextColumn("Making sample files"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), console=console,
        transient=True, disable=not console.is_terminal,
    ) as bar:  # fmt: skip
        task = bar.add_task("samples", total=1.0)

        async def report(fraction: float) -> None:
            bar.update(task, completed=fraction)

        return await make_samples(folder, tools=tools, progress=report)


async def _clear_away(store: Store) -> None:
    """Cancels what an interrupted demo has left in the queue, so that this one does its own work alone."""
    left = await store.page(JobFilter(states=(State.QUEUED, State.LEASED)), limit=10_000)
    await store.cancel([row.id for row in left], reason="Left by an earlier demo")


async def _enqueue(app: App, sources: Sequence[Path], results: Path) -> dict[JobId, Planned]:
    planned = [
        Planned(number, source, kind, result_name(source, number=number, kind=kind))
        for number, source in enumerate(sources, start=1)
        for kind in KINDS
    ]
    jobs = [
        app.new(plan.kind, MediaJob(str(plan.source), str(results / plan.out) if plan.out else "")) for plan in planned
    ]
    database = await app.database()
    async with database.acquire() as conn, conn.transaction():
        added = await app.enqueue_many(jobs, conn=conn)
    return {new.id: plan for new, plan in zip(added, planned, strict=True)}


def _commands(dsn: str, tools: Tools, folder: Path) -> list[Command]:
    argv = [sys.executable, "-m", "rota.demo.worker", dsn, str(tools.ffmpeg), str(tools.ffprobe)]
    return [Command(f"worker {n}", argv, log=folder / f"worker-{n}.log") for n in range(1, WORKERS + 1)]


async def _watch(
    store: Store,
    planned: Mapping[JobId, Planned],
    *,
    tree: ProcessTree,
    running: asyncio.Task[int],
    console: Console,
    kill: bool,
) -> tuple[dict[str, str], list[JobRow]]:
    """Shows the jobs until all have ended, and kills one worker in the middle."""
    workers: dict[str, str] = {}
    files = {str(job_id): plan.source.name for job_id, plan in planned.items()}
    view: View = (LiveView if console.is_terminal else PlainView)(console, files, workers)
    first, last = min(planned), max(planned)
    taken_over: set[JobId] = set()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                for number in range(1, WORKERS + 1):
                    pid = tree.pid(f"worker {number}")
                    if pid is not None:
                        workers[str(pid)] = f"worker {number}"
                found = await store.show(first, last, limit=10 * len(planned))
                rows = sorted((row for row in found if row.id in planned), key=lambda row: row.id)
                view.show(rows)
                if all(row.state in ENDED for row in rows):
                    return workers, rows
                if kill and not taken_over:
                    taken_over = _kill_one(rows, workers=workers, tree=tree, view=view)
                if running.done():
                    raise MediaError("Both workers ended before their jobs; their logs lie in the demo's folder.")
                await asyncio.sleep(LOOK_S)
    finally:
        view.close()


def _kill_one(rows: Sequence[JobRow], *, workers: Mapping[str, str], tree: ProcessTree, view: View) -> set[JobId]:
    """Kills (SIGKILL) the worker whose transcode is well under way. Returns: the jobs that it held."""
    late = sum(row.state in ENDED for row in rows) >= KILL_ANYHOW * len(rows)
    busy = [row for row in rows if row.state is State.LEASED and worker_of(row, workers)]
    worth = [row for row in busy if row.kind == "transcode" and fraction_of(row) >= KILL_FROM] or (busy if late else [])
    if not worth:
        return set()
    name = worker_of(worth[0], workers)
    pid = tree.pid(name)
    if pid is None:
        return set()
    os.kill(pid, signal.SIGKILL)
    held = [row for row in busy if worker_of(row, workers) == name]
    kinds = ", ".join(row.kind.replace("_", " ") for row in held)
    view.say(f"Killed {name} (SIGKILL) in the middle of: {kinds}. When its leases run out, the other takes these jobs.")
    return {row.id for row in held}


def _page(
    planned: Mapping[JobId, Planned], rows: Sequence[JobRow], *, workers: Mapping[str, str], elapsed_s: float
) -> DemoPage:
    began = min(row.created_at for row in rows)
    cards = []
    for number in sorted({plan.number for plan in planned.values()}):
        own = [row for row in rows if planned[row.id].number == number]
        answers = {row.kind: json.loads(row.result) if row.result else None for row in own}
        made = {
            row.kind: planned[row.id].out
            for row in own
            if row.state is State.DONE and planned[row.id].out and "skipped" not in (answers[row.kind] or {})
        }
        lines = [
            JobLine(
                kind=row.kind.replace("_", " "),
                state=row.state,
                tries=row.tries,
                worker=worker_of(row, workers) or None,
                started_s=None if row.started_at is None else (row.started_at - began).total_seconds(),
                duration_s=_took(row),
                note=_note(row, answers[row.kind]),
            )
            for row in own
        ]
        cards.append(
            MediaCard(
                name=planned[own[0].id].source.name,
                jobs=lines,
                probe=answers["probe"],
                loudness=answers["loudness"],
                sheet=made.get("contact_sheet"),
                waveform=made.get("waveform"),
                media=made.get("transcode"),
                error=next((row.last_error for row in own if row.state is State.FAILED), None),
            )
        )
    again = sum(row.tries > 1 for row in rows)
    notes = [f"One worker was killed on the way; {again} of its jobs were taken again."] if again else []
    return DemoPage(
        title="Rota demo", cards=cards, workers=sorted(set(workers.values())), elapsed_s=elapsed_s, notes=notes
    )


def _took(row: JobRow) -> float | None:
    if row.started_at is None or row.finished_at is None:
        return None
    return (row.finished_at - row.started_at).total_seconds()


def _note(row: JobRow, answer: Any) -> str | None:
    if row.state is not State.DONE:
        return row.last_error
    return answer.get("skipped") if isinstance(answer, dict) else None


def _report(
    planned: Mapping[JobId, Planned], rows: Sequence[JobRow], *, workers: Mapping[str, str], elapsed_s: float,
    folder: Path, console: Console,
) -> None:  # fmt: skip
    console.print()
    # The jobs were added at once: an id that is cut is like all others.
    ids = console.width >= IDS_WIDTH
    print_table(
        (*(("job",) if ids else ()), "kind", "file", "state", "tries", "time", "worker", "result"),
        [
            (
                *((str(row.id)[:SHORT_ID],) if ids else ()),
                row.kind.replace("_", " "),
                planned[row.id].source.name,
                state(row.state),
                str(row.tries),
                measured(took) if (took := _took(row)) is not None else "",
                worker_of(row, workers),
                _result_words(row),
            )
            for row in rows
        ],
        right=("tries", "time"),
    )
    done, again = sum(row.state is State.DONE for row in rows), sum(row.tries > 1 for row in rows)
    console.print()
    console.print(
        f"{done} of {len(rows)} jobs done in {measured(elapsed_s)}"
        + (f"; {again} taken again after a worker was killed" if again else "")
        + ". Nothing is left running.",
        soft_wrap=True,
    )
    page = folder / "results" / "index.html"
    rota, dsn = _rota_command(), shlex.quote(f"embedded:{folder / 'postgres'}")
    shown = next((row for row in rows if row.tries > 1), rows[0])
    console.print(f"\nResults: {page}\n\nLook further:", soft_wrap=True)
    for command in (
        f"{rota} jobs list --dsn {dsn}",
        f"{rota} jobs show {str(shown.id)[:18]} --dsn {dsn}",
        f"{rota} dev --folder {shlex.quote(str(folder / 'postgres'))}",
    ):
        console.print(f"  {command}", soft_wrap=True)


def _result_words(row: JobRow) -> str:
    """The answer of a job in a few words."""
    answer = json.loads(row.result) if row.result else {}
    if row.state is not State.DONE:
        return row.last_error or ""
    if "skipped" in answer:
        return str(answer["skipped"])
    match row.kind:
        case "probe":
            return ", ".join(answer["codecs"])
        case "loudness" if answer["integrated_lufs"] is not None:
            return f"{answer['integrated_lufs']:.1f} LUFS"
        case _ if answer.get("width"):
            return f"{answer['width']}×{answer['height']}, {answer['size_bytes'] / 1000:,.0f} kB"
        case _ if answer.get("size_bytes"):
            return f"{answer['size_bytes'] / 1000:,.0f} kB"
    return ""


def _rota_command() -> str:
    """How this very `rota` is called from here."""
    own, here = Path(sys.argv[0]).absolute(), Path.cwd()
    if own.name != "rota":
        return f"{shlex.quote(sys.executable)} -m rota.cli.main"
    if shutil.which("rota") == str(own):
        return "rota"
    return shlex.quote(str(own.relative_to(here) if own.is_relative_to(here) else own))
