"""A runner's process: carries out what the agent says, and tells it what happened. It decides nothing about jobs.

There is one link to the gateway at a time, a workshop with the sessions, and one timer. Events are handled one after
another, each to its end, so that the agent sees one order. What the person at the machine should know goes to `shown`.

Spec: runners, "Overview and scope", "Job lifecycle, leases and fencing".
"""

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from rota.io.clock import lease_clock
from rota.io.scratch import Scratch
from rota.runners.agent import Agent
from rota.runners.agent_events import (
    Changed,
    Command,
    Dial,
    DialFailed,
    Drain,
    Dropped,
    Event,
    Exit,
    Hang,
    Send,
    SendHello,
    Start,
    Tell,
    Tick,
)
from rota.runners.dial import Gateway
from rota.runners.frames import Frame, encode
from rota.runners.io.disk import Lack, Room
from rota.runners.io.gateway_link import GatewayLink
from rota.runners.io.proof import Prove
from rota.runners.io.ringlog import RingLog
from rota.runners.io.workshop import MakeMedia, Workshop
from rota.runners.messages import Capabilities, Hello

LOOK_S: Final = 1.0
"""The longest between two looks at the clocks: timers of the system stand still while it sleeps."""
LOOK_S_MIN: Final = 0.005
ROOM_EVERY_S: Final = 5.0
"""Between two looks at the disk."""


class Shown(Protocol):
    """What shows a person what happens."""

    def saw(self, what: Event | Command) -> None:
        """Something happened, or is about to."""
        ...


class Runner:
    """One runner.

    Args:
        agent: its rules.
        gateway: where it dials.
        tls: which certificates it trusts.
        prove: makes the proof of a hello.
        capabilities: what it can do while there is room on the disk.
        scratch: where its sessions' folders are.
        make_media: makes what carries out the ops of a session.
        room: the bounds of its disk.
        ring: where events are written down.
        shown: what shows them.
        clock: seconds that never step and count on in sleep.
    """

    def __init__(
        self,
        *,
        agent: Agent,
        gateway: Gateway,
        tls: ssl.SSLContext,
        prove: Prove,
        capabilities: Capabilities,
        scratch: Scratch,
        make_media: MakeMedia,
        room: Room,
        ring: RingLog,
        shown: Shown,
        clock: Callable[[], float] = lease_clock,
    ) -> None:
        self._agent = agent
        self._gateway = gateway
        self._tls = tls
        self._prove = prove
        self._capabilities = capabilities
        self._room = room
        self._ring = ring
        self._shown = shown
        self._clock = clock
        self._scratch = scratch
        self._workshop = Workshop(scratch, make_media=make_media, say=self.post, ring=ring)
        self._links: dict[int, GatewayLink] = {}
        self._events: deque[Event] = deque()
        self._handling = False
        self._timer: asyncio.TimerHandle | None = None
        self._status: asyncio.Future[int] | None = None
        self._lacks: Lack | None = None

    async def run(self) -> int:
        """Runs until the agent says that all is over.

        Returns: the exit status.
        """
        self._status = asyncio.get_running_loop().create_future()
        # Before the first hello, so that it promises nothing for which there is no room.
        await self._look_at_disk()
        watching = asyncio.create_task(self._watch_disk())
        try:
            self.post(Start())
            return await self._status
        finally:
            watching.cancel()
            if self._timer is not None:
                self._timer.cancel()
            for link in list(self._links.values()):
                link.drop()
                await link.closed()
            await self._workshop.close()
            self._ring.write("runner ends")

    def drain(self, reason: str, *, deadline_s: float | None) -> None:
        """Takes no new jobs; what runs may go on for `deadline_s`, None: for as long as it takes. Then `run` ends."""
        self.post(Drain(reason, deadline_s))

    def post(self, event: Event) -> None:
        """Something happened: the agent is told, and what it says is done."""
        if self._status is None or self._status.done():
            return
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                self._handle(self._events.popleft())
        except Exception as error:
            # A rule of ours is broken: going on would be on unknown ground.
            if not self._status.done():
                self._status.set_exception(error)
        finally:
            self._handling = False
        self._arm()

    def _handle(self, event: Event) -> None:
        if isinstance(event, DialFailed | Dropped):
            self._links.pop(event.link, None)
            self._ring.write("link ended", why=event.reason, code=getattr(event, "code", 0))
        self._shown.saw(event)
        for command in self._agent.handle(event, self._clock(), time.time()):
            self._shown.saw(command)
            self._obey(command)

    def _obey(self, command: Command) -> None:
        match command:
            case Dial(number):
                self._links[number] = GatewayLink(number, self._gateway, tls=self._tls, say=self.post)
            case SendHello(number, frame_id, capabilities, running, clock_offset_s):
                hello = Hello(
                    protocol_version=capabilities.protocol_version,
                    auth=self._prove(time.time() + clock_offset_s),
                    capabilities=capabilities,
                    running=running or None,
                )
                self._send(number, Frame(frame_id, hello))
            case Send(number, frame):
                self._send(number, frame)
            case Hang(number, code, reason, at_once):
                self._hang(number, code, reason, at_once=at_once)
            case Tell(event, text):
                # A person, or the program's log, has it from what is shown.
                self._ring.write(event, text=text)
            case Exit(status):
                self._end(status)
            case _:
                self._workshop.obey(command)

    def _send(self, number: int, frame: Frame) -> None:
        link = self._links.get(number)
        if link is not None:
            link.send(encode(frame))

    def _hang(self, number: int, code: int, reason: str, *, at_once: bool) -> None:
        link = self._links.get(number)
        if link is not None:
            if at_once:
                link.drop()
            else:
                link.hang(code, reason)

    def _end(self, status: int) -> None:
        if self._status is not None and not self._status.done():
            self._status.set_result(status)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        at = self._agent.next_at()
        wait_s = LOOK_S if at is None else min(max(at - self._clock(), LOOK_S_MIN), LOOK_S)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._look)

    def _look(self) -> None:
        at = self._agent.next_at()
        if at is not None and at <= self._clock():
            self.post(Tick())
        else:
            self._arm()

    async def _watch_disk(self) -> None:
        while True:
            await asyncio.sleep(ROOM_EVERY_S)
            await self._look_at_disk()

    async def _look_at_disk(self) -> None:
        try:
            # It is made anew if somebody has removed it.
            lacks = await asyncio.to_thread(self._room.lacks, self._scratch.open())
        except OSError as error:
            lacks = Lack(f"the folder of sessions cannot be used: {error.strerror}", over_quota=False)
        if lacks is not None and lacks.over_quota:
            self._workshop.break_largest(lacks.why)
        if (lacks is None) != (self._lacks is None):
            self._tell_room(lacks)
        self._lacks = lacks

    def _tell_room(self, lacks: Lack | None) -> None:
        event, text = ("room on disk", "there is room on the disk again")
        if lacks is not None:
            event, text = ("no room on disk", f"no new work: {lacks.why}. It goes on by itself once that has changed.")
        tell = Tell(event, text, urgent=lacks is not None)
        self._shown.saw(tell)
        self._obey(tell)
        job_types = self._capabilities.job_types if lacks is None else ()
        self.post(Changed(msgspec.structs.replace(self._capabilities, job_types=job_types)))
