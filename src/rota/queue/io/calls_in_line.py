"""Calls of exec servers whose place in line is whole.

The want-books hold what was claimed, the database what was not.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from rota.commands import Call, Commands, Run


class CallsInLine:
    """Implements `rota.commands.Commands` over somebody who does the work.

    Args:
        commands: runs the calls.
        unclaimed: asked, for a call's place in line, how many jobs that nobody has claimed go before it.
    """

    def __init__(self, commands: Commands, unclaimed: Callable[[Call], Awaitable[int]]) -> None:
        self._commands = commands
        self._unclaimed = unclaimed

    def exec(self, call: Call) -> AbstractAsyncContextManager[Run]:
        """Hands the call on."""
        return self._commands.exec(replace(call, unclaimed=lambda: self._unclaimed(call)))
