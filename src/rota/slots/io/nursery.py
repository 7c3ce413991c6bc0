"""The process that forks keepers, and buries them. Started by `rota.slots.io.keepers`; imports little, as they do."""

import gc
import os
import select
import signal
import socket
import sys
import time
from typing import Final, NoReturn

from rota.io.kill import adopt_orphans, kill_orphans
from rota.io.passing import receive
from rota.io.privacy import keep_private
from rota.slots.io.keeper import Children, nothing, serve

FAREWELL_S: Final = 10.0
"""How long the nursery waits for its keepers to clean up after the exec server has ended; then it kills them."""
LOOK_S: Final = 0.25


def _nursery(control: socket.socket) -> None:
    """Forks a keeper for each socket that comes in by `control`; ends after it, and after them."""
    children = Children()
    keepers: set[int] = set()
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(children.wake, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == children.wake:
                _bury(children, keepers)
                continue
            data, found = receive(control, 1)
            if not data:
                _farewell(children, keepers)
                return
            pid = os.fork()
            if pid == 0:
                control.close()
                _become_keeper(found[0])
            os.close(found[0])
            keepers.add(pid)


def _become_keeper(descriptor: int) -> NoReturn:
    status = 1
    try:
        with socket.socket(fileno=descriptor) as wire:
            serve(wire)
        status = 0
    finally:
        os._exit(status)


def _bury(children: Children, keepers: set[int]) -> None:
    """Reaps keepers that ended, and kills what one that was killed has left behind."""
    children.clear()
    died = False
    for pid in list(keepers):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            keepers.discard(pid)
            died = died or status != 0
    while died and kill_orphans(but=keepers):
        pass  # what those had started is an orphan now


def _farewell(children: Children, keepers: set[int]) -> None:
    give_up_at = time.monotonic() + FAREWELL_S
    while keepers:
        late = time.monotonic() >= give_up_at
        for pid in keepers:
            # A command may have stopped its keeper, which then does not see that the exec server is gone.
            os.kill(pid, signal.SIGKILL if late else signal.SIGCONT)
        select.select([children.wake], [], [], LOOK_S)
        _bury(children, keepers)
    kill_orphans(but=set())


def main() -> None:
    """Runs the nursery on the socket whose number is the last argument."""
    adopt_orphans()
    keep_private()  # it has the environment of the exec server
    os.umask(0o077)
    gc.freeze()  # keepers share it, untouched
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)  # what commands read that are given nothing
    os.close(empty)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # What is meant for the exec server: commands end in its order, or with it.
        signal.signal(number, nothing)
    with socket.socket(fileno=int(sys.argv[-1])) as control:
        _nursery(control)
