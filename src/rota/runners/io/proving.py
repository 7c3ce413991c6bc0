"""Whether a device is who it says: what is checked of its signature against what the database knows of it.

The order is the cheap first: the clock, the device and its organisation, the signature by a key that is good now, and
last the nonce, which is used up by this.

Spec: runners, "Connection handshake and authentication".
"""

import time
from dataclasses import dataclass

from rota.runners import handshake
from rota.runners.codes import CloseCode
from rota.runners.gateway_admission import DISABLED
from rota.runners.handshake import Refusal
from rota.runners.io.devices import Devices
from rota.runners.messages import DeviceAuth
from rota.runners.records import Device


@dataclass(frozen=True, slots=True)
class Proved:
    """A device that is who it says, and the key that it said so with."""

    device: Device
    key: bytes


async def prove(devices: Devices, auth: DeviceAuth, *, host: str, next_key: str | None = None) -> Proved | Refusal:
    """Looks at a device's proof, whose shape was checked.

    Args:
        devices: what the database knows.
        auth: the proof.
        host: the name that was dialled.
        next_key: of a request for the next key; see `handshake.signed_text`. Such a request may be signed by that key
            itself, where it is registered already.

    Returns: the device; or why it is not let in.

    Raises: DatabaseAway.
    """
    found = await devices.find([auth.device_id])
    proved = judge(found.get(auth.device_id), auth, host=host, next_key=next_key)
    if isinstance(proved, Refusal) or await devices.use_nonces([(auth.device_id, auth.nonce)]):
        return proved
    return used_before()


def judge(device: Device | None, auth: DeviceAuth, *, host: str, next_key: str | None = None) -> Proved | Refusal:
    """All of `prove` but the nonce, which is to be used up if this is good.

    Args:
        device: what the database knows of it, if anything.
        auth, host, next_key: as `prove`.
    """
    refusal = handshake.check_time(auth, wall=time.time())
    if refusal is not None:
        return refusal
    if device is None or device.revoked_at is not None:
        return _refused("this device is unknown or was revoked; pair it again")
    if device.org_disabled:
        return Refusal(CloseCode.FORBIDDEN, DISABLED)
    keys = [device.public_key]
    until = device.previous_until
    if device.previous_key is not None and until is not None and until.timestamp() > time.time():
        keys.append(device.previous_key)
    good = (key for key in keys if handshake.verify_device(auth, public_key=key, host=host, next_key=next_key))
    key = next(good, None)
    if key is None:
        return _refused("the signature is not this device's, or is for another host than this gateway's")
    return Proved(device, key)


def used_before() -> Refusal:
    """The proof is good, and was used up."""
    return _refused("this hello was used before")


def _refused(reason: str) -> Refusal:
    return Refusal(CloseCode.UNAUTHENTICATED, reason)
