"""What a runner proves itself with in a hello: a device's signature, or the pool's secret. Neither is ever shown.

Spec: runners, "Connection handshake and authentication".
"""

import base64
import os
from collections.abc import Callable
from typing import Final

from rota.runners.dial import Gateway
from rota.runners.handshake import sign_hello
from rota.runners.io.identity import Identity
from rota.runners.messages import DeviceAuth, PoolAuth

NONCE_BYTES: Final = 24
"""More than the 16 that are asked for, and no padding in base64."""

Prove = Callable[[float], DeviceAuth | PoolAuth]
"""Makes the proof of one hello at a wall-clock time, in seconds since 1970."""


def of_device(kept: Callable[[], Identity], gateway: Gateway) -> Prove:
    """Signs for this gateway's host with the device's key as it is kept at that time, since it may be rotated while the
    runner runs; a fresh nonce goes into each."""
    return lambda wall: sign(kept(), gateway, wall)


def sign(identity: Identity, gateway: Gateway, wall: float, *, next_key: str | None = None) -> DeviceAuth:
    """One proof of a device; see `handshake.sign_hello`."""
    return sign_hello(
        private_key=base64.urlsafe_b64decode(identity.private_key + "=="), device_id=identity.device_id,
        host=gateway.host, wall=wall, nonce=os.urandom(NONCE_BYTES), next_key=next_key,
    )  # fmt: skip


def of_pool(credential: str, worker_name: str) -> Prove:
    """Shows the pool's secret."""
    auth = PoolAuth(credential=credential, worker_name=worker_name)
    return lambda _wall: auth
