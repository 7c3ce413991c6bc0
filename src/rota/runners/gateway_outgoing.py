"""What one replica of the gateway says to one event, and the time at which it happened. Pure.

All parts of the machine write into one `Outgoing`, so that commands leave in the order in which the rules gave them.
It makes the ids of frames and of ops from the machine's random source, and keeps nothing from one event to the next.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Final
from uuid import UUID

from rota.runners import gateway_events as events
from rota.runners import messages
from rota.runners.frames import Frame
from rota.runners.gateway_events import Command
from rota.runners.registry import Link

GRACE_S: Final = 10
"""For a runner to end what was cancelled."""


@dataclass(slots=True)
class Outgoing:
    """The commands of one event.

    Attributes:
        now: seconds of a clock that never steps.
        wall: seconds since 1970.
    """

    _random: Random
    now: float = 0.0
    wall: float = 0.0
    _commands: list[Command] = field(default_factory=list)

    def begin(self, now: float, wall: float) -> None:
        """The next event happens now."""
        self.now, self.wall = now, wall

    def take(self) -> list[Command]:
        """All that was said to this event."""
        commands, self._commands = self._commands, []
        return commands

    def say(self, command: Command) -> None:
        """One command more."""
        self._commands.append(command)

    def send(
        self, link: Link, message: messages.GatewayMessage, job_id: str | None = None, session_id: str | None = None
    ) -> None:
        """A frame to a runner."""
        self.say(events.Send(link.number, Frame(self.new_id(), message, job_id, session_id)))

    def cancel(self, link: Link, job_id: str, reason: str) -> None:
        """Tells a runner to stop this job."""
        self.send(link, messages.Cancel(reason=reason, grace_sec=GRACE_S), job_id)

    def grace_ends_at(self) -> float:
        """Until when a runner that is told now may take to stop."""
        return self.now + GRACE_S

    def new_id(self) -> str:
        """An id for a frame or an op."""
        return str(UUID(int=self._random.getrandbits(128), version=4))
