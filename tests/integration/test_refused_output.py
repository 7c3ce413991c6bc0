"""Our engine on a real gateway, with a runner whose output is not what was asked for: everybody says the same of it."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

import rota
from rota.objects.io.folder import FolderStore
from rota.runners.io.engine import Engine as Sessions
from rota.runners.io.engine import EngineOptions
from rota.runners.io.engine_session import Means
from rota.runners.io.gateway_client import GatewayClient
from rota.runners.io.promoting import Promoting
from rota.runners.io.usage import UsageBook
from rota.sessions import SessionAsk
from tests.integration.gateways import ACME, STILL, TOKEN, Engine, Runner, connected, gateway, pair

MEDIA = b"a film" * 1000


async def publishes(runner: Runner, store: FolderStore, sha256: str) -> dict[str, Any]:
    """The runner takes a job and answers one publish: the bytes arrive, and this is what it says of them."""
    assign = await runner.take()
    request = await runner.hear("op.request")
    key = request["payload"]["args"]["putUrl"].partition("?")[0].removeprefix("https://objects.invalid/")
    await store.write(key, MEDIA)
    result = {"bytes": len(MEDIA), "sha256": sha256}
    op_id = request["payload"]["opId"]
    await runner.of_job("op.response", assign, request["sessionId"], opId=op_id, ok=True, result=result)
    return assign


def asks(iteration: str) -> SessionAsk:
    return SessionAsk("video.compile", "OrgRunner", ACME, execution_id="e", iteration=iteration)


async def test_a_refused_output_fails_its_job_and_a_good_one_does_not(migrated_dsn: str, tmp_path: Path) -> None:
    store = FolderStore(tmp_path, base_url="https://objects.invalid")
    async with gateway(migrated_dsn, pace=STILL) as replica, Engine(replica) as http:
        client = GatewayClient(http.base, token=TOKEN)
        sessions = Sessions(Means(client, store, Promoting(store)), EngineOptions(wait_s=60))
        device = await pair(replica, http)
        try:
            async with connected(replica, device.auth()) as runner:
                lying = asyncio.create_task(publishes(runner, store, "0" * 64))
                with pytest.raises(rota.VerificationFailed, match="not the one"):
                    async with sessions.session(asks("1")) as session:
                        refused = session.job_id  # type: ignore[attr-defined]
                        await session.publish("cut.mp4", to="films/cut.mp4")
                await lying
                assert (await runner.hear("cancel"))["payload"]["reason"] == "execution_ended"
                job = await http.job({"jobId": refused}, wait="30s")
                assert (job["state"], job["error"]["class"], job["error"]["code"]) == (
                    "Failed", "runner", "verification_failed",
                )  # fmt: skip
                assert [key async for key in store.keys("")] == []
                # The next try of the same execution is a session of its own, and ends well.
                honest = asyncio.create_task(publishes(runner, store, hashlib.sha256(MEDIA).hexdigest()))
                async with sessions.session(asks("2")) as session:
                    delivered = session.job_id  # type: ignore[attr-defined]
                    assert (await session.publish("cut.mp4", to="films/cut.mp4")).key == "films/cut.mp4"
                    closing = asyncio.create_task(runner.answer(await honest, {}))
                await closing
                assert (await http.job({"jobId": delivered}, wait="30s"))["state"] == "Succeeded"
        finally:
            await sessions.stop()
        database = replica.exchange.store.database
        await UsageBook(database).record()
        rows = await database.fetch("SELECT job_id::text AS id, outcome, failure_class FROM rota.usage_records")
        assert {row["id"]: (row["outcome"], row["failure_class"]) for row in rows} == {
            refused: ("failed", "runner"), delivered: ("done", None),
        }  # fmt: skip
