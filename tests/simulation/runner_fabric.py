"""The runner fabric in virtual time: gateways and runners with their real rules, and everything between them bad.

The cores are the program's own: `Gateway` on one side, `Agent` on the other. Simulated are the database (`RunnerStore`,
with delays and outages), links that are slow, cut, half open, or that say things twice or in another order, machines
that sleep, processes that die, clocks that are wrong, engines that ask, repeat, cancel and give up. One seed gives one
history.
"""

from collections.abc import Callable
from random import Random
from typing import Any, Final
from uuid import UUID

from rota.runners import agent_events as at_agent
from rota.runners import gateway_events as at_gateway
from rota.runners import handshake, messages
from rota.runners.agent import Agent
from rota.runners.agent_events import Answer
from rota.runners.frames import Frame
from rota.runners.gateway import Gateway
from rota.runners.gateway_admission import Rules
from rota.runners.gateway_events import Identity
from rota.runners.matching import RunnerKind, Target
from rota.runners.token import TokenKeys
from tests.simulation.fleet import Time
from tests.simulation.runner_store import Row, RunnerStore, capabilities_of, identity_of, needs_of

FAULTS_UNTIL_S: Final = 400.0
LIMIT_S: Final = 4000.0
WALL: Final = 1_800_000_000.0
KEYS: Final = TokenKeys([b"simulated key of thirty-two bytes"])
HALF_OPEN_S: Final = 2000.0
"""When the operating system notices by itself: both sides have to be earlier."""


class Link:
    """One connection."""

    def __init__(self, fabric: "Fabric", runner: "Runner", number: int, gateway: "GatewayHost") -> None:
        self.fabric, self.runner, self.number, self.gateway = fabric, runner, number, gateway
        self.there = 0  # its number at the gateway
        self.made_at = fabric.time.now
        self.settled = False
        self.delay_s = fabric.random.choice([0.001, 0.01, 0.05, 0.6])
        self.up = True
        self.closed_here = self.closed_there = False
        self._to_runner: list[Callable[[], None]] = []
        self._to_gateway: list[Callable[[], None]] = []

    def to_gateway(self, frame: Frame) -> None:
        self._carry(self._to_gateway, lambda: self.gateway.hear(self, frame), frame)

    def to_runner(self, frame: Frame) -> None:
        self._carry(self._to_runner, lambda: self.runner.happens(at_agent.Received(self.number, frame)), frame)

    def close_from_gateway(self, code: int, reason: str) -> None:
        self.closed_there = True
        self._carry(self._to_runner, lambda: self.end_here(code, reason))
        self.fabric.time.after(self.delay_s, lambda: self.gateway.lost(self))

    def close_from_runner(self, *, at_once: bool) -> None:
        self.closed_here = True
        if at_once and self.fabric.random.random() < 0.5:
            self.cut()
        else:
            self._carry(self._to_gateway, lambda: self.gateway.lost(self))
            if not at_once:
                self.fabric.time.after(
                    self.delay_s, lambda: self.runner.happens(at_agent.Dropped(self.number, 1000, ""))
                )

    def cut(self) -> None:
        """Nothing goes through any more; each side notices at once, or only by silence."""
        if not self.up:
            return
        self.up = False
        if self.fabric.gentle or self.fabric.random.random() < 0.5:
            self.fabric.time.after(self.fabric.random.uniform(0, 2), lambda: self.end_here(1006, ""))
            self.fabric.time.after(self.fabric.random.uniform(0, 2), lambda: self.gateway.lost(self))
        else:
            self.fabric.time.after(HALF_OPEN_S, lambda: self.gateway.lost(self))

    def end_here(self, code: int, reason: str) -> None:
        if not self.closed_here:
            self.closed_here = True
            self.runner.happens(at_agent.Dropped(self.number, code, reason))

    def _carry(self, queue: list[Callable[[], None]], arrive: Callable[[], None], frame: Frame | None = None) -> None:
        if not self.up:
            return
        self.fabric.frames += 1
        random = self.fabric.random
        queue.append(arrive)
        if frame is not None and frame.message.type == "ready":
            self.settled = True  # nothing of the handshake is on its way any more
        faulty = frame is not None and self.fabric.faulty and frame.message.type not in ("hello", "welcome", "bye")
        if faulty and random.random() < self.fabric.strange_share:
            if random.random() < 0.5 and frame is not None and not isinstance(frame.message, messages.RunnerHeartbeat):
                queue.append(arrive)
                self.fabric.time.after(self.delay_s * 1.01, lambda: self._arrive(queue))
            elif len(queue) > 1 and self.settled:
                queue[-1], queue[-2] = queue[-2], queue[-1]
        self.fabric.time.after(self.delay_s, lambda: self._arrive(queue))
        if faulty and random.random() < self.fabric.strike_share:
            self.fabric.faults += 1
            self.cut()

    def _arrive(self, queue: list[Callable[[], None]]) -> None:
        if self.up and queue:
            queue.pop(0)()


class Host:
    """What drives one core: its timer."""

    def __init__(self, fabric: "Fabric") -> None:
        self.fabric = fabric
        self.up = True
        self.made_at = self.awake_since = fabric.time.now
        self._tick_at: float | None = None

    def tick_by(self, at: float | None) -> None:
        if at is not None and (self._tick_at is None or at < self._tick_at):
            self._tick_at = at
            self.fabric.time.after(at - self.fabric.time.now, lambda: self._ticked(at))

    def _ticked(self, at: float) -> None:
        if self._tick_at == at:
            self._tick_at = None
            self.tick()

    def tick(self) -> None:
        """Tells the core."""


class GatewayHost(Host):
    """One start of one replica."""

    def __init__(self, fabric: "Fabric", name: str) -> None:
        super().__init__(fabric)
        self.name = name
        self.core = Gateway(Rules(name), KEYS, Random(fabric.random.random()))
        self.links: dict[int, Link] = {}
        self.asks: dict[int, Callable[[Any], None]] = {}
        self.barred: set[str] = set()
        """Organisations that are disabled, as this replica was told."""
        self._numbers = 0

    def bar(self, org_id: str) -> None:
        if self.up and org_id in self.fabric.store.disabled:
            self.barred.add(org_id)
            self.happens(at_gateway.Forbidden(org_id))

    def tick(self) -> None:
        self.happens(at_gateway.Tick())

    def accept(self, link: Link) -> None:
        self._numbers += 1
        link.there = self._numbers
        self.links[link.there] = link
        self.happens(at_gateway.Opened(link.there, "gateway.invalid"))

    def hear(self, link: Link, frame: Frame) -> None:
        if not link.closed_there:
            self.happens(at_gateway.Received(link.there, frame))

    def lost(self, link: Link) -> None:
        if self.links.pop(link.there, None) is not None:
            self.happens(at_gateway.Lost(link.there))

    def ask(self, event_of: Callable[[int], at_gateway.OpAsked], answered: Callable[[Any], None]) -> int:
        self._numbers += 1
        number = self._numbers
        self.asks[number] = answered
        self.happens(event_of(number))
        return number

    def happens(self, event: Any) -> None:
        if not self.up:
            return
        now = self.fabric.time.now
        commands = self.core.handle(event, now, WALL + now)
        self.fabric.checks.gateway(self, event, commands)
        for command in commands:
            self._do(command)
        self.tick_by(self.core.next_at())

    def _do(self, command: Any) -> None:  # noqa: PLR0912  one case for each command
        store, time = self.fabric.store, self.fabric.time
        match command:
            case at_gateway.Send(connection, frame):
                link = self.links.get(connection)
                if link is not None:
                    link.to_runner(frame)
            case at_gateway.Close(connection, code, reason):
                link = self.links.get(connection)
                if link is not None:
                    link.close_from_gateway(code, reason)
            case at_gateway.Authenticate(connection, hello):
                self._store(lambda: self._verify(connection, hello), self.happens)
            case at_gateway.CheckHeld(connection, identity, held):
                self._store(
                    lambda: at_gateway.Kept(connection, tuple(store.held(identity, held, self.name, time.now))),
                    self.happens,
                )
            case at_gateway.Claim(connection, identity, _, _, capabilities, slots, without):

                def claim() -> Any:
                    jobs = store.claim(identity, capabilities, slots, without=without, instance=self.name, now=time.now)
                    return at_gateway.Claimed(connection, tuple(jobs))

                self._store(claim, self.happens)
            case at_gateway.Renew(connection, leases):
                if self.fabric.store_down:
                    time.after(5, lambda: self.happens(at_gateway.Renewed(connection, None)))
                else:
                    self._store(
                        lambda: at_gateway.Renewed(connection, tuple(store.renew(leases, time.now))), self.happens
                    )
            case at_gateway.StoreAccept(lease):
                self._fenced(lease, lambda: store.accept(lease, time.now))
            case at_gateway.Release(lease):
                self._store(lambda: store.release(lease), lambda _: self.fabric.demand())
            case at_gateway.Succeed(lease):
                self._store(lambda: store.end(lease, "done", time.now), lambda _: None)
            case at_gateway.FailJob(lease):
                self._store(lambda: store.end(lease, "failed", time.now, command.code), lambda _: None)
            case at_gateway.EndCancelled(lease):
                self._store(lambda: store.end(lease, "cancelled", time.now), lambda _: None)
            case at_gateway.Expire(lease):
                self._store(lambda: store.expire(lease, time.now), lambda _: self.fabric.demand())
            case at_gateway.AnswerOp(ask) | at_gateway.RefuseOp(ask) | at_gateway.SeekOp(ask):
                self.asks.pop(ask)(command)
            case at_gateway.Seen() | at_gateway.NoteProgress():
                return
            case _:
                raise AssertionError(f"nobody carries out {command}")

    def _verify(self, connection: int, hello: messages.Hello) -> Any:
        assert isinstance(hello.auth, messages.DeviceAuth)
        refusal = handshake.check_time(hello.auth, wall=WALL + self.fabric.time.now)
        if refusal is not None:
            return at_gateway.Refused(connection, refusal.code, refusal.reason, tells_time=refusal.tells_time)
        identity = self.fabric.runners[hello.auth.device_id].identity
        if identity.org_id in self.fabric.store.disabled:
            return at_gateway.Refused(connection, 4403, "disabled")
        return at_gateway.Verified(connection, identity)

    def _fenced(self, lease: at_gateway.Lease, write: Callable[[], bool]) -> None:
        self._store(write, lambda kept: None if kept else self.happens(at_gateway.LeaseLost(lease)))

    def _store(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """A statement takes its way there and back; while the database is down it waits."""
        random, time = self.fabric.random, self.fabric.time

        def there() -> None:
            if self.fabric.store_down:
                time.after(random.uniform(0.5, 2), there)
                return
            result = work()
            time.after(random.uniform(0, 0.02), lambda: then(result) if self.up else None)

        time.after(random.uniform(0, 0.02), there)

    def crash(self) -> None:
        self.up = False
        for link in list(self.links.values()):
            link.closed_there = True
            link.cut()
        for answered in list(self.asks.values()):
            self.fabric.time.after(0.1, lambda answered=answered: answered(None))
        self.asks.clear()


class Runner(Host):
    """One runner: the machine, and one start after the other of its agent."""

    def __init__(self, fabric: "Fabric", name: str, org_id: str | None) -> None:
        super().__init__(fabric)
        self.name = name
        self.identity: Identity = identity_of(name, org_id)
        self.capabilities = capabilities_of(slots=fabric.random.choice([1, 1, 2, 4]))
        self.skew_s = fabric.random.choice([0.0, 0.0, 0.0, 90.0, -300.0])
        self.starts = 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        self.up, self.asleep = True, False
        self.core = Agent(self.capabilities, Random(self.fabric.random.random()))
        self.links: dict[int, Link] = {}
        self.sessions: dict[tuple[str, int], str | None] = {}  # what each one's programs are at
        self.kept: dict[tuple[str, int, str], Answer] = {}
        self._waiting: list[Any] = []
        self._tick_at = None
        start = self.starts
        self.fabric.time.after(0.01, lambda: self.happens(at_agent.Start()) if self.starts == start else None)

    def tick(self) -> None:
        self.happens(at_agent.Tick())

    def happens(self, event: Any) -> None:
        if not self.up:
            return
        if self.asleep:
            if not isinstance(event, at_agent.Tick) or not any(
                isinstance(each, at_agent.Tick) for each in self._waiting
            ):
                self._waiting.append(event)
            return
        now = self.fabric.time.now
        commands = self.core.handle(event, now, WALL + now + self.skew_s)
        self.fabric.checks.agent(self, event, commands)
        for command in commands:
            self._do(command)
        self.tick_by(self.core.next_at())

    def _do(self, command: Any) -> None:  # noqa: PLR0912  one case for each command
        random, time = self.fabric.random, self.fabric.time
        start = self.starts

        def later(delay_s: float, event: Any, *, if_at: tuple[str, int, str] | None = None) -> None:
            def come() -> None:
                if self.starts == start and (if_at is None or self.sessions.get(if_at[:2]) == if_at[2]):
                    if self.asleep:
                        time.after(1.0, come)  # its programs sleep as well
                        return
                    if if_at is not None:
                        self.sessions[if_at[:2]] = None
                    self.happens(event)

            time.after(delay_s, come)

        match command:
            case at_agent.Dial(number):
                self._dial(number)
            case at_agent.SendHello(number, frame_id, capabilities, running, offset_s):
                ts = handshake.clocks.stamp(WALL + time.now + self.skew_s + offset_s)
                auth = messages.DeviceAuth(
                    device_id=self.name, ts=ts, nonce=handshake.encoded(b"n" * 16), sig=handshake.encoded(b"s" * 64)
                )
                hello = messages.Hello(protocol_version="1.0", auth=auth, capabilities=capabilities, running=running)
                self.links[number].to_gateway(Frame(frame_id, hello))
            case at_agent.Send(number, frame):
                if number in self.links and not self.links[number].closed_here:
                    self.links[number].to_gateway(frame)
            case at_agent.Hang(number, _, _, at_once):
                link = self.links.pop(number, None)
                if link is not None:
                    link.close_from_runner(at_once=at_once)
            case at_agent.OpenSession(job_id, assign):
                self.fabric.checks.opens(self, job_id, assign)
                self.sessions[job_id, assign.lease_epoch] = None
                if random.random() < 0.02:
                    later(0.5, at_agent.SessionBroke(job_id, assign.lease_epoch, "disk_full", "no space"))
            case at_agent.RunOp(job_id, epoch, _, op_id):
                self.fabric.checks.runs(self, job_id, epoch, op_id)
                self.sessions[job_id, epoch] = op_id
                result = {"exists": True, "bytes": 1, "by": self.name, "epoch": epoch, "op": op_id}
                answer = Answer(result)
                took_s = random.expovariate(1 / 3) if random.random() < 0.97 else 80.0
                if random.random() < 0.3:
                    later(took_s / 2, at_agent.OpMoved(job_id, epoch, op_id, "ffmpeg", 50.0))
                later(took_s, at_agent.OpEnded(job_id, epoch, op_id, answer), if_at=(job_id, epoch, op_id))
            case at_agent.KeepAnswer(job_id, epoch, op_id, answer):
                self.kept[job_id, epoch, op_id] = answer
            case at_agent.ForgetAnswer(job_id, epoch, op_id):
                del self.kept[job_id, epoch, op_id]
            case at_agent.Recall(job_id, epoch, op_id):
                later(0.01, at_agent.Recalled(job_id, epoch, op_id, self.kept.get((job_id, epoch, op_id))))
            case at_agent.EndSession(job_id, epoch, grace_s):
                takes_s = random.uniform(0, min(grace_s, 0.9))

                def ended() -> None:
                    if self.starts != start:
                        return
                    if self.asleep:
                        time.after(1.0, ended)
                        return
                    self.sessions.pop((job_id, epoch), None)
                    self.happens(at_agent.SessionEnded(job_id, epoch))

                time.after(takes_s, ended)
            case at_agent.Exit():
                self._end()
            case at_agent.Tell():
                return
            case _:
                raise AssertionError(f"nobody carries out {command}")

    def _dial(self, number: int) -> None:
        gateway = self.fabric.balance()
        if gateway is None or self.name in self.fabric.partitioned:
            self.fabric.time.after(
                0.5,
                lambda start=self.starts: self.starts == start and self.happens(at_agent.DialFailed(number, "refused")),
            )
            return
        link = self.links[number] = Link(self.fabric, self, number, gateway)
        self.fabric.links.append(link)

        def arrives() -> None:
            if gateway.up and link.up and not link.closed_here:
                gateway.accept(link)
                self.happens(at_agent.Connected(number))
            elif not link.closed_here:
                self.happens(at_agent.DialFailed(number, "refused"))

        self.fabric.time.after(link.delay_s, arrives)

    def sleep(self, for_s: float) -> None:
        self.asleep = True
        start = self.starts

        def wake() -> None:
            if self.starts != start:
                return
            self.asleep, self.awake_since = False, self.fabric.time.now
            waiting, self._waiting = self._waiting, []
            if not any(isinstance(event, at_agent.Start) for event in waiting):
                self.tick()  # a timer that is late is the first thing that a process sees
            for event in waiting:
                self.happens(event)

        self.fabric.time.after(for_s, wake)

    def crash(self, *, back_after_s: float) -> None:
        """Killed; a supervisor starts it again, and its folders are cleaned."""
        if not self.up:
            return
        self._end()
        self.fabric.time.after(back_after_s, self.start)

    def drain(self, deadline_s: float | None) -> None:
        self.happens(at_agent.Drain("sigterm", deadline_s))

    def _end(self) -> None:
        self.up = False
        for link in self.links.values():
            if not link.closed_here:
                link.closed_here = True
                link.cut()
        self.links = {}
        self.sessions.clear()
        self.fabric.ended(self)


class Engine:
    """One execution: opens a session, runs its ops one after the other, closes it; again, if it is lost."""

    def __init__(self, fabric: "Fabric", name: str, target: str, org_id: str) -> None:
        self.fabric, self.name, self.target, self.org_id = fabric, name, target, org_id
        self.ops = fabric.random.randint(1, 5)
        self.cancels = fabric.random.random() < 0.15
        self.row: Row | None = None
        self.done_ops = 0
        self.done = False
        self.tries = self.lost = 0
        self.asked_at: dict[str, float] = {}

    def begin(self) -> None:
        """Creates the job, under a new purpose each time."""
        self.tries += 1
        self.done_ops = 0
        fabric = self.fabric
        job_id = str(UUID(int=fabric.random.getrandbits(112) << 16, version=4))
        self.row = Row(
            job_id, needs_of(self.target, self.org_id), self.name, fabric.time.now,
            fabric.random.choice([0, 0, 5]), idle_s=fabric.random.choice([60, 1800]),
        )  # fmt: skip
        fabric.store.rows[job_id] = self.row
        fabric.demand()
        self._wait()

    def _wait(self) -> None:
        row = self.row
        assert row is not None
        random = self.fabric.random
        if row.state in ("cancelled", "done") and (self.cancels or self.done_ops >= self.ops):
            self.done = True
        elif row.ended_at is not None:
            self.lost += row.error != "disk_full" and not self.cancels
            self.fabric.time.after(random.uniform(0.1, 2), self.begin)
        elif row.state == "running" or (row.state == "assigned" and random.random() < 0.1):
            if self.cancels and random.random() < 0.5:
                self._cancel()
                self.fabric.time.after(1, self._wait)
            else:
                self._op(f"{self.name}-{self.tries}-{self.done_ops}")
        else:
            self.fabric.time.after(0.5, self._wait)

    def _cancel(self) -> None:
        assert self.row is not None
        self.fabric.cancel(self.row.job_id, "user")

    def _op(self, op_id: str) -> None:
        row = self.row
        assert row is not None
        if row.session_id is None or row.ended_at is not None:
            self.fabric.time.after(0.5, self._wait)
            return
        gateway = self.fabric.balance()
        if gateway is None:
            self.fabric.time.after(1, lambda: self._op(op_id))
            return
        op = "close" if self.done_ops >= self.ops else "stat"
        session_id = row.session_id
        self.asked_at[op_id] = self.fabric.time.now
        answered: list[Any] = []

        def answer(command: Any) -> None:
            if not answered:
                answered.append(command)
                self._answered(op_id, op, session_id, command)

        self.fabric.ask(gateway, session_id, op_id, op, answer)
        if self.fabric.random.random() < 0.05:  # somebody else asks at the same time
            self.fabric.ask(gateway, session_id, op_id + "-x", "stat", lambda _command: None)
        if self.cancels and self.fabric.random.random() < 0.3:
            self.fabric.time.after(self.fabric.random.uniform(0, 3), self._cancel)

    def _answered(self, op_id: str, op: str, session_id: str, command: Any) -> None:
        again_s = self.fabric.random.uniform(0.1, 1)
        match command:
            case at_gateway.AnswerOp(_, _, _, error):
                self.fabric.checks.answered(self, op_id, op, session_id, command)
                if error is None or error.code not in ("op_in_flight", "op_expired"):
                    self.done_ops += 1
                elif error.code == "op_expired":
                    self._cancel()
                self.fabric.time.after(again_s, self._wait)
            case at_gateway.RefuseOp(_, status, code) if status in (404, 410) or code == "op_cancelled":
                self.fabric.time.after(again_s, self._wait_for_the_end)
            case _:  # 409, 502, 504: again with the same op id
                self.fabric.time.after(again_s, lambda: self._op(op_id))

    def _wait_for_the_end(self) -> None:
        """The session is lost: its row ends soon, or the session is found again."""
        row = self.row
        assert row is not None
        if row.ended_at is None and row.leased:
            self.fabric.time.after(2.0, self._wait)
        else:
            self._wait()


class Fabric:
    """One history."""

    def __init__(self, seed: int, checks: Any) -> None:
        self.random = random = Random(seed)
        self.time = Time()
        self.checks = checks
        checks.fabric = self
        self.frames = self.faults = 0
        self.links: list[Link] = []
        self.partitioned: set[str] = set()
        self.store_down = False
        self.gentle = random.random() < 0.3
        """Only links break, and both sides notice soon: no session may be lost by that."""
        self.strike_share = random.choice([0.0, 0.01, 0.04])
        self.strange_share = random.choice([0.0, 0.0, 0.05])
        self.store = RunnerStore(pool_cap=random.choice([None, 2]))
        self._gateways_made = 0
        self.gateways = [self._gateway() for _ in range(random.choice([1, 2, 3]))]
        self.runners: dict[str, Runner] = {}
        for number in range(random.randint(1, 4)):
            org_id = random.choice([None, None, "a", "b"])
            name = f"runner-{number}"
            self.runners[name] = Runner(self, name, org_id)
        self.engines: list[Engine] = []
        for number in range(random.randint(1, 10)):
            runner = self.runners[random.choice(sorted(self.runners))]
            pool = runner.identity.kind == RunnerKind.CLOUD_POOL
            org_id = random.choice(["a", "b"]) if pool else str(runner.identity.org_id)
            engine = Engine(self, f"e{number}", Target.CLOUD_POOL if pool else Target.ORG_RUNNER, org_id)
            self.engines.append(engine)
            self.time.after(random.uniform(0, FAULTS_UNTIL_S / 2), engine.begin)
        for _ in range(random.randint(0, 12)):
            self.time.after(random.uniform(0, FAULTS_UNTIL_S), self._fault)
        self._reap()
        self._look()
        self._look_for_barred()

    @property
    def faulty(self) -> bool:
        return self.time.now < FAULTS_UNTIL_S

    def balance(self) -> GatewayHost | None:
        up = [gateway for gateway in self.gateways if gateway.up]
        return self.random.choice(up) if up else None

    def demand(self, *, surely: bool = False) -> None:
        """Something is queued: each replica may hear of it."""
        for row in [row for row in self.store.rows.values() if row.state == "queued"]:
            for gateway in self.gateways:
                if surely or self.random.random() < 0.8:
                    self.time.after(0.005, lambda g=gateway, needs=row.needs: g.happens(at_gateway.Demand(needs)))

    def cancel(self, job_id: str, reason: str) -> None:
        if self.store.cancel(job_id, self.time.now):
            for gateway in self.gateways:
                self.time.after(0.01, lambda g=gateway: g.happens(at_gateway.CancelJob(job_id, reason)))

    def ask(
        self, gateway: GatewayHost, session_id: str, op_id: str, op: str, answer: Callable[[Any], None], *,
        forwarded: bool = False,
    ) -> None:  # fmt: skip
        """An op at a replica; forwarded once to the one that the session's row names."""

        def answered(command: Any) -> None:
            if not isinstance(command, at_gateway.SeekOp):
                answer(command)
                return
            row = self.store.rows.get(self.store.sessions.get(session_id, ""))
            if row is None:
                answer(at_gateway.RefuseOp(0, 404, "session_not_found", ""))
            elif row.session_id != session_id or not row.leased or row.instance == gateway.name or forwarded:
                answer(at_gateway.RefuseOp(0, 410, "session_lost", ""))
            else:
                owner = next((each for each in self.gateways if each.name == row.instance and each.up), None)
                if owner is None:
                    answer(at_gateway.RefuseOp(0, 502, "session_owner_unreachable", ""))
                else:
                    self.ask(owner, session_id, op_id, op, answer, forwarded=True)

        args = {"path": "a"} if op == "stat" else {}
        gateway.ask(lambda ask: at_gateway.OpAsked(ask, session_id, op_id, op, args, 30), answered)

    def ended(self, runner: Runner) -> None:
        """A runner's process is over; one that drained comes back as well."""
        self.checks.gone(runner)
        if runner.core.draining is not None:
            self.time.after(self.random.uniform(1, 30), lambda: None if runner.up else runner.start())

    def _gateway(self) -> GatewayHost:
        self._gateways_made += 1
        return GatewayHost(self, f"gateway-{self._gateways_made}")

    def _reap(self) -> None:
        if not self.store_down:
            self.store.reap(self.time.now)
            for row in self.store.rows.values():
                for gateway in self.gateways:
                    if row.leased and row.instance != gateway.name and row.job_id in gateway.core.jobs:
                        gateway.happens(at_gateway.Moved(row.lease))
        self.time.after(10, self._reap)

    def _look(self) -> None:
        if not self.store_down:
            self.demand(surely=True)
        self.time.after(1, self._look)

    def _look_for_barred(self) -> None:
        if not self.store_down:
            for gateway in self.gateways:
                for org_id in sorted(self.store.disabled):
                    gateway.bar(org_id)
        self.time.after(30, self._look_for_barred)

    def _disable(self, org_id: str) -> None:
        self.store.disabled.add(org_id)
        for gateway in self.gateways:
            if self.random.random() < 0.8:
                self.time.after(0.01, lambda g=gateway: g.bar(org_id))

    def _enable(self, org_id: str) -> None:
        self.store.disabled.discard(org_id)
        for gateway in self.gateways:
            gateway.barred.discard(org_id)

    def _verdict(self, row: Row) -> None:
        """An engine refuses an output: whoever has the runner may hear of it, or finds out at its next heartbeat."""
        if self.store.end(row.lease, "failed", self.time.now, "verification_failed"):
            for gateway in self.gateways:
                if self.random.random() < 0.8:
                    self.time.after(0.01, lambda g=gateway: g.happens(at_gateway.JobEnded(row.job_id)))

    def _fault(self) -> None:  # noqa: PLR0912  one case for each fault
        random = self.random
        self.faults += 1
        runner = self.runners[random.choice(sorted(self.runners))]
        match (
            "cut"
            if self.gentle
            else random.choice(
                ["cut", "sleep", "crash", "gateway", "partition", "store", "drain", "stop", "disable", "verdict"]
            )
        ):
            case "cut":
                for link in runner.links.values():
                    link.cut()
            case "sleep" if runner.up and not runner.asleep:
                runner.sleep(random.choice([3.0, 20.0, 43.0, 60.0, 200.0]))
            case "crash":
                runner.crash(back_after_s=random.uniform(0.5, 20))
            case "gateway" if self.gateways:
                gateway = random.choice(self.gateways)
                gateway.crash()
                self.gateways.remove(gateway)
                self.time.after(random.uniform(0.1, 20), lambda: self.gateways.append(self._gateway()))
            case "partition":
                self.partitioned.add(runner.name)
                for link in runner.links.values():
                    link.cut()
                self.time.after(random.uniform(1, 90), lambda: self.partitioned.discard(runner.name))
            case "store":
                self.store_down = True
                self.time.after(random.choice([1.0, 10.0, 60.0]), self._store_up)
            case "disable":
                org_id = random.choice(["a", "b"])
                self._disable(org_id)
                self.time.after(random.uniform(1, 90), lambda: self._enable(org_id))
            case "verdict":
                running = [row for row in self.store.rows.values() if row.state == "running" and row.cancel_at is None]
                if running and not self.store_down:
                    self._verdict(random.choice(running))
            case "drain" if runner.up and runner.core.draining is None:
                runner.drain(random.choice([0.0, 20.0, None]))
            case "stop" if self.gateways:
                gateway = random.choice(self.gateways)
                gateway.happens(at_gateway.Stop("deploy"))
                self.gateways.remove(gateway)
                self.time.after(1, gateway.crash)
                self.time.after(random.uniform(0.1, 5), lambda: self.gateways.append(self._gateway()))

    def _store_up(self) -> None:
        self.store_down = False
