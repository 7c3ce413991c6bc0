"""The database of the runner fabric, in memory: what the gateways' commands do to jobs and sessions.

Every change is fenced by job id and epoch, every lease is compared with this store's own time. It is the oracle for the
statements of the program, and what the simulation stands on.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from rota.runners.gateway_events import Identity, Job, Lease
from rota.runners.matching import Needs, Queued, RunnerKind, Target, choose
from rota.runners.messages import Capabilities, Limits, Requires

LEASE_S: Final = 45.0
CANCEL_AFTER_S: Final = 15.0
"""The reaper ends a cancelled job that its gateway did not: the grace, and the way there."""
TRIES_MAX: Final = 2
ENDED: Final = frozenset({"done", "failed", "cancelled", "expired"})


@dataclass(slots=True)
class Row:
    """One job."""

    job_id: str
    needs: Needs
    execution_id: str
    created_at: float
    priority: int = 0
    one_shot: bool = False
    timeout_s: int = 600
    idle_s: int = 120
    state: str = "queued"  # queued, assigned, running, or ended
    epoch: int = 0
    tries: int = 0
    lease_until: float = 0.0
    leased_at: float = 0.0
    holder: str = ""
    instance: str = ""
    session_id: str | None = None
    cancel_at: float | None = None
    ended_at: float | None = None
    error: str = ""
    releases: int = 0

    @property
    def leased(self) -> bool:
        """Whether somebody holds it."""
        return self.state in ("assigned", "running")

    @property
    def lease(self) -> Lease:
        """Its newest lease."""
        return Lease(self.job_id, self.epoch)


@dataclass(slots=True)
class RunnerStore:
    """All rows.

    Attributes:
        pool_cap: how many pool slots an organisation may have at once.
        disabled: organisations that may not use runners now.
        sessions: which job each session is of, for ever.
    """

    pool_cap: int | None = None
    rows: dict[str, Row] = field(default_factory=dict)
    sessions: dict[str, str] = field(default_factory=dict)
    disabled: set[str] = field(default_factory=set)

    def job(self, row: Row, now: float) -> Job:
        """The row as a gateway is told of it."""
        assert row.session_id is not None
        return Job(
            row.lease, row.session_id, row.needs.org_id, row.needs.target, row.needs.job_type, row.tries, row.timeout_s,
            Limits(max_output_bytes=row.needs.output_bytes_max, idle_timeout_sec=row.idle_s), row.needs.requires,
            {"executionId": row.execution_id}, row.one_shot, now - row.leased_at, row.state == "running",
            row.cancel_at is not None,
        )  # fmt: skip

    def claim(
        self,
        identity: Identity,
        capabilities: Capabilities,
        slots: int,
        *,
        without: tuple[str, ...],
        instance: str,
        now: float,
    ) -> list[Job]:
        """Leases what fits."""
        running = Counter(
            row.needs.org_id for row in self.rows.values() if row.leased and row.needs.target == Target.CLOUD_POOL
        )
        queued = [
            Queued(row.job_id, row.needs, row.priority, row.created_at)
            for row in self.rows.values()
            if row.state == "queued" and row.needs.org_id not in self.disabled
        ]
        chosen = choose(
            queued, kind=identity.kind, org_id=identity.org_id, capabilities=capabilities, slots=slots,
            pool_running=running, pool_cap=self.pool_cap, without=without,
        )  # fmt: skip
        jobs = []
        for each in chosen:
            row = self.rows[each.job_id]
            row.state, row.holder, row.instance = "assigned", identity.runner_id, instance
            row.epoch += 1
            row.tries += 1
            row.lease_until, row.leased_at = now + LEASE_S, now
            row.session_id = f"{row.job_id[:-4]}{row.epoch:04x}"
            self.sessions[row.session_id] = row.job_id
            jobs.append(self.job(row, now))
        return jobs

    def held(self, identity: Identity, leases: tuple[Lease, ...], instance: str, now: float) -> list[Job]:
        """Renews what is this runner's still, and notes where it is now."""
        jobs = []
        for lease in leases:
            row = self._current(lease)
            if row is not None and row.lease_until > now and row.holder == identity.runner_id:
                row.lease_until, row.instance = now + LEASE_S, instance
                jobs.append(self.job(row, now))
        return jobs

    def renew(self, leases: tuple[Lease, ...], now: float) -> list[Lease]:
        """Renews; returns those that do not hold."""
        lost = []
        for lease in leases:
            row = self._current(lease)
            if row is None or row.lease_until <= now:
                lost.append(lease)
            else:
                row.lease_until = now + LEASE_S
        return lost

    def accept(self, lease: Lease, now: float) -> bool:
        """The job runs."""
        row = self._current(lease)
        if row is None or row.lease_until <= now:
            return False
        row.state = "running"
        return True

    def release(self, lease: Lease) -> bool:
        """Back to the queue; no try counts."""
        row = self._current(lease)
        if row is None:
            return False
        if row.cancel_at is not None:
            self._close(row, "cancelled", row.cancel_at, "")
            return True
        row.state, row.session_id, row.holder = "queued", None, ""
        row.tries -= 1
        row.releases += 1
        return True

    def end(self, lease: Lease, state: str, now: float, error: str = "") -> bool:
        """Ends the job, if the lease is its own."""
        row = self._current(lease)
        if row is None:
            return False
        self._close(row, state, now, error)
        return True

    def expire(self, lease: Lease, now: float) -> bool:
        """As if the lease had run out."""
        row = self._current(lease)
        if row is None:
            return False
        self._run_out(row, now)
        return True

    def cancel(self, job_id: str, now: float) -> bool:
        """Cancels; returns whether a runner has to be told."""
        row = self.rows[job_id]
        if row.state == "queued":
            self._close(row, "cancelled", now, "")
        elif row.leased and row.cancel_at is None:
            row.cancel_at = now
        return row.leased

    def reap(self, now: float) -> None:
        """Leases that ran out, and cancels that nobody carried out."""
        for row in self.rows.values():
            if row.leased and row.lease_until <= now:
                self._run_out(row, now)
            elif row.leased and row.cancel_at is not None and row.cancel_at + CANCEL_AFTER_S <= now:
                self._close(row, "cancelled", now, "")

    def _run_out(self, row: Row, now: float) -> None:
        if row.cancel_at is not None:
            self._close(row, "cancelled", now, "")
        elif not row.one_shot:
            self._close(row, "expired", now, "session_lost")
        elif row.tries >= TRIES_MAX:
            self._close(row, "failed", now, "platform")
        else:
            row.state, row.session_id, row.holder = "queued", None, ""

    def _current(self, lease: Lease) -> Row | None:
        row = self.rows.get(lease.job_id)
        return row if row is not None and row.leased and row.epoch == lease.epoch else None

    @staticmethod
    def _close(row: Row, state: str, now: float, error: str) -> None:
        row.state, row.ended_at, row.error = state, now, error


def needs_of(target: str, org_id: str, job_type: str = "video.compile", output_bytes_max: int = 1000) -> Needs:
    """What an ordinary job asks."""
    return Needs(target, org_id, job_type, Requires(), output_bytes_max)


def capabilities_of(*, slots: int = 2, job_types: tuple[str, ...] = ("video.compile",)) -> Capabilities:
    """What an ordinary runner says of itself."""
    return Capabilities(
        protocol_version="1.0", agent_version="1.0.0", os="linux", arch="amd64", slots=slots, container="none",
        runtime_image_digest=None, ffmpeg_version="8.0", fontset_version="1", job_types=job_types,
        max_output_bytes=10_000,
    )  # fmt: skip


def identity_of(name: str, org_id: str | None) -> Identity:
    """A worker of the pool, or a device of an organisation."""
    return Identity(name, RunnerKind.CLOUD_POOL if org_id is None else RunnerKind.DESKTOP, org_id)
