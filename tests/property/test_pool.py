"""The pool of one address against a balancer that deals its instances as chance will have it."""

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rota.slots.pool import (
    GROW_EVERY_S,
    REDIAL_MAX_S,
    REPROBE_S,
    TICK_S,
    Close,
    Dial,
    Dropped,
    Event,
    FoundNoBroker,
    Greeted,
    Poll,
    Pool,
    Started,
    Ticked,
)

CONNECTIONS_MAX = 4


class Address(RuleBasedStateMachine):
    """Between events a connection is dialled, or greeted and live. Time only goes forward."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.instances = ["a"]
        self.dialled: list[int] = []
        self.live: dict[int, str] = {}
        self.draining: set[str] = set()
        self.waiting_since: float | None = None
        self.polls = False
        self.was_one = True
        """There has been one instance all the time."""
        self.seen: set[int] = set()

    @initialize(seed=st.integers(0, 2**32))
    def starts(self, seed: int) -> None:
        self.pool = Pool(Random(seed), connections_max=CONNECTIONS_MAX)
        self.tell(Started())

    def tell(self, event: Event) -> None:
        for command in self.pool.handle(event, self.now):
            match command:
                case Dial(connection):
                    assert not self.dialled, "one dial at a time"
                    assert connection not in self.seen, "a number is used once"
                    self.seen.add(connection)
                    self.dialled.append(connection)
                case Close(connection):
                    del self.live[connection]
                case Poll(on):
                    assert on != self.polls, "said once"
                    self.polls = on

    @rule(which=st.integers(0, 9))
    def dial_lands(self, which: int) -> None:
        if self.dialled and self.instances:
            connection, instance = self.dialled.pop(), self.instances[which % len(self.instances)]
            self.live[connection] = instance
            self.tell(Greeted(connection, instance, instance in self.draining))

    @rule()
    def dial_fails(self) -> None:
        if self.dialled:
            self.tell(Dropped(self.dialled.pop()))

    @rule()
    def dial_finds_no_broker(self) -> None:
        if self.dialled:
            self.tell(FoundNoBroker(self.dialled.pop()))

    @rule(which=st.integers(0, 9))
    def connection_drops(self, which: int) -> None:
        if self.live:
            connection = sorted(self.live)[which % len(self.live)]
            del self.live[connection]
            self.tell(Dropped(connection))

    @rule(name=st.sampled_from("abcdef"))
    def instance_comes(self, name: str) -> None:
        if name not in self.instances:
            self.instances.append(name)
            self.was_one = False

    @rule(which=st.integers(0, 9))
    def instance_drains(self, which: int) -> None:
        if self.instances:
            name = self.instances[which % len(self.instances)]
            self.draining.add(name)
            for connection, instance in list(self.live.items()):
                if instance == name and connection in self.live:
                    self.tell(Greeted(connection, instance, draining=True))

    @rule(seconds=st.floats(0.0, 5.0), pressed=st.booleans())
    def time_passes(self, seconds: float, pressed: bool) -> None:
        self.now += seconds
        self.waiting_since = (self.waiting_since or self.now) if pressed else None
        self.tell(Ticked(self.waiting_since))

    @invariant()
    def each_instance_has_one_connection(self) -> None:
        if hasattr(self, "pool"):
            assert self.pool.instances == self.live
            assert len(set(self.live.values())) == len(self.live), "no instance twice"
            assert len(self.live) <= CONNECTIONS_MAX
            if self.was_one:
                assert len(self.live) <= 1, "never two to a single instance"

    def teardown(self) -> None:
        """Everything answers in turn and something waits: soon every instance that takes work is reached."""
        if not hasattr(self, "pool"):
            return
        self.instances = [name for name in self.instances if name not in self.draining][: CONNECTIONS_MAX - 1] or ["z"]
        for connection, instance in list(self.live.items()):
            if instance not in self.instances:
                del self.live[connection]
                self.tell(Dropped(connection))
        waiting_since, turn = self.now, 0
        rounds = len(self.instances) + 1
        for _ in range(int(rounds * (REPROBE_S + REDIAL_MAX_S + GROW_EVERY_S) * 2)):
            self.now += TICK_S
            self.tell(Ticked(waiting_since))
            if self.dialled:
                # A balancer that passes over an instance which is known would be kinder.
                turn += 1
                self.dial_lands(turn)
            if set(self.live.values()) == set(self.instances):
                break
        assert set(self.live.values()) == set(self.instances), "reached"
        assert not self.polls, "what has a broker is not polled"


Address.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None, derandomize=True)
TestAddress = Address.TestCase
