"""What a person at a runner's machine sees: what it can do, whether it is connected, and how far each session is.

On a terminal, sessions are lines with a bar that move; elsewhere each event is one line of the log. Text from a gateway
is made harmless before it reaches a terminal.
"""

import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from rota.io.log import get_logger
from rota.io.terminal import plain
from rota.runners.agent_events import (
    Command,
    EndSession,
    Event,
    OpEnded,
    OpenSession,
    OpMoved,
    RunOp,
    SessionEnded,
    Tell,
)
from rota.runners.io.probing import Ability

_WAITS: Final = "waits for an op"
_CHARS_MAX: Final = 60
NEARLY: Final = 99.9
_WORDS: Final[Mapping[bool, str]] = MappingProxyType({True: "bold yellow", False: "default"})

log = get_logger("rota.runner")


def facts_of(ability: Ability, *, gateway: str, who: str) -> list[tuple[str, str | None]]:
    """What a runner is and can do, for `terminal.print_facts`."""
    can = ability.capabilities
    return [
        ("gateway", gateway),
        ("runner", who),
        ("system", f"{can.os}/{can.arch}, rota {can.agent_version}"),
        ("slots", str(can.slots)),
        ("ffmpeg", can.ffmpeg_version if ability.tools else f"none: {ability.lacks}"),
        ("jobs", ", ".join(can.job_types) or "none, until ffmpeg is here"),
        ("isolation", ", ".join(can.isolation) or "the argv gate alone"),
        ("container", can.container),
    ]


class LinesShown:
    """For logs: one line for each thing."""

    def saw(self, what: Event | Command) -> None:
        """Something happened, or is about to."""
        match what:
            case Tell(event, text, urgent):
                (log.warning if urgent else log.info)(event, text=text)
            case OpenSession(job_id, assign):
                log.info("session begins", job_id=job_id, job_type=assign.job_type, epoch=assign.lease_epoch)
            case OpEnded(job_id, _, op_id, answer):
                code = "ok" if answer.error is None else answer.error.code
                log.info("op ended", job_id=job_id, op_id=op_id, code=code)
            case EndSession(job_id, epoch, _, reason):
                log.info("session ends", job_id=job_id, epoch=epoch, reason=reason)
            case _:
                pass

    def close(self) -> None:
        """Nothing is left to show."""


class TerminalShown:
    """For people: a bar for each session, and lines above them."""

    def __init__(self) -> None:
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[percent]}"),
            TextColumn("{task.fields[detail]}", style="dim"), TimeElapsedColumn(), console=Console(stderr=True),
            transient=True,
        )  # fmt: skip
        self.progress.start()
        self._tasks: dict[str, TaskID] = {}

    def saw(self, what: Event | Command) -> None:
        """Something happened, or is about to."""
        match what:
            case Tell(_, text, urgent):
                self._line(text, style=_WORDS[urgent])
            case OpenSession(job_id, assign):
                name = f"{job_id[:8]} {_short(assign.job_type)}"
                self._tasks[job_id] = self.progress.add_task(name, total=None, percent="", detail=_WAITS)
            case RunOp(job_id=job_id, op=op):
                self._move(job_id, None, op)
            case OpMoved(job_id=job_id, percent=percent, stage=stage, detail=detail):
                self._move(job_id, percent, f"{stage} {detail or ''}")
            case OpEnded(job_id=job_id, answer=answer):
                self._move(job_id, None, _WAITS if answer.error is None else f"{answer.error.code}, {_WAITS}")
            case EndSession(job_id=job_id, reason=reason):
                self._line(f"{job_id[:8]} ends: {reason}", style="dim")
            case SessionEnded(job_id=job_id) if job_id in self._tasks:
                self.progress.remove_task(self._tasks.pop(job_id))
            case _:
                pass

    def close(self) -> None:
        """Takes the bars away."""
        self.progress.stop()

    def _move(self, job_id: str, percent: float | None, detail: str) -> None:
        task = self._tasks.get(job_id)
        if task is not None:
            # One that is full would stop its clock, and this is but one op of its session.
            self.progress.update(
                task, completed=min(percent or 0.0, NEARLY), total=None if percent is None else 100.0,
                percent="" if percent is None else f"{percent:.0f} %", detail=_short(detail),
            )  # fmt: skip

    def _line(self, text: str, *, style: str) -> None:
        self.progress.console.print(Text(plain(text).plain, style=style))


def shown_for(*, terminal: bool | None = None) -> LinesShown | TerminalShown:
    """What fits where this program writes; `terminal` says it instead."""
    return TerminalShown() if (sys.stderr.isatty() if terminal is None else terminal) else LinesShown()


def _short(text: str) -> str:
    return plain(text).plain[:_CHARS_MAX]
