"""No credential reaches a runner, whatever an engine sends; what was refused is neither stored nor logged.

Spec: runners, "Security invariants".
"""

import asyncio
import json
import logging

import pytest

from rota.settings import Settings, secrets_of
from tests.integration.gateways import KEY, TOKEN, Engine, connected, gateway, pair

SECRETS = (
    "postgresql://rota:word@db.example/rota", TOKEN, KEY, "rpool_0123456789abcdef0123456789",
    "AKIAABCDEFGHIJKLMNOP", "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIA==\n-----END PRIVATE KEY-----",
    "Bearer 0123456789abcdef0123", "https://s3.example/b/k?X-Amz-Signature=0123456789",
)  # fmt: skip


async def test_specs_and_ops_with_credentials_are_refused(
    migrated_dsn: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    async with gateway(migrated_dsn) as replica, Engine(replica) as engine:
        device = await pair(replica, engine)
        async with connected(replica, device.auth()) as runner:
            await runner.say("ready", {"freeSlots": 2})
            for number, secret in enumerate(SECRETS):
                for spec in ({"steps": [{"with": secret}]}, {secret: "as a name"}):
                    body = {
                        "target": "OrgRunner", "orgId": "acme", "jobType": "video.compile",
                        "executionId": f"e{number}", "spec": spec,
                    }  # fmt: skip
                    status, problem = await engine.ask("POST", "/internal/v1/jobs", json=body)
                    assert (status, problem["code"]) == (400, "credential_not_allowed"), spec
                    assert secret not in json.dumps(problem["message"].partition(" holds ")[2])
            job = await engine.create()
            await runner.accept()  # this one, and none before it
            running = await engine.until(job, "Running")
            for secret in SECRETS:
                args = {"argv": ["-i", "a.mp4", "-metadata", f"comment={secret}", "b.mp4"]}
                status, problem = await engine.op(running["sessionId"], "ffmpeg", args)
                assert (status, problem["code"]) == (400, "credential_not_allowed"), secret
            asked = asyncio.create_task(
                engine.op(running["sessionId"], "stage", {"url": SECRETS[-1], "path": "a.mp4", "maxBytes": 1})
            )
            request = await runner.hear("op.request")
            assert request["payload"]["op"] == "stage"
            assert [message["type"] for message in runner.seen] == ["welcome"]
            asked.cancel()
        stored = await replica.exchange.store.database.fetch("SELECT payload::text AS spec FROM rota.jobs")
        assert [json.loads(row["spec"]) for row in stored] == [{"mode": "Reencode"}]
    said = caplog.text + "".join(capsys.readouterr())
    assert "a credential was not sent to a runner" in said
    assert not [secret for secret in SECRETS if secret in said]


def test_all_secrets_of_a_program_are_looked_for() -> None:
    settings = Settings(
        dsn="postgresql://rota:p%40ss-word-of-rota@db/rota",
        gateway_key="a" * 32 + ", " + "b" * 32,
        gateway_token="t" * 20,
    )
    assert secrets_of(settings) >= {"p@ss-word-of-rota", "a" * 32, "b" * 32, "t" * 20}
    assert secrets_of(Settings()) == set()
