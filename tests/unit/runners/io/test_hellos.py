"""Hellos that are checked together: each has its own answer."""

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rota.runners import gateway_events as events
from rota.runners import handshake, messages
from rota.runners.io.hellos import Hellos
from rota.runners.records import Device

KEY, OLD, OTHER = (bytes([number]) * 32 for number in (1, 2, 3))
CAPABILITIES = messages.Capabilities(
    protocol_version="1.0", agent_version="1.2.0", os="linux", arch="amd64", slots=2, container="none",
    runtime_image_digest=None, ffmpeg_version="8.0", fontset_version="1", job_types=("video.compile",),
    max_output_bytes=1000,
)  # fmt: skip


class Tables:
    """What the database knows, and how often it was asked."""

    def __init__(self, *devices: Device, credentials: frozenset[str] = frozenset()) -> None:
        self.known = {device.device_id: device for device in devices}
        self.credentials = credentials
        self.used: set[tuple[str, str]] = set()
        self.asked: list[str] = []

    async def find(self, ids: set[str]) -> dict[str, Device]:
        self.asked.append("find")
        return {device_id: self.known[device_id] for device_id in ids if device_id in self.known}

    async def good_credentials(self, credentials: set[str]) -> set[str]:
        self.asked.append("credentials")
        return set(credentials & self.credentials)

    async def use_nonces(self, nonces: set[tuple[str, str]]) -> set[tuple[str, str]]:
        self.asked.append("nonces")
        fresh = nonces - self.used
        self.used |= nonces
        return fresh

    async def announce(self, runners: list[tuple[str, None]], *, instance: str) -> list[int]:
        self.asked.append(f"told {len(runners)} of {instance}")
        return [100 + place for place in range(len(runners))]


def public(key: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw()


def device(device_id: str, *, revoked: bool = False, previous_s: float | None = None) -> Device:
    now = datetime.now(UTC)
    until = None if previous_s is None else now + timedelta(seconds=previous_s)
    return Device(
        device_id, "acme", "d", public(KEY), None if until is None else public(OLD), until, None, now, None,
        now if revoked else None,
    )  # fmt: skip


def signed(connection: int, device_id: str, *, key: bytes = KEY, nonce: int = 0, ahead_s: float = 0) -> Any:
    auth = handshake.sign_hello(
        private_key=key, device_id=device_id, host="gateway.invalid",
        wall=datetime.now(UTC).timestamp() + ahead_s, nonce=bytes([nonce or connection]) * 16,
    )  # fmt: skip
    return asked(connection, auth)


def asked(connection: int, auth: messages.DeviceAuth | messages.PoolAuth) -> events.Authenticate:
    hello = messages.Hello(protocol_version="1.0", auth=auth, capabilities=CAPABILITIES)
    return events.Authenticate(connection, hello, "gateway.invalid")


async def test_each_of_many_has_its_own_answer_and_all_cost_four_statements() -> None:
    tables = Tables(
        device("good"), device("revoked", revoked=True), device("rotated", previous_s=60),
        device("rotated long ago", previous_s=-60), credentials=frozenset({"secret"}),
    )  # fmt: skip
    copied = signed(9, "good")
    batch = [
        signed(1, "good"), signed(2, "good", key=OTHER), signed(3, "nobody"), signed(4, "revoked"),
        signed(5, "rotated", key=OLD), signed(6, "rotated long ago", key=OLD), signed(7, "good", ahead_s=300),
        asked(8, messages.PoolAuth(credential="secret", worker_name="w")), copied,
        copy_of(copied, 10), asked(11, messages.PoolAuth(credential="guess", worker_name="w")),
    ]  # fmt: skip
    hellos = Hellos(cast(Any, tables), cast(Any, tables), instance="gateway-0")
    answers = await hellos.check(batch, waits=lambda connection: connection != 9)
    assert [answer.connection for answer in answers] == list(range(1, 12))
    assert {one.connection: one.identity.runner_id for one in answers if isinstance(one, events.Verified)} == {
        1: "good", 5: "rotated", 8: "pool:w", 9: "good",
    }  # fmt: skip
    assert [one.order for one in answers if isinstance(one, events.Verified)] == [100, 101, 102, 0]
    assert all(one.code == 4401 for one in answers if isinstance(one, events.Refused))
    assert [one.connection for one in answers if isinstance(one, events.Refused) and one.tells_time] == [7]
    assert tables.asked == ["find", "credentials", "nonces", "told 3 of gateway-0"], "one has gone"
    assert ("good", batch[1].hello.auth.nonce) not in tables.used, "a bad signature uses nothing up"
    (again,) = await hellos.check([copy_of(copied, 12)], waits=lambda _: True)
    assert isinstance(again, events.Refused) and "used before" in again.reason


async def test_a_crowd_of_the_pool_alone_asks_for_no_devices() -> None:
    tables = Tables(credentials=frozenset({"secret"}))
    hellos = Hellos(cast(Any, tables), cast(Any, tables), instance="gateway-0")
    workers = [asked(number, messages.PoolAuth(credential="secret", worker_name=f"w{number}")) for number in range(40)]
    answers = await hellos.check(workers, waits=lambda _: True)
    assert all(isinstance(answer, events.Verified) for answer in answers)
    assert tables.asked == ["credentials", "told 40 of gateway-0"]


def copy_of(one: events.Authenticate, connection: int) -> events.Authenticate:
    """The same hello on another connection."""
    return events.Authenticate(connection, msgspec.structs.replace(one.hello), one.host)
