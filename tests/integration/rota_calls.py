"""The `rota` command in a folder with a program, on a database of its own: for tests that call it as a person does."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from rota.io.postgres import Database, Target
from rota.queue.io.store import Store
from tests.integration.programs import (
    ROTA,
    Done,
    nothing_runs,
    run,
    running,
)

Answer = TypeVar("Answer")

SHOP = """
import os
import time
import rota

app = rota.App()

@app.job()
async def hello(ctx, payload):
    return {"hello": payload["name"], "pid": os.getpid()}

@app.job()
def forever(ctx):
    while not ctx.should_stop:
        time.sleep(0.01)
"""


@dataclass(frozen=True, slots=True)
class Rota:
    """The command in a folder, with a database in its environment."""

    folder: Path
    dsn: str

    def __call__(self, *args: str, environ: Mapping[str, str] | None = None) -> Done:
        """Runs it to its end."""
        return run([*ROTA, *args], folder=self.folder, environ={"ROTA_DSN": self.dsn, **(environ or {})})

    def each(self, *calls: tuple[str, ...]) -> list[Done]:
        """Runs several at once."""
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(lambda args: self(*args), calls))

    def json(self, *args: str) -> Any:
        """What it prints with `--json`."""
        done = self(*args, "--json")
        assert done.err == ""
        return json.loads(done.out)

    def start(self, *args: str, environ: Mapping[str, str] | None = None, name: str = "rota") -> Any:
        """Runs it until the block ends."""
        environ = {"ROTA_DSN": self.dsn, **(environ or {})}
        return running([*ROTA, *args], folder=self.folder, environ=environ, name=name)


@contextmanager
def shop_in(parent: Path, program: str) -> Iterator[Path]:
    """A working folder with this `shop.py`; the test fails if anything runs there at its end."""
    place = parent / "shop"
    place.mkdir()
    (place / "shop.py").write_text(program)
    yield place
    nothing_runs(place)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with shop_in(tmp_path, SHOP) as place:
        yield place


@pytest.fixture
def rota(folder: Path, migrated_dsn: str) -> Rota:
    return Rota(folder, migrated_dsn)


def at(dsn: str, work: Callable[[Store], Awaitable[Answer]]) -> Answer:
    """Works on the queue in this process."""

    async def go() -> Answer:
        database = Database(Target(dsn))
        try:
            return await work(Store(database))
        finally:
            await database.stop()

    return asyncio.run(go())


def refused(done: Done, *words: str, status: int) -> None:
    """Holds for a refusal: one sentence or two on standard error, nothing else."""
    assert (done.status, done.out) == (status, ""), done
    assert "Traceback" not in done.err
    lines = done.err.splitlines()
    said = lines[0].removeprefix("rota: ") if lines and lines[0].startswith("rota: ") else done.err
    assert len(lines) == 1 or lines[0].startswith("Usage: "), done.err
    for word in words:
        assert word in said, f"{word!r} in {said!r}"
