"""What is held back: kinds, tenants, all (pause, resume, pauses), as claims and polls see it."""

import pytest

from rota.queue.job import State
from rota.queue.pause import Pause, PauseScope
from tests.conformance.queues import HOLDER, Queue, ask


async def pause(queue: Queue, scope: PauseScope, name: str = "", **options: object) -> None:
    await queue.call("pause", scope, name, **{"paused_by": "me", "now": queue.now, **options})


async def resume(queue: Queue, scope: PauseScope, name: str = "") -> Pause | None:
    pause: Pause | None = await queue.call("resume", scope, name, now=queue.now)
    return pause


async def pauses(queue: Queue) -> list[Pause]:
    found: list[Pause] = await queue.call("pauses", now=queue.now)
    return found


async def test_nothing_is_paused(queue: Queue) -> None:
    assert await pauses(queue) == []
    assert (await queue.poll()).paused == ()
    assert await resume(queue, PauseScope.ALL) is None


async def test_pauses_are_told_with_note_and_end(queue: Queue) -> None:
    at = queue.now
    await pause(queue, PauseScope.KIND, "work", note="Provider is down", for_s=60.0)
    await pause(queue, PauseScope.TENANT, "org")
    await pause(queue, PauseScope.ALL)
    held = Pause(PauseScope.KIND, "work", "Provider is down", "me", at, queue.at(60))
    assert await pauses(queue) == [
        Pause(PauseScope.ALL, "", None, "me", at, None),
        held,
        Pause(PauseScope.TENANT, "org", None, "me", at, None),
    ]
    assert (await queue.poll()).paused == ("all:", "kind:work", "tenant:org")
    assert await resume(queue, PauseScope.KIND, "work") == held
    assert await resume(queue, PauseScope.KIND, "work") is None
    assert (await queue.poll()).paused == ("all:", "tenant:org")


async def test_a_pause_ends_by_itself(queue: Queue) -> None:
    await pause(queue, PauseScope.KIND, "work", for_s=60.0)
    queue.later(59.999)
    assert (await queue.poll()).paused == ("kind:work",)
    queue.later(0.001)
    assert (await queue.poll()).paused == ()
    assert await pauses(queue) == []
    assert await resume(queue, PauseScope.KIND, "work") is None


async def test_pausing_again_replaces_note_and_end_and_keeps_the_beginning(queue: Queue) -> None:
    at = queue.now
    await pause(queue, PauseScope.KIND, "work", note="a", for_s=60.0)
    queue.later(30)
    await pause(queue, PauseScope.KIND, "work", note="b", paused_by="you")
    assert await pauses(queue) == [Pause(PauseScope.KIND, "work", "b", "you", at, None)]


async def test_a_pause_after_one_that_is_over_begins_anew(queue: Queue) -> None:
    await pause(queue, PauseScope.KIND, "work", for_s=60.0)
    await pause(queue, PauseScope.KIND, "more", for_s=60.0)
    queue.later(90)
    await pause(queue, PauseScope.KIND, "work")
    assert await pauses(queue) == [Pause(PauseScope.KIND, "work", None, "me", queue.now, None)]


async def test_jobs_of_a_paused_tenant_are_passed_over(queue: Queue) -> None:
    theirs = await queue.add(tenant="org", priority=9)
    other, nobodys = await queue.add(tenant="other"), await queue.add()
    await pause(queue, PauseScope.TENANT, "org", for_s=60.0)
    assert [job.id for job in await queue.claim()] == [other, nobodys]
    assert (await queue.poll()).next_due_s is None
    later = await queue.add(run_after=queue.at(30))
    assert (await queue.poll()).next_due_s == pytest.approx(30.0, abs=0.01)
    queue.later(60)
    assert [job.id for job in await queue.claim()] == [theirs, later]


async def test_a_pause_of_a_kind_named_like_a_tenant_is_none_of_the_tenant(queue: Queue) -> None:
    job_id = await queue.add(tenant="org")
    await pause(queue, PauseScope.KIND, "org")
    assert [job.id for job in await queue.claim()] == [job_id]


async def test_jobs_that_run_are_not_touched(queue: Queue) -> None:
    job_id = await queue.add(tenant="org")
    lease = await queue.take(job_id)
    await pause(queue, PauseScope.TENANT, "org")
    assert await queue.renew(lease) == {job_id: False}
    assert (await queue.poll(holder=HOLDER)).cancels == ()
    assert await queue.end(lease) is State.DONE
    assert await queue.claim(ask()) == []
