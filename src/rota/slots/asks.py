"""A call as it is said to exec servers: its want and its work, made and checked before anything is parked. Pure.

What no exec server could take is refused here, with the field that is wrong. Later it would cost more: a WANT that is
refused waits for its whole time and then looks like a lack of slots, a JOB that cannot be written would take its
connection along, and with it whatever else runs there.
"""

import hashlib
import sys
from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import Any, Final

import msgspec

from rota.commands import Call
from rota.errors import ExecRefused
from rota.slots.messages import Job, Want, Work, encode

TENANT_LENGTH_MAX: Final = 100  # of a Name on the wire
SHORT_TENANT_LENGTH: Final = 60


def asks_of(call: Call, job_id: str) -> tuple[Want, Work]:
    """The want and the work of a call; the work is without its streams, which are made with its slot.

    Raises: ExecRefused that names what is wrong.
    """
    # To wait for ever is a wish that can be kept; a command has a limit in any case. In no time no offer can come.
    for name, value, high_s in (("timeout_s", call.timeout_s, sys.float_info.max), ("wait_s", call.wait_s, inf)):
        if value is not None and not (_is_number(value) and 0 < value <= high_s):
            raise _refused(call, f"{name}={value!r}: give more than 0 seconds, or None")
    said = {
        "type": "WANT", "job_id": job_id, "service": call.service, "priority": call.priority,
        "tenant": tenant_of(call.tenant),
    }  # fmt: skip
    job = {"args": _args(call), "timeout_s": call.timeout_s, "env": _plain(call.env), "subject": call.name}
    try:
        want, work = msgspec.convert(said, Want), msgspec.convert(job, Work)
        # What has the right type may yet be no text that can be written.
        encode(want, frame_bytes_max=_ANY), encode(Job(job_id, work), frame_bytes_max=_ANY)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise _refused(call, str(error)) from None
    return want, work


def tenant_of(tenant: Any) -> Any:
    """A tenant as exec servers know it. The queue takes longer ones, and an empty one; turns need only that the same
    tenant is always the same text."""
    if not tenant and isinstance(tenant, str):
        return None
    if isinstance(tenant, str) and len(tenant) > TENANT_LENGTH_MAX:
        digest = hashlib.sha256(tenant.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{tenant[:SHORT_TENANT_LENGTH]}#{digest[:32]}"
    return tenant


_ANY: Final = 2**62  # its exec server says how long a frame may be, and which that is shows with the slot


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _args(call: Call) -> Any:
    args: Any = call.args
    if isinstance(args, Mapping):
        found: dict[str, Any] | list[Any] = dict(args)
        values = list(args.values())
    elif isinstance(args, Sequence) and not isinstance(args, str | bytes | bytearray | memoryview):
        values = found = list(args)
    else:
        raise _refused(call, f"its arguments are {type(args).__name__}: give an object or a list")
    for value in values:
        if isinstance(value, float) and not isfinite(value):
            raise _refused(call, f"{value} is no argument: give a number")
    return found


def _plain(env: Any) -> Any:
    return dict(env) if isinstance(env, Mapping) else env


def _refused(call: Call, why: str) -> ExecRefused:
    name = str(call.service)[:100]
    shown = f"{name} was not run: {why}.".encode("utf-8", "backslashreplace").decode()
    return ExecRefused(shown.replace("..", "."))
