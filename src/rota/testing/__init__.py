"""Tools for the tests of a program that uses Rota: its queue in memory, with a clock that the test moves.

    with rota.testing.in_memory(app) as queue:
        await app.enqueue(thumbnail, Thumbnail("a.mp4"))
        queue.assert_enqueued(thumbnail, count=1)
        await queue.drain()

Handlers run in the test's own process and thread, and what becomes of a job is decided by the same rules as on a
worker. Against a real database there are `drain` and `assert_enqueued_on`. `rota.testing.fixtures` has pytest fixtures;
it alone needs pytest.
"""

from rota.testing.added import Added
from rota.testing.answers import Answers, Asked
from rota.testing.clock import FakeClock
from rota.testing.database import (
    assert_enqueued_on,
    assert_enqueued_on_sync,
    assert_not_enqueued_on,
    assert_not_enqueued_on_sync,
    drain,
)
from rota.testing.memory import Memory, in_memory
from rota.testing.ran import Logged, Ran

__all__ = [
    "Added",
    "Answers",
    "Asked",
    "FakeClock",
    "Logged",
    "Memory",
    "Ran",
    "assert_enqueued_on",
    "assert_enqueued_on_sync",
    "assert_not_enqueued_on",
    "assert_not_enqueued_on_sync",
    "drain",
    "in_memory",
]
