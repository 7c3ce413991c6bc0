"""Who speaks: the user and the host of this process, for what people do to jobs. It decides nothing."""

import socket

import psutil


def here() -> str:
    """`user@host`; a user without a name is a number."""
    return f"{psutil.Process().username()}@{socket.gethostname()}"
