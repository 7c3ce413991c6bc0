"""`rota` for the fault tests: as it is, but with quicker pings or shorter leases, or as an exec server of the time
before the broker.

FAULTS_GATE is a file for which it waits before it begins, with all of its code read.
FAULTS_PING_S is how often both sides ping and how long they wait for the answer; with FAULTS_OLD an exec server has the
two older routes alone. FAULTS_LEASE_S is how long a runner's lease is, and what belongs to it is shorter with it.
"""

import functools
import os
import time
from pathlib import Path

from rota.cli.main import main
from rota.slots.io import execserver, links, server


def run() -> None:
    """Runs the command line."""
    if gate := os.environ.get("FAULTS_GATE"):
        print("waits at the gate", flush=True)
        while not Path(gate).exists():
            time.sleep(0.02)
    if ping_s := os.environ.get("FAULTS_PING_S"):
        links.PING_EVERY_S = links.PING_TIMEOUT_S = float(ping_s)  # type: ignore[misc]
        execserver.Listen = functools.partial(server.Listen, ping_s=float(ping_s))  # type: ignore[misc, assignment]
    if os.environ.get("FAULTS_OLD"):
        from tests.integration.real_exec_server import OldExecServer

        execserver.ExecServer = OldExecServer  # type: ignore[misc]
    if lease_s := os.environ.get("FAULTS_LEASE_S"):
        from tests.faults.runner_times import shorten

        shorten(float(lease_s))
    main()


if __name__ == "__main__":
    run()
