"""Who a runner is and which version it speaks: what is checked of a hello, and how a device signs one. Pure.

The checks are meant to be made in this order: shape and versions (`check_hello`), the clock (`check_time`), then what
costs a look into the database: the device's key and its signature (`verify_device`), or the pool's secret
(`credential_digest`), and last the nonce, which the store remembers for `NONCE_LIFE_S`, on all replicas and over
restarts. No secret is in what a refusal says.

Spec: runners, "Connection handshake and authentication", "Versioning and compatibility".
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from rota.runners import clocks
from rota.runners.codes import CloseCode
from rota.runners.messages import DeviceAuth, Hello

CLOCK_WINDOW_S: Final = 120.0
NONCE_LIFE_S: Final = 240.0
"""Twice the window: a hello can be replayed from 120 s before the gateway's time until 120 s after it."""
NONCE_BYTES_MIN: Final = 16
NONCE_BYTES_MAX: Final = 128
SIGNATURE_BYTES: Final = 64
SUPPORTED_MINORS: Final = {1: 0}
"""The highest minor of each major version that this program speaks."""

_VERSION: Final = re.compile(r"(\d{1,4})\.(\d{1,6})", re.ASCII)
_NUMBERS: Final = re.compile(r"\d{1,9}", re.ASCII)
_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]+={0,2}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a hello is not good: the close code and the reason, for the runner's log.

    Attributes:
        code: the close code.
        reason: what is wrong and what to do, without anything secret.
        tells_time: the runner's clock is the trouble.
    """

    code: CloseCode
    reason: str
    tells_time: bool = False


def negotiate(version: str) -> str | None:
    """The version to speak with a runner that speaks up to `version`: the highest minor of both; None if there is no
    common major, or this is no version."""
    found = _VERSION.fullmatch(version)
    if found is None:
        return None
    major, minor = int(found[1]), int(found[2])
    ours = SUPPORTED_MINORS.get(major)
    return None if ours is None else f"{major}.{min(minor, ours)}"


def supported() -> str:
    """The versions that this program speaks, in words."""
    return "supported protocol versions: " + ", ".join(f"{major}.{minor}" for major, minor in SUPPORTED_MINORS.items())


def is_older(version: str, minimum: str) -> bool:
    """Whether one version of an agent, or of a font set, is older than another. Compared are their numbers, in order;
    a version without any number is older than all."""
    ours, theirs = ([int(number) for number in _NUMBERS.findall(text)] for text in (version, minimum))
    width = max(len(ours), len(theirs))
    return not ours or [*ours, *[0] * (width - len(ours))] < [*theirs, *[0] * (width - len(theirs))]


def check_hello(hello: Hello) -> Refusal | None:
    """What can be told from the hello alone: versions, and the shape of a device's proof; None if all is well."""
    if negotiate(hello.protocol_version) is None:
        return Refusal(CloseCode.UNSUPPORTED, supported())
    return check_proof(hello.auth, "hello.auth") if isinstance(hello.auth, DeviceAuth) else None


def check_proof(auth: DeviceAuth, where: str) -> Refusal | None:
    """The shape of a device's proof, which stands at `where`; None if all is well."""
    if clocks.parse(auth.ts) is None:
        return Refusal(
            CloseCode.UNSUPPORTED, f"{where}.ts must be an RFC 3339 time in UTC, such as 2026-01-02T03:04:05Z"
        )
    nonce = _decoded(auth.nonce)
    if nonce is None or not NONCE_BYTES_MIN <= len(nonce) <= NONCE_BYTES_MAX:
        return Refusal(
            CloseCode.UNSUPPORTED,
            f"{where}.nonce must be {NONCE_BYTES_MIN} to {NONCE_BYTES_MAX} random bytes in base64url",
        )
    signature = _decoded(auth.sig)
    if signature is None or len(signature) != SIGNATURE_BYTES:
        return Refusal(CloseCode.UNSUPPORTED, f"{where}.sig must be {SIGNATURE_BYTES} bytes in base64url")
    return None


def check_time(auth: DeviceAuth, *, wall: float) -> Refusal | None:
    """Whether a device's clock is near enough.

    Args:
        auth: whose `ts` is a time; `check_hello` has seen to that.
        wall: seconds since 1970, by this gateway.

    Returns: a refusal that says by how much the clock is off, or None.
    """
    then = clocks.parse(auth.ts)
    if then is None:
        return Refusal(CloseCode.UNSUPPORTED, "hello.auth.ts is no time in UTC")
    ahead_s = then - wall
    if abs(ahead_s) <= CLOCK_WINDOW_S:
        return None
    where = "ahead" if ahead_s > 0 else "behind"
    return Refusal(
        CloseCode.UNAUTHENTICATED,
        f"the runner's clock is {abs(ahead_s):.0f} s {where}, and {CLOCK_WINDOW_S:.0f} s are allowed; set the clock",
        tells_time=True,
    )


def signed_text(*, device_id: str, ts: str, nonce: str, host: str, next_key: str | None = None) -> bytes:
    """What a device signs. The host keeps a hostile gateway from using a hello at another one.

    `next_key`: for the request that registers this key in place of the one that signs; its text can be no hello's.
    """
    rest = f"{device_id}|{ts}|{nonce}|{host}"
    text = f"reelbolt-runner-hello-v1|{rest}" if next_key is None else f"rota-runner-rotate-v1|{rest}|{next_key}"
    return text.encode()


def verify_device(auth: DeviceAuth, *, public_key: bytes, host: str, next_key: str | None = None) -> bool:
    """Whether this key has signed this hello, or this request for the next key, for this host.

    Args:
        auth: the proof.
        public_key: 32 bytes, as they were registered.
        host: what `dialled_host` gave.
        next_key: as `signed_text` has it.
    """
    text = signed_text(device_id=auth.device_id, ts=auth.ts, nonce=auth.nonce, host=host, next_key=next_key)
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(_decoded(auth.sig) or b"", text)
    except (InvalidSignature, ValueError):
        return False
    return True


def sign_hello(
    *, private_key: bytes, device_id: str, host: str, wall: float, nonce: bytes, next_key: str | None = None
) -> DeviceAuth:
    """A device's proof for one hello, or for one request for its next key.

    Args:
        private_key: the 32 bytes of an Ed25519 key.
        device_id: as it was given at pairing.
        host: the host name of the URL that is dialled, as `dialled_host` writes it.
        wall: seconds since 1970.
        nonce: 16 random bytes or more, never used before.
        next_key: as `signed_text` has it.
    """
    ts, word = clocks.stamp(wall), encoded(nonce)
    text = signed_text(device_id=device_id, ts=ts, nonce=word, host=host, next_key=next_key)
    return DeviceAuth(
        device_id=device_id,
        ts=ts,
        nonce=word,
        sig=encoded(Ed25519PrivateKey.from_private_bytes(private_key).sign(text)),
    )


def dialled_host(header: str, names: Collection[str]) -> str | None:
    """The host that a runner dialled, without its port and in lower case; None if this gateway does not go by it.

    Args:
        header: the request's Host header, or the host of a URL.
        names: the host names of this gateway, in lower case. The header alone proves nothing: whoever replays a hello
            writes what he likes into it.
    """
    name = header.strip().lower()
    name = (
        name[1 : name.find("]")] if name.startswith("[") else name.rsplit(":", 1)[0] if name.count(":") == 1 else name
    )
    name = name.rstrip(".")
    return name if name in names else None


def credential_digest(credential: str) -> bytes:
    """What is stored of a pool's secret: its SHA-256. The secret is long and random, so no slow hash is needed."""
    return hashlib.sha256(credential.encode()).digest()


def encoded(data: bytes) -> str:
    """In base64url, without padding."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decoded(text: str) -> bytes | None:
    if not _BASE64URL.fullmatch(text):
        return None
    bare = text.rstrip("=")
    try:
        return base64.urlsafe_b64decode(bare + "=" * (-len(bare) % 4))
    except (binascii.Error, ValueError):
        return None
