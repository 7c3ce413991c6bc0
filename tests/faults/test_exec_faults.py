"""What happens when the process that runs commands is killed: nothing of it stays, nobody is told half a truth."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from rota.errors import PipeError
from rota.slots.io.pipes import Pipes
from rota.slots.messages import Done, Job, Receipt, Work, encode, from_server
from rota.slots.poison import CRASHES_MAX
from tests.faults.processes import ROOT, WAIT_S, until


class ExecProcess:
    """The program, as a test talks to it."""

    def __init__(self, folder: Path) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.exec_program", folder / "scratch", folder / "state"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def start(self, job_id: str, code: str, **work: str) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write(encode(Job(job_id, Work(args=[code], **work))) + b"\n")
        self._popen.stdin.flush()

    def receipt(self) -> Receipt:
        """The next receipt."""
        assert self._popen.stdout is not None
        done = from_server(self._popen.stdout.readline())
        assert isinstance(done, Done)
        return done.receipt

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait(WAIT_S)

    def close(self) -> None:
        """Ends it in good order, if it is still there."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        try:
            self._popen.stdin.close()
            self._popen.wait(WAIT_S)
        finally:
            self.kill()
            self._popen.stdout.close()


@contextmanager
def exec_process(folder: Path) -> Iterator[ExecProcess]:
    process = ExecProcess(folder)
    try:
        yield process
    finally:
        process.close()


def pids_in(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def test_the_commands_of_a_killed_exec_server_die_with_it(tmp_path: Path) -> None:
    pids, script = tmp_path / "pids", tmp_path / "deaf.sh"
    script.write_text(f"trap '' TERM HUP\necho $$ >> {pids}\n[ $1 -gt 0 ] && setsid sh $0 0 &\nsleep 1000\n:\n")
    with exec_process(tmp_path) as process:
        for number in range(2):
            process.start(f"job-{number}", f"(sh {script} 1 &); exec sh {script} 1")
        until(lambda: len(pids_in(pids)) == 8, what="all of them run")
        process.kill()
        until(lambda: not any(psutil.pid_exists(pid) for pid in pids_in(pids)), what="all of them are gone")
    left = list((tmp_path / "scratch").iterdir())
    assert left
    with exec_process(tmp_path) as process:
        process.start("next", "true")
        assert process.receipt().ok
        assert not left[0].exists()


def test_so_do_those_that_have_stopped_their_keeper(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with exec_process(tmp_path) as process:
        process.start("once", f"echo $$ >> {pids}; kill -STOP $PPID; sleep 1000")
        process.start("on-and-on", f"echo $$ >> {pids}; while :; do kill -STOP $PPID; done")
        until(lambda: len(pids_in(pids)) == 2, what="both run")
        process.kill()
        until(lambda: not any(psutil.pid_exists(pid) for pid in pids_in(pids)), what="both are gone")


def test_what_takes_the_exec_server_down_is_not_begun_for_ever(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    for crash in range(CRASHES_MAX):
        with exec_process(tmp_path) as process:
            process.start(f"fine-{crash}", "true")
            assert process.receipt().ok
            process.start(f"poison-{crash}", f"echo x >> {begun}; sleep 1000")
            until(lambda crash=crash: begun.exists() and len(begun.read_text().split()) == crash + 1, what="it runs")
            process.kill()
    with exec_process(tmp_path) as process:
        process.start("poison-again", f"echo x >> {begun}; sleep 1000")
        receipt = process.receipt()
        assert (receipt.ended_by, receipt.retryable) == ("refused", False)
        assert receipt.error is not None
        assert "The exec server ended 3 times while this ran" in receipt.error
        process.start("fine", "true")
        assert process.receipt().ok
    assert len(begun.read_text().split()) == CRASHES_MAX


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield b"y\n" * 10_000


async def test_both_ends_of_a_killed_exec_servers_pipes_fail(tmp_path: Path) -> None:
    """S46."""
    pipes = Pipes()
    await pipes.start()
    try:
        with exec_process(tmp_path) as process:
            source, sink = pipes.source(endless()), pipes.sink()
            process.start("job", "cat", stdin=source.url("127.0.0.1"), stdout=sink.url("127.0.0.1"))
            count = 0
            with pytest.raises(PipeError, match="did not come whole"):
                async with asyncio.timeout(WAIT_S):
                    async for chunk in sink:
                        count += len(chunk)
                        if 1_000_000 <= count < 1_000_000 + len(chunk):
                            process.kill()
            give_up_at = time.monotonic() + WAIT_S
            while len(pipes) and time.monotonic() < give_up_at:
                await asyncio.sleep(0.02)
            assert len(pipes) == 0
            assert source.error is not None
    finally:
        await pipes.stop()
