"""What the demo shows while it runs: on a terminal one line for each job and a bar for all, elsewhere plain lines."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rota.durations import measured
from rota.io.terminal import STATE_STYLES, plain
from rota.queue.job import ENDED, JobRow, State

BAR_WIDTH: Final = 16
OTHERS_WIDTH: Final = 13 + 9 + BAR_WIDTH + 8 + 5 + 5 * 2
"""Kind, state, bar, worker, tries, and the gaps: however long its name is, a file leaves them their room."""


def fraction_of(row: JobRow) -> float:
    """How much of a job is done, 0 to 1."""
    if row.state is State.DONE:
        return 1.0
    progress = json.loads(row.progress) if row.progress else {}
    return float(progress.get("fraction", 0.0)) if row.state is State.LEASED else 0.0


class View(Protocol):
    """Shows the jobs as they are now, and says things in between."""

    def show(self, rows: Sequence[JobRow]) -> None:
        """Shows the jobs."""
        ...

    def say(self, text: str) -> None:
        """Says a sentence that stays."""
        ...

    def close(self) -> None:
        """Leaves the last picture standing."""
        ...


@dataclass
class LiveView:
    """A picture that is drawn anew."""

    console: Console
    files: Mapping[str, str]
    workers: Mapping[str, str]
    """Names of worker processes by the process id in a holder's name."""
    _live: Live = field(init=False)

    def __post_init__(self) -> None:
        self._live = Live(console=self.console, auto_refresh=False, transient=True)
        self._live.start()

    def show(self, rows: Sequence[JobRow]) -> None:
        ended = sum(row.state in ENDED for row in rows)
        jobs = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        jobs.add_column("file", no_wrap=True, overflow="ellipsis", max_width=max(12, self.console.width - OTHERS_WIDTH))
        for name in ("kind", "state", "", "worker", "tries"):
            jobs.add_column(name, no_wrap=True, overflow="ellipsis", justify="right" if name == "tries" else "left")
        room = max(3, self.console.height - 4)
        for row in sorted(rows, key=lambda row: (row.state in ENDED, row.state is State.QUEUED, row.id))[:room]:
            jobs.add_row(
                plain(self.files[str(row.id)]),
                row.kind.replace("_", " "),
                Text(row.state, style=STATE_STYLES[row.state]),
                _how_far(row),
                worker_of(row, self.workers),
                str(row.tries) if row.tries else "",
            )
        overall = Table.grid(padding=(0, 2, 0, 0))
        overall.add_row(ProgressBar(total=len(rows), completed=ended, width=40), f"{ended} of {len(rows)} jobs")
        self._live.update(Group(jobs, Text(), overall), refresh=True)

    def say(self, text: str) -> None:
        self._live.console.print(plain(text))

    def close(self) -> None:
        self._live.stop()


@dataclass
class PlainView:
    """A line whenever a job changes its state."""

    console: Console
    files: Mapping[str, str]
    workers: Mapping[str, str]
    _seen: dict[str, tuple[State, int]] = field(default_factory=dict)

    def show(self, rows: Sequence[JobRow]) -> None:
        for row in rows:
            if self._seen.get(str(row.id)) == (row.state, row.tries):
                continue
            self._seen[str(row.id)] = (row.state, row.tries)
            if row.state is State.QUEUED and not row.tries:
                continue
            facts = [row.state.value, row.kind, self.files[str(row.id)]]
            if row.state is State.LEASED:
                facts.append(f"on {worker_of(row, self.workers)}, try {row.tries}")
            elif row.state is State.DONE and row.started_at and row.finished_at:
                facts.append(measured((row.finished_at - row.started_at).total_seconds()))
            elif row.last_error:
                facts.append(row.last_error)
            self.console.print(Text("  ").join(map(plain, facts)), soft_wrap=True)

    def say(self, text: str) -> None:
        self.console.print(plain(text), soft_wrap=True)

    def close(self) -> None:
        return


def _how_far(row: JobRow) -> ProgressBar | str:
    """A bar while a job runs, and then how long it took."""
    if row.state is State.LEASED:
        return ProgressBar(total=1, completed=fraction_of(row), width=BAR_WIDTH)
    if row.state is State.DONE and row.started_at and row.finished_at:
        return measured((row.finished_at - row.started_at).total_seconds())
    return ""


def worker_of(row: JobRow, workers: Mapping[str, str]) -> str:
    """The demo's name for the process that holds a job, or held it last."""
    parts = (row.leased_by or "").split(":")
    return workers.get(parts[-2], "") if len(parts) >= 3 else ""
