"""The gateway's HTTP routes for devices: a code registers a device's key, and that key the next.

They are as public as the runners' websocket; each is let in slowly.

Spec: runners, "Connection handshake and authentication"; docs/protocol/runners.md, "Who is there".
"""

import asyncio
import base64
import binascii
from collections.abc import Collection
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from rota.errors import DeviceNotFound, PairingError
from rota.io.log import get_logger
from rota.runners import api, handshake, pairing
from rota.runners.codes import CloseCode
from rota.runners.handshake import Refusal, dialled_host
from rota.runners.io.devices import Devices
from rota.runners.io.proving import prove
from rota.runners.io.requests import Refused, answered, body_of, to_json
from rota.runners.messages import DeviceAuth
from rota.runners.pairing import read_code
from rota.runners.ramp import Ramp, told_s

PAIRS_PER_S: Final = 5.0
"""Attempts to pair in a second, from everybody together: people type codes."""
KEY_BYTES: Final = 32
ROTATIONS_PER_S: Final = 50.0
"""Attempts to rotate a key: an organisation may have all of its devices do so at once, and each costs a signature."""

log = get_logger("rota.gateway")


class DeviceApi:
    """The routes of one replica.

    Args:
        devices: where they are kept.
        names: the host names by which this gateway is dialled: a device signs one.
    """

    def __init__(self, devices: Devices, *, names: Collection[str]) -> None:
        self._devices = devices
        self._names = frozenset(names)
        self._pairs = Ramp(PAIRS_PER_S)
        self._rotations = Ramp(ROTATIONS_PER_S)

    def routes(self) -> list[BaseRoute]:
        """What to serve."""
        return [
            Route("/v1/pair", answered({"POST": self._pair}), methods=["POST"]),
            Route("/v1/rotate", answered({"POST": self._rotate}), methods=["POST"]),
        ]

    async def _pair(self, request: Request) -> Response:
        _admit(self._pairs)
        asked = await body_of(request, api.Pair)
        key = raw_key(asked.public_key)
        try:
            device = await self._devices.pair(read_code(asked.code), key, name=asked.name or None)
        except PairingError as error:
            status = 400 if error.code == "invalid_code" else 403
            raise Refused(status, error.code, str(error)) from None
        log.info("device paired", device_id=device.device_id, org_id=device.org_id)
        return to_json(api.Paired(device_id=device.device_id, org_id=device.org_id, name=device.name), 201)

    async def _rotate(self, request: Request) -> Response:
        _admit(self._rotations)
        asked = await body_of(request, api.Rotate)
        key = raw_key(asked.public_key)
        auth = DeviceAuth(
            device_id=asked.auth.device_id, ts=asked.auth.ts, nonce=asked.auth.nonce, sig=asked.auth.sig
        )  # fmt: skip
        host = dialled_host(request.headers.get("host", ""), self._names)
        if host is None:
            raise Refused(421, "another_name", "This gateway has another name: set ROTA_GATEWAY_NAMES.")
        proved = handshake.check_proof(auth, "auth") or await prove(
            self._devices, auth, host=host, next_key=asked.public_key
        )
        if isinstance(proved, Refusal):
            code = "organisation_disabled" if proved.code == CloseCode.FORBIDDEN else "unauthenticated"
            raise Refused(403, code, f"The key was not rotated: {proved.reason}.")
        overlap_s = pairing.OVERLAP_S if asked.overlap_sec is None else asked.overlap_sec
        try:
            until = await self._devices.rotate_key(proved.device.device_id, key, overlap_s=overlap_s, by=proved.key)
        except DeviceNotFound:
            raise Refused(403, "unauthenticated", "This key is on its way out: use the one after it.") from None
        log.info("device key rotated", device_id=proved.device.device_id, org_id=proved.device.org_id)
        return to_json(api.rotated(proved.device.device_id, until), 200)


def raw_key(text: str) -> bytes:
    """The bytes of a public key.

    Raises: Refused if it is none.
    """
    try:
        raw = base64.b64decode(text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != KEY_BYTES:
        raise Refused(400, "invalid_key", "publicKey is the 32 bytes of an Ed25519 key in base64url.")
    return raw


def _admit(ramp: Ramp) -> None:
    retry_after_s = ramp.admit(asyncio.get_running_loop().time())
    if retry_after_s is not None:
        refused = Refused(429, "rate_limited", f"Too many devices ask at once; try again in {told_s(retry_after_s)} s.")
        refused.answer.headers["retry-after"] = str(told_s(retry_after_s))
        raise refused
