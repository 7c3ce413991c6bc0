"""Cases that share one environment and run side by side, each of them a test of its own to pytest.

An environment of many programs takes long to start, and its cases mostly wait. So the first test that is asked for runs
all cases that were chosen: those of the first turn together, then those of the next. Each test then tells how its own
case went.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import pytest

CASE_S = 120.0
"""Generous: only a failing case takes that long."""

S = TypeVar("S")
Case = Callable[[S], Awaitable[None]]


@dataclass(slots=True)
class Cases(Generic[S]):
    """The cases of one module. Its environment's fixture is to be named `outcomes`."""

    turns: dict[str, int] = field(default_factory=dict)
    runs: dict[str, Case[S]] = field(default_factory=dict)

    def case(self, turn: int = 1) -> Callable[[Case[S]], Callable[..., None]]:
        """Makes a case into a test. Cases of one turn run side by side."""

        def made(run: Case[S]) -> Callable[..., None]:
            name = run.__name__  # type: ignore[attr-defined]
            self.turns[name], self.runs[name] = turn, run

            def test(outcomes: Outcomes) -> None:
                outcomes.tell(name)

            test.__name__, test.__doc__, test.__module__ = name, run.__doc__, run.__module__
            test.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]
            test.__wrapped__ = run  # type: ignore[attr-defined]  # where pytest says that it stands
            return test

        return made

    def run(self, request: pytest.FixtureRequest, environment: AbstractAsyncContextManager[S]) -> "Outcomes":
        """Runs those that were chosen."""
        of_module = [item for item in request.session.items if getattr(item, "module", None) is request.module]
        chosen = {getattr(item, "originalname", item.name) for item in of_module}
        return asyncio.run(self._run([name for name in self.runs if name in chosen], environment))

    async def _run(self, names: list[str], environment: AbstractAsyncContextManager[S]) -> "Outcomes":
        found: dict[str, BaseException | None] = {}
        async with environment as site:
            for turn in sorted({self.turns[name] for name in names}):
                of_turn = [name for name in names if self.turns[name] == turn]
                done = await asyncio.gather(*(self._one(name, site) for name in of_turn), return_exceptions=True)
                found |= dict(zip(of_turn, done, strict=True))
        return Outcomes(found)

    async def _one(self, name: str, site: S) -> None:
        async with asyncio.timeout(CASE_S):
            await self.runs[name](site)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """How each case went."""

    of: dict[str, BaseException | None]

    def tell(self, name: str) -> None:
        """Raises what the case raised."""
        error = self.of[name]
        if error is not None:
            raise error


async def eventually(condition: Callable[[], Any], what: str, *, timeout_s: float = 60.0) -> Any:
    """Waits until a condition, which may be awaited, gives something true, and gives that."""
    found: Any = None
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                found = condition()
                if inspect.isawaitable(found):
                    found = await found
                if found:
                    return found
                await asyncio.sleep(0.03)
    except TimeoutError:
        raise AssertionError(f"not within {timeout_s:g} s: {what}; at last it was {found!r}") from None
