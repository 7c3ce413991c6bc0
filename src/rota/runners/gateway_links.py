"""The connections of one replica of the gateway: how each begins, is heard of, and ends. Pure.

A connection has a time for its hello and another for its silence. With its end its jobs lose their link and stay live:
their leases, and not their connection, decide how long their runner may come back for them.

Spec: runners, "Transport and envelope".
"""

from typing import Final

from rota.runners import gateway_events as events
from rota.runners import messages
from rota.runners.codes import CloseCode
from rota.runners.gateway_outgoing import Outgoing
from rota.runners.ramp import told_s
from rota.runners.registry import Link, Phase, Registry
from rota.runners.timers import Timers

HELLO_S: Final = 10.0
REASON_MAX: Final = 120
"""Characters of a reason in a close frame, which has room for 123 bytes."""

TimerKey = tuple[str, int | str]
"""What a time is for, `hello`, `link` or `job`, and the number of the connection or the id of the job."""


class Links:
    """All connections, and whether more are dealt jobs.

    Args:
        out: where commands go.
        registry: which links there are, and which could take a job.
        timers: of the whole replica.
    """

    def __init__(self, out: Outgoing, registry: Registry, timers: Timers[TimerKey]) -> None:
        self.draining: events.Drain | None = None
        self.registry = registry
        self._out = out
        self._timers = timers

    def opened(self, event: events.Opened) -> None:
        """A connection begins; its hello is awaited."""
        link = Link(event.connection, event.host, self._out.now)
        self.registry.links[link.number] = link
        self._timers.set(("hello", link.number), self._out.now + HELLO_S)
        self._timers.set(("link", link.number), self._out.now + messages.DEAD_AFTER_S)

    def greeted(self, link: Link) -> None:
        """Its hello has come and is looked at."""
        link.phase = Phase.CHECKING
        self.registry.checking[link.number] = link
        self._timers.drop(("hello", link.number))

    def heard(self, event: events.Heard) -> None:
        """Bytes came."""
        self.alive(event.connection)

    def lost(self, event: events.Lost) -> None:
        """The socket is gone, whoever closed it."""
        link = self.registry.links.pop(event.connection, None)
        if link is not None:
            self._leave(link, "the connection is gone")
            self._timers.drop(("hello", link.number))
            self._timers.drop(("link", link.number))

    def alive(self, connection: int) -> Link | None:
        """The link, if what it says counts; it was heard of."""
        link = self.registry.links.get(connection)
        if link is None or link.phase is Phase.CLOSING:
            return None
        link.heard_at = self._out.now
        return link

    def waiting(self, connection: int, *phases: Phase) -> Link | None:
        """The link, if it is as far as one of these."""
        link = self.registry.links.get(connection)
        return link if link is not None and link.phase in phases else None

    def bar(self, name: str) -> None:
        """Whoever is being looked at now must not come in on what was read before."""
        for link in self.registry.checking.values():
            link.barred.add(name)

    def drain(self, event: events.Drain) -> None:
        """No more jobs are dealt, and the runners are told so."""
        if self.draining is not None:
            return
        self.draining = event
        for link in self.registry.links.values():
            if link.phase is Phase.OPEN:
                self.tell_drain(link)

    def tell_drain(self, link: Link) -> None:
        """Tells one runner, if this replica drains."""
        if self.draining is not None:
            self._out.send(link, messages.Drain(reason=self.draining.reason, deadline_sec=self.draining.deadline_s))

    def stop(self, reason: str) -> None:
        """Goodbye to all; their jobs stay leased."""
        self.draining = self.draining or events.Drain(reason)
        for link in list(self.registry.links.values()):
            if link.phase is not Phase.CLOSING:
                self.goodbye(link, CloseCode.GOING_AWAY, reason)

    def due(self, kind: str, number: int) -> None:
        """The time of a connection has come, or would have if nothing had been heard of it."""
        link = self.registry.links.get(number)
        if link is None or link.phase is Phase.CLOSING:
            return
        silent_at = link.heard_at + messages.DEAD_AFTER_S
        if kind == "hello":
            self.end(link, CloseCode.UNSUPPORTED, f"no hello within {HELLO_S:.0f} s")
        elif self._out.now >= silent_at:
            self.end(link, CloseCode.HEARTBEAT_TIMEOUT, f"nothing came for {messages.DEAD_AFTER_S} s")
        else:
            self._timers.set(("link", number), silent_at)

    def end(self, link: Link, code: int, reason: str) -> None:
        """Closes without a word."""
        self._out.say(events.Close(link.number, code, reason[:REASON_MAX]))
        self._leave(link, reason)

    def goodbye(
        self, link: Link, code: int, reason: str, retry_after_s: float | None = None, server_time: str | None = None
    ) -> None:
        """Says why, and when to come again, and closes."""
        wait = None if retry_after_s is None else told_s(retry_after_s)
        self._out.send(link, messages.Bye(reason=reason, retry_after_sec=wait, server_time=server_time))
        self.end(link, code, reason)

    def _leave(self, link: Link, reason: str) -> None:
        """The link is over; its jobs stay until their leases end, or their runner comes back."""
        welcomed = link.phase is Phase.OPEN
        self.registry.forget(link)
        for live in link.jobs.values():
            live.link, live.left_at = None, self._out.now
        link.jobs.clear()
        if welcomed and link.identity is not None:
            self._out.say(events.Seen(link.number, link.identity, None, reason))
