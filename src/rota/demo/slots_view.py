"""How the demo of slots looks: a picture of slots, want-books and grants on a terminal, lines elsewhere, or nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rota.demo.slots_look import Fleet, Grant
from rota.demo.slots_program import PREVIEW
from rota.durations import measured
from rota.io.terminal import plain
from rota.queue.job import ENDED, JobRow

GRANTS_SHOWN: Final = 6
WAITING_SHOWN: Final = 8
KIND_STYLES: Final = {PREVIEW: "bold magenta"}


class View(Protocol):
    """Shows the fleet as it is now, and says things in between."""

    def show(self, fleet: Fleet, rows: Sequence[JobRow]) -> None:
        """Shows all."""
        ...

    def say(self, text: str) -> None:
        """Says a sentence that stays."""
        ...

    def close(self) -> None:
        """Ends the picture."""
        ...


@dataclass
class LiveView:
    """A picture that is drawn anew."""

    console: Console
    _live: Live = field(init=False)

    def __post_init__(self) -> None:
        self._live = Live(console=self.console, auto_refresh=False, transient=True)
        self._live.start()

    def show(self, fleet: Fleet, rows: Sequence[JobRow]) -> None:
        ended = sum(row.state in ENDED for row in rows)
        overall = Table.grid(padding=(0, 2, 0, 0))
        overall.add_row(ProgressBar(total=max(1, len(rows)), completed=ended, width=40), f"{ended} of {len(rows)} jobs")
        self._live.update(
            Group(servers(fleet), Text(), book(fleet), Text(), *last(fleet.grants), Text(), overall), refresh=True
        )

    def say(self, text: str) -> None:
        self._live.console.print(plain(text))

    def close(self) -> None:
        self._live.stop()


@dataclass
class PlainView:
    """A line for each grant."""

    console: Console
    _said: int = 0

    def show(self, fleet: Fleet, rows: Sequence[JobRow]) -> None:
        for grant in fleet.grants[self._said :]:
            self.console.print(plain(words(grant)), soft_wrap=True)
        self._said = len(fleet.grants)

    def say(self, text: str) -> None:
        self.console.print(plain(text), soft_wrap=True)

    def close(self) -> None:
        return


class NoView:
    """Nothing: a program reads the output."""

    def show(self, fleet: Fleet, rows: Sequence[JobRow]) -> None:
        return

    def say(self, text: str) -> None:
        return

    def close(self) -> None:
        return


def servers(fleet: Fleet) -> Table:
    """Each exec server: what its slots do, and who waits."""
    table = _table(
        "exec server", "slots", "runs", "for", "waiting", "clients", "done", right=("for", "waiting", "done")
    )
    for name in fleet.ports:
        overview = fleet.seen.get(name)
        if name in fleet.dead or overview is None:
            state = Text(
                "killed" if name in fleet.dead else "starts", style="bold red" if name in fleet.dead else "dim"
            )
            table.add_row(name, state, "", "", "", "", str(fleet.ran(name)))
            continue
        slots = sum(view.processes for view in overview.waitgroups.values())
        waiting = sum(view.waiting for view in overview.waitgroups.values())
        running = fleet.running(name)
        first = running[0] if running else None
        plan = fleet.plan_of(first) if first is not None else None
        table.add_row(
            name, f"{len(running)} of {slots}",
            Text("") if plan is None else Text(f"{plan.kind} {plan.label}", style=KIND_STYLES.get(plan.kind, "")),
            "" if first is None else measured(first.for_s), str(waiting), str(overview.clients), str(fleet.ran(name)),
        )  # fmt: skip
    return table


def book(fleet: Fleet) -> Table:
    """Who stands in line."""
    table = _table("want-book", "of", "priority", "for", right=("priority", "for"))
    waiting = fleet.waiting()
    for view in waiting[:WAITING_SHOWN]:
        plan = fleet.plan_of(view)
        if plan is not None:
            table.add_row(
                Text(plan.kind, style=KIND_STYLES.get(plan.kind, "")), plain(plan.label), str(view.priority),
                measured(view.for_s),
            )  # fmt: skip
    if len(waiting) > WAITING_SHOWN:
        table.add_row(Text(f"and {len(waiting) - WAITING_SHOWN} more", style="dim"), "", "", "")
    return table


def last(grants: Sequence[Grant]) -> list[Text]:
    """The newest grants."""
    return [Text("grants", style="bold"), *(plain(words(grant)) for grant in grants[-GRANTS_SHOWN:])]


def words(grant: Grant) -> str:
    """One grant as a line."""
    waited = "at once" if grant.waited_s is None else f"after {measured(grant.waited_s)} in line"
    return f"{grant.server}  {grant.kind} {grant.label}  for {grant.worker or 'a worker'}, {waited}"


def _table(*names: str, right: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        table.add_column(name, no_wrap=True, overflow="ellipsis", justify="right" if name in right else "left")
    return table
