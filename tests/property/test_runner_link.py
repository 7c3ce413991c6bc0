"""Both ends of the runner protocol against each other, over connections that break at any frame.

Two gateways and two runners, with their own rules, in any order of what can happen: frames wait for as long as chance
likes, a connection breaks with all that is on its way, one side or both may not hear of it, a gateway dies, a machine
sleeps, the reaper comes late, and what one gateway says to the other through the database comes late or not at all.
What a websocket keeps, these keep: within a connection nothing is lost but its end, and nothing comes twice or out of
turn. Shrinks to a few steps what the seeded histories of `tests.simulation` find.
"""

from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rota.runners import agent_events as at_agent
from rota.runners import gateway_events as at_gateway
from rota.runners import handshake, messages
from rota.runners.agent import Agent, Phase
from rota.runners.agent_events import Answer
from rota.runners.frames import Frame, encode, from_gateway, from_runner
from rota.runners.gateway import Gateway
from rota.runners.gateway_admission import Rules
from rota.runners.gateway_events import Lease
from rota.runners.matching import Target
from rota.runners.token import TokenKeys
from tests.simulation.runner_store import ENDED, Row, RunnerStore, capabilities_of, identity_of, needs_of

WALL = 1_800_000_000.0
KEYS = TokenKeys([b"k" * 32])
HEALED_S = 150
"""After the last fault, all is well within so many seconds."""
which = st.integers(0, 1)


@dataclass(eq=False)
class Wire:
    """One connection: what is on its way, and whether each side takes it to be up."""

    runner: "RunnerEnd"
    gateway: "GatewayEnd"
    number: int
    there: int
    to_gateway: deque[bytes | None] = field(default_factory=deque)
    to_runner: deque[bytes | int] = field(default_factory=deque)
    up: bool = True
    up_here: bool = True
    up_there: bool = True


class RunnerEnd:
    """A runner, and the programs of its sessions, which do what they are told at once."""

    def __init__(self, world: "World", name: str, seed: int) -> None:
        self.world, self.name = world, name
        self.core = Agent(capabilities_of(slots=1), Random(seed))
        self.identity = identity_of(name, None)
        self.dials: int | None = None
        self.wire: Wire | None = None
        self.open: set[Lease] = set()
        self.op: tuple[Lease, str] | None = None
        self.kept: dict[tuple[str, int, str], Any] = {}
        self.tell(at_agent.Start())

    def tell(self, event: Any) -> None:
        for command in self.core.handle(event, self.world.now, WALL + self.world.now):
            self._do(command)

    def _do(self, command: Any) -> None:  # noqa: PLR0912  one case for each command
        world = self.world
        match command:
            case at_agent.Dial(number):
                self.dials = number
            case at_agent.SendHello(number, frame_id, capabilities, running):
                auth = messages.DeviceAuth(
                    device_id=self.name, ts="2026-01-02T03:04:05Z", nonce=handshake.encoded(b"n" * 16),
                    sig=handshake.encoded(b"s" * 64),
                )  # fmt: skip
                hello = messages.Hello(
                    protocol_version="1.0", auth=auth, capabilities=capabilities, running=running or None
                )
                self._send(number, Frame(frame_id, hello))
            case at_agent.Send(number, frame):
                self._send(number, frame)
            case at_agent.Hang(number):
                if self.dials == number:
                    self.dials = None
                elif self.wire is not None and self.wire.number == number:
                    self.wire.up_here = False
                    self.wire.to_gateway.append(None)
            case at_agent.OpenSession(job_id, assign):
                self.open.add(Lease(job_id, assign.lease_epoch))
            case at_agent.RunOp(job_id, epoch, _, op_id):
                assert (job_id, epoch, op_id) not in world.runs, "an op runs once"
                assert self.op is None, "one op at a time"
                world.runs[job_id, epoch, op_id] = len(world.runs) + 1
                self.op = Lease(job_id, epoch), op_id
            case at_agent.KeepAnswer(job_id, epoch, op_id, answer):
                self.kept[job_id, epoch, op_id] = answer
            case at_agent.Recall(job_id, epoch, op_id):
                self.tell(at_agent.Recalled(job_id, epoch, op_id, self.kept.get((job_id, epoch, op_id))))
            case at_agent.EndSession(job_id, epoch, _, reason):
                lease = Lease(job_id, epoch)
                self.open.remove(lease)
                if reason == "closed":
                    world.closed.add(lease)
                if self.op is not None and self.op[0] == lease:
                    self.op = None
                self.tell(at_agent.SessionEnded(job_id, epoch))
            case at_agent.Tell() | at_agent.ForgetAnswer():
                pass
            case _:
                raise AssertionError(f"nobody carries out {command}")

    def _send(self, number: int, frame: Frame) -> None:
        wire = self.wire
        if wire is not None and wire.number == number and wire.up_here:
            wire.to_gateway.append(encode(frame))


class GatewayEnd:
    """One start of a replica; what it asks of the database is answered at once."""

    def __init__(self, world: "World", name: str, seed: int) -> None:
        self.world, self.name = world, name
        self.core = Gateway(Rules(name), KEYS, Random(seed))
        self.wires: dict[int, Wire] = {}
        self.words: deque[Any] = deque()
        self.numbers = 0

    def tell(self, event: Any) -> None:
        for command in self.core.handle(event, self.world.now, WALL + self.world.now):
            self._do(command)

    def _do(self, command: Any) -> None:  # noqa: PLR0912  one case for each command
        world, store, now = self.world, self.world.store, self.world.now
        match command:
            case at_gateway.Send(connection, frame):
                wire = self.wires.get(connection)
                if wire is not None:
                    wire.to_runner.append(encode(frame))
            case at_gateway.Close(connection, code):
                wire = self.wires.pop(connection, None)
                if wire is not None:
                    assert code != 4409 or wire is not wire.runner.wire, "the newest connection wins"
                    wire.to_runner.append(int(code))
                    wire.up_there = False
                    self.tell(at_gateway.Lost(connection))
            case at_gateway.Authenticate(connection, hello):
                assert isinstance(hello.auth, messages.DeviceAuth)
                identity = world.runners[int(hello.auth.device_id)].identity
                world.hellos += 1
                order = world.hellos
                world.other(self).words.append(at_gateway.Elsewhere(identity.runner_id, order))
                self.tell(at_gateway.Verified(connection, identity, order))
            case at_gateway.Announce(runner_id, order):
                world.other(self).words.append(at_gateway.Elsewhere(runner_id, order))
            case at_gateway.CheckHeld(connection, identity, held):
                jobs = tuple(store.held(identity, held, self.name, now))
                self.tell(at_gateway.Kept(connection, jobs))
                for job in jobs:
                    world.other(self).words.append(at_gateway.Moved(job.lease))
            case at_gateway.Claim(connection, identity, _, _, capabilities, slots, without):
                claimed = store.claim(identity, capabilities, slots, without=without, instance=self.name, now=now)
                self.tell(at_gateway.Claimed(connection, tuple(claimed)))
            case at_gateway.Renew(connection, leases):
                self.tell(at_gateway.Renewed(connection, tuple(store.renew(leases, now))))
            case at_gateway.StoreAccept(lease):
                self._fenced(lease, done=store.accept(lease, now))
            case at_gateway.Release(lease):
                store.release(lease)
            case at_gateway.Succeed(lease):
                if store.end(lease, "done", now):
                    assert lease in world.closed, "nothing is done that was not closed under its last epoch"
            case at_gateway.FailJob(lease):
                store.end(lease, "failed", now)
            case at_gateway.EndCancelled(lease):
                if store.end(lease, "cancelled", now):
                    assert world.cancelled >= {lease.job_id}, "nobody cancelled it"
            case at_gateway.Expire(lease):
                store.expire(lease, now)
            case at_gateway.AnswerOp(ask, op_id, result):
                session_id = world.asks.pop(ask)
                run = world.runs.get((store.sessions[session_id], int(session_id[-4:], 16), op_id))
                assert result == ({"run": run} if op_id.startswith("stat") else {}), "what its one run gave"
            case at_gateway.RefuseOp(ask):
                del world.asks[ask]
            case at_gateway.SeekOp(ask):
                world.seek(self, ask, command.op_id)
            case at_gateway.Seen() | at_gateway.NoteProgress():
                pass
            case _:
                raise AssertionError(f"nobody carries out {command}")

    def _fenced(self, lease: Lease, *, done: bool) -> None:
        if not done:
            self.tell(at_gateway.LeaseLost(lease))

    def hears(self) -> bool:
        """The next that the other said through the database, if there is any."""
        if not self.words:
            return False
        self.tell(self.words.popleft())
        return True


class World(RuleBasedStateMachine):
    """What can happen, one thing after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.store = RunnerStore()
        self.runs: dict[tuple[str, int, str], int] = {}
        self.closed: set[Lease] = set()
        self.cancelled: set[str] = set()
        self.asks: dict[int, str] = {}
        self.wires: list[Wire] = []
        self._forwarded: set[int] = set()
        self._asked = self._instances = self.hellos = 0

    @initialize(seed=st.integers(0, 2**32))
    def starts(self, seed: int) -> None:
        self.random = Random(seed)
        self.gateways = [self._gateway(), self._gateway()]
        self.runners = [RunnerEnd(self, str(number), self.random.getrandbits(32)) for number in range(2)]
        for one_shot in (False, True):
            self.creates(one_shot)
        self.settles(0, 1)

    @rule(first=which, second=which)
    def settles(self, first: int, second: int) -> None:
        """Who dials is connected, and all that is on its way arrives."""
        for number, gateway in enumerate((first, second)):
            self.connects(number, gateway)
        self.all_arrives()

    def other(self, gateway: GatewayEnd) -> GatewayEnd:
        return next(each for each in self.gateways if each is not gateway)

    def _gateway(self) -> GatewayEnd:
        self._instances += 1
        return GatewayEnd(self, f"g{self._instances}", self.random.getrandbits(32))

    # Jobs and ops

    @precondition(lambda self: not any(row.state == "queued" for row in self.store.rows.values()))
    @rule(one_shot=st.booleans())
    def creates(self, one_shot: bool) -> None:
        job_id = f"0197c7a0-0000-7000-8000-0000{len(self.store.rows):04x}0000"
        row = Row(job_id, needs_of(Target.CLOUD_POOL, "a"), job_id, self.now, one_shot=one_shot, idle_s=10_000)
        self.store.rows[job_id] = row
        self._demand()

    def _demand(self) -> None:
        for row in [row for row in self.store.rows.values() if row.state == "queued"]:
            for gateway in self.gateways:
                gateway.tell(at_gateway.Demand(row.needs))

    @precondition(lambda self: self._running())
    @rule(at=which, repeats=st.booleans(), data=st.data(), ends=st.booleans())
    def asks_an_op_that_arrives(self, at: int, repeats: bool, data: st.DataObject, ends: bool) -> None:
        self.asks_an_op(at, repeats, "stat", data)
        self.all_arrives()
        if ends:
            for number in range(2):
                self.an_op_ends(number)

    def _running(self) -> list[Row]:
        return [row for row in self.store.rows.values() if row.state == "running"]

    @precondition(lambda self: self._running())
    @rule(at=which, repeats=st.booleans(), op=st.sampled_from(["stat", "stat", "stat", "close"]), data=st.data())
    def asks_an_op(self, at: int, repeats: bool, op: str, data: st.DataObject) -> None:
        if running := self._running():
            row = data.draw(st.sampled_from(running))
            assert row.session_id is not None
            self._asked += 1
            done = [op_id for job_id, epoch, op_id in self.runs if (job_id, epoch) == (row.job_id, row.epoch)]
            op_id = done[-1] if repeats and done and op == "stat" else f"{op}-{self._asked}"
            self.asks[self._asked] = row.session_id
            self._ask(self.gateways[at], self._asked, row.session_id, op_id)

    def _ask(self, gateway: GatewayEnd, ask: int, session_id: str, op_id: str) -> None:
        op = op_id.partition("-")[0]
        args = {"path": "a"} if op == "stat" else {}
        gateway.tell(at_gateway.OpAsked(ask, session_id, op_id, op, args, 60))

    def seek(self, gateway: GatewayEnd, ask: int, op_id: str) -> None:
        """Forwarded once to the replica that the row names, as the internal API does."""
        session_id = self.asks[ask]
        owner = self.store.rows[self.store.sessions[session_id]].instance
        there = next((each for each in self.gateways if each.name == owner and each is not gateway), None)
        if there is None or ask in self._forwarded:
            del self.asks[ask]
            return
        self._forwarded.add(ask)
        self._ask(there, ask, session_id, op_id)

    @rule(which=which)
    def an_op_ends(self, which: int) -> None:
        runner = self.runners[which]
        if runner.op is not None:
            (lease, op_id), runner.op = runner.op, None
            answer = Answer({"run": self.runs[lease.job_id, lease.epoch, op_id]})
            runner.tell(at_agent.OpEnded(lease.job_id, lease.epoch, op_id, answer))

    @precondition(lambda self: self._running())
    @rule(data=st.data())
    def cancels(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from([row.job_id for row in self._running()]))
        self.cancelled.add(job_id)
        if self.store.cancel(job_id, self.now):
            for gateway in self.gateways:
                gateway.tell(at_gateway.CancelJob(job_id, "user"))

    # Connections

    @rule(runner=which, gateway=which)
    def connects(self, runner: int, gateway: int) -> None:
        end, replica = self.runners[runner], self.gateways[gateway]
        if end.dials is None:
            return
        number, end.dials = end.dials, None
        replica.numbers += 1
        wire = end.wire = Wire(end, replica, number, replica.numbers)
        replica.wires[wire.there] = wire
        self.wires.append(wire)
        replica.tell(at_gateway.Opened(wire.there, "gateway.invalid"))
        end.tell(at_agent.Connected(number))

    @rule(which=which)
    def a_dial_fails(self, which: int) -> None:
        end = self.runners[which]
        if end.dials is not None:
            number, end.dials = end.dials, None
            end.tell(at_agent.DialFailed(number, "refused"))

    @precondition(lambda self: self.wires)
    @rule(data=st.data(), here=st.booleans(), there=st.booleans())
    def breaks(self, data: st.DataObject, here: bool, there: bool) -> None:
        """With all that is on its way; a side that is not told finds out by silence."""
        self._break(data.draw(st.sampled_from(self.wires)), here=here, there=there)

    def _break(self, wire: Wire, *, here: bool, there: bool) -> None:
        wire.up = False
        wire.to_gateway.clear()
        wire.to_runner.clear()
        if here:
            self._ends_here(wire, 1006)
        if there and wire.up_there:
            wire.up_there = False
            wire.gateway.wires.pop(wire.there, None)
            wire.gateway.tell(at_gateway.Lost(wire.there))

    def _ends_here(self, wire: Wire, code: int) -> None:
        if wire.up_here:
            wire.up_here = False
            wire.runner.tell(at_agent.Dropped(wire.number, code, ""))

    @precondition(lambda self: self.wires)
    @rule(data=st.data(), frames=st.integers(1, 3), to_gateway=st.booleans())
    def frames_arrive(self, data: st.DataObject, frames: int, to_gateway: bool) -> None:
        wire = data.draw(st.sampled_from(self.wires))
        for _ in range(frames):
            self._arrives(wire, to_gateway=to_gateway)

    def _arrives(self, wire: Wire, *, to_gateway: bool) -> bool:
        if not wire.up:
            wire.to_gateway.clear()
            wire.to_runner.clear()
        if to_gateway and wire.to_gateway:
            said = wire.to_gateway.popleft()
            if said is None:
                self._break(wire, here=False, there=True)
            elif wire.up_there:
                frame = from_runner(said)
                assert frame is not None
                wire.gateway.tell(at_gateway.Received(wire.there, frame))
            return True
        if not to_gateway and wire.to_runner:
            told = wire.to_runner.popleft()
            if isinstance(told, int):
                self._ends_here(wire, told)
            elif wire.up_here:
                answer = from_gateway(told)
                assert answer is not None
                wire.runner.tell(at_agent.Received(wire.number, answer))
            return True
        return False

    @rule()
    def all_arrives(self) -> None:
        for _ in range(1000):
            moved = [self._arrives(wire, to_gateway=way) for wire in self.wires for way in (True, False)]
            if not any([*moved, *(gateway.hears() for gateway in self.gateways)]):
                break
        else:
            raise AssertionError("they never stop talking")
        self.wires = [wire for wire in self.wires if wire.up and (wire.up_here or wire.up_there)]
        connected = [runner_id for gateway in self.gateways for runner_id in gateway.core.registry.of_runner]
        assert len(connected) == len(set(connected)), "the newest connection of a runner is its only one"

    @rule(which=which, words=st.integers(1, 3))
    def a_gateway_hears(self, which: int, words: int) -> None:
        for _ in range(words):
            self.gateways[which].hears()

    @rule(which=which)
    def a_gateway_was_deaf(self, which: int) -> None:
        """The connection on which it hears the other broke, with all that was on its way, and is there again."""
        self.gateways[which].words.clear()
        self.gateways[which].tell(at_gateway.Listening())

    @precondition(lambda self: self.wires)
    @rule(which=which)
    def a_gateway_dies(self, which: int) -> None:
        gone = self.gateways[which]
        for ask in list(gone.core._ops._asks):
            self.asks.pop(ask, None)
        for wire in list(gone.wires.values()):
            wire.up_there = False
            self._break(wire, here=True, there=False)
        self.gateways[which] = self._gateway()

    # Time

    @rule(seconds=st.sampled_from([0.5, 4.0, 12.0, 16.0, 40.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self._pass(seconds, self.runners)

    @rule(which=which, seconds=st.sampled_from([5.0, 20.0, 44.0, 70.0]))
    def a_machine_sleeps(self, which: int, seconds: float) -> None:
        """And with it its programs; the first that it finds is that its timer is late."""
        self._pass(seconds, [self.runners[1 - which]])
        self.runners[which].tell(at_agent.Tick())

    def _pass(self, seconds: float, awake: "list[RunnerEnd]") -> None:
        until = self.now + seconds
        ends: list[Any] = [*self.gateways, *awake]
        for _ in range(5000):
            due = [(at, number) for number, end in enumerate(ends) if (at := end.core.next_at()) is not None]
            at, number = min(due, default=(until + 1, 0))
            if at > until:
                self.now = until
                return
            self.now = max(self.now, at)
            tick = at_gateway.Tick() if isinstance(ends[number], GatewayEnd) else at_agent.Tick()
            ends[number].tell(tick)
        raise AssertionError("the timers never rest")

    @rule()
    def reaps(self) -> None:
        self.store.reap(self.now)
        self._demand()

    # What always holds

    @invariant()
    def one_runs_an_op_of_a_job(self) -> None:
        busy = [runner.op[0].job_id for runner in getattr(self, "runners", ()) if runner.op is not None]
        assert len(busy) == len(set(busy)), "two runners work for one job"

    def teardown(self) -> None:
        """Without more faults all is well soon: runners are connected, who asked knows, what is leased is held."""
        if not hasattr(self, "runners"):
            return
        self.all_arrives()
        for _ in range(HEALED_S):
            for number, runner in enumerate(self.runners):
                if runner.dials is not None:
                    self.connects(number, 0)
                self.an_op_ends(number)
            self.all_arrives()
            self.reaps()
            self._pass(1.0, self.runners)
        assert all(runner.core.phase is Phase.OPEN for runner in self.runners)
        assert not self.asks, "nobody waits for ever"
        held = {Lease(job_id, held.epoch) for runner in self.runners for job_id, held in runner.core.held.items()}
        rows = self.store.rows.values()
        assert {row.lease for row in rows if row.leased} == held
        assert not (held and len(held) < 2 and any(row.state == "queued" for row in rows)), "a slot is free"
        assert all(row.leased or row.state in (*ENDED, "queued") for row in rows)


World.TestCase.settings = settings(max_examples=120, stateful_step_count=60, deadline=None, derandomize=True)
TestWorld = World.TestCase
