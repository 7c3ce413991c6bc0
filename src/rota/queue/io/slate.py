"""What a worker lets its warden read: memory that outlives its process.

A handler that holds the interpreter has its process killed by the warden, and then nobody could say whose fault it was.
So the event loop notes here whose step it runs, and each job in a thread is noted with that thread. The warden sees
which thread computes: who else is noted, or is not noted at all, was waiting, and had no part in it. Jobs in child
processes are noted because they may outlive their worker for a moment.

The layout is that of `warden_process`, which reads it.
"""

import mmap
import os
import tempfile
import threading
import weakref
from typing import Final

from rota.ids import JobId
from rota.queue.io.warden_process import APART_MAX, ID_BYTES, PLACE, SLATE_BYTES, UNNOTED, UNNOTED_AT

FREE: Final = bytes(ID_BYTES)
NO_PLACE: Final = -1


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
        self._free = list(reversed(range(APART_MAX)))
        self._unnoted = 0

    @property
    def stepping(self) -> bytes | None:
        """The id of the job whose step runs now."""
        found = bytes(self.memory[:ID_BYTES])
        return found if any(found[:8]) else None

    def begins_apart(self, job_id: JobId, *, thread: int = 0) -> int:
        """Notes that a job begins in a thread or, with no thread of this process, in a child process.

        Args:
            job_id: the job.
            thread: the system's number of its thread (`threading.get_native_id`).

        Returns: what `ended_apart` takes.
        """
        with self._lock:
            if not self._free:
                self._count_unnoted(1)
                return NO_PLACE
            place = self._free.pop()
            PLACE.pack_into(self.memory, ID_BYTES + place * PLACE.size, job_id.bytes, thread)
            return place

    def ended_apart(self, place: int) -> None:
        """Notes that it has ended, and all that it did."""
        with self._lock:
            if place == NO_PLACE:
                self._count_unnoted(-1)
                return
            PLACE.pack_into(self.memory, ID_BYTES + place * PLACE.size, FREE, 0)
            self._free.append(place)

    def _count_unnoted(self, more: int) -> None:
        self._unnoted += more
        UNNOTED.pack_into(self.memory, UNNOTED_AT, self._unnoted)
