"""Usage records: one for each job that ran, priced from its spec and from nothing that a runner says (I11)."""

import asyncio
from typing import Any

import pytest

from rota.runners.io.usage import UsageBook
from rota.runners.records import DESKTOP, End
from tests.conformance.test_runner_store import Fleet, fleet

__all__ = ["fleet"]

FILM = {"requested": {"durationSec": 120, "width": 1920, "height": 1080}}


async def ran(fleet: Fleet, state: str, *, spec: dict[str, Any] = FILM, desktop: bool = False, **how: Any) -> Any:
    """A job that was accepted and has ended."""
    org = "acme" if desktop else None
    job = await fleet.add(spec=spec, **({"target": DESKTOP} if desktop else {}))
    held = await fleet.one("device:1" if desktop else "pool:a", org)
    assert await fleet.store.accept(held.lease, now=fleet.now)
    await fleet.store.end([End(held.lease, state, **how)], now=fleet.now)
    return job.id


async def records(fleet: Fleet) -> dict[Any, Any]:
    rows = await fleet.store.database.fetch("SELECT * FROM rota.usage_records")
    return {row["job_id"]: row for row in rows}


async def test_each_job_that_ran_is_recorded_once(fleet: Fleet) -> None:
    book = UsageBook(fleet.store.database)
    done = await ran(fleet, "done")
    waits = await fleet.add(spec=FILM)
    assert await book.record(now=fleet.now) == 1
    assert await book.record(now=fleet.now) == 0
    found = await records(fleet)
    assert set(found) == {done} and waits.id not in found
    one = found[done]
    assert (one["org_id"], one["target"], one["job_type"]) == ("acme", "CloudPool", "video.compile")
    assert (float(one["credits"]), one["outcome"], one["recorded_at"]) == (3.0, "done", fleet.now)


async def test_a_job_that_never_ran_costs_nothing_and_is_looked_at_once(fleet: Fleet) -> None:
    book = UsageBook(fleet.store.database)
    job = await fleet.add(spec=FILM)
    await fleet.store.cancel([job.id], now=fleet.now)
    assert await book.record(now=fleet.now) == 1
    assert await book.record(now=fleet.now) == 0
    assert await records(fleet) == {}


async def test_a_runner_cannot_change_what_is_charged(fleet: Fleet) -> None:
    plain = await ran(fleet, "done")
    boasting = await ran(fleet, "done", result='{"durationSec": 1, "credits": 0}')
    claimed = await ran(fleet, "failed", failure_class="runner", claimed_class="platform")
    refunded = await ran(fleet, "failed", failure_class="platform")
    own = await ran(fleet, "done", desktop=True)
    await UsageBook(fleet.store.database).record(now=fleet.now)
    found = {job: float(row["credits"]) for job, row in (await records(fleet)).items()}
    assert found == {plain: 3.0, boasting: 3.0, claimed: 3.0, refunded: 0.0, own: 0.0}


async def test_replicas_beside_each_other_record_a_job_once(fleet: Fleet) -> None:
    jobs = [await ran(fleet, "done") for _ in range(5)]
    await asyncio.gather(*(UsageBook(fleet.store.database).record(limit=3, now=fleet.now) for _ in range(4)))
    await UsageBook(fleet.store.database).record(now=fleet.now)
    assert set(await records(fleet)) == set(jobs)


@pytest.mark.parametrize("spec", [{}, {"requested": 7}, {"requested": {"durationSec": "x", "width": -1}}])
async def test_a_spec_without_a_request_has_the_base_price(fleet: Fleet, spec: dict[str, Any]) -> None:
    job = await ran(fleet, "done", spec=spec)
    await UsageBook(fleet.store.database).record(now=fleet.now)
    assert float((await records(fleet))[job]["credits"]) == 1.0
