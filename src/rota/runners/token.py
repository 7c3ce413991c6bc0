"""Job tokens: what a runner shows with each message about a job. Pure.

A token is a JWT of one algorithm, HS256, signed with a key of the gateway's that all replicas share. Which algorithm
and key are used is never read from a token. It covers one job at one epoch and ends five minutes after the job's time.

Spec: runners, "Job lifecycle, leases and fencing".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import jwt

AFTERLIFE_S: Final = 300
"""How long after its job's time a token may still be shown: until a late end has been told."""
KEY_BYTES_MIN: Final = 32
"""As long as what HMAC-SHA256 gives: a shorter key could be guessed more easily than the signature."""
_ALGORITHM: Final = "HS256"
_CLAIMS: Final = ("jobId", "epoch", "orgId", "exp")
_OPTIONS: Final[Any] = {"require": list(_CLAIMS), "verify_exp": False, "verify_iat": False, "verify_nbf": False}


@dataclass(frozen=True, slots=True)
class Claims:
    """What a good token says.

    Attributes:
        job_id: the job.
        epoch: of its lease.
        org_id: whose job it is.
        exp: when the token ends, in seconds since 1970.
        session_id: the session, where the token names one.
    """

    job_id: str
    epoch: int
    org_id: str
    exp: int
    session_id: str | None = None


class TokenKeys:
    """Signs and reads job tokens.

    Args:
        keys: the first one signs, all are tried on reading, so that a key can be changed while jobs run.

    Raises: ValueError if there is no key, or one is too short.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys or any(len(key) < KEY_BYTES_MIN for key in keys):
            raise ValueError(f"A gateway needs a key of at least {KEY_BYTES_MIN} bytes for job tokens.")
        self._keys = tuple(keys)

    def __repr__(self) -> str:
        return f"TokenKeys({len(self._keys)})"

    def mint(self, claims: Claims) -> str:
        """The token of these claims."""
        content: dict[str, Any] = {
            "jobId": claims.job_id, "epoch": claims.epoch, "orgId": claims.org_id, "exp": claims.exp,
        }  # fmt: skip
        if claims.session_id is not None:
            content["sessionId"] = claims.session_id
        return jwt.encode(content, self._keys[0], algorithm=_ALGORITHM)

    def read(self, token: str, *, wall: float) -> Claims | None:
        """The claims of a token that is good now; None if it is not, for whatever reason.

        Args:
            token: as it came.
            wall: seconds since 1970.
        """
        for key in self._keys:
            try:
                # The time is compared below: the library would read a clock of its own.
                content = jwt.decode(token, key, algorithms=[_ALGORITHM], options=_OPTIONS)
            except (jwt.InvalidTokenError, ValueError, TypeError, RecursionError):
                continue
            return _claims(content, wall)
        return None


def expiry(*, wall: float, timeout_s: float) -> int:
    """When the token of a job ends that may run for so long from now."""
    return int(wall + timeout_s + AFTERLIFE_S)


def _claims(content: dict[str, Any], wall: float) -> Claims | None:
    job_id, epoch, org_id, exp = (content.get(name) for name in _CLAIMS)
    session_id = content.get("sessionId")
    if not (isinstance(job_id, str) and isinstance(org_id, str) and isinstance(session_id, str | None)):
        return None
    if type(epoch) is not int or type(exp) is not int or exp <= wall:
        return None
    return Claims(job_id, epoch, org_id, exp, session_id)
