"""What the handlers of a simulated history do: drawn from the job and its epoch alone, so that a history repeats."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final, Literal

import rota
from rota.queue.job import ClaimedJob, NewJob
from rota.queue.kind import Kind
from rota.queue.periodic import Declared
from rota.queue.retry import Fixed

Style = Literal["coroutine", "thread", "blocking"]
"""How a handler can be stopped: at its next step; when it asks by itself; or not at all while it blocks the loop."""

KINDS: Final = {
    kind.name: kind
    for kind in (
        Kind("quick", limit=4, lease_s=10, heartbeat_s=2, retry=Fixed(1)),
        Kind("long", limit=3, lease_s=20, heartbeat_s=5, retry=Fixed(3)),
        Kind("thread", limit=2, lease_s=12, heartbeat_s=3, retry=Fixed(1), max_tries=5),
        Kind("short", limit=2, lease_s=2, heartbeat_s=0.5, retry=Fixed(0.5), max_tries=6),
    )
}

STALL_S: Final = 120.0
"""Longer than any lease, with every wait of the line."""


@dataclass(frozen=True, slots=True)
class Script:
    """One run of a handler.

    Attributes:
        style: how it can be stopped.
        pauses_s: what passes before each of its steps; a step is where it moves its job.
        moves: whether its steps tell the worker of progress.
        returned: what it returns at its end.
        raises: it raises instead.
        follow_ups: what it adds with its success.
    """

    style: Style
    pauses_s: tuple[float, ...]
    moves: bool
    returned: object
    raises: bool
    follow_ups: tuple[NewJob, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """What the servers of a history run.

    Attributes:
        kinds: by name.
        script_of: what the handler of a claim does.
        passes: by name, which is also their kind's.
    """

    kinds: Mapping[str, Kind]
    script_of: Callable[[ClaimedJob], Script]
    passes: Mapping[str, Declared] = field(default_factory=dict)


def script_of(job: ClaimedJob) -> Script:
    """What the handler of this claim does."""
    random = Random(f"{job.id} {job.lease.epoch}")
    kind = KINDS[job.kind]
    style: Style = "thread" if job.kind == "thread" else "coroutine"
    if style == "coroutine" and random.random() < 0.04:
        return Script("blocking", (random.uniform(0.1, 2.5 * kind.lease_s),), moves=False, returned=None, raises=False)
    if random.random() < 0.06:
        return Script(style, (STALL_S,), moves=False, returned=None, raises=False)
    steps = random.choice((1, 1, 2, 5, 20))
    longest_s = min(kind.heartbeat_s, 8.0 if steps < 20 else 3.0)
    pauses_s = tuple(random.uniform(0, longest_s) for _ in range(steps))
    moves = steps > 2 or random.random() < 0.5
    returned = random.choice(
        (
            None, {"n": 1}, {"n": 2}, None, rota.Retry(after_s=1.0), rota.Snooze(after_s=2.0), rota.Yield(),
            rota.GiveBack(), rota.Fail("no use"), rota.Cancelled(),
        )
    )  # fmt: skip
    return Script(style, pauses_s, moves=moves, returned=returned, raises=random.random() < 0.1)


PLAIN: Final = Program(KINDS, script_of)
