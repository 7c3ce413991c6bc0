"""Rules of the runner fabric broken on purpose: each must be caught by some history."""

from math import inf
from typing import Any, Final

import pytest

from rota.runners import agent as agents
from rota.runners import gateway_dealing, matching, messages
from rota.runners import gateway_events as at_gateway
from rota.runners.agent import Agent
from rota.runners.agent_jobs import HeldJobs
from rota.runners.gateway import Gateway
from rota.runners.gateway_admission import Admission
from rota.runners.gateway_dealing import Dealing
from rota.runners.gateway_ends import Ends
from rota.runners.gateway_jobs import LiveJobs
from rota.runners.registry import Link
from rota.runners.session import OpLog, Repeat
from tests.simulation.fleet_mutations import _without
from tests.simulation.mutations import Mutation, Patch, around, method


def _value(owner: Any, name: str, value: Any) -> Patch:
    return lambda monkeypatch: monkeypatch.setattr(owner, name, value)


def _without_message(*kinds: type) -> Any:
    def change(original: Any, self: Any, *args: Any) -> Any:
        commands = original(self, *args)
        return [
            command
            for command in commands
            if not (isinstance(command, at_gateway.Send) and isinstance(command.frame.message, kinds))
        ]

    return change


def _runs_again(original: Any, log: OpLog, op_id: str) -> Repeat:
    found = original(log, op_id)
    if found is Repeat.KEPT:
        log.running = op_id
        return Repeat.NEW
    return found


def _beside(original: Any, log: OpLog, op_id: str) -> Repeat:
    log.running, running = None, log.running
    found = original(log, op_id)
    if found is not Repeat.NEW:
        log.running = running
    return found


def _nothing(*_args: Any, **_options: Any) -> None:
    """Does not happen."""


def _holds_nothing(_jobs: HeldJobs) -> tuple[messages.Held, ...]:
    return ()


def _all_slots(link: Link) -> int:
    return link.slots if link.could_work and not link.claiming else 0


def _forgets_waiters(original: Any, jobs: LiveJobs, live: Any, *args: Any, **options: Any) -> None:
    live.gate.op = None
    original(jobs, live, *args, **options)


def _keeps_old_link(original: Any, admission: Admission, event: Any) -> None:
    admission._links.registry.of_runner.pop(event.identity.runner_id, None)
    original(admission, event)


def _stays_down(agent: Agent, _refused: int | None = None) -> None:
    agent._lost_link()


def _anybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (matching, gateway_dealing):
        monkeypatch.setattr(module, "belongs", lambda *_args, **_options: True)


MUTATIONS: Final = (
    Mutation("I2", "a session outlives its lease", method(HeldJobs, "stop_what_is_over", _nothing)),
    Mutation("I2", "a runner trusts its lease for longer", _value(agents, "LEASE_S", 75.0)),
    Mutation("I2", "heartbeats are answered and not stored", around(Gateway, "handle", _without("Renew"))),
    Mutation("I3", "cancels are not heard", method(HeldJobs, "cancelled", _nothing)),
    Mutation("S54", "stale messages are not answered", around(Gateway, "handle", _without_message(messages.Cancel))),
    Mutation("S62", "a lost lease is not heard", method(HeldJobs, "end", _nothing)),
    Mutation("S63", "an op that was done runs again", around(OpLog, "ask", _runs_again)),
    Mutation("seed", "two ops at once", around(OpLog, "ask", _beside)),
    Mutation("seed", "jobs beyond the free slots", _value(Link, "free", property(_all_slots))),
    Mutation("seed", "jobs of everybody for everybody", _anybodys),
    Mutation("seed", "what a runner still holds is not told", method(HeldJobs, "running", _holds_nothing)),
    Mutation("seed", "ops are not asked again after a reconnect", method(LiveJobs, "attach", _nothing)),
    Mutation("seed", "a disabled organisation stays connected", method(Ends, "forbidden", _nothing)),
    Mutation("seed", "the old connection stays", around(Admission, "verified", _keeps_old_link)),
    Mutation("seed", "offers are never over", _value(gateway_dealing, "ACCEPT_S", inf)),
    Mutation("S56", "a lost session leaves its waiters", around(LiveJobs, "forget", _forgets_waiters)),
    Mutation("seed", "the silence of a runner is not noticed", _value(messages, "DEAD_AFTER_S", inf)),
    Mutation("seed", "the silence of a gateway is not noticed", _value(agents, "SILENCE_S", inf)),
    Mutation("seed", "a lost connection is not dialled again", method(Agent, "_down", _stays_down)),
    Mutation("seed", "claims are not dealt", method(Dealing, "claimed", _nothing)),
    Mutation("seed", "a queued job wakes nobody", method(Dealing, "demand", _nothing)),
    Mutation("seed", "ends are not stored", around(Gateway, "handle", _without("Succeed"))),
    Mutation("seed", "the timers of jobs are not looked at", method(Ends, "due", _nothing)),
)
