"""The admin endpoint: an administrator sees its tenant's jobs and the deployment's, and nobody else any (S95)."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

import rota
from rota.contrib.asgi import admin_jobs
from rota.errors import SettingsError
from rota.ids import Holder
from rota.queue.job import Ask, Finish, Outcome

WHO = {"ann": rota.Viewer.of_tenant("a"), "root": rota.Viewer.everything()}


async def viewer_of(request: Request) -> rota.Viewer | None:
    return WHO.get(request.headers.get("x-user", ""))


@pytest.fixture
async def client(migrated_dsn: str) -> AsyncIterator[httpx.AsyncClient]:
    """A service with the endpoint, over jobs of tenants a and b and of the deployment."""
    async with rota.App(settings=rota.Settings(dsn=migrated_dsn)) as app:
        store = await app.store()
        for tenant in ("a", "b", None):
            await app.enqueue("film", tenant=tenant)
            (job,) = await store.claim([Ask("film", 1, 60, 1)], holder=Holder("here:1:a"))
            error = f"<script>alert('{tenant}')</script>" + "x" * 600
            await store.finish([Finish(job.lease, Outcome.FAILED, error=error)])
        await app.enqueue("only of b", tenant="b")
        service = Starlette(routes=[Route("/api/admin/jobs", admin_jobs(app, viewer_of), methods=["GET"])])
        transport = httpx.ASGITransport(app=service)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            yield client


async def seen_by(client: httpx.AsyncClient, user: str) -> dict[str, Any]:
    answer = await client.get("/api/admin/jobs", headers={"x-user": user})
    assert answer.status_code == 200
    assert (
        answer.headers["content-type"] == "application/json" and answer.headers["x-content-type-options"] == "nosniff"
    )
    seen: dict[str, Any] = answer.json()
    return seen


async def test_an_administrator_sees_its_tenants_jobs_and_the_deployments_alone_S95(client: httpx.AsyncClient) -> None:
    seen = await seen_by(client, "ann")
    assert seen["jobs"] == [{"kind": "film", "state": "failed", "count": 2}]
    assert [failure["tenant"] for failure in seen["failed"]] == [None, "a"]
    assert "'b'" not in str(seen) and "only of b" not in str(seen)
    assert all(len(failure["error"]) == 500 for failure in seen["failed"])


async def test_who_may_see_everything_does(client: httpx.AsyncClient) -> None:
    seen = await seen_by(client, "root")
    assert {(one["kind"], one["state"], one["count"]) for one in seen["jobs"]} == {
        ("film", "failed", 3), ("only of b", "queued", 1)
    }  # fmt: skip
    assert [failure["tenant"] for failure in seen["failed"]] == [None, "b", "a"]


async def test_nobody_else_sees_anything_S95(client: httpx.AsyncClient) -> None:
    for user in ("", "bob"):
        answer = await client.get("/api/admin/jobs", headers={"x-user": user})
        assert answer.status_code == 403 and "film" not in answer.text


async def test_it_only_reads(client: httpx.AsyncClient) -> None:
    assert (await client.post("/api/admin/jobs", headers={"x-user": "root"})).status_code == 405


@pytest.mark.parametrize("tenant", [None, ""])
def test_a_viewer_without_a_tenant_is_nobody(tenant: Any) -> None:
    with pytest.raises(SettingsError, match="give the tenant"):
        rota.Viewer.of_tenant(tenant)
