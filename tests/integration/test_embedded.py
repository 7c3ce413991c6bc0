"""The embedded PostgreSQL, with real servers and real programs that are really killed.

Programs run the module from a copy of its few files: an ordinary user can then read them wherever the checkout lies,
and they start fast. Each test gets a folder of its own (`place`), and fails if a process is left in it.
"""

import asyncio
import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

import rota.io.embedded as module
from rota.errors import EmbeddedError
from rota.io import embedded_binaries, embedded_data, embedded_folder, embedded_probe
from rota.io.embedded import EmbeddedPostgres, clone_template, find_binaries, make_template
from rota.io.embedded_binaries import launch_command, server_user
from tests.postgres_servers import DEBIAN_15, Psql, server_binaries, unavailable

NOBODY = 65534
WAIT_S = 60.0  # generous: only a failing test waits that long

PROGRAM = """
import os
import signal
import sys
from pathlib import Path
from rota.errors import EmbeddedError
from rota.io import embedded_binaries
from rota.io.embedded import EmbeddedPostgres

folder, binaries, mode = sys.argv[1:]
if mode == "refused":
    embedded_binaries.namespaces_work = lambda: False
if mode == "watched":
    embedded_binaries.KERNEL_ENDS_IT = False
signal.signal(signal.SIGINT, lambda *_: os.write(1, b"interrupted\\n"))
server = EmbeddedPostgres(Path(folder), binaries=Path(binaries))
try:
    print(server.start(), server.pid, server.owner, flush=True)
    sys.stdin.read()
except EmbeddedError as error:
    print("error:", error, flush=True)
finally:
    server.stop()
"""


@dataclass
class Program:
    """A program that runs a server until its input ends, and what it said."""

    process: subprocess.Popen[str]
    dsn: str = ""
    server_pid: int = 0
    owner: bool = False
    error: str = ""

    def listen(self) -> "Program":
        """Waits for what it has to say."""
        first = self.line()
        if first.startswith("error: "):
            self.error = first.removeprefix("error: ") + self.process.communicate()[0]
        else:
            self.dsn, pid, owner = first.split()
            self.server_pid, self.owner = int(pid), owner == "True"
        return self

    def line(self) -> str:
        """Waits for one line of its output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self) -> None:
        """Ends its input and waits until it has stopped."""
        self.process.communicate(timeout=WAIT_S)
        assert self.process.returncode == 0

    def kill(self) -> None:
        """Ends it with SIGKILL."""
        self.process.kill()
        self.process.communicate(timeout=WAIT_S)


Run = Callable[..., Program]


def plain_user_python() -> str | None:
    """Finds a Python that an ordinary user can run: the one of these tests may lie in root's home."""
    for python in (sys.executable, "/usr/bin/python3"):
        command = ["sh", "-c", 'exec "$0" -I -S -c "import sys; sys.exit(sys.version_info < (3, 11))"', python]
        if subprocess.run([*as_plain_user(), *command], capture_output=True, check=False).returncode == 0:
            return python
    return None


def plain_user_binaries() -> Path | None:
    """Finds PostgreSQL's programs that an ordinary user can run."""
    for binaries in (find_binaries(), DEBIAN_15):
        check = ["sh", "-c", 'exec "$0" --version', str(binaries / "postgres")]
        if subprocess.run([*as_plain_user(), *check], capture_output=True, check=False).returncode == 0:
            return binaries
    return None


def as_plain_user() -> list[str]:
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]


def processes_in(place: Path) -> list[psutil.Process]:
    """Lists the live processes that work in a folder, as each process of a server works in its data."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()).is_relative_to(place):
                found.append(process)
        except psutil.Error:
            continue
    return found


def until(condition: Callable[[], bool]) -> bool:
    """Waits for a condition; gives whether it came."""
    give_up_at = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture
def place(fast_place: Path) -> Iterator[Path]:
    """A folder that other users can reach into; nothing may run in it at the end."""
    folder = Path(tempfile.mkdtemp(dir=fast_place))
    folder.chmod(0o711)
    yield folder
    left = processes_in(folder)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=WAIT_S)
    shutil.rmtree(folder)
    assert not left, f"these were left running: {left}"


@pytest.fixture(scope="module")
def source_tree(fast_place: Path) -> Path:
    """A copy of the module that every user can read."""
    tree = Path(tempfile.mkdtemp(dir=fast_place))
    tree.chmod(0o755)
    here = Path(module.__file__).parent
    (tree / "rota" / "io").mkdir(parents=True)
    (tree / "rota" / "__init__.py").touch()
    (tree / "rota" / "io" / "__init__.py").touch()
    shutil.copy(here.parent / "errors.py", tree / "rota")
    for file in here.glob("embedded*.py"):
        shutil.copy(file, tree / "rota" / "io")
    return tree


@pytest.fixture
def run(source_tree: Path) -> Iterator[Run]:
    """Starts programs that run a server, in one of the modes, and ends those that still run."""
    processes = []

    def start(folder: Path, mode: str = "same") -> Program:
        python, binaries = sys.executable, find_binaries()
        prefix: list[str] = []
        if mode == "plain":
            plain_python, plain_binaries = plain_user_python(), plain_user_binaries()
            assert plain_python and plain_binaries, "the mode is tested"
            python, binaries, prefix = plain_python, plain_binaries, as_plain_user()
        process = subprocess.Popen(
            [*prefix, python, "-B", "-c", PROGRAM, str(folder), str(binaries), mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            env={"PYTHONPATH": str(source_tree), "PATH": os.defpath},
            start_new_session=True,
        )
        processes.append(process)
        return Program(process)

    yield start
    for process in processes:
        with process:  # closes its pipes
            process.kill()


@pytest.fixture(params=["same", "plain", "refused", "watched"])
def mode(request: pytest.FixtureRequest) -> str:
    """Who runs the server: this user, another, root without namespaces; and this user without the kernel's help."""
    mode: str = request.param
    if mode in ("plain", "refused") and os.geteuid() != 0:
        pytest.skip("only root can become another user; as an ordinary user, `same` is that test")
    if mode == "plain" and (plain_user_python() is None or plain_user_binaries() is None):
        unavailable("plain-user", "an ordinary user can run no Python 3.11 or no PostgreSQL here")
    if mode == "refused" and plain_user_binaries() != find_binaries():
        pytest.skip("nobody cannot run this PostgreSQL")
    return mode


@pytest.fixture
def folder(place: Path, request: pytest.FixtureRequest) -> Path:
    """The folder of a server in `place`; in the mode of another user, that user's."""
    folder = place / "pg"
    if "mode" in request.fixturenames and request.getfixturevalue("mode") == "plain":
        folder.mkdir(0o700)
        os.chown(folder, NOBODY, NOBODY)
    return folder


@pytest.fixture(scope="module")
def templates(fast_place: Path) -> Callable[[str], Path]:
    """Data of each version, made once."""
    base = Path(tempfile.mkdtemp(dir=fast_place))

    def get(name: str) -> Path:
        if not (base / name).exists():
            make_template(base / name, binaries=server_binaries(name), fsync=False)
        return base / name

    return get


@pytest.fixture
def made(folder: Path, templates: Callable[[str], Path]) -> Path:
    """A folder with PostgreSQL 18 data, not running."""
    clone_template(templates("postgres18"), folder=folder)
    return folder


def rows(psql: Psql, dsn: str) -> str:
    return psql(dsn, "SELECT string_agg(name, ',' ORDER BY name) FROM kept")


# The life of a server


@pytest.mark.parametrize("name", ["postgres18", "postgres15"])
def test_data_outlives_a_stop(place: Path, psql: Psql, name: str) -> None:
    binaries = server_binaries(name)
    with EmbeddedPostgres(place / "pg", binaries=binaries) as server:
        psql(server.dsn, "CREATE TABLE kept (name text)")
        psql(server.dsn, "INSERT INTO kept VALUES ('a')")
        first_pid = server.pid
        assert server.owner
        assert psql(server.dsn, "SHOW server_version").startswith(name.removeprefix("postgres"))
    assert processes_in(place) == []
    with EmbeddedPostgres(place / "pg", binaries=binaries) as server:
        assert rows(psql, server.dsn) == "a"
        assert server.pid != first_pid
    assert {path.name for path in (place / "pg").iterdir()} == {"data", "lock", "postgres.log", "postgres.log.1"}


def test_server_is_private_and_set_up(made: Path, psql: Psql) -> None:
    made.chmod(0o755)
    with EmbeddedPostgres(made, settings={"work_mem": "5MB", "max_connections": "17"}) as server:
        assert server.pid is not None
        assert psutil.Process(server.pid).net_connections("inet") == []
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
        assert psql(server.dsn, "SELECT current_user, current_database()") == "rota|rota"
        assert psql(server.dsn, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user") == "t"
        assert (
            psql(
                server.dsn,
                "SELECT pg_encoding_to_char(encoding), datcollate, datctype FROM pg_database WHERE datname = 'rota'",
            )
            == "UTF8|C|C"
        )
        shown = ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "work_mem", "max_connections")
        assert [psql(server.dsn, f"SHOW {name}") for name in shown] == ["on", "on", "on", "128MB", "5MB", "17"]
        rules = psql(server.dsn, "SELECT DISTINCT type, auth_method FROM pg_hba_file_rules ORDER BY 1")
        assert rules.splitlines() == ["host|reject", "local|trust"]


def test_without_fsync(made: Path, psql: Psql) -> None:
    with EmbeddedPostgres(made, fsync=False) as server:
        shown = ("fsync", "synchronous_commit", "full_page_writes")
        assert [psql(server.dsn, f"SHOW {name}") for name in shown] == ["off", "off", "off"]


def test_stop_may_come_at_any_time(made: Path) -> None:
    server = EmbeddedPostgres(made)
    server.stop()
    assert (server.pid, server.owner) == (None, False)
    with pytest.raises(EmbeddedError, match="was not started"):
        _ = server.dsn
    dsn = server.start()
    pid = server.pid
    assert server.start() == dsn
    assert server.pid == pid
    server.stop()
    server.stop()
    assert (server.pid, server.owner) == (None, False)
    assert server.start() == dsn
    server.stop()


def test_stop_does_not_wait_for_clients(made: Path, psql: Psql) -> None:
    server = EmbeddedPostgres(made)
    dsn = server.start()

    def sleep() -> None:
        with pytest.raises(AssertionError, match="terminating connection"):
            psql(dsn, "SELECT pg_sleep(60)")

    sleeper = threading.Thread(target=sleep)
    sleeper.start()
    assert until(lambda: psql(dsn, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == "1")
    server.stop()
    sleeper.join(WAIT_S)
    assert not sleeper.is_alive()
    assert "received fast shutdown request" in (made / "postgres.log").read_text()
    assert "database system is shut down" in (made / "postgres.log").read_text()


def test_server_that_hangs_is_ended_and_loses_nothing(made: Path, psql: Psql, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STOP_S_MAX", 0.2)
    monkeypatch.setattr(module, "QUIT_S_MAX", 0.2)
    server = EmbeddedPostgres(made)
    psql(server.start(), "CREATE TABLE kept AS SELECT 'a' AS name")
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)  # it cannot obey SIGINT or SIGQUIT
    server.stop()
    assert rows(psql, server.start()) == "a"
    server.stop()


def test_server_that_crashed_is_started_again(made: Path, psql: Psql) -> None:
    with EmbeddedPostgres(made) as server:
        psql(server.dsn, "CREATE TABLE kept AS SELECT 'a' AS name")
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        psutil.Process(server.pid).wait(WAIT_S)
        assert rows(psql, server.start()) == "a"
        assert server.owner


def test_only_the_main_thread_starts_but_any_attaches(made: Path) -> None:
    def in_thread(server: EmbeddedPostgres) -> str:
        said: list[str] = []

        def work() -> None:
            try:
                said.append(server.start())
            except EmbeddedError as error:
                said.append(str(error))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join(WAIT_S)
        return said[0]

    assert "main thread" in in_thread(EmbeddedPostgres(made))
    with EmbeddedPostgres(made) as server:
        attached = EmbeddedPostgres(made)
        assert in_thread(attached) == server.dsn
        assert not attached.owner


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork beside a thread of an earlier test
def test_forked_copy_does_not_stop_it(made: Path, psql: Psql) -> None:
    with EmbeddedPostgres(made) as server:
        child = os.fork()
        if child == 0:
            server.stop()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert psql(server.dsn, "SELECT 1") == "1"


def test_environment_of_the_program_does_not_matter(made: Path, psql: Psql, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGDATA", "PGTZ", "LC_ALL", "SECRET"):
        monkeypatch.setenv(name, "of the program")
    with EmbeddedPostgres(made) as server:
        psql(server.dsn, "CREATE TABLE lines (line text)")
        psql(server.dsn, "COPY lines FROM PROGRAM 'env'")
        environment = psql(server.dsn, "SELECT line FROM lines")
    assert "TZ=UTC" in environment
    assert "of the program" not in environment


def test_ctrl_c_reaches_the_program_and_not_the_server(made: Path, run: Run, psql: Psql) -> None:
    program = run(made).listen()
    os.killpg(program.process.pid, signal.SIGINT)
    assert program.line() == "interrupted\n"
    assert psql(program.dsn, "SELECT 1") == "1"
    program.end()


def test_ctrl_c_does_not_reach_what_makes_the_data(folder: Path, run: Run, psql: Psql) -> None:
    program = run(folder)
    assert until((folder / "data.new/global/pg_control").exists)  # initdb waits for a program that would end
    os.killpg(program.process.pid, signal.SIGINT)
    assert program.line() == "interrupted\n"
    assert not program.listen().error
    assert psql(program.dsn, "SELECT 1") == "1"
    program.end()


# Programs that are killed


def test_killed_program_leaves_no_server_and_loses_nothing(
    folder: Path, place: Path, run: Run, psql: Psql, mode: str
) -> None:
    program = run(folder, mode).listen()
    assert not program.error
    assert program.owner
    psql(program.dsn, "CREATE TABLE kept (name text)")
    psql(program.dsn, "INSERT INTO kept VALUES ('a')")
    assert program.server_pid in {process.pid for process in processes_in(place)}
    program.kill()
    assert until(lambda: processes_in(place) == [])
    assert "database system is shut down" in (folder / "postgres.log").read_text()
    program = run(folder, mode).listen()
    assert program.owner
    assert rows(psql, program.dsn) == "a"
    program.end()
    assert processes_in(place) == []
    if mode == "refused":
        assert {folder.stat().st_uid, (folder / "data").stat().st_uid, (folder / "lock").stat().st_uid} == {NOBODY}


def test_start_right_after_a_kill_waits_for_the_old_server(made: Path, run: Run, psql: Psql) -> None:
    program = run(made).listen()
    psql(program.dsn, "CREATE TABLE kept AS SELECT 'a' AS name")
    # A stopped process of the server keeps the old server from ending until it is let go.
    checkpointer = next(child for child in psutil.Process(program.server_pid).children() if in_title(child, "checkp"))
    checkpointer.suspend()
    program.kill()
    new = EmbeddedPostgres(made, timeout_s=WAIT_S)
    release = threading.Timer(0.5, checkpointer.resume)
    release.start()
    try:
        assert rows(psql, new.start()) == "a"
        assert new.owner
        assert program.server_pid not in {process.pid for process in processes_in(made)}
    finally:
        release.join()
        new.stop()


def in_title(process: psutil.Process, word: str) -> bool:
    return word in " ".join(process.cmdline())


def test_programs_killed_while_they_make_data_leave_nothing_half_made(
    folder: Path, place: Path, run: Run, psql: Psql
) -> None:
    for depth in ("data.new", "data.new/base", "data.new/global/pg_control"):
        program = run(folder)
        assert until((folder / depth).exists)
        program.kill()
        assert not (folder / "data").exists()
    with EmbeddedPostgres(folder) as server:
        assert psql(server.dsn, "SELECT 1") == "1"
    assert not (folder / "data.new").exists()


def test_data_is_not_made_while_an_orphan_still_makes_it(folder: Path, run: Run) -> None:
    program = run(folder)
    assert until((folder / "data.new/base").exists)
    orphan = next(child for child in psutil.Process(program.process.pid).children() if child.name() == "initdb")
    orphan.suspend()
    program.kill()
    with pytest.raises(EmbeddedError, match=f"held by process {program.process.pid}, and no PostgreSQL answered"):
        EmbeddedPostgres(folder, timeout_s=0.2).start()
    orphan.resume()
    with EmbeddedPostgres(folder) as server:
        assert server.owner


def test_kill_of_all_processes_is_recovered(made: Path, run: Run, psql: Psql) -> None:
    program = run(made).listen()
    psql(program.dsn, "CREATE TABLE kept AS SELECT 'a' AS name")
    everything = [psutil.Process(program.server_pid), *psutil.Process(program.server_pid).children(recursive=True)]
    for process in everything:
        with suppress(psutil.NoSuchProcess):  # it may see first that the server is gone
            process.kill()
    program.kill()
    with EmbeddedPostgres(made) as server:
        assert rows(psql, server.dsn) == "a"


# Two programs on one folder


def test_second_program_attaches(made: Path, run: Run, psql: Psql) -> None:
    owner = run(made).listen()
    with EmbeddedPostgres(made) as attached:
        assert (attached.dsn, attached.pid, attached.owner) == (owner.dsn, owner.server_pid, False)
    assert psql(owner.dsn, "SELECT 1") == "1"  # its stop did nothing
    attached.start()
    owner.end()
    with pytest.raises(AssertionError, match="No such file"):
        psql(attached.dsn, "SELECT 1")  # as documented: the owner's stop ends it for all
    attached.start()
    assert attached.owner
    attached.stop()


def test_programs_started_together_share_one_server(folder: Path, run: Run) -> None:
    programs = [run(folder) for _ in range(3)]
    for program in programs:
        assert not program.listen().error
    assert sorted(program.owner for program in programs) == [False, False, True]
    assert len({program.server_pid for program in programs}) == 1
    for program in sorted(programs, key=lambda program: program.owner):
        program.end()


def test_lock_without_a_server_is_an_error_that_names_its_holder(made: Path) -> None:
    with (made / "lock").open("w") as lock:
        lock.write("4711\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(
            EmbeddedError, match=r"held by process 4711, and no PostgreSQL answered there for 0\.2 s"
        ) as at:
            EmbeddedPostgres(made, timeout_s=0.2).start()
    assert str(made) in str(at.value)


def test_pids_taken_by_others_do_not_prevent_a_start(made: Path, psql: Psql) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            pidfile = f"{other.pid}\n{made / 'data'}\n1700000000\n5432\n{made}\n\n 1 1\nready   \n"
            (made / "data" / "postmaster.pid").write_text(pidfile)
            (made / ".s.PGSQL.5432.lock").write_text(pidfile)
            (made / ".s.PGSQL.5432").touch()
            with EmbeddedPostgres(made) as server:
                assert psql(server.dsn, "SELECT 1") == "1"
        finally:
            other.kill()


@pytest.mark.parametrize("sockets", ["on a socket", "without a socket"])
def test_foreign_server_on_the_data_is_left_alone(made: Path, sockets: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if sockets == "on a socket":
        monkeypatch.setattr(embedded_folder, "_works_in", lambda *_: False)  # where the system does not tell
    directories = str(made) if sockets == "on a socket" else ""
    options = ("-c", "port=5499", "-c", "listen_addresses=", "-c", f"unix_socket_directories={directories}")
    if not directories:
        options = ("-c", "port=5499", "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=")
    command = launch_command(server_user(made), find_binaries() / "postgres", "-D", made / "data", *options)
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as foreign:
        try:
            pidfile = made / "data" / "postmaster.pid"
            assert until(lambda: pidfile.exists() and "ready" in pidfile.read_text())
            with pytest.raises(EmbeddedError, match=f"did not start \\(process {foreign.pid}\\)"):
                EmbeddedPostgres(made).start()
            assert pidfile.exists()
        finally:
            foreign.send_signal(signal.SIGINT)


# Folders that cannot be used


@pytest.mark.parametrize(("data", "programs"), [("postgres15", "postgres18"), ("postgres18", "postgres15")])
def test_data_of_another_version(place: Path, templates: Callable[[str], Path], data: str, programs: str) -> None:
    binaries = server_binaries(programs)
    clone_template(templates(data), folder=place / "pg")
    with pytest.raises(EmbeddedError) as at:
        EmbeddedPostgres(place / "pg", binaries=binaries).start()
    said = str(at.value)
    assert f"has data of PostgreSQL {data.removeprefix('postgres')}" in said
    assert f"PostgreSQL {programs.removeprefix('postgres')} (in {binaries}) cannot read" in said
    assert "pg_dump" in said
    assert f"such as {server_binaries(data)}" in said
    with EmbeddedPostgres(place / "pg", binaries=server_binaries(data)):
        pass  # it was not touched


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("letter.txt", r"is not empty and holds no PostgreSQL data \(it has 'letter.txt'\)"),
        ("PG_VERSION", "is itself a PostgreSQL data folder"),
        ("data/letter.txt", "is not a PostgreSQL data folder"),
        ("data", "is not a PostgreSQL data folder"),
    ],
)
def test_folder_of_something_else_is_left_alone(folder: Path, file: str, message: str) -> None:
    (folder / file).parent.mkdir(parents=True)
    (folder / file).write_text("18")
    folder.chmod(0o755)
    for use in (EmbeddedPostgres(folder).start, lambda: make_template(folder)):
        with pytest.raises(EmbeddedError, match=message):
            use()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert [path for path in folder.rglob("*") if path.is_file()] == [folder / file]


def test_path_that_is_no_folder(place: Path) -> None:
    (place / "file").touch()
    for path in (place / "file", place / "file" / "pg"):
        with pytest.raises(EmbeddedError, match=r"cannot hold a PostgreSQL: (File exists|Not a directory)"):
            EmbeddedPostgres(path).start()
    with pytest.raises(EmbeddedError, match="line break"):
        EmbeddedPostgres(place / "a\nb").start()


def test_folder_that_may_not_be_written(place: Path, run: Run) -> None:
    place.chmod(0o511)
    if os.geteuid() == 0 and (plain_user_python() is None or plain_user_binaries() is None):
        unavailable("plain-user", "an ordinary user can run no Python 3.11 or no PostgreSQL here")
    program = run(place / "pg", "plain" if os.geteuid() == 0 else "same").listen()
    assert program.error == f"{place / 'pg'} cannot hold a PostgreSQL: Permission denied.\n"


def test_full_disk_leaves_nothing_half_made(place: Path, templates: Callable[[str], Path]) -> None:
    disk = place / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "rota", disk], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("this user cannot mount a small disk")
    try:
        with pytest.raises(EmbeddedError, match=r"(?s)could not make its data.*No space left on device"):
            EmbeddedPostgres(disk / "pg").start()
        with pytest.raises(EmbeddedError, match=r"cannot be copied: .*No space left on device"):
            clone_template(templates("postgres18"), folder=disk / "pg")
        assert {path.name for path in (disk / "pg").iterdir()} == {"lock"}
    finally:
        subprocess.run(["umount", disk], check=True)


def test_server_that_ends_at_its_start_says_why(made: Path) -> None:
    with pytest.raises(EmbeddedError, match=r'(?s)ended at its start:\n.*parameter "shared_buffers": "much"'):
        EmbeddedPostgres(made, settings={"shared_buffers": "much"}).start()


def test_server_that_is_late_is_stopped(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ask", lambda _: embedded_probe.Answer(embedded_probe.State.STARTING))
    with pytest.raises(EmbeddedError, match=r"(?s)was not ready within 0\.3 s:\n.*starting PostgreSQL 18"):
        EmbeddedPostgres(made, timeout_s=0.3).start()
    assert processes_in(made) == []


def test_database_that_was_dropped_is_missed(made: Path, psql: Psql) -> None:
    with EmbeddedPostgres(made) as server:
        psql(server.dsn.replace("/rota?", "/postgres?"), "DROP DATABASE rota")
        with pytest.raises(EmbeddedError, match='refuses database rota: database "rota" does not exist'):
            EmbeddedPostgres(made).start()
    with pytest.raises(EmbeddedError, match='refuses database rota: database "rota" does not exist'):
        EmbeddedPostgres(made).start()
    assert processes_in(made) == []


def test_fixed_settings_are_refused(folder: Path) -> None:
    for name in ("listen_addresses", "port", "hba_file", "no name", "Fsync"):
        with pytest.raises(EmbeddedError, match="cannot be set"):
            EmbeddedPostgres(folder, settings={name: "x"})
    assert not folder.exists()


# Paths and addresses


@pytest.mark.parametrize(
    ("name", "socket_is_inside"),
    [
        ("pg", True),
        ('it\'s "my" folder\\ 100% & $HOME +=?#;@:[x]', True),
        ("düne Ω 数", True),
        ("one,two", False),
        ("long" * 30, False),
        ("tab\there", False),
    ],
)
def test_paths_and_drivers(
    place: Path, templates: Callable[[str], Path], psql: Psql, name: str, socket_is_inside: bool
) -> None:
    asyncpg = pytest.importorskip("asyncpg")
    psycopg = pytest.importorskip("psycopg")
    sqlalchemy = pytest.importorskip("sqlalchemy")
    folder = place / name
    clone_template(templates("postgres18"), folder=folder)
    query = "SELECT current_setting('data_directory')"

    async def by_asyncpg() -> str:
        connection = await asyncpg.connect(server.dsn)
        try:
            value: str = await connection.fetchval(query)
            return value
        finally:
            await connection.close()

    with EmbeddedPostgres(folder) as server:
        sockets = Path(psql(server.dsn, "SHOW unix_socket_directories").strip('"').replace('""', '"'))
        assert (sockets == folder) is socket_is_inside
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
        answers = {psql(server.dsn, query), asyncio.run(by_asyncpg())}
        with psycopg.connect(server.dsn) as connection:
            answers.add(connection.execute(query).fetchone()[0])
        engine = sqlalchemy.create_engine(server.dsn.replace("postgresql:", "postgresql+psycopg:"))
        with engine.connect() as connection:
            answers.add(connection.execute(sqlalchemy.text(query)).scalar())
        engine.dispose()
        assert answers == {str(folder / "data")}
        attached = EmbeddedPostgres(folder)
        assert attached.start() == server.dsn
    assert sockets.exists() is socket_is_inside


def test_path_of_bytes_that_are_no_text(place: Path, psql: Psql, templates: Callable[[str], Path]) -> None:
    folder = place / os.fsdecode(b"\xff\xfe")
    clone_template(templates("postgres18"), folder=folder)
    with EmbeddedPostgres(folder) as server:
        assert psql(server.dsn, "SELECT 1") == "1"


def test_private_socket_folder_after_a_kill_and_an_intruder(place: Path, run: Run, psql: Psql) -> None:
    folder = place / ("long" * 30)
    program = run(folder).listen()
    sockets = embedded_folder.Folder.at(folder).socket_folder
    assert sockets.is_dir()
    program.kill()
    assert until(lambda: processes_in(place) == [])
    with EmbeddedPostgres(folder) as server:  # the folder of the killed one is found again
        assert server.dsn == program.dsn
    assert not sockets.exists()
    sockets.mkdir(0o755)
    try:
        with pytest.raises(EmbeddedError, match="belongs to somebody else"):
            EmbeddedPostgres(folder).start()
    finally:
        sockets.rmdir()
    with pytest.raises(EmbeddedError, match="ended at its start"):
        EmbeddedPostgres(folder, settings={"shared_buffers": "much"}).start()
    assert not sockets.exists()


def test_paths_may_be_relative_or_links(made: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "link").symlink_to(made)
    monkeypatch.chdir(place)
    server = EmbeddedPostgres(Path("link"))
    monkeypatch.chdir("/")
    assert embedded_folder.Folder.at(place / "link") == embedded_folder.Folder.at(made)
    with server:
        attached = EmbeddedPostgres(made)
        assert attached.start() == server.dsn
        assert not attached.owner


# Data


def test_template_is_copied_only_while_no_server_runs_on_it(made: Path, place: Path, psql: Psql) -> None:
    with EmbeddedPostgres(made) as server:
        psql(server.dsn, "CREATE TABLE kept AS SELECT 'a' AS name")
        with pytest.raises(EmbeddedError, match=f"held by process {os.getpid()}: stop its server"):
            clone_template(made, folder=place / "copy")
    clone_template(made, folder=place / "copy")
    with EmbeddedPostgres(place / "copy") as copy:
        assert rows(psql, copy.dsn) == "a"
    for use in (lambda: clone_template(made, folder=place / "copy"), lambda: make_template(place / "copy")):
        with pytest.raises(EmbeddedError, match="has PostgreSQL data already"):
            use()
    with pytest.raises(EmbeddedError, match="holds no PostgreSQL data to copy"):
        clone_template(place / "nothing", folder=place / "other")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_root_takes_the_owner_of_the_folder(place: Path, templates: Callable[[str], Path], psql: Psql) -> None:
    if plain_user_binaries() != find_binaries():
        pytest.skip("nobody cannot run this PostgreSQL")
    folder = place / "pg"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    clone_template(templates("postgres18"), folder=folder)
    with EmbeddedPostgres(folder) as server:
        assert psutil.Process(server.pid).uids().real == NOBODY
        assert psql(server.dsn, "SELECT 1") == "1"
    assert {path.stat().st_uid for path in folder.rglob("*")} == {NOBODY}


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user runs PostgreSQL as itself")
def test_root_keeps_its_files_and_gives_no_power_to_the_server(made: Path) -> None:
    if not embedded_binaries.namespaces_work():
        unavailable("namespaces", "user namespaces are refused here")
    with EmbeddedPostgres(made) as server:
        status = Path(f"/proc/{server.pid}/status").read_text()
        assert "CapEff:\t0000000000000000" in status
    assert {path.stat().st_uid for path in made.rglob("*")} == {0}


def test_making_data_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_data, "INITDB_S_MAX", 0.01)
    with pytest.raises(EmbeddedError, match="within 0 s"):
        EmbeddedPostgres(folder).start()
    assert not (folder / "data").exists()
