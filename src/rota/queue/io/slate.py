"""What a worker lets its warden read: memory that outlives its process.

A handler that holds the interpreter has its process killed by the warden, and then nobody could say whose fault it was.
So the event loop notes here whose step it runs, and each job in a thread or a child process is noted while it runs.
Who is not noted was waiting, and had no part in it.

The layout is that of `warden_process`, which reads it.
"""

import mmap
import os
import tempfile
import threading
import weakref
from typing import Final

from rota.ids import JobId
from rota.queue.io import warden_process
from rota.queue.io.warden_process import APART_MAX, ID_BYTES, SLATE_BYTES

FREE: Final = bytes(ID_BYTES)


class Slate:
    """The memory. A step is noted by the event loop's thread alone; the rest may be called from any thread.

    Attributes:
        descriptor: its file, which the warden is given.
        memory: begins with the id of the job whose step runs; written before each step.
        begin: the same; its first number is set to 0 after each step, and no id begins so.
    """

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self.descriptor = os.memfd_create("rota-slate")
        else:
            with tempfile.TemporaryFile() as file:
                self.descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self.descriptor)
        os.truncate(self.descriptor, SLATE_BYTES)
        self.memory = mmap.mmap(self.descriptor, SLATE_BYTES)
        self.begin = memoryview(self.memory).cast("q")
        self._lock = threading.Lock()
        self._free = list(range(APART_MAX, 0, -1))
        self._unnoted = 0

    @property
    def stepping(self) -> bytes | None:
        """The id of the job whose step runs now."""
        found = bytes(self.memory[:ID_BYTES])
        return found if any(found[:8]) else None

    def begins_apart(self, job_id: JobId) -> int:
        """Notes that a job begins in a thread or a child process. Returns: what `ended_apart` takes."""
        with self._lock:
            if not self._free:
                self._unnoted += 1
                self._count_unnoted()
                return 0
            place = self._free.pop()
            self.memory[place * ID_BYTES : (place + 1) * ID_BYTES] = job_id.bytes
            return place

    def ended_apart(self, place: int) -> None:
        """Notes that it has ended, and all that it did."""
        with self._lock:
            if place == 0:
                self._unnoted -= 1
                self._count_unnoted()
                return
            self.memory[place * ID_BYTES : (place + 1) * ID_BYTES] = FREE
            self._free.append(place)

    def _count_unnoted(self) -> None:
        at = warden_process.UNNOTED_AT
        self.memory[at : at + ID_BYTES] = self._unnoted.to_bytes(ID_BYTES, "little")
