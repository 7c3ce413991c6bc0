"""A PostgreSQL server that a program starts from a folder, for laptops, demonstrations and tests.

Not for production: one machine, one superuser without a password, no backups. The server listens on a unix socket in a
folder closed to other users, and on no network.

Invariants:
- The server ends with the program that started it, however that ends, and nothing committed is lost.
- One server per folder: the lock in the folder is held by the server's own processes, so it is free exactly when the
  last of them is gone. A second program attaches to the server that runs; the owner's stop cuts its connections.
"""

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from rota.errors import EmbeddedError
from rota.io import embedded_binaries
from rota.io.embedded_binaries import ENVIRONMENT, ServerUser, find_binaries, launch_command, server_user, watch_command
from rota.io.embedded_data import clone_template, make_data, make_template, refuse_other_version
from rota.io.embedded_folder import Folder, dsn_of
from rota.io.embedded_probe import DATABASE, PORT, State, ask

__all__ = ["EmbeddedPostgres", "clone_template", "find_binaries", "make_template"]

START_S_MAX = 60.0  # recovery after a crash replays at most one checkpoint's worth of log: seconds, on a slow disk
STOP_S_MAX = (
    30.0  # a fast shutdown waits for one checkpoint; then the server is stopped without, which also loses nothing
)
QUIT_S_MAX = 5.0  # an immediate shutdown waits for nothing
POLL_S_MIN = 0.01  # a warm start takes a few of these
POLL_S_MAX = 0.1  # each look while the server starts is a line in its log

SETTINGS = MappingProxyType(
    {
        "shared_buffers": "128MB",
        "max_connections": "100",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "log_checkpoints": "off",  # a line every five minutes, in a log that is cut at the next start only
        "cluster_name": "rota",  # seen in ps
    }
)
WITHOUT_FSYNC = MappingProxyType({"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"})
# What keeps the server private and findable is not the caller's to change.
_FIXED = frozenset(
    {"listen_addresses", "port", "unix_socket_directories", "unix_socket_permissions", "unix_socket_group"}
    | {"config_file", "data_directory", "hba_file", "ident_file", "external_pid_file"}
)


class EmbeddedPostgres:
    """A server on one folder: started here and owned, or started by another program and attached to.

    Use it as a context manager, or call `start` and `stop`. The server's address is `dsn`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        binaries: Path | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
        fsync: bool = True,
        timeout_s: float = START_S_MAX,
    ) -> None:
        """Remembers what to start; touches nothing.

        Args:
            folder: holds data, log and lock; made on the first start, kept on stop.
            binaries: the folder of PostgreSQL's programs; found by `find_binaries` if not given.
            settings: server settings by name, which win over Rota's; addresses and paths are refused.
            fsync: False only for data that may be lost: a power cut then destroys it.
            timeout_s: how long `start` may take, without the first making of data.

        Raises:
            EmbeddedError: a setting that cannot be changed, or that is no setting's name.
        """
        for name in settings:
            if name in _FIXED or not re.fullmatch(r"[a-z_][a-z0-9_.]*", name):
                raise EmbeddedError(f"{name!r} cannot be set on an embedded PostgreSQL.")
        self._folder = Folder.at(folder)
        self._binaries = binaries
        self._settings = {**SETTINGS, **({} if fsync else WITHOUT_FSYNC), **settings}
        self._fsync = fsync
        self._timeout_s = timeout_s
        self._server: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._dsn: str | None = None
        self._pid: int | None = None

    @property
    def dsn(self) -> str:
        """The address of database `rota`, for asyncpg, psycopg, SQLAlchemy and psql.

        Raises:
            EmbeddedError: it was not started, or was stopped.
        """
        if self._dsn is None:
            raise EmbeddedError(f"The PostgreSQL in {self._folder.path} was not started.")
        return self._dsn

    @property
    def pid(self) -> int | None:
        """The server's process id; None while not started."""
        return self._pid

    @property
    def owner(self) -> bool:
        """Whether this object started the server, and will stop it."""
        return self._server is not None

    def start(self) -> str:
        """Starts the server, or attaches to the one that runs, and waits until it takes connections.

        Only the main thread can start a server, because the server ends with the thread that started it; any thread can
        attach. A start on an object whose server runs does nothing.

        Returns:
            The DSN. The caller must call `stop` in the end.

        Raises:
            EmbeddedError: it did not start in time, or the folder or PostgreSQL cannot be used; the message has the
                reason and the last lines of the server's log.
        """
        if self._server is not None and self._server.poll() is None and self._dsn is not None:
            return self._dsn
        self.stop()
        try:
            return self._start_or_attach()
        except OSError as error:
            raise EmbeddedError(f"{self._folder.path} cannot hold a PostgreSQL: {error.strerror or error}.") from error

    def stop(self) -> None:
        """Stops the server if it was started here, and returns when it is gone; else forgets it.

        Connections are cut; what was committed is on disk. It may be called at any time, and again.
        """
        server, watcher = self._server, self._watcher
        self._server = self._watcher = self._dsn = self._pid = None
        if server is None:
            return
        try:
            _end(server)
        finally:
            if watcher is not None:
                watcher.kill()
                watcher.wait()
            self._folder.drop_socket_folder_if_free()

    def __enter__(self) -> Self:
        """Starts."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops."""
        self.stop()

    def _start_or_attach(self) -> str:
        give_up_at = time.monotonic() + self._timeout_s
        wait_s = POLL_S_MIN
        self._folder.prepare()
        while True:
            lock = self._folder.try_lock()
            if lock is not None:
                try:
                    return self._start_server(lock)
                finally:
                    os.close(lock)  # never unlocked: from here on it is the server's
            if self._attach():
                return self.dsn
            if time.monotonic() > give_up_at:
                raise EmbeddedError(
                    f"{self._folder.path} is held by {self._folder.lock_holder()}, and no PostgreSQL answered there "
                    f"for {self._timeout_s:g} s: end that process, or choose another folder."
                )
            time.sleep(wait_s)
            wait_s = min(wait_s * 2, POLL_S_MAX)

    def _attach(self) -> bool:
        running = self._folder.postmaster()
        if running is None or running.socket_folder is None:
            return False
        answer = ask(running.socket_folder)
        if answer.state is State.REFUSED:
            raise EmbeddedError(f"The PostgreSQL in {self._folder.path} refuses database {DATABASE}: {answer.text}.")
        if answer.state is not State.READY:
            return False
        self._pid = running.pid
        self._dsn = dsn_of(running.socket_folder)
        return True

    def _start_server(self, lock: int) -> str:
        if threading.current_thread() is not threading.main_thread():
            raise EmbeddedError(
                "An embedded PostgreSQL ends with the thread that starts it: start it in the program's main thread."
            )
        folder = self._folder
        binaries = find_binaries(self._binaries)
        user = server_user(folder.path)
        refuse_other_version(folder, binaries=binaries)
        if folder.major() is None:
            make_data(folder, binaries=binaries, user=user, lock=lock, fsync=self._fsync)
        folder.clear_stale()
        socket_folder = folder.make_socket_folder(user)
        try:
            self._spawn(binaries=binaries, user=user, lock=lock, socket_folder=socket_folder)
            self._await_ready(socket_folder)
        except BaseException:
            self.stop()
            folder.drop_socket_folder()
            raise
        return self.dsn

    def _spawn(self, *, binaries: Path, user: ServerUser, lock: int, socket_folder: Path) -> None:
        quoted = str(socket_folder).replace('"', '""')  # the setting is a list of names
        settings = {
            **self._settings,
            "listen_addresses": "",
            "port": str(PORT),
            "unix_socket_directories": f'"{quoted}"',
            "unix_socket_permissions": "0700",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = launch_command(user, binaries / "postgres", "-D", self._folder.data, *options)
        log = self._folder.open_log(user)
        try:
            self._server = subprocess.Popen(  # noqa: S603 - our launcher and PostgreSQL's program
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=ENVIRONMENT,
                pass_fds=(lock,),
                start_new_session=True,  # Ctrl-C must not reach the server before the program has stopped its own work
            )
        finally:
            os.close(log)
        if not embedded_binaries.KERNEL_ENDS_IT:
            watch = watch_command(self._server.pid, self._folder.pidfile)
            silent = subprocess.DEVNULL
            self._watcher = subprocess.Popen(  # noqa: S603 - our own script
                watch, stdin=silent, stdout=silent, stderr=silent, env=ENVIRONMENT, start_new_session=True
            )
        self._pid = self._server.pid
        self._dsn = dsn_of(socket_folder)

    def _await_ready(self, socket_folder: Path) -> None:
        assert self._server is not None, "a server was spawned"
        give_up_at = time.monotonic() + self._timeout_s
        wait_s = POLL_S_MIN
        while True:
            # First the process, then the socket: what answers then is this server, since the lock is ours.
            ended = self._server.poll()
            answer = ask(socket_folder)
            if ended is not None:
                raise EmbeddedError(f"PostgreSQL in {self._folder.path} ended at its start:{self._folder.log_tail()}")
            if answer.state is State.READY:
                return
            if answer.state is State.REFUSED:
                raise EmbeddedError(
                    f"The PostgreSQL in {self._folder.path} refuses database {DATABASE}: {answer.text}."
                )
            if time.monotonic() > give_up_at:
                late = f"PostgreSQL in {self._folder.path} was not ready within {self._timeout_s:g} s:"
                raise EmbeddedError(late + self._folder.log_tail())
            time.sleep(wait_s)
            wait_s = min(wait_s * 2, POLL_S_MAX)


def _end(server: subprocess.Popen[bytes]) -> None:
    # In a forked copy of the program all this does nothing: Popen finds that the server is not its child.
    for how, wait_s in ((signal.SIGINT, STOP_S_MAX), (signal.SIGQUIT, QUIT_S_MAX)):  # fast, then immediate shutdown
        server.send_signal(how)
        try:
            server.wait(wait_s)
            return
        except subprocess.TimeoutExpired:
            continue
    server.kill()  # its children end by themselves when it is gone, and keep the lock until then
    server.wait()
