"""Records what runner jobs have used, after they have ended. Any replica may do so, and each job is recorded once."""

from datetime import datetime
from typing import Final

import msgspec

from rota.runners.io.store import Statements
from rota.runners.usage import Rates, usage_of

RECORDED_MAX: Final = 500
"""Jobs in one pass."""


class UsageBook(Statements):
    """The usage records of one database."""

    async def record(
        self, rates: Rates | None = None, *, limit: int = RECORDED_MAX, now: datetime | None = None
    ) -> int:
        """Records the jobs that have ended and are not recorded yet.

        Args:
            rates: what is charged; None: the defaults.
            limit: how many jobs at most.
            now: for tests.

        Returns: how many jobs were looked at; `limit` means that there may be more.

        Raises: DatabaseAway.
        """
        charged = rates if rates is not None else Rates()
        due = await self._fetch("usage_due.sql", limit)
        if not due:
            return 0
        units: list[str | None] = []
        credits: list[str | None] = []
        for row in due:
            if not row["ran"]:
                units.append(None)
                credits.append(None)
                continue
            spec = msgspec.json.decode(row["spec"])
            used = usage_of(
                row["job_type"], spec if isinstance(spec, dict) else {}, target=row["target"],
                failure_class=row["failure_class"], rates=charged,
            )  # fmt: skip
            units.append(msgspec.json.encode(used.units).decode())
            credits.append(str(used.credits))
        columns = [[row[name] for row in due] for name in ("id", "org_id", "target", "job_type")]
        ends = [[row[name] for row in due] for name in ("outcome", "failure_class")]
        await self._fetch("record_usage.sql", *columns, units, credits, *ends, now)
        return len(due)
