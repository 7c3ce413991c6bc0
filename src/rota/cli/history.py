"""How `rota jobs show` says what is kept of a job beside its row: its tries, its progress and its log lines."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from rota.durations import measured
from rota.io import terminal
from rota.queue.history import KeptLine, Try, TryEnd
from rota.queue.job import JobRow
from rota.queue.payload import readable

WORDS = {
    TryEnd.RETRY: "failed",
    TryEnd.LOST: "lease lost",
    TryEnd.FENCED: "fenced: its process ended itself",
    TryEnd.KILLED: "killed",
    TryEnd.GIVEN_BACK: "given back",
}
LEVEL_STYLES = {"warning": "yellow", "error": "red", "critical": "red"}


def plain(shown: dict[str, Any], row: JobRow, tries: Sequence[Try], lines: Sequence[KeptLine] | None) -> dict[str, Any]:
    """The job as JSON has it, with its tries and, where asked for, its lines."""
    shown["tries_kept"] = [_jsonable(one) for one in tries if one.job_id == row.id]
    if lines is not None:
        shown["logs"] = [
            {**_jsonable(line), "fields": None if line.fields is None else readable(line.fields)}
            for line in lines
            if line.job_id == row.id
        ]
    return shown


def _jsonable(kept: Try | KeptLine) -> dict[str, Any]:
    values = dataclasses.asdict(kept)
    del values["job_id"]
    return {key: value.isoformat() if hasattr(value, "isoformat") else value for key, value in values.items()}


def print_tries(row: JobRow, tries: Sequence[Try]) -> None:
    """A table of the job's tries, if any are kept."""
    own = [one for one in tries if one.job_id == row.id]
    if not own:
        return
    terminal.out.print()
    terminal.print_table(
        ("epoch", "started", "ran", "ended", "holder", "about"),
        [
            (
                str(one.epoch),
                f"{one.started_at:%Y-%m-%d %H:%M:%S}",
                measured(((one.stopped_at or one.ended_at) - one.started_at).total_seconds()),
                WORDS.get(one.ended, one.ended.value),
                one.holder,
                terminal.plain(_about(one)),
            )
            for one in own
        ],
        right=("epoch",),
    )


def _about(one: Try) -> str:
    beside = f"It ran {one.overlap_s:.3f} s beside another run. " if one.overlap_s else ""
    return beside + (one.error or "")


def print_lines(row: JobRow, lines: Sequence[KeptLine]) -> None:
    """What the job's handler logged."""
    own = [line for line in lines if line.job_id == row.id]
    terminal.out.print()
    if not own:
        terminal.out.print("Its handler has logged nothing that is kept.", style="dim")
    runs = len({line.epoch for line in own})
    for line in own:
        fields = json.loads(line.fields) if line.fields else {}
        said = Text(f"{line.logged_at:%H:%M:%S.%f}"[:-3] + " ", style="dim")
        if runs > 1:
            said.append(f"{line.epoch} ", style="dim")
        said.append(f"{line.level:<8} ", style=LEVEL_STYLES.get(line.level, "dim"))
        said.append_text(terminal.plain(line.event))
        trace = fields.pop("traceback", None)
        for key, value in fields.items():
            shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            said.append("  ").append_text(terminal.plain(f"{key}={shown}"))
        terminal.out.print(said, soft_wrap=True)
        for part in str(trace).splitlines() if trace else ():
            terminal.out.print(Text("    ").append_text(terminal.plain(part)), soft_wrap=True, style="dim")


def progress(text: str | None, *, facts: bool = True) -> str | None:
    """A job's progress in words: `40%, page 3`, then what else it keeps."""
    if text is None:
        return None
    stored = readable(text)
    if not isinstance(stored, dict):
        return text if facts else None
    fraction, said = stored.pop("fraction", None), stored.pop("text", None)
    parts = [f"{fraction:.0%}"] if isinstance(fraction, int | float) else []
    parts += [said] if isinstance(said, str) and said else []
    parts += [json.dumps(stored, ensure_ascii=False)] if stored and facts else []
    return ", ".join(parts) or None
