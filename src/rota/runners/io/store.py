"""Runner jobs and sessions in PostgreSQL: one method for each .sql file. The rules are in the statements.

Every method raises DatabaseAway if the database does not answer, and SchemaError if its schema is missing. `now` is for
tests; without it the database's clock decides (I5).
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from rota.errors import JobNotFound, OrganisationDisabled
from rota.ids import JobId, uuid_v7s
from rota.io.postgres import Connection, Database, statement
from rota.lease import Lease
from rota.runners.messages import LEASE_S
from rota.runners.records import (
    POOL,
    Assigned,
    Back,
    Depth,
    End,
    Lapsed,
    NewRunnerJob,
    RunnerAsk,
    RunnerJob,
    SessionRow,
    Waiting,
    verdict,
)

REJECTED_S: Final = 30.0
"""How long a runner is not offered a job again that it rejected: two heartbeats, in which another may take it."""
CANCEL_GRACE_S: Final = 10.0
"""The protocol's `graceSec`."""
REAP_MAX: Final = 500
"""Jobs of each sort in one pass of the reaper."""
DEMAND_MAX: Final = 1000
"""Groups of waiting jobs in one look."""
KEY_TRIES: Final = 3
"""How often a job that vanishes between two statements is looked for again."""


class Statements:
    """How a file under `sql/` is run."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._schema = database.target.schema

    async def _fetch(self, name: str, *args: Any, conn: Connection | None = None) -> list[Any]:
        text = statement("rota.runners.io.sql", name, self._schema)
        return await self.database.fetch(text, *args, conn=conn)


class RunnerStore(Statements):
    """The runner jobs of one schema."""

    async def create(self, job: NewRunnerJob, *, now: datetime | None = None) -> tuple[RunnerJob, bool]:
        """Creates a job, or finds the one that has its key.

        Returns: the job, and whether it was created.

        Raises: OrganisationDisabled, unless the job is there already.
        """
        new_id = uuid_v7s(1, unix_us=time.time_ns() // 1000)[0]
        for _ in range(KEY_TRIES):
            made = await self._fetch(
                "create_job.sql", new_id, job.idempotency_key, job.target, job.org_id, job.job_type, job.priority,
                _json(job.spec), job.execution_id, job.runtime_digest, job.fontset_version,
                None if job.fontset_key is None else list(job.fontset_key), job.output_bytes_max, job.timeout_s,
                job.idle_s, job.one_shot, job.max_tries, job.trace, now,
            )  # fmt: skip
            found = await self._job(None, job.idempotency_key)
            if found is not None:
                return found, bool(made)
            if await self._fetch("disabled_orgs.sql", [job.org_id], 1):
                raise OrganisationDisabled(
                    f"The organisation {job.org_id[:80]} is disabled and gets no runner; see rota runner enable."
                )
        raise JobNotFound("The job of this idempotency key is being removed. Use another purpose.")

    async def job(self, job_id: UUID) -> RunnerJob:
        """One job, open or ended.

        Raises: JobNotFound.
        """
        found = await self._job(job_id, None)
        if found is None:
            raise JobNotFound(f"There is no runner job {job_id}. It may have ended longer ago than its retention.")
        return found

    async def _job(self, job_id: UUID | None, key: str | None) -> RunnerJob | None:
        rows = await self._fetch("job.sql", job_id, key)
        if not rows:
            return None
        values = dict(rows[0])
        for name in ("spec", "result", "progress"):
            values[name] = None if values[name] is None else msgspec.json.decode(values[name])
        return RunnerJob(**values)

    async def claim(
        self,
        ask: RunnerAsk,
        *,
        instance: str,
        org_cap: int | None = None,
        lease_s: float = LEASE_S,
        now: datetime | None = None,
    ) -> list[Assigned]:
        """Takes the next jobs that this runner can do, in their order.

        Args:
            ask: the runner.
            instance: the gateway that holds its connection.
            org_cap: slots of the pool that one organisation may hold; None: any number.
            lease_s: until its first heartbeat.
        """
        values = (
            ask.runner_id, ask.target, ask.org_id, list(ask.job_types), ask.runtime_digest,
            None if ask.fontset_key is None else list(ask.fontset_key),
            ask.output_bytes_max, ask.free, lease_s, org_cap, instance, list(ask.without), now,
        )  # fmt: skip
        if ask.target == POOL:
            async with self.database.transaction() as conn:
                await self._fetch("lock_pool.sql", conn=conn)
                rows = await self._fetch("claim_jobs.sql", *values, conn=conn)
        else:
            rows = await self._fetch("claim_jobs.sql", *values)
        found = [_assigned(row) for row in rows]
        found.sort(key=lambda job: (-job.priority, job.created_at, job.lease.job_id))
        return found

    async def accept(self, lease: Lease, *, now: datetime | None = None) -> bool:
        """The runner takes the job. False: its lease is lost."""
        return bool(await self._fetch("accept_job.sql", lease.job_id, lease.epoch, now))

    async def renew(
        self, leases: Mapping[Lease, str], *, lease_s: float = LEASE_S, now: datetime | None = None
    ) -> dict[JobId, bool | None]:
        """Extends leases by the runner that holds each.

        Returns: those that were extended, and whether somebody wants them cancelled; None for one that was not, because
            somebody's transaction holds its row: ask again. The others are lost.
        """
        ordered = sorted(leases, key=lambda lease: lease.job_id)
        ids, epochs = [lease.job_id for lease in ordered], [lease.epoch for lease in ordered]
        runners = [leases[lease] for lease in ordered]
        rows = await self._fetch("renew_jobs.sql", ids, epochs, runners, lease_s, now)
        return {row["id"]: row["cancel_asked"] for row in rows}

    async def resume(
        self,
        claims: Collection[tuple[str, Lease]],
        *,
        instance: str,
        lease_s: float = LEASE_S,
        now: datetime | None = None,
    ) -> dict[str, list[Assigned]]:
        """The jobs that runners which connected anew may keep; their ops go to this gateway now.

        Args:
            claims: who says that it holds what. Two may say so of the same lease: it is one's at most.
            instance: this gateway.
            lease_s: until the next heartbeat.

        Returns: what each runner keeps.
        """
        ordered = sorted(claims, key=lambda claim: claim[1].job_id)
        ids, epochs = [lease.job_id for _, lease in ordered], [lease.epoch for _, lease in ordered]
        runners = [runner_id for runner_id, _ in ordered]
        kept: dict[str, list[Assigned]] = {}
        for row in await self._fetch("resume_jobs.sql", ids, epochs, runners, instance, lease_s, now):
            kept.setdefault(row["runner_id"], []).append(_assigned(row))
        return kept

    async def end(self, ends: Sequence[End], *, lapsed: bool = False, now: datetime | None = None) -> dict[JobId, str]:
        """Ends jobs, by their leases.

        Args:
            ends: epoch 0 in a lease means a job that is queued.
            lapsed: only those whose lease has run out.

        Returns: those that were ended, with their states. The others' leases are lost.
        """
        ordered = sorted(ends, key=lambda end: end.lease.job_id)
        rows = await self._fetch(
            "end_jobs.sql",
            [end.lease.job_id for end in ordered],
            [end.lease.epoch or None for end in ordered],
            [end.state for end in ordered],
            [end.error for end in ordered],
            [end.result for end in ordered],
            [end.failure_class for end in ordered],
            [end.code for end in ordered],
            [end.retryable for end in ordered],
            [end.claimed_class for end in ordered],
            lapsed,
            now,
        )
        return {row["id"]: row["state"] for row in rows}

    async def release(
        self, backs: Sequence[Back], *, lapsed: bool = False, now: datetime | None = None
    ) -> dict[JobId, str]:
        """Returns jobs to the queue; one that somebody wants cancelled ends instead.

        Returns: those that were written, with their states. The others' leases are lost.
        """
        ordered = sorted(backs, key=lambda back: back.lease.job_id)
        rows = await self._fetch(
            "release_jobs.sql",
            [back.lease.job_id for back in ordered],
            [back.lease.epoch for back in ordered],
            [back.counted for back in ordered],
            [back.reason for back in ordered],
            [back.rejected_by for back in ordered],
            REJECTED_S,
            lapsed,
            now,
        )
        found = {JobId(row["id"]): "queued" for row in rows}
        rest = [End(back.lease, "cancelled") for back in ordered if back.lease.job_id not in found]
        return found | (await self.end(rest, lapsed=lapsed, now=now) if rest else {})

    async def cancel(
        self, ids: Iterable[UUID], *, reason: str = "user", text: str = "Cancelled", now: datetime | None = None
    ) -> dict[JobId, str]:
        """Cancels jobs: a queued one at once, a leased one when its runner answers, or after the grace.

        Returns: the open ones among them: `cancelled`, or `leased` where the runner is asked.
        """
        return await self._cancel(sorted(ids), None, reason, text, now)

    async def cancel_execution(
        self, execution_id: str, *, text: str = "Its execution is over.", now: datetime | None = None
    ) -> dict[JobId, str]:
        """Cancels all jobs of an execution."""
        return await self._cancel(None, execution_id, "execution_ended", text, now)

    async def _cancel(
        self, ids: list[UUID] | None, execution_id: str | None, reason: str, text: str, now: datetime | None
    ) -> dict[JobId, str]:
        found: dict[JobId, str] = {}
        for _ in range(KEY_TRIES):
            rows = await self._fetch("cancel_jobs.sql", ids, execution_id, reason, text, now)
            found |= {JobId(row["id"]): row["state"] for row in rows}
            queued = [End(Lease(JobId(row["id"]), 0), "cancelled", text, code=reason)
                      for row in rows if row["state"] == "queued"]  # fmt: skip
            if not queued:
                break
            found |= await self.end(queued, now=now)
            # One that was claimed in between is asked by its gateway, in the next round.
            ids = sorted(end.lease.job_id for end in queued if found[end.lease.job_id] == "queued")
            if not ids:
                break
        return found

    async def cancels(self, instance: str) -> dict[Lease, str]:
        """The jobs of this gateway's runners that somebody wants to stop, and the protocol's reason."""
        rows = await self._fetch("cancels.sql", instance)
        return {Lease(JobId(row["id"]), row["epoch"]): row["reason"] for row in rows}

    async def progress(self, lease: Lease, progress: Mapping[str, Any], *, now: datetime | None = None) -> bool:
        """Keeps what a runner says of its progress. False: the lease is lost."""
        del now
        return bool(await self._fetch("progress_job.sql", lease.job_id, lease.epoch, _json(progress)))

    async def reap(self, *, grace_s: float = CANCEL_GRACE_S, now: datetime | None = None) -> dict[JobId, str]:
        """Ends what is over: leases that ran out, cancels without an answer, jobs of executions that ended.

        Returns: the jobs that it changed, with their states (`leased`: its runner is asked to stop).
        """
        rows = await self._fetch("lapsed_jobs.sql", grace_s, REAP_MAX, now)
        ends: list[End] = []
        over: list[End] = []
        backs: list[Back] = []
        asks: list[JobId] = []
        for row in rows:
            lapsed = Lapsed(
                Lease(row["id"], row["epoch"]), row["why"], row["state"] == "queued", row["one_shot"],
                row["cancel_asked"], row["tries"], row["max_tries"],
            )  # fmt: skip
            match verdict(lapsed):
                case None:
                    asks.append(lapsed.lease.job_id)
                case Back() as back:
                    backs.append(back)
                case End() as end:
                    (over if lapsed.why == "lease" else ends).append(end)
        done: dict[JobId, str] = {}
        if over:
            done |= await self.end(over, lapsed=True, now=now)
        if ends:
            done |= await self.end(ends, now=now)
        if backs:
            done |= await self.release(backs, lapsed=True, now=now)
        if asks:
            done |= await self.cancel(asks, reason="execution_ended", text="Its execution is over.", now=now)
        return done

    async def expire(
        self, lease: Lease, *, reason: str = "its runner is gone", now: datetime | None = None
    ) -> dict[JobId, str]:
        """Treats a lease that still counts as one that ran out, because its runner is known to be gone.

        Returns: the job's state, if it was written.
        """
        job = await self._job(lease.job_id, None)
        if job is None:
            return {}
        what = verdict(
            Lapsed(lease, "lease", False, job.one_shot, job.cancel_asked_at is not None, job.tries, job.max_tries)
        )
        assert what is not None, "a lease that ran out has a verdict"
        if isinstance(what, Back):
            return await self.release([replace(what, reason=reason)], now=now)
        return await self.end([replace(what, error=what.error and f"The session ended: {reason}.")], now=now)

    async def session(self, session_id: UUID, *, now: datetime | None = None) -> SessionRow | None:
        """One session; None: no such session was ever opened."""
        rows = await self._fetch("session.sql", session_id, now)
        return SessionRow(**dict(rows[0])) if rows else None

    async def close_session(self, session_id: UUID, *, reason: str, now: datetime | None = None) -> bool:
        """Closes a session. False: it was closed, or never there."""
        return bool(await self._fetch("close_session.sql", session_id, reason, now))

    async def next_staging(self, job_id: UUID, *, count: int = 1) -> int:
        """The first of `count` numbers for this job's staging keys; none is given twice.

        Raises: JobNotFound.
        """
        rows = await self._fetch("next_staging.sql", job_id, count)
        if not rows:
            raise JobNotFound(f"There is no runner job {job_id}.")
        first: int = rows[0]["first"]
        return first

    async def depth(self) -> list[Depth]:
        """How many jobs wait and are held, by target and type."""
        return [Depth(**dict(row)) for row in await self._fetch("depth.sql")]

    async def demand(self) -> list[Waiting]:
        """What waits, by target, organisation and type."""
        return [Waiting(**dict(row)) for row in await self._fetch("demand.sql", DEMAND_MAX)]

    async def see_gateway(self, instance: str, address: str, *, now: datetime | None = None) -> None:
        """Says that this gateway is there, and where the others reach it."""
        await self._fetch("see_gateway.sql", instance, address, now)

    async def announce(self, runners: Sequence[tuple[str, int | None]], *, instance: str) -> list[int]:
        """Tells all replicas which runners are connected at one of them.

        Args:
            runners: their ids, with the order of a hello that was told before; None: it was found good just now.
            instance: the replica.

        Returns: the order of each, in the order of `runners`.
        """
        ids, orders = [runner_id for runner_id, _ in runners], [order for _, order in runners]
        return [row["place"] for row in await self._fetch("announce.sql", ids, orders, instance)]


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _assigned(row: Mapping[str, Any]) -> Assigned:
    values = dict(row)
    lease = Lease(JobId(values.pop("id")), values.pop("epoch"))
    accepted = values.pop("accepted_at") is not None
    cancel_asked = values.pop("cancel_asked_at") is not None
    values.pop("told", None)
    values.pop("runner_id", None)
    values["spec"] = msgspec.json.decode(values["spec"])
    return Assigned(lease=lease, accepted=accepted, cancel_asked=cancel_asked, **values)
