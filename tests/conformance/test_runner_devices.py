"""Devices, pairing codes, nonces, the pool's secrets and the audit trail in PostgreSQL; time moves by hand."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from rota.errors import DeviceNotFound, PairingError
from rota.io.postgres import Database, Target
from rota.runners import pairing
from rota.runners.handshake import credential_digest
from rota.runners.io.devices import Devices
from rota.runners.pairing import Code, read_code
from rota.runners.records import AuditNote

TABLES = (
    "disabled_organisations",
    "runner_devices",
    "pairing_codes",
    "pool_credentials",
    "runner_nonces",
    "runner_audit",
)
KEY, NEXT = b"k" * 32, b"n" * 32
NOW = datetime.now(UTC).replace(microsecond=0)


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


@pytest.fixture
async def devices(stored: Target) -> AsyncIterator[Devices]:
    database = Database(stored, size=4)
    await database.start()
    try:
        for table in TABLES:
            await database.fetch(f"DELETE FROM rota.{table}")
        yield Devices(database)
    finally:
        await database.stop()


async def refusal(devices: Devices, code: Code, *, seconds: float = 0) -> str:
    with pytest.raises(PairingError) as caught:
        await devices.pair(code, KEY, now=after(seconds))
    assert code.secret not in str(caught.value)
    return caught.value.code


async def test_a_code_pairs_one_device_once(devices: Devices) -> None:
    code = await devices.new_code("acme", "Ada's desktop", now=NOW)
    assert read_code(f" {str(code).lower()} ") == code
    kept = str(await devices.database.fetch("SELECT * FROM rota.pairing_codes"))
    assert code.secret not in kept and code.selector in kept
    keys = [KEY, *(bytes([at]) * 32 for at in range(11, 14))]
    paired = await asyncio.gather(*(devices.pair(code, key, now=NOW) for key in keys), return_exceptions=True)
    found = [one for one in paired if not isinstance(one, BaseException)]
    assert len(found) == 1 and (found[0].org_id, found[0].name) == ("acme", "Ada's desktop")
    assert found[0].public_key in keys
    assert {one.code for one in paired if isinstance(one, PairingError)} == {"used"}
    assert await devices.find([found[0].device_id, "nobody"]) == {found[0].device_id: found[0]}
    assert await devices.devices("acme") == found and await devices.devices("other") == []


async def test_the_device_that_used_a_code_may_ask_again_and_no_other(devices: Devices) -> None:
    code = await devices.new_code("acme", "d", now=NOW)
    device = await devices.pair(code, KEY, now=NOW)
    assert await devices.pair(code, KEY, name="another name", now=after(3600)) == device
    with pytest.raises(PairingError) as caught:
        await devices.pair(code, NEXT, now=NOW)
    assert caught.value.code == "used"
    guess = Code(code.selector, "A" * 8 if code.secret != "A" * 8 else "B" * 8)
    with pytest.raises(PairingError):
        await devices.pair(guess, KEY, now=NOW)
    assert [row.event for row in await devices.audit("acme")].count("device paired") == 1
    await devices.revoke(device.device_id)
    with pytest.raises(PairingError):
        await devices.pair(code, KEY, now=NOW)


async def test_a_code_is_short_lived_and_allows_few_attempts(devices: Devices) -> None:
    code = await devices.new_code("acme", "d", valid_s=60, now=NOW)
    assert await refusal(devices, code, seconds=60) == "expired"
    guess = Code(code.selector, "A" * 8 if code.secret != "A" * 8 else "B" * 8)
    assert [await refusal(devices, guess) for _ in range(6)] == ["wrong"] * 5 + ["locked"]
    assert await refusal(devices, code) == "locked"  # also for whoever has the right one
    other = Code("AAAA" if code.selector != "AAAA" else "BBBB", code.secret)
    assert await refusal(devices, other) == "wrong"
    assert {row.event for row in await devices.audit("acme")} == {"code made", "pairing refused"}


async def test_keys_are_rotated_with_an_overlap_and_devices_revoked_for_ever(devices: Devices) -> None:
    device = await devices.pair(await devices.new_code("acme", "d", now=NOW), KEY, name="laptop", now=NOW)
    await devices.rotate_key(device.device_id, NEXT, overlap_s=60, now=NOW)
    rotated = await devices.device(device.device_id)
    assert (rotated.public_key, rotated.previous_key, rotated.previous_until) == (NEXT, KEY, after(60))
    await devices.rename(device.device_id, "studio", now=NOW)
    await devices.seen({device.device_id: {"os": "linux"}, "nobody": {"os": "plan9"}}, now=NOW)
    assert await devices.revoked([device.device_id, "nobody"]) == {"nobody"}
    await devices.revoke(device.device_id, now=NOW)
    await devices.revoke(device.device_id, now=after(5))
    known = await devices.device(device.device_id)
    assert (known.name, known.capabilities, known.revoked_at) == ("studio", {"os": "linux"}, NOW)
    assert await devices.revoked([device.device_id]) == {device.device_id}
    with pytest.raises(DeviceNotFound):
        await devices.rotate_key(device.device_id, KEY, now=NOW)
    for call in (devices.revoke("nobody"), devices.rename("nobody", "x"), devices.device("nobody")):
        with pytest.raises(DeviceNotFound, match="nobody"):
            await call
    events = [row.event for row in await devices.audit("acme")]
    assert events == ["device revoked"] * 2 + ["device renamed", "key rotated", "device paired", "code made"]
    newest, *_ = await devices.audit("acme", limit=1)
    assert len(await devices.audit("acme", below=newest.id)) == 5


async def test_a_device_rotates_its_own_key_and_one_on_its_way_out_brings_in_none(devices: Devices) -> None:
    device = await devices.pair(await devices.new_code("acme", "d", now=NOW), KEY, name="laptop", now=NOW)
    third = b"t" * 32
    assert await devices.rotate_key(device.device_id, NEXT, overlap_s=60, by=KEY, now=NOW) == after(60)
    # Its answer was lost: asked again by either key, nothing changes.
    for by in (KEY, NEXT):
        assert await devices.rotate_key(device.device_id, NEXT, overlap_s=900, by=by, now=after(30)) == after(60)
    for by, seconds in ((KEY, 30), (KEY, 60), (third, 0)):
        with pytest.raises(DeviceNotFound):
            await devices.rotate_key(device.device_id, third, by=by, now=after(seconds))
    with pytest.raises(DeviceNotFound):
        await devices.rotate_key(device.device_id, NEXT, by=KEY, now=after(60))  # its overlap is over
    assert await devices.rotate_key(device.device_id, third, overlap_s=0, by=NEXT, now=after(60)) == after(60)
    known = await devices.device(device.device_id)
    assert (known.public_key, known.previous_key) == (third, NEXT)
    rotations = [row.detail for row in await devices.audit("acme") if row.event == "key rotated"]
    assert rotations == ["by the device"] * 2


async def test_an_organisation_is_disabled_and_enabled(devices: Devices) -> None:
    device = await devices.pair(await devices.new_code("acme", "d", now=NOW), KEY, now=NOW)
    assert not device.org_disabled and await devices.disabled_orgs() == []
    made = await devices.disable_org("acme", reason="unpaid", now=NOW)
    assert (made.org_id, made.disabled_at, made.reason) == ("acme", NOW, "unpaid")
    # Saying it again keeps since when.
    again = await devices.disable_org("acme", reason="still unpaid", now=after(60))
    assert (again.disabled_at, again.reason) == (NOW, "still unpaid")
    await devices.disable_org("other", now=NOW)
    assert [one.org_id for one in await devices.disabled_orgs()] == ["acme", "other"]
    assert await devices.disabled_orgs(["acme", "third"]) == [again]
    assert (await devices.device(device.device_id)).org_disabled and (await devices.devices("acme"))[0].org_disabled
    assert await devices.enable_org("acme", now=after(90)) and not await devices.enable_org("acme", now=after(91))
    assert not (await devices.device(device.device_id)).org_disabled
    events = [(row.event, row.detail) for row in await devices.audit("acme") if row.event.startswith("organisation")]
    assert events == [
        ("organisation enabled", None), ("organisation disabled", "still unpaid"), ("organisation disabled", "unpaid"),
    ]  # fmt: skip


async def test_secrets_that_are_good_no_more_are_named(devices: Devices) -> None:
    first = await devices.new_credential(now=NOW)
    second = await devices.new_credential(overlap_s=60, now=NOW)
    digests = {credential_digest(one) for one in (first, second, "rpool_nobody")}
    assert await devices.ended_credentials(digests, now=after(59)) == {credential_digest("rpool_nobody")}
    assert await devices.ended_credentials(digests, now=after(60)) == digests - {credential_digest(second)}


async def test_a_nonce_is_good_once_for_each_device_also_at_the_same_moment(devices: Devices) -> None:
    used = await asyncio.gather(*(devices.use_nonces([("d", "n"), ("d", f"own-{k}")], now=NOW) for k in range(5)))
    assert sum(("d", "n") in fresh for fresh in used) == 1
    assert all(("d", f"own-{k}") in fresh for k, fresh in enumerate(used))
    assert await devices.use_nonces([("e", "n"), ("e", "n"), ("d", "n")], now=NOW) == {("e", "n")}


async def test_secrets_of_the_pool_overlap_and_are_kept_as_hashes(devices: Devices) -> None:
    first = await devices.new_credential(now=NOW)
    second = await devices.new_credential(overlap_s=60, now=NOW)
    kept = str(await devices.database.fetch("SELECT * FROM rota.pool_credentials"))
    assert first not in kept and second not in kept
    shown = [first, second, "rpool_x"]
    assert await devices.good_credentials(shown, now=after(59)) == {first, second}
    assert await devices.good_credentials(shown, now=after(60)) == {second}


async def test_an_organisation_sees_its_own_audit_trail(devices: Devices) -> None:
    of_acme = [AuditNote("acme", "connected", "d", detail="agent 1.0"), AuditNote("acme", "left", "d")]
    await devices.note([of_acme[0], AuditNote(None, "connected", "pool:a"), of_acme[1]], now=NOW)
    assert [(row.event, row.runner_id, row.detail) for row in await devices.audit("acme")] == [
        ("left", "d", None), ("connected", "d", "agent 1.0"),
    ]  # fmt: skip
    assert [row.runner_id for row in await devices.audit(None)] == ["pool:a"]


@pytest.mark.parametrize("text", ["", "ABCD", "ABCD-EFGH-JKM0", "ABCD-EFGH-JKMNP", "ÄBCD-EFGH-JKMN", "A" * 5000])
def test_what_is_no_code_is_refused_before_the_database_is_asked(text: str) -> None:
    with pytest.raises(PairingError) as caught:
        read_code(text)
    assert caught.value.code == "invalid_code"


def test_codes_and_secrets_hide_themselves() -> None:
    code = pairing.new_code(lambda letters: letters[0])
    assert str(code) == "AAAA-AAAA-AAAA" and "AAAA-A" not in repr(code)
