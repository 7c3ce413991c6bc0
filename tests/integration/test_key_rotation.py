"""A paired device gets a new key by itself, and is never without one that its gateway knows."""

import asyncio
import base64
import os
import stat
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner

from rota.cli.main import app
from rota.errors import RunnerError, SettingsError
from rota.runners.dial import parse_gateway
from rota.runners.handshake import sign_hello
from rota.runners.io import pairing
from rota.runners.io.identity import NEXT_NAME, Identity, new_key, read_identity, write_identity
from rota.runners.io.replica import Replica
from rota.runners.io.running import who
from rota.runners.io.trust import trusted
from rota.settings import Settings
from tests.integration.gateways import ACME, Device, Engine, b64, dialled, gateway


@pytest.fixture
async def replica(migrated_dsn: str) -> AsyncIterator[Replica]:
    async with gateway(migrated_dsn) as one:
        yield one


@pytest.fixture
async def paired(replica: Replica, tmp_path: Path) -> Identity:
    """A device whose key is kept in `tmp_path`."""
    code = str(await replica.exchange.devices.new_code(ACME, "d"))
    at = parse_gateway(f"ws://127.0.0.1:{replica.server.serving.port}")
    return await pairing.pair(at, code, tmp_path, name="d", os="linux", arch="amd64", tls=trusted(None))


def kept(folder: Path, name: str = "device.json") -> Identity:
    found = read_identity(folder, name=name)
    assert found is not None
    return found


async def rotate(replica: Replica, folder: Path, **options: Any) -> None:
    at = parse_gateway(f"ws://127.0.0.1:{replica.server.serving.port}")
    await pairing.rotate(at, folder, tls=trusted(None), **options)


async def lets_in(replica: Replica, identity: Identity) -> bool:
    async with dialled(replica) as runner:
        await runner.hello(Device(identity.device_id, identity.key).auth())
        try:
            await runner.hear("welcome")
        except Exception:
            return False
        return True


async def test_a_person_rotates_the_key_while_the_runner_runs(
    replica: Replica, paired: Identity, tmp_path: Path
) -> None:
    settings = Settings(runner_state=str(tmp_path), runner_gateway=paired.gateway)
    prove = who(settings, pool=False).prove
    words = ["runner", "rotate"]
    env = {"ROTA_RUNNER_STATE": str(tmp_path), "ROTA_RUNNER_GATEWAY": paired.gateway}
    kept_env = {name: None for name in os.environ if name.startswith("ROTA_")}
    ran = await asyncio.to_thread(CliRunner().invoke, app, words, env=kept_env | env)
    assert ran.exit_code == 0 and "rotated" in ran.output, ran
    after = kept(tmp_path)
    assert (after.device_id, after.org_id, after.name) == (paired.device_id, paired.org_id, paired.name)
    assert after.private_key != paired.private_key and paired.private_key not in ran.output
    assert stat.S_IMODE((tmp_path / "device.json").stat().st_mode) == 0o600 and not (tmp_path / NEXT_NAME).exists()
    # Both are good, and the runner that runs here signs with the new one without being started anew.
    assert await lets_in(replica, paired) and await lets_in(replica, after)
    at = parse_gateway(paired.gateway)
    proof = prove(0.0)
    assert proof == sign_hello(
        private_key=after.key.private_bytes_raw(), device_id=after.device_id, host=at.host, wall=0.0,
        nonce=decoded(proof.nonce),
    )  # fmt: skip
    events = [(row.event, row.detail) for row in await replica.exchange.devices.audit(ACME)]
    assert ("key rotated", "by the device") in events


def decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


async def test_without_an_overlap_the_key_before_ends_now(replica: Replica, paired: Identity, tmp_path: Path) -> None:
    await rotate(replica, tmp_path, overlap_s=0)
    assert not await lets_in(replica, paired)
    assert await lets_in(replica, kept(tmp_path))


@pytest.mark.parametrize("overlap_s", [0, 3600])
async def test_a_rotation_whose_answer_was_lost_is_completed(
    replica: Replica, paired: Identity, tmp_path: Path, overlap_s: int
) -> None:
    pending = msgspec.structs.replace(paired, private_key=new_key()[0])
    write_identity(tmp_path, pending, name=NEXT_NAME)
    public = pending.key.public_key().public_bytes_raw()
    await replica.exchange.devices.rotate_key(paired.device_id, public, overlap_s=overlap_s)
    await rotate(replica, tmp_path)
    assert kept(tmp_path) == pending and await lets_in(replica, pending)


async def test_a_gateway_that_is_away_costs_nothing(replica: Replica, paired: Identity, tmp_path: Path) -> None:
    nowhere = parse_gateway("ws://127.0.0.1:1")
    with pytest.raises(RunnerError, match="was not reached"):
        await pairing.rotate(nowhere, tmp_path, tls=trusted(None))
    tried = kept(tmp_path, NEXT_NAME)
    assert kept(tmp_path) == paired
    await rotate(replica, tmp_path)
    assert kept(tmp_path) == tried


async def test_who_may_not_rotate(replica: Replica, paired: Identity, tmp_path: Path) -> None:
    async with Engine(replica) as engine:
        device = Device(paired.device_id, paired.key)
        key = b64(Ed25519PrivateKey.generate().public_key().public_bytes_raw())

        async def ask(auth: dict[str, Any], public_key: str = key, **more: Any) -> tuple[int, str]:
            status, body = await engine.ask("POST", "/v1/rotate", json={"auth": auth, "publicKey": public_key} | more)
            return status, body.get("code", "")

        # A hello says nothing of the next key, so none can be used to bring one in; and neither can another's.
        assert await ask(device.auth()) == (403, "unauthenticated")
        assert await ask(Device(paired.device_id, Ed25519PrivateKey.generate()).auth()) == (403, "unauthenticated")
        assert await ask(device.auth(nonce="short")) == (400, "invalid_request")
        assert await ask(device.auth(), "no key") == (400, "invalid_key")
        assert await ask(device.auth(), overlapSec=10**9) == (400, "invalid_request")
        # A key that is on its way out brings in none.
        await rotate(replica, tmp_path)
        other = tmp_path / "thief"
        write_identity(other, paired)
        with pytest.raises(RunnerError, match="on its way out"):
            await rotate(replica, other)
        await replica.exchange.devices.disable_org(ACME)
        with pytest.raises(RunnerError, match="may not use runners"):
            await rotate(replica, tmp_path)
        await replica.exchange.devices.revoke(paired.device_id)
        with pytest.raises(RunnerError, match="revoked"):
            await rotate(replica, tmp_path)
    with pytest.raises(SettingsError, match="not paired"):
        await rotate(replica, tmp_path / "nobody")
    env = {"ROTA_RUNNER_STATE": str(tmp_path / "nobody")}
    ran = await asyncio.to_thread(CliRunner().invoke, app, ["runner", "rotate"], env=env)
    assert isinstance(ran.exception, SettingsError) and "rota runner pair CODE" in str(ran.exception)


async def test_a_request_is_good_once(replica: Replica, paired: Identity) -> None:
    async with Engine(replica) as engine:
        at = parse_gateway(paired.gateway)
        key = b64(Ed25519PrivateKey.generate().public_key().public_bytes_raw())
        asked = pairing.RotateRequest(pairing.sign(paired, at, time.time(), next_key=key), key)
        body = msgspec.json.decode(msgspec.json.encode(asked))
        assert (await engine.ask("POST", "/v1/rotate", json=body))[0] == 200
        assert (await engine.ask("POST", "/v1/rotate", json=body))[0] == 403
