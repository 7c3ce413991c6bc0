"""One session, as each side keeps it. Pure.

`OpGate` is the gateway's: one op in flight, who waits for it, and when the session is over because nobody used it or
its time is up. `OpLog` is the runner's: which ops were asked already, so that a repeat is answered and never carried
out again (I3 guards the epochs, this guards the ops within one).

Spec: runners, "Job types", "Idempotency".
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from typing import Final

from rota.runners.messages import JsonObject

ANSWERS_KEPT: Final = 256
OPS_MAX: Final = 100_000
"""Ops of one session: about seven a second for as long as a session may last. A fingerprint of each is kept, so that
one that has aged out is known; past that number none is taken, and the engine opens another session."""
WAITERS_MAX: Final = 16
"""Requests that wait for one op: the first, and its repeats."""
TIMEOUT_S_DEFAULT: Final = 14_400
IDLE_TIMEOUT_S_DEFAULT: Final = 1_800
OP_MARGIN_S: Final = 5.0
"""How much longer than an op's time the gateway waits, so that the runner's own `timeout` arrives."""


@dataclass(slots=True)
class InFlight:
    """The op that a session is at.

    Attributes:
        op_id: its id.
        op: its name.
        args: its arguments, kept until it is answered: a runner that comes back is asked again.
        timeout_s: how long it may take.
        waiters: who waits for it, and until when.
        sent: whether it was sent on the connection that the runner has now.
    """

    op_id: str
    op: str
    args: JsonObject
    timeout_s: int
    waiters: dict[int, float] = field(default_factory=dict)
    sent: bool = False


@dataclass(slots=True)
class OpGate:
    """A session's ops, at the gateway.

    Args:
        ends_at: when its time is up.
        idle_s: how long it may be without an op.
        used_at: when the last op began or ended.
    """

    ends_at: float
    idle_s: float
    used_at: float
    op: InFlight | None = None

    def ask(self, waiter: int, *, op_id: str, op: str, args: JsonObject, timeout_s: int, now: float) -> str | None:
        """Takes an op, or another wait for the one that is in flight.

        Returns: None if it was taken; else why not: the code that the engine reads.
        """
        until = now + timeout_s + OP_MARGIN_S
        if self.op is None:
            self.op = InFlight(op_id, op, args, timeout_s, {waiter: until})
            self.used_at = now
        elif self.op.op_id != op_id or len(self.op.waiters) >= WAITERS_MAX:
            return "op_in_flight"
        else:
            self.op.waiters[waiter] = until
        return None

    def answered(self, op_id: str, now: float) -> InFlight | None:
        """Takes an answer: the op that it is for, or None if that is not in flight."""
        if self.op is None or self.op.op_id != op_id:
            return None
        op, self.op, self.used_at = self.op, None, now
        return op

    def overdue(self, now: float) -> list[int]:
        """The waiters whose time is up; they wait no longer. The op is still in flight."""
        if self.op is None:
            return []
        over = [waiter for waiter, until in self.op.waiters.items() if until <= now]
        for waiter in over:
            del self.op.waiters[waiter]
        return over

    def over(self, now: float) -> str | None:
        """Why the session must end now: `session_timeout` or `session_idle`; None if it need not."""
        if now >= self.ends_at:
            return "session_timeout"
        if self.op is None and now >= self.used_at + self.idle_s:
            return "session_idle"
        return None

    def next_at(self) -> float:
        """When something of this may be over next."""
        times = [self.ends_at]
        if self.op is None:
            times.append(self.used_at + self.idle_s)
        else:
            times.extend(self.op.waiters.values())
        return min(times)


class Repeat(Enum):
    """What a runner knows of an op that it is asked for."""

    NEW = "new"
    """Never asked: carry it out."""
    RUNNING = "running"
    """Its answer will be sent."""
    KEPT = "kept"
    """Send what was kept."""
    EXPIRED = "expired"
    """It was done, and its answer has aged out: `op_expired`."""
    BUSY = "busy"
    """Another one is in flight: `op_in_flight`."""


@dataclass(slots=True)
class OpLog:
    """The ops of one session, at the runner. Who holds it keeps the answers themselves."""

    running: str | None = None
    _kept: OrderedDict[str, None] = field(default_factory=OrderedDict)
    _seen: set[bytes] = field(default_factory=set)

    def ask(self, op_id: str) -> Repeat:
        """What to do with this op; after `NEW` it is the one that runs."""
        if op_id == self.running:
            return Repeat.RUNNING
        if op_id in self._kept:
            return Repeat.KEPT
        mark = blake2b(op_id.encode(), digest_size=16).digest()
        if mark in self._seen:
            return Repeat.EXPIRED
        if self.running is not None:
            return Repeat.BUSY
        if len(self._seen) >= OPS_MAX:
            return Repeat.EXPIRED
        self._seen.add(mark)
        self.running = op_id
        return Repeat.NEW

    def ended(self, op_id: str) -> list[str] | None:
        """The op that ran has ended, and its answer is kept.

        Returns: the ids whose answers have aged out by it; None if this op does not run.
        """
        if op_id != self.running:
            return None
        self.running = None
        self._kept[op_id] = None
        return [self._kept.popitem(last=False)[0] for _ in range(max(0, len(self._kept) - ANSWERS_KEPT))]
