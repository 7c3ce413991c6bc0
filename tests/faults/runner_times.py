"""The times of the runner fabric, made shorter in a process of a test.

What depends on a lease of 45 seconds is shortened with it. Not all by as much: a busy machine needs its time, so
heartbeats come twice as often, which leaves more of a lease to find another gateway in, and ops wait for longer.
"""

import functools
import sys
from typing import Any

from rota.demo import runners as demo
from rota.runners import agent, gateway_dealing, gateway_jobs, gateway_ops, gateway_outgoing, messages
from rota.runners.io import internal_api, replica
from rota.runners.io.store import RunnerStore

WHOLE_S = messages.DEAD_AFTER_S
_SHARES: dict[Any, dict[str, float]] = {
    messages: {"HEARTBEAT_S": 0.5, "DEAD_AFTER_S": 1},
    agent: {"LEASE_S": 1, "UNCONFIRMED_S": 1, "SILENCE_S": 0.6, "SLEPT_S": 1.5, "REFUSED_S": 0.5, "HURRIED_S": 2},
    internal_api: {"FORWARD_LOOK_S": 1},
    demo: {"SLEEP_S": 1},
    gateway_jobs: {"LEASE_S": 1},
    gateway_dealing: {"ACCEPT_S": 1, "DECLINED_S": 1},
    gateway_outgoing: {"GRACE_S": 1},
    gateway_ops: {"AWAY_S": 7},
}
_OF_STORE = {"claim": "lease_s", "renew": "lease_s", "resume": "lease_s", "reap": "grace_s"}
_WHOLE = ("HEARTBEAT_S", "DEAD_AFTER_S", "GRACE_S")
"""They travel as whole seconds."""


def shorten(lease_s: float) -> None:
    """Makes a lease so long, and the rest shorter with it."""
    share = lease_s / WHOLE_S
    for module, names in _SHARES.items():
        for name, more in names.items():
            value = getattr(module, name) * share * more
            setattr(module, name, max(1, round(value)) if name in _WHOLE else value)
    for name, of_time in _OF_STORE.items():
        defaults = getattr(RunnerStore, name).__kwdefaults__
        defaults[of_time] *= share
    demo.ROTA = (sys.executable, "-P", "-m", "tests.faults.rota_program")  # type: ignore[misc]  # what it starts, too
    replica.Pace = functools.partial(replica.Pace, look_s=0.3, reap_s=0.5)  # type: ignore[misc, assignment]
