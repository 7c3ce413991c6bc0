"""What holds the memory of commands here, found out by trying it: the system's own limit on each process.

All processes of a command together are looked at four times a second (`rota.slots.io.watch`), whatever the system has.
"""

import subprocess
import sys
from typing import Final

TRY_S: Final = 20.0
_PROGRAM: Final = """
import mmap, resource
resource.setrlimit(resource.RLIMIT_DATA, (1 << 28, 1 << 28))
try:
    mmap.mmap(-1, 1 << 29, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
except OSError:
    raise SystemExit(0)
raise SystemExit(1)
"""


def data_limit_stands() -> bool:
    """Whether this system refuses memory beyond RLIMIT_DATA; it runs a program: call it in a thread."""
    try:
        done = subprocess.run(  # noqa: S603 - our own few lines
            [sys.executable, "-I", "-S", "-c", _PROGRAM], stdin=subprocess.DEVNULL, capture_output=True, timeout=TRY_S,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0
