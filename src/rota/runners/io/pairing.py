"""Pairing of this machine with a gateway, and the rotation of its key.

A one-time code goes in, and this device's own name comes out. Keys are made here, and only their public halves are
sent. The code is a secret for as long as it lives: it stands in no message of this module. A key, the first and each
next one, is kept before it is registered: whatever is lost on the way, this device has a key that its gateway knows.

Spec: runners, "Connection handshake and authentication"; the route is in docs/protocol/runners.md, "Pairing".
"""

import hashlib
import re
import ssl
import time
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Final

import aiohttp
import msgspec
from msgspec import Meta

from rota.errors import RunnerError, SettingsError
from rota.io.reach import why_not_reached
from rota.runners.dial import Gateway
from rota.runners.io.identity import (
    NEXT_NAME,
    Identity,
    begun_key,
    end_pairing,
    new_key,
    public_of,
    read_identity,
    take_next,
    write_identity,
)
from rota.runners.io.proof import sign
from rota.runners.io.trust import proxy_to
from rota.runners.messages import DeviceAuth
from rota.version import __version__

TIMEOUT_S: Final = 30.0
"""How long a request may take, with a proxy and TLS on a slow line."""
ANSWER_BYTES_MAX: Final = 64 * 1024
"""What is read of an answer: a pairing has some hundred bytes."""

Name = Annotated[str, Meta(min_length=1, max_length=200)]


class PairRequest(msgspec.Struct, frozen=True, rename="camel"):
    """What a device says of itself: the code, and the public half of its key."""

    code: str
    public_key: str
    name: str
    agent_version: str
    os: str
    arch: str


class RotateRequest(msgspec.Struct, frozen=True, rename="camel"):
    """A device's next public key, signed with a key that the gateway knows."""

    auth: DeviceAuth
    public_key: str
    overlap_sec: int | None = None


class Paired(msgspec.Struct, frozen=True, rename="camel"):
    """What a gateway answers."""

    device_id: Name
    org_id: Name


class _Refusal(msgspec.Struct, frozen=True):
    message: str = ""


class _Refused(msgspec.Struct, frozen=True):
    error: _Refusal | str = ""
    message: str = ""


async def pair(
    gateway: Gateway, code: str, folder: Path, *, name: str, os: str, arch: str, tls: ssl.SSLContext
) -> Identity:
    """Makes a key, registers it with a one-time code, and keeps the pairing in place of any before.

    Asked again with the same code after an answer that was lost, by this process or another, it uses the same key, and
    the gateway answers as before.

    Args:
        gateway: where to.
        code: what its operator was given by `rota runner code`.
        folder: where the pairing is kept.
        name: what people call this device.
        os: its system, as in its capabilities.
        arch: its processor, as in its capabilities.
        tls: which certificates to trust.

    Raises: RunnerError that says why it was refused, or why the gateway was not reached; OSError.
    """
    # As people type it: the gateway takes no notice of case, blanks and dashes either.
    typed = re.sub(r"[\s\-–—]", "", code).upper()
    private = begun_key(folder, hashlib.sha256(typed.encode()).hexdigest())
    asked = PairRequest(code, public_of(private), name, __version__, os, arch)
    status, body = await _post(gateway, gateway.pair_url, asked, tls)
    if status not in (200, 201):
        raise RunnerError(f"The gateway {gateway.shown} did not pair this device: {_why(status, body)}")
    try:
        paired = msgspec.json.decode(body, type=Paired)
    except (msgspec.DecodeError, UnicodeError):
        raise RunnerError(f"What {gateway.shown} answered is no pairing. Is it the gateway's address?") from None
    made = Identity(gateway.shown, paired.device_id, paired.org_id, name, private)
    write_identity(folder, made)
    end_pairing(folder)
    return made


async def rotate(gateway: Gateway, folder: Path, *, tls: ssl.SSLContext, overlap_s: int | None = None) -> Path:
    """Makes a next key for this device, registers it, and keeps it in place of the one before.

    Args:
        gateway: where to.
        folder: where the pairing is kept.
        tls: which certificates to trust.
        overlap_s: how long the key before is good; None: as the gateway says.

    Returns: where the key is.

    Raises:
        RunnerError: it was refused, or the gateway was not reached. In the latter case, ask again: nothing is lost.
        SettingsError: this machine is not paired.
    """
    held = read_identity(folder)
    if held is None:
        raise SettingsError("This machine is not paired. Run `rota runner pair CODE`.")
    pending = read_identity(folder, name=NEXT_NAME)
    if pending is None or pending.device_id != held.device_id:
        pending = msgspec.structs.replace(held, private_key=new_key()[0])
        write_identity(folder, pending, name=NEXT_NAME)
    key = pending.public_key

    async def ask(signer: Identity) -> tuple[int, bytes]:
        asked = RotateRequest(sign(signer, gateway, time.time(), next_key=key), key, overlap_s)
        return await _post(gateway, gateway.rotate_url, asked, tls)

    status, body = await ask(held)
    if status == HTTPStatus.OK:
        return take_next(folder)
    # The next one may be registered, and the overlap of the one before be over.
    if status == HTTPStatus.FORBIDDEN and (await ask(pending))[0] == HTTPStatus.OK:
        return take_next(folder)
    raise RunnerError(f"The gateway {gateway.shown} did not rotate this device's key: {_why(status, body)}")


async def _post(
    gateway: Gateway, url: str, asked: PairRequest | RotateRequest, tls: ssl.SSLContext
) -> tuple[int, bytes]:
    proxy = proxy_to(gateway.host, gateway.port, tls=gateway.tls)
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as http,
            http.post(
                url, data=msgspec.json.encode(asked), headers={"Content-Type": "application/json"},
                ssl=tls if gateway.tls else True, allow_redirects=False, proxy=proxy,
            ) as answer,
        ):  # fmt: skip
            body = await answer.content.read(ANSWER_BYTES_MAX)
            return answer.status, body
    except aiohttp.ClientResponseError as error:
        # The library's words quote the address that was asked, with a proxy's account (I10).
        refused = isinstance(error, aiohttp.ClientHttpProxyError)
        why = f"the proxy answered {error.status}" if refused else "what answers there does not speak HTTP"
        raise RunnerError(f"The gateway {gateway.shown} was not reached: {why}.") from None
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        why = why_not_reached(error)
        raise RunnerError(f"The gateway {gateway.shown} was not reached: {why}. Is the address right?") from None


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
