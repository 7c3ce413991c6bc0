"""What an assertion about added jobs takes for equal, and what it says when it fails."""

from dataclasses import dataclass

import pytest

import rota
from rota.settings import Settings
from rota.testing import in_memory

app = rota.App(settings=Settings())


@dataclass
class Film:
    path: str
    width: int = 320


@app.job
async def thumbnail(ctx: rota.Context, film: Film) -> None: ...


async def test_jobs_are_found_by_what_they_are() -> None:
    with in_memory(app) as queue:
        await app.enqueue(thumbnail, Film("a.mp4"), tenant="acme", priority=4, dedupe=rota.open_key("a"))
        await app.enqueue(thumbnail, {"path": "b.mp4"}, delay_s=30)
        await app.enqueue("bare")
        (found,) = queue.assert_enqueued(thumbnail, payload=Film("a.mp4"))
        assert (found.tenant, found.payload) == ("acme", {"path": "a.mp4", "width": 320})
        queue.assert_enqueued("thumbnail", count=2)
        queue.assert_enqueued(thumbnail, count=1, tenant="acme", priority=4, dedupe_key="a", state=rota.State.QUEUED)
        queue.assert_enqueued(thumbnail, count=1, tenant=None, delay_s=30)
        queue.assert_enqueued("bare", payload=None, count=1)
        queue.assert_enqueued("never", count=0)
        queue.assert_not_enqueued("never")
        queue.assert_not_enqueued(thumbnail, payload={"path": "a.mp4"})
        await queue.drain()
        queue.assert_enqueued(thumbnail, count=1, state=rota.State.DONE)


async def test_a_failed_assertion_says_what_was_added() -> None:
    with in_memory(app) as queue:
        with pytest.raises(AssertionError, match=r"kind 'thumbnail', but no such job was added\. Nothing was added"):
            queue.assert_enqueued(thumbnail)
        await app.enqueue(thumbnail, Film("a.mp4"))
        with pytest.raises(AssertionError, match=r"Kinds that were added: thumbnail\.") as caught:
            queue.assert_enqueued("other", tenant="acme")
        assert "kind 'other' with tenant='acme', but no such job was added" in str(caught.value)
        with pytest.raises(AssertionError) as caught:
            queue.assert_enqueued(thumbnail, count=2)
        assert "Wanted 2 jobs of kind 'thumbnail', but 1 was added. Jobs of this kind: 1\n  queued" in str(caught.value)
        assert "{'path': 'a.mp4', 'width': 320}" in str(caught.value)
        with pytest.raises(AssertionError, match=r"Wanted no job of kind 'thumbnail'\."):
            queue.assert_not_enqueued(thumbnail)
        for _ in range(20):
            await app.enqueue(thumbnail, Film("b.mp4"))
        with pytest.raises(AssertionError, match="and 11 more"):
            queue.assert_enqueued(thumbnail, count=1)
