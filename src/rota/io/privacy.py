"""Keeps what a process holds from other processes of the same user: its memory, its environment, its open files.

What an exec server runs is of the same user, and what a command was given to read may have taken it over. Nothing is
kept from root: run an exec server as a user of its own.
"""

import ctypes
import sys
from typing import Final

PR_SET_DUMPABLE: Final = 4


def keep_private() -> None:
    """From now on only root can look into this process, and no core of it is dumped; a program that it starts is open
    again. Linux; elsewhere nothing changes."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
