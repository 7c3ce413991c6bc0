"""What `rota doctor` thinks of the workers and of the work: who is there, what nobody takes, what is held back.

Pure rules over facts, as in `rota.queue.health`, whose checks these are.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from rota.queue.health import Check, Level
from rota.queue.pause import Pause
from rota.queue.server import OrphanKind, ServerRow


@dataclass(frozen=True, slots=True)
class FleetHealth:
    """What was found of the workers and of the work.

    Attributes:
        now: the moment.
        servers: the worker processes that are known.
        orphans: kinds with due work, and passes, that no live server takes.
        overdue: leases that have run out and that no sweep has met, by kind.
        due: jobs that are due.
        pauses: what is held back.
    """

    now: datetime
    servers: Sequence[ServerRow] = ()
    orphans: Sequence[OrphanKind] = ()
    overdue: Mapping[str, int] = field(default_factory=dict)
    due: int = 0
    pauses: Sequence[Pause] = ()


def examine_fleet(fleet: FleetHealth) -> list[Check]:
    """Judges the workers and the work.

    Returns: one check or more of each thing.
    """
    return [*_servers(fleet), *_orphans(fleet), *_leases(fleet), *_pauses(fleet)]


def _servers(fleet: FleetHealth) -> Iterator[Check]:
    about = "servers"
    live = [server for server in fleet.servers if server.live]
    if not live:
        level = Level.PROBLEM if fleet.due else Level.NOTE
        yield Check(
            about, level, f"no worker runs, and {fleet.due:,} jobs are due", "Start one: rota worker module:app"
        )
        return
    yield Check(about, Level.OK, f"{len(live)} live")
    for words, advice, groups in (
        (
            "have different settings",
            "Give all servers the same settings; only role, pools, logs and metrics may differ.",
            _groups(live, lambda server: server.settings_digest),
        ),
        (
            "run different versions of Rota",
            "Bring them to one version, unless a rollout is under way.",
            _groups(live, lambda server: server.version),
        ),
    ):
        if len(groups) > 1:
            shown = " | ".join(f"{name}: {', '.join(holders)}" for name, holders in sorted(groups.items()))
            yield Check(about, Level.WARNING, f"servers {words}: {shown}", advice)
    silent = [server for server in fleet.servers if not server.live]
    if silent:
        shown = ", ".join(
            f"{server.holder} ({(fleet.now - server.seen_at).total_seconds():.0f} s ago)" for server in silent
        )
        yield Check(
            about, Level.NOTE, f"seen no more, and without a word: {shown}",
            "They were killed or cut off; their jobs go back when their leases run out.",
        )  # fmt: skip


def _groups(servers: Sequence[ServerRow], key: Callable[[ServerRow], str]) -> dict[str, list[str]]:
    """Holders by a property of theirs."""
    groups: dict[str, list[str]] = {}
    for server in servers:
        groups.setdefault(key(server), []).append(server.holder)
    return groups


def _orphans(fleet: FleetHealth) -> Iterator[Check]:
    if not any(server.live for server in fleet.servers):
        # Nobody takes anything, which was said.
        return
    for orphan in fleet.orphans:
        what = "pass" if orphan.is_pass else "kind"
        waits_s = (fleet.now - orphan.due_at).total_seconds()
        since = f", and its oldest job has been due for {waits_s / 60:.0f} min" if waits_s > 0 else ""
        yield Check(
            "kinds", Level.WARNING, f"no live server takes the {what} {orphan.kind}{since}",
            "Start a server whose program has it and whose role takes it; or it is spelled wrong where it is enqueued.",
        )  # fmt: skip
    if not fleet.orphans:
        yield Check("kinds", Level.OK, "each with due work is taken by a live server")


def _leases(fleet: FleetHealth) -> Iterator[Check]:
    if fleet.overdue:
        shown = ", ".join(f"{count:,} of {kind}" for kind, count in sorted(fleet.overdue.items()))
        yield Check(
            "leases", Level.WARNING, f"leases have run out and were not swept: {shown}",
            "Every worker sweeps once a second. If this stays, none runs or none reaches the database: see its log.",
        )  # fmt: skip
    else:
        yield Check("leases", Level.OK, "none is past its end")


def _pauses(fleet: FleetHealth) -> Iterator[Check]:
    for pause in fleet.pauses:
        what = "everything" if pause.scope == "all" else f"{pause.scope} {pause.name}"
        until = "until somebody resumes it" if pause.until is None else f"until {pause.until:%Y-%m-%d %H:%M} UTC"
        note = "" if pause.note is None else f": {pause.note}"
        yield Check("pauses", Level.NOTE, f"{what} is paused by {pause.paused_by} {until}{note}")
