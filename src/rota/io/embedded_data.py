"""Makes the data of an embedded PostgreSQL: with initdb, or as a copy of data made before.

It starts no server that takes connections, and never touches data that exists.

Invariant: `data` appears in its folder by one rename and is complete then, with role and database `rota`; a crash in
between leaves a `data.new` that the next attempt throws away.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rota.errors import EmbeddedError
from rota.io.embedded_binaries import (
    ENVIRONMENT,
    ServerUser,
    binaries_of,
    find_binaries,
    launch_command,
    major_of,
    server_user,
)
from rota.io.embedded_folder import Folder, tail
from rota.io.embedded_probe import DATABASE, ROLE

INITDB_S_MAX = 120.0  # 0.3 s on a laptop; a slow disk that honours fsync may need a hundred times that


def make_template(folder: Path, *, binaries: Path | None = None, fsync: bool = True) -> None:
    """Makes the data of a server without starting it, to be copied by `clone_template`.

    Args:
        folder: new or empty.
        binaries: PostgreSQL's programs; found by `find_binaries` if not given.
        fsync: False only for data that may be lost.

    Raises:
        EmbeddedError: the folder is in use or holds something, or PostgreSQL could not make its data.
    """
    target = Folder.at(folder)
    with _locked_for_new_data(target) as lock:
        make_data(target, binaries=find_binaries(binaries), user=server_user(target.path), lock=lock, fsync=fsync)


def clone_template(template: Path, *, folder: Path) -> None:
    """Copies the data of a server that does not run to a new folder, several times faster than making it.

    The copy is for tests and experiments: it is not forced to disk, and a power cut soon after may destroy it.

    Args:
        template: a folder made by `make_template`, or by a server that was stopped.
        folder: new or empty; an `EmbeddedPostgres` can then be started on it.

    Raises:
        EmbeddedError: a server runs on the template, it has no data, or the folder is in use or holds something.
    """
    source, target = Folder.at(template), Folder.at(folder)
    if source.major() is None:
        raise EmbeddedError(f"{source.path} holds no PostgreSQL data to copy.")
    with _locked_for_new_data(target):
        source_lock = source.try_lock()
        if source_lock is None:
            raise EmbeddedError(f"{source.path} is held by {source.lock_holder()}: stop its server before copying it.")
        try:
            user = server_user(target.path)
            target.give_to(user)
            with _named_when_complete(target, fsync=False):
                _copy(source.data, to=target.new_data)
                user.own_tree(target.new_data)
        finally:
            os.close(source_lock)


def make_data(folder: Folder, *, binaries: Path, user: ServerUser, lock: int, fsync: bool) -> None:
    """Makes `data`. The caller holds the lock, and there is no data yet.

    Args:
        folder: where.
        binaries: PostgreSQL's programs.
        user: who runs them; the folder is given to that user.
        lock: the lock's descriptor; the programs keep the lock too, in case we are killed before they end.
        fsync: whether the data must survive a power cut.

    Raises:
        EmbeddedError: PostgreSQL could not make it; nothing is left behind.
    """
    new = folder.new_data
    initdb = (binaries / "initdb", "--pgdata", new, "--username", ROLE, "--encoding=UTF8", "--locale=C")
    options = ("--auth-local=trust", "--auth-host=reject", "--no-instructions", *(() if fsync else ("--no-sync",)))
    # Single-user mode makes the database before the data has its name: data without it cannot exist.
    single = (
        binaries / "postgres",
        "--single",
        "-D",
        new,
        "-c",
        "exit_on_error=on",
        "-c",
        f"fsync={fsync}",
        "postgres",
    )
    folder.give_to(user)
    with _named_when_complete(folder, fsync=fsync):
        _run(launch_command(user, *initdb, *options), folder=folder, lock=lock, stdin="")
        _run(launch_command(user, *single), folder=folder, lock=lock, stdin=f"CREATE DATABASE {DATABASE}\n")


def refuse_other_version(folder: Folder, *, binaries: Path) -> None:
    """Compares the version of the data, if there is any, with the version of the programs.

    Raises:
        EmbeddedError: they differ; the message names both and the ways out.
    """
    data, programs = folder.major(), major_of(binaries)
    if data is None or data == programs:
        return
    place = f" (such as {found})" if (found := binaries_of(data)) else ""
    raise EmbeddedError(
        f"{folder.path} has data of PostgreSQL {data}, which PostgreSQL {programs} (in {binaries}) cannot read. "
        f"Use the programs of PostgreSQL {data}{place}, save the data with their pg_dump, or choose another folder."
    )


@contextmanager
def _locked_for_new_data(target: Folder) -> Iterator[int]:
    try:
        target.prepare()
        lock = target.try_lock()
        if lock is None:
            raise EmbeddedError(f"{target.path} is held by {target.lock_holder()}.")
        try:
            if target.major() is not None:
                raise EmbeddedError(f"{target.path} has PostgreSQL data already.")
            yield lock
        finally:
            os.close(lock)
    except OSError as error:
        raise EmbeddedError(f"{target.path} cannot hold a PostgreSQL: {error.strerror or error}.") from error


@contextmanager
def _named_when_complete(folder: Folder, *, fsync: bool) -> Iterator[None]:
    shutil.rmtree(folder.new_data, ignore_errors=True)
    try:
        yield
        folder.new_data.rename(folder.data)
    except BaseException:
        shutil.rmtree(folder.new_data, ignore_errors=True)
        raise
    if not fsync:
        return
    descriptor = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)  # the rename must not be lost after the server has promised to keep a commit
    finally:
        os.close(descriptor)


def _copy(source: Path, *, to: Path) -> None:
    try:
        shutil.copytree(source, to, symlinks=True)
    except shutil.Error as error:  # it lists a thousand files: the first reason is enough
        reason = error.args[0][0][2]
        raise EmbeddedError(f"{source} cannot be copied: {reason}.") from error


def _run(command: list[str], *, folder: Folder, lock: int, stdin: str) -> None:
    try:
        done = subprocess.run(  # noqa: S603 - our launcher and PostgreSQL's programs
            command,
            input=stdin.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=ENVIRONMENT,
            timeout=INITDB_S_MAX,
            pass_fds=(lock,),
            start_new_session=True,  # Ctrl-C reaches us alone; the launcher's bond ends the program with us
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EmbeddedError(
            f"PostgreSQL did not make its data in {folder.path} within {INITDB_S_MAX:.0f} s."
        ) from error
    if done.returncode != 0:
        raise EmbeddedError(f"PostgreSQL could not make its data in {folder.path}:{tail(done.stdout)}")
