"""Fixtures for pytest: write `pytest_plugins = ["rota.testing.fixtures"]` into the top conftest.py of your tests.

You define one fixture, `rota_app`, that returns your app; `rota_queue` then puts a queue in memory in the place of its
database for the length of a test.
"""

from collections.abc import Iterator

import pytest

from rota.app import App
from rota.testing.clock import FakeClock
from rota.testing.memory import Memory, in_memory


@pytest.fixture
def rota_app() -> App:
    """The program under test; yours goes before this one."""
    pytest.fail(
        "Define a fixture `rota_app` that returns your rota.App: Rota's other fixtures work on it.", pytrace=False
    )


@pytest.fixture
def rota_clock() -> FakeClock:
    """The clock of the queue in memory; a fixture of yours with this name may start it at another time."""
    return FakeClock()


@pytest.fixture
def rota_queue(rota_app: App, rota_clock: FakeClock) -> Iterator[Memory]:
    """The app's queue, in memory and empty."""
    with in_memory(rota_app, clock=rota_clock) as queue:
        yield queue
