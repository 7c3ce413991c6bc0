"""The worker's end of its warden, where none can be started."""

import os
import resource

import pytest

from rota.ids import Holder
from rota.io.postgres import Target
from rota.queue.io.slate import Slate
from rota.queue.io.warden import Warden


def open_files() -> set[str]:
    return set(os.listdir("/proc/self/fd" if os.path.exists("/proc/self/fd") else "/dev/fd"))


def test_a_worker_without_a_free_file_works_without_a_warden_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    warden = Warden(Slate(), target=Target("postgresql:///"), holder=Holder("here:1:00000001"))
    lowest = os.dup(0)
    os.close(lowest)
    before, (soft, hard) = open_files(), resource.getrlimit(resource.RLIMIT_NOFILE)
    for spare in (0, 2):  # none for its pipe; none for its process
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + spare, hard))
        try:
            warden.start()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        warden.tell(1.0)
        assert warden.gone and warden.pid is None
        assert open_files() == before
    assert len([line for line in caplog.messages if line.startswith("there is no warden")]) == 1
    warden.close()
