"""What a process that a program forks keeps of its parent's signals: nothing.

An event loop hears signals through a pipe, which a forked process (`multiprocessing` forks by default on Linux) shares
with its parent: a SIGTERM for the one, as `Pool` sends it, would be heard by the other as its own. And whoever ignores
a signal has all ignore it that it starts. So a forked process begins with the system's own reactions, as any other.
"""

import os
import signal
import threading
from typing import Final

HEARD: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The signals by which processes are told to stop."""


_before: Final = threading.local()
"""What each thread blocked before its fork."""
_told: Final = threading.Event()


def hear_for_themselves() -> None:
    """From now on, what this process forks hears signals for itself alone. Safe to repeat."""
    if not _told.is_set():
        _told.set()
        os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_begin)


def take_no_notice() -> None:
    """This process takes no notice of the signals that stop others; what it starts does. From the main thread."""
    for number in HEARD:
        signal.signal(number, lambda *_: None)
        # A call of a library that was not written for it is not to be broken off.
        signal.siginterrupt(number, False)
    hear_for_themselves()


def _hold() -> None:
    # One that comes between the fork and its new life waits for that.
    _before.mask = signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)


def _let_go() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _before.mask)


def _begin() -> None:
    signal.set_wakeup_fd(-1)
    for number in HEARD:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)
    _let_go()
