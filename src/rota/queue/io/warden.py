"""The warden of a worker: a small process that ends the worker's when its heart cannot.

The heart is a thread, and a handler can keep it from running: C code that holds the interpreter lock, such as a regular
expression that never ends. Nothing in that process runs then but the handler, beyond the end of its lease. So the heart
says at each look by when it looks again, and if it has not, the warden kills the process (I2).

A process that stands still (SIGSTOP) is left alone: nothing runs in it, and its heart is the first to know when it goes
on.

This is the worker's end. The other is `warden_process`, which imports nothing of Rota, so that it stays small.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rota.ids import Holder
from rota.io.log import get_logger, log_settings
from rota.io.postgres import Target
from rota.queue.io import warden_process
from rota.queue.io.slate import Slate

PROGRAM: Final = Path(warden_process.__file__)

log = get_logger("rota.worker")


class Warden:
    """Starts the process, and starts it again should it end; without one a worker works, and says so in its log.

    Args:
        slate: where the worker notes whose step runs.
        target: the database, in which it has jobs given back after it has killed the worker.
        holder: who holds them.
    """

    def __init__(self, slate: Slate, *, target: Target, holder: Holder) -> None:
        self._slate = slate
        self._told = {"target": asdict(target), "holder": holder}
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._failed = False
        self.gone = True
        """Whether there is none. Whoever finds that calls `start`."""

    @property
    def pid(self) -> int | None:
        """Its process, if it has one."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Starts it, if there is none."""
        if not self.gone:
            return
        self.close()
        try:
            theirs, self._pipe = os.pipe()
        except OSError as error:
            self._tell_of_failure(error)
            return
        os.set_blocking(self._pipe, False)
        slate = self._slate.descriptor
        argv = [sys.executable, "-I", "-S", str(PROGRAM), str(theirs), str(slate), str(os.getpid()), _format()]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this very Python
                argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=(theirs, slate), start_new_session=True
            )
            self._tell_at_start(self._process)
        except OSError as error:
            self.close()
            self._tell_of_failure(error)
        else:
            self.gone = self._failed = False
        finally:
            os.close(theirs)

    def _tell_of_failure(self, error: OSError) -> None:
        if not self._failed:
            log.warning("there is no warden: a handler may hold the interpreter beyond its lease", error=str(error))
        self._failed = True

    def _tell_at_start(self, process: "subprocess.Popen[bytes]") -> None:
        """Where the jobs are given back. Not by its arguments, which everybody may read: there is a password in it."""
        log_format, log_level = log_settings()
        told: dict[str, Any] = {
            **self._told,
            "path": list(map(str, sys.path)),
            "log_format": log_format,
            "log_level": log_level,
        }
        assert process.stdin is not None, "it is a pipe"
        with process.stdin as its:
            its.write(json.dumps(told).encode())

    def tell(self, look_by: float) -> None:
        """Says by when the heart looks again; inf: nothing runs. Never waits."""
        if self.gone:
            return
        try:
            os.write(self._pipe, warden_process.FORM.pack(look_by))
        except OSError:
            # It has ended; or it stands still and the pipe is full, and would act on old words when it goes on.
            self.gone = True

    def close(self) -> None:
        """Ends it; safe to repeat, and before `start`."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self.gone = True


def _format() -> str:
    log_format, _ = log_settings()
    if log_format == "auto":
        return "text" if sys.stderr.isatty() else "json"
    return log_format or "text"
