"""The launcher: as a script, with programs that need no PostgreSQL; `watch` as a function."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rota.io import embedded_launch
from rota.io.embedded_launch import watch

WAIT_S = 60.0  # only a failing test waits that long
SCRIPT = [sys.executable, "-I", "-S", embedded_launch.__file__]


def launch(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SCRIPT, *args], capture_output=True, text=True, check=False, timeout=WAIT_S)


def launch_sleep(parent_pid: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*SCRIPT, "exec", str(parent_pid), "same", "/bin/sleep", "60"])


def becomes_sleep(process: subprocess.Popen[bytes]) -> bool:
    give_up_at = time.monotonic() + WAIT_S
    while process.poll() is None and time.monotonic() < give_up_at:
        if psutil.Process(process.pid).name() == "sleep":
            return True
    return False


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["/bin/sleep", "60"]) as process:
        yield process
        process.kill()


def test_program_is_run_with_its_arguments() -> None:
    done = launch("exec", str(os.getpid()), "same", "/bin/echo", "it's", "a  b", "")
    assert (done.returncode, done.stdout) == (0, "it's a  b \n")


def test_program_is_not_run_when_the_parent_is_gone_already() -> None:
    done = launch("exec", str(os.getppid()), "same", "/bin/echo", "run")
    assert (done.returncode, done.stdout) == (1, "")


def test_program_that_cannot_be_run_is_named() -> None:
    done = launch("exec", str(os.getpid()), "same", "/no/such/program")
    assert done.returncode == 126
    assert done.stderr.startswith("cannot run /no/such/program: ")


def test_misuse_is_told() -> None:
    assert launch("nonsense").returncode == 2


def test_program_obeys_sigint_also_where_the_shell_had_it_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = launch_sleep(os.getpid())
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        assert becomes_sleep(process)
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(WAIT_S) == -signal.SIGINT
        finally:
            process.kill()


def test_watch_stops_the_server_after_the_parent(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    pidfile = tmp_path / "postmaster.pid"
    pidfile.write_text(f"{sleeper.pid}\n/data\n")
    watch(0, sleeper.pid, str(pidfile))
    assert sleeper.wait(WAIT_S) == -signal.SIGINT


@pytest.mark.parametrize("content", ["1\n/data\n", "", None])
def test_watch_spares_a_process_that_is_not_the_server(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    monkeypatch.setattr(embedded_launch, "NAMING_S_MAX", 0.05)
    monkeypatch.setattr(embedded_launch, "WATCH_EVERY_S", 0.01)
    pidfile = tmp_path / "postmaster.pid"
    if content is not None:
        pidfile.write_text(content)
    signals: list[tuple[int, int]] = []
    monkeypatch.setattr("os.kill", lambda *sent: signals.append(sent))
    watch(0, sleeper.pid, str(pidfile))
    assert signals == []
