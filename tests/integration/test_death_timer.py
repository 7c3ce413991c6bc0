"""The timer of the system that ends its own process."""

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import sys, time
from math import inf
from rota.io.clock import lease_clock
from rota.io.death_timer import DeathTimer

timer = DeathTimer()
timer.set(lease_clock() + 0.2)
if sys.argv[1] == "put off":
    timer.set(inf)
elif sys.argv[1] == "closed":
    timer.close()
    timer.close()
    timer.set(lease_clock() + 0.1)
time.sleep(0.5)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such a timer")
@pytest.mark.parametrize(("what", "status"), [("set", -signal.SIGKILL), ("put off", 0), ("closed", 0)])
def test_it_ends_its_process_unless_it_was_put_off_or_given_back(what: str, status: int) -> None:
    assert subprocess.run([sys.executable, "-c", PROGRAM, what], check=False, timeout=60).returncode == status
