"""What a process may use of memory, and what a tree takes."""

import os
import subprocess
import sys
from pathlib import Path

import psutil

from rota.io.memory import memory_bytes, taken_bytes

MIB = 1 << 20


def told(folder: Path, **limits: str) -> tuple[Path, Path]:
    """Control groups `/a/b` with the limits of each."""
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "own").write_text("1:name=systemd:/x\n0::/a/b\n")
    for name, text in limits.items():
        (folder / name.replace("_", "/") / "memory.max").write_text(text)
    return folder, folder / "own"


def test_the_least_limit_of_the_groups_above_counts(tmp_path: Path) -> None:
    groups, own = told(tmp_path, a="104857600\n", a_b="max\n")
    assert memory_bytes(cgroups=groups, own=own) == 100 * MIB


def test_without_limits_it_is_the_machines_memory(tmp_path: Path) -> None:
    groups, own = told(tmp_path, a="max\n", a_b="max\n")
    assert memory_bytes(cgroups=groups, own=own) == psutil.virtual_memory().total
    assert memory_bytes(cgroups=tmp_path / "absent", own=tmp_path / "absent") == psutil.virtual_memory().total


def test_the_first_version_of_control_groups_has_another_file(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("52428800\n")
    assert memory_bytes(cgroups=tmp_path, own=tmp_path / "absent") == 50 * MIB


def test_what_descendants_take_is_counted_and_nothing_else() -> None:
    before = taken_bytes(os.getpid())
    # A program whose child takes 64 MiB and says so.
    child = "import sys; held = bytearray(b'x') * (64 << 20); print('held', flush=True); sys.stdin.read()"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None and started.stdout.readline() == b"held\n"
        taken, without_its_own = taken_bytes(os.getpid()) - before, taken_bytes(started.pid)
        started.communicate()
    assert taken > without_its_own > 64 * MIB
    assert taken_bytes(started.pid) == 0
