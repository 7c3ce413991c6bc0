"""An exec server without its sockets and processes: events in, commands out. Pure.

`handle(event, now)` takes what happened and says what to do. One exec call is waiting, then offered (a slot is reserved
for it), then running; each slot is with exactly one call (I7), from its offer until the offer is over or the shell says
that the processes are dead. A connection is its client: with it go its wants, its offers at once, and its commands as
soon as they are dead. Nothing is said while nothing happens (I8).
"""

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from math import inf
from types import MappingProxyType
from typing import Any, Final

from rota.slots import messages, view
from rota.slots.calls import Call, Client, Group
from rota.slots.events import (
    Begin,
    Close,
    Command,
    Connected,
    Deal,
    Drain,
    Dropped,
    Ended,
    Event,
    Garbled,
    Kill,
    Moved,
    Redeclared,
    Said,
    Send,
    Tick,
)
from rota.slots.ledger import Ledger
from rota.slots.load import Load, Reserve
from rota.slots.messages import EndedBy, ErrorCode, Receipt, ServerMessage
from rota.slots.place import replay
from rota.slots.rules import Rules
from rota.slots.wantbook import WantBook

BAD_FRAMES_MAX: Final = 16
"""After so many frames that are no good a connection is closed: it is a broken client, or a hostile one."""
HELLO_EVERY_S: Final = 0.5
"""A HELLO that only tells the number of clients waits so long for others: a thousand clients that come at once would
else make a million frames."""
POLICY_VIOLATION: Final = 1008  # the code that websockets have for it


class Broker:
    """The whole exec server's state.

    Args:
        rules: what it is told.
        load: what was learned before.
    """

    def __init__(self, rules: Rules, load: Load | None = None) -> None:
        self.rules = rules
        self.load = load or Load()
        self.draining = False
        self.clients: dict[int, Client] = {}
        self.groups: dict[str, Group] = {}
        self._group_of: dict[str, Group] = {}
        self._edition = 0  # of what HELLO says of services and waitgroups
        self._declare()
        self._running: dict[str, Call] = {}
        self._offers: deque[tuple[float, Call]] = deque()  # by the time at which they are over
        self._hello_at: float | None = None
        self.due_by = inf  # no `Tick` is needed before; it is asked after each event, so it must cost nothing
        self._clients_count = 0
        self._out: list[Command] = []
        self._handlers: Mapping[type, Callable[[Any, float], None]] = MappingProxyType(
            {
                Connected: self._connected, Said: self._said, Garbled: self._garbled, Dropped: self._dropped,
                Ended: self._ended, Moved: self._moved, Tick: self._tick, Drain: self._drain,
                Redeclared: self._redeclared,
            }
        )  # fmt: skip
        self._answers: Mapping[type, Callable[[Client, Any, float], None]] = MappingProxyType(
            {
                messages.Want: self._want, messages.Unwant: self._unwant, messages.Job: self._job,
                messages.Decline: self._decline, messages.Cancel: self._cancel, messages.Query: self._query,
            }
        )  # fmt: skip

    def handle(self, event: Event, now: float) -> list[Command]:
        """Takes what happened.

        Args:
            event: in the order in which it happened.
            now: seconds of a clock that never steps, not less than before.

        Returns: what to do, in this order.
        """
        self._handlers[type(event)](event, now)
        out, self._out = self._out, []
        return out

    def next_at(self) -> float | None:
        """When to say `Tick` next; None: not before something happens."""
        self._forget_answered()
        times = [at for at in (self._hello_at, self._offers[0][0] if self._offers else None) if at is not None]
        self.due_by = min(times, default=inf)
        return None if self.due_by == inf else self.due_by

    @property
    def waiting(self) -> int:
        """How many wants stand in the books."""
        return sum(len(group.book) for group in self.groups.values())

    @property
    def in_use(self) -> int:
        """How many slots are with somebody."""
        return sum(group.ledger.in_use for group in self.groups.values())

    def busy(self, group: Group) -> list[Call]:
        """The calls that have a slot of this waitgroup."""
        running = [call for call in self._running.values() if call.group is group]
        return running + [call for _, call in self._offers if call.group is group and call.state == "offered"]

    def hello(self) -> messages.Hello:
        """What this exec server is, now."""
        return messages.Hello(
            self.rules.instance_id, dict(self.rules.services), dict(self.rules.waitgroups), self._clients_count,
            self.draining, self.rules.frame_bytes_max,
        )  # fmt: skip

    # What it is told

    def _declare(self) -> None:
        """Makes the waitgroups as the rules say. Those that are there keep what is in use; their books begin anew."""
        rules, gone = self.rules, self.groups.keys() - self.rules.waitgroups.keys()
        for name, processes in rules.waitgroups.items():
            services = frozenset(service for service, group in rules.services.items() if group == name)
            reserve = Reserve(services, processes, None if rules.fast_reserve else 0)
            group = self.groups.get(name)
            if group is None:
                group = self.groups[name] = Group(name, WantBook(), Ledger(processes), reserve)
            group.book, group.ledger.processes, group.reserve = WantBook(floor=rules.floor), processes, reserve
            for tenant, weight in rules.weights.items():
                group.book.weigh(tenant, weight)
            for client in self.clients.values():
                self._weigh(client, group)
        for name in sorted(gone):
            self.groups[name].book, self.groups[name].ledger.processes = WantBook(), 0
            self._forget_empty(self.groups[name])
        self._group_of = {service: self.groups[group] for service, group in rules.services.items()}

    def _redeclared(self, event: Redeclared, now: float) -> None:
        """Wants are parked again in the order in which they would have been dealt slots; nobody else loses a thing."""
        waiting = [want for group in self.groups.values() for want in replay(group.book)]
        before, self.rules = self.rules, event.rules
        self._declare()
        lost = []
        for call in waiting:
            assert isinstance(call, Call), "what waits is a call"
            group = self._group_of.get(call.service)
            if group is None:
                lost.append(call)
                continue
            call.turn, call.group, call.party = None, group, self._party(call.client, call.tenant)
            group.book.park(call)
        if (before.services, before.waitgroups) != (self.rules.services, self.rules.waitgroups):
            self._edition += 1
            self._hello_at = now
            self._tick(Tick(), now)  # first: who knows what is offered asks elsewhere at once
        for call in lost:
            del call.client.calls[call.job_id]
            call.state = "over"
            self._refuse_service(call.client, call.service, call.job_id)
        for group in list(self.groups.values()):
            self._grant(group, now)

    def _party(self, client: Client, tenant: str | None) -> Hashable:
        return tenant if tenant is not None and self.rules.fair_by == "tenant" else client.number

    def _weigh(self, client: Client, group: Group) -> None:
        weight = min(client.weight, self.rules.weight_max)
        if weight > 1:
            group.book.weigh(client.number, weight)

    def _forget_empty(self, group: Group) -> None:
        if not group.ledger.processes and not group.ledger.in_use:
            self.groups.pop(group.name, None)

    # What happens

    def _connected(self, event: Connected, now: float) -> None:
        client = self.clients[event.client] = Client(event.client, event.counts, weight=event.weight)
        for group in self.groups.values():
            self._weigh(client, group)
        self._clients_count += client.counts
        self._greet(client, self.hello())
        self._hello_later(client, now)

    def _said(self, event: Said, now: float) -> None:
        client = self.clients.get(event.client)
        if client is not None:
            self._answers[type(event.message)](client, event.message, now)

    def _garbled(self, event: Garbled, now: float) -> None:
        client = self.clients.get(event.client)
        if client is None:
            return
        self._send(client, event.error)
        call = client.calls.get(event.error.job_id or "")
        if call is not None and call.state == "offered":
            # Most likely its JOB, which will not come any better: the slot need not wait for the offer to time out.
            del client.calls[call.job_id]
            self._end_offer(call)
            self._grant(call.group, now)
        client.bad_frames += 1
        if client.bad_frames == BAD_FRAMES_MAX:
            self._out.append(Close(client.number, POLICY_VIOLATION, f"{BAD_FRAMES_MAX} frames that are no good"))

    def _dropped(self, event: Dropped, now: float) -> None:
        client = self.clients.pop(event.client, None)
        if client is None:
            return
        client.gone = True
        freed: dict[int, Group] = {}
        for call in client.calls.values():
            if call.state == "waiting":
                call.group.book.remove(call)
            elif call.state == "offered":
                self._end_offer(call)
                freed[id(call.group)] = call.group
            else:
                self._out.append(Kill(call.job_id))
        client.calls.clear()
        for group in self.groups.values():
            group.book.weigh(client.number, 1)
        for group in freed.values():
            self._grant(group, now)
        self._clients_count -= client.counts
        self._hello_later(client, now)

    def _ended(self, event: Ended, now: float) -> None:
        call = self._running.pop(event.job_id, None)
        if call is None:
            return
        receipt = event.receipt
        self.load.observe(call.service, receipt.ended_by, receipt.duration_s)
        call.group.ledger.give_back(call.service)
        self._forget_empty(call.group)
        if not call.client.gone:
            del call.client.calls[call.job_id]
            self._send(call.client, messages.Done(call.job_id, receipt))
        self._grant(call.group, now)

    def _moved(self, event: Moved, _now: float) -> None:
        call = self._running.get(event.progress.job_id)
        if call is not None and not call.client.gone:
            self._send(call.client, event.progress)

    def _tick(self, _event: Tick, now: float) -> None:
        if self._hello_at is not None and self._hello_at <= now:
            self._hello_at = None
            hello = self.hello()
            for client in self.clients.values():
                if client.told != (hello.clients, hello.draining, self._edition):
                    self._greet(client, hello)
        while self._offers and self._offers[0][0] <= now:
            _, call = self._offers.popleft()
            if call.state == "offered":
                self._end_offer(call)
                del call.client.calls[call.job_id]
                self._refuse(
                    call.client, ErrorCode.OFFER_EXPIRED, call.job_id,
                    f"The offer was not answered within {self.rules.offer_timeout_s:g} s: the slot goes to another. "
                    "Send WANT again if it is still wanted.",
                )  # fmt: skip
                self._grant(call.group, now)

    def _drain(self, _event: Drain, now: float) -> None:
        if self.draining:
            return
        self.draining = True
        self._hello_at = now
        self._tick(Tick(), now)

    # What a client says

    def _want(self, client: Client, want: messages.Want, now: float) -> None:
        job_id = want.job_id
        group = self._group_of.get(want.service)
        if group is None:
            self._refuse_service(client, want.service, job_id)
            return
        if job_id in client.calls:
            self._refuse(
                client, ErrorCode.DUPLICATE_WANT, job_id,
                f"This job id is {client.calls[job_id].state} already; each exec call has its own.",
            )  # fmt: skip
            return
        if len(client.calls) >= self.rules.wants_max:
            self._refuse(
                client, ErrorCode.TOO_MANY_WANTS, job_id,
                f"This connection has {len(client.calls):,} calls here, which is the limit.",
            )  # fmt: skip
            return
        if self.draining:
            self._refuse(client, ErrorCode.DRAINING, job_id, "This exec server is draining: it deals no more slots.")
            return
        call = client.calls[job_id] = Call(client, want, group, self._party(client, want.tenant), now)
        if not group.book and group.ledger.free and want.service not in self._closed(group):
            self._offer(call, now)  # the only want there is: the book would give it back at once
            return
        group.book.park(call)
        self._grant(group, now)
        if call.state == "waiting":
            self._send(client, messages.Queued(job_id))

    def _unwant(self, client: Client, message: messages.Unwant, now: float) -> None:
        self._give_up(client, message.job_id, now, "UNWANT")

    def _decline(self, client: Client, message: messages.Decline, now: float) -> None:
        self._give_up(client, message.job_id, now, "DECLINE")

    def _give_up(self, client: Client, job_id: str, now: float, what: str) -> None:
        call = client.calls.get(job_id)
        if call is None:
            return  # it crossed an offer's end on its way
        if call.state == "running":
            self._refuse(
                client, ErrorCode.RUNNING, job_id, f"{what} comes too late: its command runs. CANCEL would stop it."
            )
            return
        del client.calls[job_id]
        if call.state == "waiting":
            call.group.book.remove(call)
        else:
            self._end_offer(call)
            self._grant(call.group, now)

    def _cancel(self, client: Client, message: messages.Cancel, now: float) -> None:
        call = client.calls.get(message.job_id)
        if call is not None and call.state == "running":
            self._out.append(Kill(call.job_id))
        else:
            self._give_up(client, message.job_id, now, "CANCEL")

    def _job(self, client: Client, message: messages.Job, now: float) -> None:
        job_id = message.job_id
        call = client.calls.get(job_id)
        if call is None or call.state == "waiting":
            self._refuse(
                client, ErrorCode.NO_OFFER, job_id,
                "No slot is reserved for this job, or it is no longer: nothing runs. Send WANT, and JOB after OFFER.",
            )  # fmt: skip
        elif call.state == "running":
            self._refuse(client, ErrorCode.RUNNING, job_id, "This job runs already; it is not run twice.")
        elif job_id in self._running:
            self._end_offer(call)
            del client.calls[job_id]
            error = "This job still runs here for another connection; it is not run twice at once. Try again later."
            self._send(client, messages.Done(job_id, Receipt(ended_by=EndedBy.REFUSED, error=error, retryable=True)))
            self._grant(call.group, now)
        else:
            call.state, call.since = "running", now
            self._running[job_id] = call
            self._out.append(Begin(job_id, call.service, message.job))

    def _query(self, client: Client, message: messages.Query, now: float) -> None:
        if message.job_id is None:
            self._send(client, view.overview(self, now))
            return
        call = client.calls.get(message.job_id)
        if call is None:
            self._refuse(client, ErrorCode.UNKNOWN_JOB, message.job_id, "No want of this job id stands here.")
        else:
            self._send(client, view.position(self, call, now))

    # Slots

    def _grant(self, group: Group, now: float) -> None:
        book, ledger = group.book, group.ledger
        while book and ledger.free and not self.draining:
            call = book.take(self._closed(group))
            if call is None:
                return
            assert isinstance(call, Call)
            self._offer(call, now)

    def _closed(self, group: Group) -> frozenset[str]:
        return self.load.closed(group.reserve, group.ledger.by_service)

    def _offer(self, call: Call, now: float) -> None:
        call.group.ledger.take(call.service)
        call.state, call.since = "offered", now
        ends_at = now + self.rules.offer_timeout_s
        self._forget_answered()
        self._offers.append((ends_at, call))
        self.due_by = min(self.due_by, ends_at)
        self._out.append(Deal(call.client.number, messages.Offer(call.job_id), call.service, now - call.parked_at))

    def _forget_answered(self) -> None:
        """Drops the offers in front that were answered: at 20,000 a second they would be 80 MB until they time out."""
        offers = self._offers
        while offers and offers[0][1].state != "offered":
            offers.popleft()

    def _end_offer(self, call: Call) -> None:
        call.state = "over"  # whoever ends an offer forgets the call
        call.group.ledger.give_back(call.service)
        self._forget_empty(call.group)

    def _send(self, client: Client, message: ServerMessage) -> None:
        self._out.append(Send(client.number, message))

    def _greet(self, client: Client, hello: messages.Hello) -> None:
        client.told = (hello.clients, hello.draining, self._edition)
        self._send(client, hello)

    def _refuse(self, client: Client, code: ErrorCode, job_id: str, message: str) -> None:
        self._send(client, messages.Error(code, message, job_id))

    def _refuse_service(self, client: Client, service: str, job_id: str) -> None:
        known = ", ".join(sorted(self.rules.services)[:20]) or "none"
        self._refuse(
            client, ErrorCode.UNKNOWN_SERVICE, job_id, f"There is no service {service} here, only: {known}."
        )  # fmt: skip

    def _hello_later(self, changed: Client, now: float) -> None:
        if changed.counts and self._hello_at is None and self.clients:
            self._hello_at = now + HELLO_EVERY_S
            self.due_by = min(self.due_by, self._hello_at)
