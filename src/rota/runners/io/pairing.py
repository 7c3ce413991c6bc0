"""Pairing of this machine with a gateway: a one-time code goes in, and this device's own name comes out.

The key is made here, and only its public half is sent. The code is a secret for as long as it lives: it stands in no
message of this module.

Spec: runners, "Connection handshake and authentication"; the route is in docs/protocol/runners.md, "Pairing".
"""

import ssl
from typing import Annotated, Final

import aiohttp
import msgspec
from msgspec import Meta

from rota.errors import RunnerError
from rota.runners.dial import Gateway
from rota.runners.io.identity import Identity, new_key
from rota.runners.io.trust import proxy_to
from rota.version import __version__

TIMEOUT_S: Final = 30.0
ANSWER_BYTES_MAX: Final = 64 * 1024

Name = Annotated[str, Meta(min_length=1, max_length=200)]


class PairRequest(msgspec.Struct, frozen=True, rename="camel"):
    """What a device says of itself: the code, and the public half of its key."""

    code: str
    public_key: str
    name: str
    agent_version: str
    os: str
    arch: str


class Paired(msgspec.Struct, frozen=True, rename="camel"):
    """What a gateway answers."""

    device_id: Name
    org_id: Name


class _Refusal(msgspec.Struct, frozen=True):
    message: str = ""


class _Refused(msgspec.Struct, frozen=True):
    error: _Refusal | str = ""
    message: str = ""


async def pair(gateway: Gateway, code: str, *, name: str, os: str, arch: str, tls: ssl.SSLContext) -> Identity:
    """Makes a key, registers it with a one-time code, and returns the pairing, to be kept with `write_identity`.

    Args:
        gateway: where to.
        code: what its operator was given by `rota runner code`.
        name: what people call this device.
        os: its system, as in its capabilities.
        arch: its processor, as in its capabilities.
        tls: which certificates to trust.

    Raises: RunnerError that says why it was refused, or why the gateway was not reached.
    """
    private, public = new_key()
    asked = PairRequest(code, public, name, __version__, os, arch)
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as http,
            http.post(
                gateway.pair_url, data=msgspec.json.encode(asked), headers={"Content-Type": "application/json"},
                ssl=tls if gateway.tls else True, allow_redirects=False,
                proxy=proxy_to(gateway.host, tls=gateway.tls),
            ) as answer,
        ):  # fmt: skip
            body = await answer.content.read(ANSWER_BYTES_MAX)
            status = answer.status
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        why = str(error) or type(error).__name__
        raise RunnerError(f"The gateway {gateway.shown} was not reached: {why}. Is the address right?") from None
    if status not in (200, 201):
        raise RunnerError(f"The gateway {gateway.shown} did not pair this device: {_why(status, body)}")
    try:
        paired = msgspec.json.decode(body, type=Paired)
    except (msgspec.DecodeError, UnicodeError):
        raise RunnerError(f"What {gateway.shown} answered is no pairing. Is it the gateway's address?") from None
    return Identity(gateway.shown, paired.device_id, paired.org_id, name, private)


def _why(status: int, body: bytes) -> str:
    try:
        told = msgspec.json.decode(body, type=_Refused)
    except (msgspec.DecodeError, UnicodeError):
        told = _Refused()
    said = told.message or (told.error if isinstance(told.error, str) else told.error.message)
    if said:
        return said[:500]
    return {
        404: "it has no such code, or no pairing at this address. Ask for a new code.",
        429: "too many tries. Wait a minute, then ask for a new code.",
    }.get(status, f"it answered with status {status}. Ask for a new code.")
