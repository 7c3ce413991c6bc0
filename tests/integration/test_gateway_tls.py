"""Gateways that end TLS themselves, with certificates of an authority of their own: runners, engines, operators and
other replicas reach them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rota.errors import SettingsError
from rota.io.postgres import Database, Target
from rota.runners.io.gateway_client import GatewayClient
from rota.runners.io.survey import read_runners
from rota.runners.io.trust import trusted, trusted_gateways
from rota.settings import Settings
from tests.integration.certificates import make_authority
from tests.integration.gateways import TOKEN, Engine, connected, gateway, pair


async def test_all_who_reach_a_gateway_trust_the_authority_that_is_set(migrated_dsn: str, tmp_path: Path) -> None:
    make_authority(tmp_path)
    ca, tls = str(tmp_path / "ca.pem"), trusted(str(tmp_path / "ca.pem"))
    files: dict[str, Any] = {
        "gateway_cert": str(tmp_path / "server.pem"), "gateway_cert_key": str(tmp_path / "server.key"),
        "gateway_ca": ca,
    }  # fmt: skip
    async with (
        gateway(migrated_dsn, **files) as here,
        gateway(migrated_dsn, **files) as there,
        Engine(here, tls=tls) as engine,
        Engine(there, tls=tls) as elsewhere,
    ):
        assert here.server.serving.address.startswith("https:")
        device, job = await pair(here, engine), await engine.create()
        async with connected(here, device.auth(), tls=tls) as runner:
            assign = await runner.take()
            session = (await engine.until(job, "Running"))["sessionId"]
            passed_on = asyncio.create_task(elsewhere.op(session, "stat", {"path": "a"}))
            await runner.answer(assign, {"exists": False, "bytes": 0})
            assert (await passed_on)[0] == 200
        settings = Settings(dsn=migrated_dsn, gateway_token=TOKEN, gateway_ca=ca)
        database = Database(Target(migrated_dsn))
        await database.start()
        try:
            assert [seen.error for seen in (await read_runners(database, settings)).gateways] == [None, None]
        finally:
            await database.stop()
        client = GatewayClient(here.server.serving.address, token=TOKEN, tls=trusted_gateways(ca))
        try:
            assert (await client.scaling())["connectedCloudPool"] == 0
        finally:
            await client.close()


async def test_an_authority_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    for name in ("ca.pem", "none.pem"):
        with pytest.raises(SettingsError, match="gateway_ca = "):
            async with gateway("postgresql://nobody", gateway_ca=str(tmp_path / name)):
                pass
