"""What a runner says to one event, on which connection, and the time at which it happened. Pure.

All parts of the machine write into one `Line`, so that commands leave in the order in which the rules gave them. It
knows how far the connection is, because most is said on an open one only.
"""

from dataclasses import dataclass, field
from enum import Enum
from random import Random
from uuid import UUID

from rota.runners import agent_events as events
from rota.runners import messages
from rota.runners.agent_events import Command
from rota.runners.frames import Frame


class Phase(Enum):
    """How far the connection is."""

    DOWN = "down"
    DIALLING = "dialling"
    GREETING = "greeting"
    OPEN = "open"
    LEAVING = "leaving"
    OVER = "over"


@dataclass(slots=True)
class Line:
    """The connection of the moment, and the commands of one event.

    Attributes:
        random: for jitter and the ids of messages.
        phase: how far the connection is.
        link: its number; the last one's, if there is none.
        now: seconds of a clock that never steps.
        wall: seconds since 1970, as this machine believes.
    """

    random: Random
    phase: Phase = Phase.DOWN
    link: int = 0
    now: float = 0.0
    wall: float = 0.0
    _commands: list[Command] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        """Whether the gateway has welcomed this runner."""
        return self.phase is Phase.OPEN

    def say(self, command: Command) -> None:
        """One command more."""
        self._commands.append(command)

    def take(self) -> list[Command]:
        """All that was said to this event."""
        commands, self._commands = self._commands, []
        return commands

    def send(self, message: messages.RunnerMessage, job_id: str | None = None, session_id: str | None = None) -> None:
        """A frame to the gateway."""
        self.say(events.Send(self.link, Frame(self.new_id(), message, job_id, session_id)))

    def new_id(self) -> str:
        """An id for a frame."""
        return str(UUID(int=self.random.getrandbits(128), version=4))
