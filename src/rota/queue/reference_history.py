"""The history of the queue in memory: tries, log lines and retention, as `rota.queue.reference` keeps them.

The same as the tables `tries`, `job_logs` and `retention` and their statements. It holds no jobs: the reference tells
it of runs that end and of jobs that are removed.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from rota.ids import Holder, JobId
from rota.lease import Lease
from rota.queue.history import LOG_RUNS_KEPT, TRIES_KEPT, KeptLine, LogLine, Stopped, Try, TryEnd, overlap_s
from rota.queue.job import JobRow, State
from rota.queue.retention import Keep


@dataclass(slots=True)
class History:
    """What is kept beside the jobs."""

    tries: dict[Lease, Try] = field(default_factory=dict)
    lines: dict[tuple[Lease, int], KeptLine] = field(default_factory=dict)
    keeps: dict[str, Keep] = field(default_factory=dict)

    def tried(self, row: JobRow, *, ended: TryEnd, error: str | None, ended_at: datetime) -> None:
        """Notes how the run of a leased job ended; one whose start was taken back never ran."""
        assert row.leased_by is not None, f"{row.id} is nobody's"
        if row.started_at is None:
            return
        lease = Lease(row.id, row.lease_epoch)
        assert lease not in self.tries, f"{lease} ended twice"
        self.tries[lease] = Try(
            row.id, row.lease_epoch, row.leased_by, row.started_at, row.heartbeat_at, ended_at, None, ended, error, 0.0
        )  # fmt: skip

    def forget_runs(self, row: JobRow) -> None:
        """Drops all but the last runs of a job that goes back."""
        for lease in [lease for lease in self.tries if lease.job_id == row.id]:
            if lease.epoch <= row.lease_epoch - TRIES_KEPT:
                del self.tries[lease]

    def removed(self, job_id: JobId) -> None:
        """Drops all that is kept of a job."""
        self.tries = {lease: one for lease, one in self.tries.items() if lease.job_id != job_id}
        self.lines = {key: line for key, line in self.lines.items() if key[0].job_id != job_id}

    def stopped(
        self, stops: Iterable[Stopped], *, holder: Holder, at: datetime, running: Iterable[JobRow]
    ) -> dict[Lease, float]:
        """Notes when runs really stopped."""
        noted = []
        for stop in stops:
            one = self.tries.get(stop.lease)
            if one is not None and one.holder == holder and one.stopped_at is None:
                self.tries[stop.lease] = replace(one, stopped_at=at - timedelta(seconds=stop.ago_s))
                noted.append(stop.lease)
        rows = list(running)
        return {lease: self.overlap_s(lease, at=at, running=rows) for lease in noted}

    def overlap_s(self, lease: Lease, *, at: datetime, running: Iterable[JobRow]) -> float:
        """How long this run ran beside later ones by other holders."""
        one = self.tries[lease]
        later = [
            (other.started_at, other.stopped_at or other.ended_at)
            for other in self.tries.values()
            if other.job_id == one.job_id and other.epoch > one.epoch and other.holder != one.holder
        ]
        later += [
            (row.started_at, at)
            for row in running
            if row.id == one.job_id and row.state is State.LEASED and row.started_at is not None
            if row.lease_epoch > one.epoch and row.leased_by != one.holder
        ]
        return overlap_s(one.stopped_at, later)

    def of(self, ids: Collection[JobId], *, at: datetime, running: Sequence[JobRow]) -> list[Try]:
        """The tries of these jobs."""
        return [
            replace(one, overlap_s=self.overlap_s(lease, at=at, running=running))
            for lease, one in sorted(self.tries.items())
            if lease.job_id in ids
        ]

    def log(self, lines: Iterable[LogLine], *, clock: float, at: datetime) -> None:
        """Keeps lines of jobs that exist."""
        last: dict[JobId, int] = {}
        for line in lines:
            lease, logged_at = line.lease, at - timedelta(seconds=max(0.0, clock - line.said_at))
            kept = KeptLine(
                lease.job_id, lease.epoch, line.number, logged_at, line.level, line.event, line.fields
            )  # fmt: skip
            self.lines.setdefault((lease, line.number), kept)
            last[lease.job_id] = max(lease.epoch, last.get(lease.job_id, 0))
        for job_id, epoch in last.items():
            for key in [key for key in self.lines if key[0].job_id == job_id]:
                if key[0].epoch <= epoch - LOG_RUNS_KEPT:
                    del self.lines[key]

    def keep(self, said: Iterable[Keep]) -> list[Keep]:
        """Takes a program's word about its kinds, and gives that of all."""
        for keep in said:
            self.keeps.pop(keep.kind, None)
            if keep.keep_s is not None or keep.keep_failed_s is not None:
                self.keeps[keep.kind] = keep
        return [self.keeps[kind] for kind in sorted(self.keeps)]
