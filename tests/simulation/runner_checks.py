"""What has to hold in each history of the runner fabric, looked at after every event, and at the end.

No program of a session runs without a lease that the database honours (I2), what is said under an older one changes
nothing (I3), an op runs once in a session however often it is asked, one at a time. Work goes only where it may go. In
the end every execution has its result, nothing runs for a job that is over, and nobody waits for an answer.
"""

from collections import Counter
from typing import Any, Final

from rota.runners import agent_events as at_agent
from rota.runners import gateway_events as at_gateway
from rota.runners import messages
from rota.runners.agent import Phase
from rota.runners.matching import RunnerKind, Target
from rota.runners.registry import State
from tests.simulation import runner_fabric as fabrics
from tests.simulation.checks import Broken
from tests.simulation.fleet_checks import Told
from tests.simulation.runner_store import Row

ASK_S_MAX: Final = 120.0
"""An op's time, a replica's failure and the way: by then an engine has an answer of some kind."""
SETTLE_S: Final = 400.0
"""After the last execution: sleepers wake, refused ones come again, leases end."""
RUNS_ON_S_MAX: Final = 60.0
"""How long programs may run for a job that is over: a lease, and a little for the way."""
CANCELLED_S_MAX: Final = 12.0
"""The grace, and the way there."""
MOMENT_S: Final = 1e-6


class Checks:
    """Watches one history."""

    def __init__(self) -> None:
        self.fabric: fabrics.Fabric
        self.ran: Counter[tuple[str, str, int, str]] = Counter()
        self.assigned = 0
        self._over_since: dict[tuple[str, int, str], float] = {}

    # At a gateway

    def gateway(self, host: "fabrics.GatewayHost", event: Any, commands: list[Any]) -> None:
        core = host.core
        at = self.fabric.time.now
        due = core.next_at()
        if isinstance(event, at_gateway.Tick) and due is not None and due <= at:
            raise Broken(f"{host.name} is due at {due} at {at}, right after its tick")
        for link in core.registry.links.values():
            if (
                sum(live.state is not State.CANCELLING for live in link.jobs.values()) > link.slots
                if link.hello
                else False
            ):
                raise Broken(f"{host.name} gave {len(link.jobs)} jobs to a runner with {link.slots} slots")
        welcomed = [
            link.identity.runner_id
            for link in core.registry.links.values()
            if link.phase.value == "open" and link.identity
        ]
        barred = host.barred & {link.identity.org_id for link in core.registry.links.values()
                                if link.phase.value == "open" and link.identity}  # fmt: skip
        if barred:
            raise Broken(f"4403: {host.name} serves devices of {barred}, which are disabled")
        if len(welcomed) != len(set(welcomed)):
            raise Broken(f"{host.name} serves one runner on two connections: {welcomed}")
        for live in core.jobs.values():
            if live.link is not None and live.link.jobs.get(live.job.lease.job_id) is not live:
                raise Broken(f"{host.name}: job and link do not agree about {live.job.lease}")
        asks = {ask for live in core.jobs.values() if live.gate.op for ask in live.gate.op.waiters}
        if asks != set(core._ops._asks):
            raise Broken(f"{host.name} forgets who waits: {asks} and {set(core._ops._asks)} after {event}")
        for command in commands:
            if isinstance(command, at_gateway.Send):
                self._sent(host, command)
            elif isinstance(command, at_gateway.Claim) and command.slots > command.capabilities.slots:
                raise Broken(f"{host.name} claims {command.slots} jobs for {command.capabilities.slots} slots")

    def _sent(self, host: "fabrics.GatewayHost", command: at_gateway.Send) -> None:
        if isinstance(command.frame.message, messages.Assign):
            self.assigned += 1
            link = host.core.registry.links[command.connection]
            assign = command.frame.message
            kind = link.identity.kind if link.identity else ""
            row = self.fabric.store.rows[command.frame.job_id or ""]
            if (kind == RunnerKind.CLOUD_POOL) != (row.needs.target == Target.CLOUD_POOL):
                raise Broken(f"a job for {row.needs.target} went to a {kind}")
            if kind == RunnerKind.DESKTOP and link.identity and link.identity.org_id != assign.org_id:
                raise Broken(f"a job of {assign.org_id} went to a device of {link.identity.org_id}")

    # At a runner

    def agent(self, runner: "fabrics.Runner", event: Any, commands: list[Any]) -> None:
        core = runner.core
        now = self.fabric.time.now
        due = core.next_at()
        if isinstance(event, at_agent.Tick) and due is not None and due <= now:
            raise Broken(f"{runner.name} is due at {due} at {now}, right after its tick")
        if core.phase not in (Phase.OVER, Phase.DIALLING) and due is None:
            raise Broken(f"{runner.name} waits for nothing in {core.phase} after {event}")
        self.leases(runner)

    def opens(self, runner: "fabrics.Runner", job_id: str, assign: messages.Assign) -> None:
        if len(runner.sessions) >= runner.capabilities.slots + sum(
            held.state.value == "ending" for held in runner.core.held.values()
        ):
            raise Broken(f"{runner.name} opens a session over its {runner.capabilities.slots} slots")
        if any(job == job_id for job, _ in runner.sessions):
            raise Broken(f"I2: {runner.name} opens a second session of {job_id}")

    def runs(self, runner: "fabrics.Runner", job_id: str, epoch: int, op_id: str) -> None:
        if runner.sessions.get((job_id, epoch), "nothing") is not None:
            raise Broken(f"{runner.name} begins {op_id} beside {runner.sessions.get((job_id, epoch), 'no session')}")
        self.ran[runner.name, job_id, epoch, op_id] += 1
        if self.ran[runner.name, job_id, epoch, op_id] > 1:
            raise Broken(f"{op_id} runs twice in one session")

    def leases(self, runner: "fabrics.Runner") -> None:
        """I2: what runs has a lease, or is being ended; and what is over does not run for long."""
        now = self.fabric.time.now
        for job_id, epoch in runner.sessions:
            row = self.fabric.store.rows[job_id]
            if row.cancel_at is not None and now > row.cancel_at + CANCELLED_S_MAX and row.epoch == epoch:
                self._hears(runner, row)
            key = (job_id, epoch, runner.name)
            if row.leased and row.epoch == epoch:
                self._over_since.pop(key, None)
                if now > row.lease_until + MOMENT_S and not self._woke(runner, job_id):
                    raise Broken(f"I2: {runner.name} runs {job_id} {now - row.lease_until:.1f} s after its lease")
            else:
                since = self._over_since.setdefault(key, now)
                if row.lease_until + MOMENT_S < now and row.epoch == epoch and not self._woke(runner, job_id):
                    raise Broken(f"I2: {runner.name} still runs {job_id}, whose lease ended at {row.lease_until}")
                if now > since + RUNS_ON_S_MAX and not self._woke(runner, job_id):
                    raise Broken(f"{runner.name} runs {job_id} under epoch {epoch}, which is over since {since}")

    @staticmethod
    def _hears(runner: "fabrics.Runner", row: Row) -> None:
        """S59: who is connected stops what was cancelled within the grace."""
        for link in runner.links.values():
            since = max(link.made_at, runner.awake_since, link.gateway.made_at) + CANCELLED_S_MAX / 2
            stands = link.up and link.gateway.up and not (link.closed_here or link.closed_there)
            if stands and since < (row.cancel_at or 0) and runner.core.phase is Phase.OPEN:
                raise Broken(f"{runner.name} still runs {row.job_id}, which was cancelled at {row.cancel_at}")

    @staticmethod
    def _woke(runner: "fabrics.Runner", job_id: str) -> bool:
        """A machine that slept ends first what it held: it is at it."""
        held = runner.core.held.get(job_id)
        return held is None or held.state.value == "ending"

    def gone(self, runner: "fabrics.Runner") -> None:
        for key in [key for key in self._over_since if key[2] == runner.name]:
            del self._over_since[key]

    # At an engine

    def answered(
        self, engine: "fabrics.Engine", op_id: str, op: str, session_id: str, answer: at_gateway.AnswerOp
    ) -> None:
        if answer.op_id != op_id:
            raise Broken(f"{op_id} was answered as {answer.op_id}")
        took_s = self.fabric.time.now - engine.asked_at[op_id]
        if took_s > ASK_S_MAX:
            raise Broken(f"{op_id} was answered after {took_s:.0f} s")
        if op == "stat" and answer.result is not None:
            epoch = int(session_id[-4:], 16)
            if answer.result["op"] != op_id or answer.result["epoch"] != epoch:
                raise Broken(f"I3: {op_id} of epoch {epoch} was answered with {answer.result}")

    # At the end

    def settle(self) -> None:
        """Everything is done, told, and at rest."""
        self._all_done()
        self._all_at_rest()

    def _all_done(self) -> None:
        fabric = self.fabric
        waits = [engine.name for engine in fabric.engines if not engine.done]
        if waits:
            rows = [engine.row for engine in fabric.engines if not engine.done]
            raise Broken(f"not done after {fabric.time.now:.0f} s: {waits}: {rows}")
        for row in fabric.store.rows.values():
            if row.leased or row.state == "queued":
                raise Broken(f"{row} is not over")
            if row.tries > row.epoch - row.releases or row.tries < 0:
                raise Broken(f"{row} counts {row.tries} tries of {row.epoch} claims with {row.releases} releases")
        for engine in fabric.engines:
            if fabric.gentle and engine.lost:
                raise Broken(f"{engine.name} lost {engine.lost} sessions, and only links broke")

    def _all_at_rest(self) -> None:
        fabric = self.fabric
        for runner in fabric.runners.values():
            if runner.sessions or runner.core.held:
                raise Broken(f"{runner.name} still holds {runner.sessions} {runner.core.held}")
            if runner.up and runner.core.phase is not Phase.OPEN:
                raise Broken(f"{runner.name} is {runner.core.phase}, with nothing in its way")
            if runner.up and not any(link.up and not link.closed_there for link in runner.links.values()):
                raise Broken(f"{runner.name} has not noticed that its link is dead")
        for gateway in fabric.gateways:
            dead = [link.there for link in gateway.links.values() if not link.up or link.closed_here]
            if dead:
                raise Broken(f"{gateway.name} has not noticed that {dead} are dead")
            if gateway.core.jobs or gateway.core._jobs._sessions or gateway.asks:
                raise Broken(f"{gateway.name} still has {gateway.core.jobs} and {gateway.asks}")


def run(seed: int) -> Told:
    """Plays one history.

    Raises: Broken if a rule does not hold in it.
    """
    checks = Checks()
    fabric = fabrics.Fabric(seed, checks)
    fabric.time.run(fabrics.FAULTS_UNTIL_S)
    fabric.time.run(fabrics.LIMIT_S, done=lambda: all(engine.done for engine in fabric.engines))
    fabric.time.run(fabric.time.now + SETTLE_S)
    checks.settle()
    return Told(len(fabric.store.rows), checks.assigned, 0, fabric.faults, fabric.frames, fabric.time.now)
