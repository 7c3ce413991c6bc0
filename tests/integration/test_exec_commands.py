"""Commands as an exec server runs them: real processes, their limits, and what is left of them: nothing."""

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rota.errors import SettingsError
from rota.slots.io.ceilings import data_limit_stands
from rota.slots.messages import EndedBy
from rota.slots.output import digest_of
from tests.integration.exec_bench import PATIENCE_S, SERVICES, bench, pieces, read_all


async def until(true: object, *, what: str) -> None:
    """Waits for a condition, generously."""
    assert callable(true)
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, f"never: {what}"
        await asyncio.sleep(0.02)


def pids_in(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def gone(pid: int) -> bool:
    """Not there, not even as a zombie."""
    return not psutil.pid_exists(pid)


def slow(**limits: object) -> str:
    settings = "".join(f"{name} = {value}\n" for name, value in limits.items())
    return (
        '[services.slow]\ncommand = ["/bin/sh", "-c", "{code}"]\nargs = { code = "argument" }\n'
        f'env = {{ PATH = "/usr/bin:/bin" }}\ngrace_s = 0.2\n{settings}'
    )


async def test_a_receipt_tells_what_happened(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        well = await b.run("sh", ["echo out; echo warning >&2"])
        assert (well.ended_by, well.exit, well.stdout_prefix, well.stderr_line, well.ok) == (
            "exit",
            0,
            "out\n",
            None,
            True,
        )
        assert well.bytes_out == 4
        assert well.duration_s > 0
        badly = await b.run("sh", ["echo first; echo 'Error: no such thing' >&2; echo bye >&2; exit 7"])
        assert (badly.exit, badly.stderr_line, badly.ok) == (7, "Error: no such thing", False)
        signalled = await b.run("sh", ["kill -SEGV $$"])
        assert (signalled.ended_by, signalled.exit, signalled.signal) == ("exit", None, "SIGSEGV")


async def test_a_command_has_its_own_folder_and_only_declared_variables(tmp_path: Path) -> None:
    config = (
        '[services.env]\ncommand = ["/usr/bin/env"]\nenv = { TMPDIR = "{scratch}" }\naccepts_env = { TZ = "word" }\n'
    )
    async with bench(tmp_path, SERVICES + config) as b:
        env = await b.run("env", env={"TZ": "UTC"})
        assert env.stdout_prefix is not None
        assert sorted(line.split("=")[0] for line in env.stdout_prefix.split()) == ["TMPDIR", "TZ"]
        where = await b.run("sh", ["pwd; mkdir -p a/b; touch a/b/c; chmod 0 a/b a"])
        assert where.stdout_prefix is not None
        folder = Path(where.stdout_prefix.strip())
        assert folder.is_relative_to(tmp_path)
        await until(lambda: not folder.exists(), what="the folder is removed")
    assert list(tmp_path.iterdir()) == []


async def test_nothing_is_given_to_a_shell(tmp_path: Path) -> None:
    config = '[services.echo]\ncommand = ["/bin/echo", "{what}"]\nargs = { what = "argument" }\n'
    async with bench(tmp_path, config) as b:
        told = await b.run("echo", {"what": "$HOME; touch here | `id`"})
        assert told.stdout_prefix == "$HOME; touch here | `id`\n"


@pytest.mark.parametrize("how", ["cancel", "timeout"])
async def test_all_of_a_command_dies_also_what_left_its_group_and_ignores_sigterm(tmp_path: Path, how: str) -> None:
    """S28: children of children, one of them in a session of its own, all deaf to SIGTERM."""
    pids, script = tmp_path / "pids", tmp_path / "deaf.sh"
    script.write_text(
        f"trap '' TERM\necho $$ >> {pids}\nif [ $1 -gt 0 ]; then setsid sh $0 $(($1 - 1)) & fi\nsleep 1000\n:\n"
    )
    async with bench(tmp_path / "scratch") as b:
        receipt = b.start("sh", [f"(sh {script} 2 &); exec sh {script} 1"], timeout_s=1.0 if how == "timeout" else None)
        if how == "cancel":
            await until(lambda: len(pids_in(pids)) == 5, what="all of them run")
            b.commands.cancel(b.last_id)
        async with asyncio.timeout(PATIENCE_S):
            ended = await receipt
        assert ended.ended_by == ("cancelled" if how == "cancel" else "timeout")
        assert ended.signal == "SIGKILL"
        assert ended.error
        # The receipt comes after the last of them, so there is nothing to wait for.
        assert [pid for pid in pids_in(pids) if not gone(pid)] == []


RUNAWAY = """
import os, sys, time
name, end = sys.argv[1], time.monotonic() + 20
for _ in range(2):
    if not os.fork():
        while time.monotonic() < end:
            if os.fork():
                os._exit(0)
            os.setsid()
        open(name, "w").close()
        os._exit(0)
time.sleep(1000 if sys.argv[2] == "stays" else 0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="others read the table of processes, which takes longer")
@pytest.mark.parametrize("main", ["stays", "goes"])
async def test_what_runs_away_by_ever_new_processes_and_sessions_is_caught(tmp_path: Path, main: str) -> None:
    """Each of them lives for less than a millisecond."""
    script, got_away = tmp_path / "runaway.py", tmp_path / "got_away"
    script.write_text(RUNAWAY)
    config = f'[services.run]\ncommand = ["{sys.executable}", "-I", "-S", "{script}", "{got_away}", "{main}"]\n'
    async with bench(tmp_path / "scratch", f"{config}grace_s = 0\ntimeout_s = 1") as b:
        receipt = await b.run("run")
    assert receipt.ended_by == ("timeout" if main == "stays" else "exit")
    assert not got_away.exists(), "they ended when they liked to"


async def test_what_a_command_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    async with bench(tmp_path / "scratch") as b:
        receipt = await b.run("sh", [f"setsid sleep 1000 & echo $! >> {pids}; sleep 1000 & echo $! >> {pids}; echo hi"])
        assert (receipt.exit, receipt.stdout_prefix) == (0, "hi\n")
        assert all(gone(pid) for pid in pids_in(pids))


async def test_a_command_that_ends_on_sigterm_may_clean_up(tmp_path: Path) -> None:
    async with bench(tmp_path / "scratch", slow(grace_s=30).replace("grace_s = 0.2\n", "")) as b:
        ready = tmp_path / "ready"
        code = f"trap 'echo cleaned; exit 5' TERM; touch {ready}; while :; do sleep 0.05; done"
        receipt = b.start("slow", [code])
        await until(ready.exists, what="it runs")
        b.commands.cancel(b.last_id)
        async with asyncio.timeout(PATIENCE_S):
            ended = await receipt
        assert (ended.ended_by, ended.exit, ended.stdout_prefix) == ("cancelled", 5, "cleaned\n")


async def test_a_cancel_right_after_the_start(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        receipts = []
        for wait in range(6):
            receipts.append(b.start("sh", ["sleep 1000"]))
            for _ in range(wait):
                await asyncio.sleep(0)
            b.commands.cancel(b.last_id)
        async with asyncio.timeout(PATIENCE_S):
            assert {(await receipt).ended_by for receipt in receipts} == {"cancelled"}
        b.commands.cancel("nobody")


async def test_a_stall_is_no_bytes_and_no_cpu(tmp_path: Path) -> None:
    config = slow(stall_s=0.6) + slow(stall_s=3, timeout_s=4).replace("services.slow", "services.busy")
    async with bench(tmp_path, config) as b:
        asleep, talks, works = await asyncio.gather(
            b.run("slow", ["sleep 1000"]),
            b.run("busy", ["while :; do echo x >&2; sleep 0.1; done"]),
            b.run("busy", ["while :; do :; done"]),
        )
        assert (asleep.ended_by, talks.ended_by, works.ended_by) == ("stall", "timeout", "timeout")
        assert asleep.error is not None
        assert "Nothing moved for 0.6 s" in asleep.error


async def test_a_tree_that_takes_too_much_memory_is_ended(tmp_path: Path) -> None:
    child = "import time; x = b'x' * 400_000_000; time.sleep(1000)"
    hungry = f'import subprocess, sys; subprocess.run([sys.executable, "-c", "{child}"])'
    config = (
        '[services.hungry]\ncommand = ["python3", "-c", "{code}"]\nargs = { code = "argument" }\n'
        'memory_max = "150 MiB"\n'
    )
    async with bench(tmp_path, config) as b:
        receipt = await b.run("hungry", [hungry])
        assert receipt.ended_by == EndedBy.MEMORY
        assert receipt.peak_memory_bytes > 150 * 1024**2
        assert receipt.error is not None
        assert "the service allows 157,286,400" in receipt.error


FAMILY = """
import os, time
for _ in range(4):
    if not os.fork():
        print(os.getpid(), flush=True)
        held = os.urandom(1 << 20) * 60
        time.sleep(1000)
time.sleep(1000)
"""


async def test_a_tree_whose_processes_are_each_below_the_ceiling_is_ended_where_their_sum_is_not(
    tmp_path: Path,
) -> None:
    script = tmp_path / "family.py"
    script.write_text(FAMILY)
    config = f'[services.family]\ncommand = ["{sys.executable}", "-I", "-S", "{script}"]\nmemory_max = "150 MiB"\n'
    async with bench(tmp_path / "scratch", config) as b:
        receipt = await b.run("family")
    assert (receipt.ended_by, receipt.retryable) == (EndedBy.MEMORY, False), receipt
    assert receipt.peak_memory_bytes > 150 * 1024**2
    assert receipt.stdout_prefix is not None
    assert [gone(int(pid)) for pid in receipt.stdout_prefix.split()] == [True] * 4


GREEDY = """
import mmap, resource, sys
touched, aside, end = (int(word) for word in sys.argv[1:])
def take(mib):
    return mmap.mmap(-1, mib << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
print(*(limit >> 20 for limit in resource.getrlimit(resource.RLIMIT_DATA)), flush=True)
held = take(touched)
held.write(bytes(touched << 20))
more = take(aside)
sys.exit(end)
"""


@pytest.mark.skipif(not data_limit_stands(), reason="this system has no limit on the data of a process")
async def test_a_command_that_takes_memory_faster_than_anybody_looks_is_bound_by_the_system(tmp_path: Path) -> None:
    script = tmp_path / "greedy.py"
    script.write_text(GREEDY)
    command = f'command = ["{sys.executable}", "-I", "-S", "{script}", "{{*}}"]\nargs = {{ "*" = "word" }}\n'
    config = f'[services.bound]\n{command}memory_max = "64 MiB"\n[services.free]\n{command}'
    async with bench(tmp_path / "scratch", config) as b:
        # This is over before the first look: 100 MiB are touched, where 64 are allowed, and 1 GiB more is asked for.
        beyond = await b.run("bound", ["100", "1024", "0"])
        assert (beyond.ended_by, beyond.retryable) == (EndedBy.MEMORY, False), beyond
        assert beyond.stdout_prefix == "576 576\n", "neither the program nor what it starts can allow itself more"
        assert beyond.peak_memory_bytes < 400 * 1024**2
        # What is set aside and not touched is no memory that it holds, up to a point.
        aside = await b.run("bound", ["1", "400", "0"])
        assert aside.ok, aside
        refused = await b.run("bound", ["1", "1024", "0"])
        assert (refused.ended_by, refused.exit) == (EndedBy.EXIT, 1), "it was refused memory that it never held"
        # A keeper that has run one with a limit has none itself.
        assert (await b.run("free", ["1", "1024", "0"])).ok


async def test_peak_memory_is_that_of_the_command(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        receipt = await b.run("python", ["x = b'x' * 200_000_000"])
        assert 200_000_000 < receipt.peak_memory_bytes < 300_000_000


@pytest.mark.parametrize(("to_stdout", "to_stderr"), [(1, 10_000_000), (10_000_000, 1)])
async def test_both_outputs_are_read_together(tmp_path: Path, to_stdout: int, to_stderr: int) -> None:
    """S27: much on one and little on the other, in either order."""
    async with bench(tmp_path) as b:
        code = f"head -c {to_stderr} /dev/zero | tr '\\0' e >&2; head -c {to_stdout} /dev/zero; exit 3"
        receipt = await b.run("sh", [code])
        assert (receipt.exit, receipt.bytes_out) == (3, to_stdout)
        assert receipt.dropped_bytes == max(0, to_stdout - 4000)
        assert receipt.stderr_line == "e" * min(500, to_stderr)


async def test_too_much_output_ends_it_and_every_byte_is_counted(tmp_path: Path) -> None:
    async with bench(tmp_path, slow(stdout_max=100_000).replace("grace_s = 0.2", "grace_s = 30")) as b:
        receipt = await b.run("slow", ["head -c 100000 /dev/zero"])
        assert (receipt.ended_by, receipt.exit, receipt.dropped_bytes) == ("exit", 0, 96_000)
        receipt = await b.run("slow", ["trap '' TERM; head -c 150000 /dev/zero"])
        assert (receipt.ended_by, receipt.bytes_out, receipt.dropped_bytes) == ("output", 150_000, 146_000)
        assert receipt.error is not None
        assert "more than 100,000 bytes" in receipt.error


async def test_what_does_not_fit_is_refused_with_a_receipt(tmp_path: Path) -> None:
    config = (
        SERVICES + '[services.nothing]\ncommand = ["/nowhere/to/be/found"]\n'
        f'[services.show]\ncommand = ["/bin/cat", "{{file}}"]\nargs = {{ file = "path {tmp_path}/files" }}\n'
    )
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "out").symlink_to("/etc/hostname")
    (tmp_path / "files" / "in").write_text("inside")
    async with bench(tmp_path / "scratch", config, pipe_hosts=("127.0.0.1",)) as b:
        for service, args, words in (
            ("missing", [], "no service 'missing' here: there are sh, cat, python, nothing, show"),
            ("sh", [], "'code' is missing"),
            ("cat", ["x"], "more than the service takes"),
            ("nothing", [], "'/nowhere/to/be/found' cannot be started: No such file"),
            ("show", ["out"], "leads out of"),
            ("show", ["../x"], "relative path"),
        ):
            receipt = await b.run(service, args)
            assert receipt.ended_by == "refused"
            assert not receipt.retryable
            assert receipt.error is not None
            assert words in receipt.error
        assert (await b.run("show", ["in"])).stdout_prefix == "inside"
        for url in (
            "file:///etc/passwd", "http://127.0.0.1:1/other", "http://127.0.0.1/pipe/short", "http://[",
            "http://u@127.0.0.1/pipe/" + "x" * 22,
            "http://10.0.0.1:1/pipe/" + "x" * 22, "http://127.0.0.1:1/pipe/" + "x" * 22 + "?a",
        ):  # fmt: skip
            receipt = await b.run("cat", stdin=url)
            assert receipt.ended_by == "refused", url


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB with room for a few files."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=6", "tmpfs", place], check=False, capture_output=True
    )
    if made.returncode:
        pytest.skip("this machine does not let the test mount a disk")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


async def test_a_full_scratch_disk_fails_what_needs_it_and_nothing_else(tiny_disk: Path, tmp_path: Path) -> None:
    marker = tmp_path / "runs"
    async with bench(tiny_disk) as b:
        assert (await b.run("sh", ["true"])).ok
        assert (await b.run("sh", ["chmod 755 ."])).ok
        # A command that fills the disk meets its own error, and its folder gives the room back.
        filled = await b.run("sh", ["head -c 1000000 /dev/zero > big"])
        assert filled.exit == 1
        assert filled.stderr_line is not None
        assert "No space" in filled.stderr_line
        await until(lambda: not list(tiny_disk.glob("*/*/big")), what="the room is back")
        assert (await b.run("sh", ["true"])).ok
        for number in range(10):
            try:
                (tiny_disk / f"other-{number}").touch()
            except OSError:
                break
        # One folder is there from before; a second one finds no room.
        holds = b.start("sh", [f"touch {marker}; sleep 1000"])
        job_id = b.last_id
        await until(marker.exists, what="it runs")
        refused = await b.run("sh", ["true"])
        assert (refused.ended_by, refused.retryable) == ("refused", True)
        b.commands.cancel(job_id)
        assert (await holds).ended_by == "cancelled"
        assert refused.error is not None
        assert "No space left" in refused.error
        for path in tiny_disk.glob("other-*"):
            path.unlink()
        assert (await b.run("sh", ["true"])).ok


async def test_a_stop_lets_what_runs_end_and_begins_nothing(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        running = b.start("sh", [f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; echo done"])
        await until(lambda: b.commands._running, what="it runs")
        stopping = asyncio.ensure_future(b.commands.stop(grace_s=PATIENCE_S))
        await asyncio.sleep(0)
        late = await b.run("sh", ["true"])
        assert (late.ended_by, late.retryable) == ("refused", True)
        (tmp_path / "go").touch()
        await stopping
        assert (await running).stdout_prefix == "done\n"
        await b.commands.stop()


async def test_a_stop_hands_back_what_does_not_end(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        running = b.start("sh", [f"touch {tmp_path}/runs; sleep 1000"])
        await until((tmp_path / "runs").exists, what="it runs")
        await b.commands.stop(grace_s=0.1)
        ended = await running
        assert (ended.ended_by, ended.retryable) == ("stopped", True)


async def test_a_killed_keeper_takes_its_command_with_it_and_no_other(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    async with bench(tmp_path / "scratch") as b:
        receipt = b.start("sh", [f"setsid sleep 1000 & echo $! >> {pids}; echo $$ >> {pids}; wait"])
        other = b.start("sh", [f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; echo fine"])
        await until(lambda: len(pids_in(pids)) == 2, what="it runs")
        command = psutil.Process(pids_in(pids)[1])
        os.kill(command.ppid(), signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_S):
            ended = await receipt
        assert (ended.ended_by, ended.retryable) == ("broken", True)
        await until(lambda: all(gone(pid) for pid in pids_in(pids)), what="all of it is gone")
        (tmp_path / "go").touch()
        assert (await other).stdout_prefix == "fine\n"
        assert (await b.run("sh", ["true"])).ok


@pytest.mark.parametrize("script", ["kill -STOP $PPID; sleep 1000", "trap '' TERM; while :; do kill -STOP $PPID; done"])
async def test_a_command_that_stops_its_keeper_ends_all_the_same(tmp_path: Path, script: str) -> None:
    async with bench(tmp_path) as b:
        receipt = await b.run("sh", [script], timeout_s=0.5)
        assert receipt.ended_by == "timeout"
        assert (await b.run("sh", ["echo hi"])).stdout_prefix == "hi\n"


async def test_a_killed_nursery_is_started_again(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        receipt = b.start("sh", ["sleep 0.5; echo fine"])
        await until(lambda: b.commands._running, what="it runs")
        await until(lambda: b.commands._keepers._nursery is not None, what="there is a nursery")
        await b.run("sh", ["true"])
        nursery = b.commands._keepers._nursery
        assert nursery is not None
        nursery.kill()
        assert (await receipt).stdout_prefix == "fine\n"
        many = await asyncio.gather(*(b.run("sh", ["sleep 0.1"]) for _ in range(6)))
        assert all(one.ok for one in many)


async def test_a_nursery_that_a_command_has_stopped_goes_on(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.run("sh", ["true"])
        nursery = b.commands._keepers._nursery
        assert nursery is not None
        await b.run("sh", [f"kill -STOP {nursery.pid}"])
        many = await asyncio.gather(*(b.run("sh", ["sleep 0.1"]) for _ in range(3)))
        assert all(one.ok for one in many)


async def test_progress_is_told(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        receipt = b.start("sh", ["echo 50% >&2; head -c 5000 /dev/zero; sleep 1000"])
        job_id = b.last_id

        def told() -> bool:
            return any((who, move.bytes_out, move.line) == (job_id, 5000, "50%") for who, move in b.moves)

        await until(told, what="it is told")
        b.commands.cancel(job_id)
        await receipt


async def test_many_commands_leave_nothing_behind(tmp_path: Path) -> None:
    me = psutil.Process()
    async with bench(tmp_path) as b:
        await asyncio.gather(*(b.run("sh", ["true"]) for _ in range(4)))
        before = me.num_fds()
        for _ in range(25):
            await asyncio.gather(*(b.run("sh", ["echo x; echo y >&2; exit 1"]) for _ in range(4)))
        assert me.num_fds() <= before  # what others have left open may be closed meanwhile
        nursery = b.commands._keepers._nursery
        assert nursery is not None
        assert len(psutil.Process(nursery.pid).children(recursive=True)) == 4
    assert list(tmp_path.iterdir()) == []
    assert gone(nursery.pid)


async def test_without_descriptors_what_needs_them_is_handed_back_and_none_is_lost(tmp_path: Path) -> None:
    me = psutil.Process()
    async with bench(tmp_path) as b:
        assert (await b.run("sh", ["true"])).ok
        sink = b.pipes.sink().url("127.0.0.1")
        before, limits = me.num_fds(), resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (before + 5, limits[1]))
        try:
            held = []
            with contextlib.suppress(OSError):
                while True:
                    held.append(os.open(os.devnull, os.O_RDONLY))
            short = await b.run("sh", ["echo fine"])
            os.close(held.pop())  # one, and it needs two
            longer = await b.run("sh", ["sleep 1000"])
            streams = await b.run("sh", ["echo fine"], stdout=sink)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            for descriptor in held:
                os.close(descriptor)
        assert (short.ok, short.stdout_prefix) == (True, "fine\n")
        assert (longer.ended_by, longer.retryable) == ("broken", True)
        assert "too many files open" in str(longer.error)
        assert (streams.ended_by, streams.retryable) == ("refused", True)
        assert "Too many open files" in str(streams.error)
        assert me.num_fds() <= before
        assert (await b.run("sh", ["true"])).ok


async def test_a_command_has_three_descriptors_and_no_more(tmp_path: Path) -> None:
    # With its keeper's socket it could say that it has ended, and with a second stdout it could not close it.
    code = "import os; print([n for n in range(200) if os.path.exists(f'/proc/self/fd/{n}')])"
    async with bench(tmp_path) as b:
        kept = await b.run("python", [code])
        assert kept.stdout_prefix == "[0, 1, 2]\n"
        source, sink = b.pipes.source(pieces(b"x")), b.pipes.sink()
        streamed = b.start("python", [code], stdin=source.url("127.0.0.1"), stdout=sink.url("127.0.0.1"))
        assert await read_all(sink) == b"[0, 1, 2]\n"
        assert (await streamed).ok


async def test_orphans_are_buried_while_their_command_goes_on(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    async with bench(tmp_path / "scratch") as b:
        script = f"for n in 1 2 3 4 5 6 7 8; do (sleep 0.01 & echo $! >> {pids}); done; sleep 1000"
        running = b.start("sh", [script])
        await until(lambda: len(pids_in(pids)) == 8, what="all are started")
        await until(lambda: all(gone(pid) for pid in pids_in(pids)), what="all are gone, not even zombies")
        assert not running.done()
        b.commands.cancel(b.last_id)
        assert (await running).ended_by == "cancelled"


@pytest.mark.parametrize("script", ["printf out; printf err >&2", "printf out; printf err >&2; sleep 0.1"])
async def test_outputs_are_whole_whether_a_command_is_quick_or_not(tmp_path: Path, script: str) -> None:
    async with bench(tmp_path) as b:
        receipt = await b.run("sh", [f"{script}; printf more; exit 3"])
        assert (receipt.stdout_prefix, receipt.stderr_line, receipt.bytes_out) == ("outmore", "err", 7)
        assert receipt.digest == digest_of(b"outmore")


async def test_an_output_that_somebody_else_holds_is_read_on_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.slots.io.flows.LINGER_S", 0.2)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    async with bench(tmp_path / "scratch") as b:
        # It writes its pid, and waits until its stdout is open here, in a process that is none of its own.
        running = b.start("sh", [f"echo $$ > {fifo}; read _ < {fifo}; printf quick"])
        pid = await asyncio.to_thread(lambda: int(fifo.read_text()))
        held = os.open(f"/proc/{pid}/fd/1", os.O_WRONLY)
        await asyncio.to_thread(fifo.write_text, "go\n")
        receipt = await running
        os.close(held)
        assert (receipt.ok, receipt.stdout_prefix) == (True, "quick")


async def test_two_exec_servers_do_not_share_a_state_folder(tmp_path: Path) -> None:
    async with (
        bench(tmp_path / "a", state=tmp_path / "state") as one,
        bench(tmp_path / "b", state=tmp_path / "state") as two,
    ):
        one.commands.open()
        with pytest.raises(SettingsError, match="used by another exec server"):
            two.commands.open()
