"""`rota exec` and `rota slots` as a person or a script calls them."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rota.cli.unclaimed import ASK_EVERY_S, Above
from rota.commands import Call, KindShare, Standing
from rota.ids import Holder
from rota.io.postgres import Database, Target
from rota.queue.io.store import Store
from rota.queue.job import NewJob
from rota.queue.server import Server
from rota.queue.standing import ServerFacts
from rota.settings import Settings
from rota.slots.messages import Receipt
from tests.integration.exec_stand_in import StandIn, Streams, cat, fail, hang, say
from tests.integration.programs import ROTA, clean_environment
from tests.integration.real_exec_server import real_exec_server

WAIT_S = 120.0


async def flood(streams: Streams, _args: Any) -> Receipt | None:
    async def lines() -> AsyncIterator[bytes]:
        while True:
            yield b"y\n" * 1000

    assert streams.job.job.stdout is not None
    await streams.session.put(streams.job.job.stdout, data=lines())
    return None


@pytest.fixture
async def server() -> AsyncIterator[StandIn]:
    async with StandIn({"cat": cat, "say": say, "fail": fail, "hang": hang, "flood": flood}) as made:
        yield made


def environment(server: StandIn | None) -> dict[str, str]:
    more = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    if server is not None:
        more["ROTA_EXEC_ADDRESSES"] = f"127.0.0.1:{server.port}"
    return clean_environment(more)


@asynccontextmanager
async def served(dsn: str, **services: str) -> AsyncIterator[Store]:
    """A database in which a worker says that each kind needs a service."""
    database = Database(Target(dsn), size=1)
    shares = {kind: KindShare((service,), (service,), 3) for kind, service in services.items()}
    worker = Server(Holder("web:1:aa"), "web", 1, "1", "all", "d", kinds=dict.fromkeys(services, 9), passes={})
    store = Store(database)
    await store.serve(worker, running={}, facts=ServerFacts(exec=Standing(1, shares)))
    yield store
    await database.stop()


async def start(server: StandIn | None, *words: str, stdin: int | None = subprocess.DEVNULL) -> Process:
    return await asyncio.create_subprocess_exec(
        *ROTA, *words, env=environment(server), stdin=stdin, stdout=PIPE, stderr=PIPE
    )


async def run(server: StandIn | None, *words: str, data: bytes | None = None) -> tuple[int, bytes, str]:
    process = await start(server, *words, stdin=subprocess.DEVNULL if data is None else PIPE)
    async with asyncio.timeout(WAIT_S):
        out, err = await process.communicate(data)
    assert process.returncode is not None
    return process.returncode, out, err.decode()


async def test_streams_go_in_and_out_like_those_of_a_local_command(server: StandIn, tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    assert await run(server, "exec", "cat", data=data) == (0, data, "")
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(data)
    for words in (["-i", str(source)], [str(source)]):
        assert await run(server, "exec", "cat", *words, "-o", str(target)) == (0, b"", "")
        assert target.read_bytes() == data
        assert target.stat().st_mode & 0o777 != 0o600
        target.unlink()
    assert list(tmp_path.iterdir()) == [source], "nothing half-written stays"


async def test_unknown_options_are_the_services_own(server: StandIn) -> None:
    assert await run(server, "exec", "say", "--height", "720", "x") == (0, b"--height 720 x", "")


async def test_the_commands_status_is_the_status_and_no_file_appears_i9(server: StandIn, tmp_path: Path) -> None:
    target = tmp_path / "out"
    status, out, err = await run(server, "exec", "fail", "-o", str(target))
    assert (status, out, err) == (3, b"{", "no such codec\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_ctrl_c_cancels_the_command(server: StandIn, number: signal.Signals) -> None:
    process = await start(server, "exec", "hang")
    await server.until(lambda: server.running)
    process.send_signal(number)
    async with asyncio.timeout(WAIT_S):
        await process.communicate()
    assert process.returncode == 128 + number
    await server.until(lambda: not server.running)


async def test_a_client_that_is_killed_leaves_no_want_and_no_connection(server: StandIn) -> None:
    """The seed: it crashes with parked wants; its socket closes, and its entries go."""
    server.offering = False
    process = await start(server, "exec", "say", "x")
    await server.until(lambda: server.wants)
    process.kill()
    await process.communicate()
    await server.until(lambda: not server.wants and not server.connections)


async def test_no_slot_in_time_is_a_status_of_its_own(server: StandIn) -> None:
    server.slots = 0
    status, _, err = await run(server, "exec", "say", "x", "--wait", "0.2")
    assert status == 75
    assert "every slot for say was taken for 0.2 s" in err


async def test_what_is_handed_back_may_be_tried_again() -> None:
    async def stopped(_streams: Streams, _args: Any) -> Receipt:
        return Receipt(ended_by="stopped", error="The exec server is stopping", retryable=True)

    async with StandIn({"say": stopped}) as server:
        status, _, err = await run(server, "exec", "say", "x")
    assert (status, err) == (75, "rota: say: The exec server is stopping\n")


async def test_a_slip_is_told_before_the_wait_is_over(server: StandIn) -> None:
    process = await start(server, "exec", "sya", "x", "--wait", "1000")
    assert process.stderr is not None
    async with asyncio.timeout(WAIT_S):
        line = (await process.stderr.readline()).decode()
    assert line.startswith("rota: waiting: no exec server that is connected offers sya (they offer cat, fail, ")
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(WAIT_S):
        assert (await process.communicate())[1] == b""
    assert process.returncode == 130


async def test_without_addresses_it_says_what_to_set() -> None:
    status, _, err = await run(None, "exec", "say")
    assert status == 2
    assert "ROTA_EXEC_ADDRESSES" in err
    status, _, err = await run(None, "slots", "--exec-addresses", "ftp://x")
    assert status == 2
    assert "ftp" in err


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
async def test_a_terminal_shows_the_place_in_line(server: StandIn) -> None:
    import pty

    server.offering = False
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *ROTA, "exec", "say", "x", env=environment(server), stdin=subprocess.DEVNULL, stdout=PIPE, stderr=theirs
    )
    os.close(theirs)
    shown = ""
    async with asyncio.timeout(WAIT_S):
        while "number 1 in line; its turn comes in 1 to 2 s" not in shown:
            shown += (await asyncio.to_thread(os.read, ours, 4096)).decode()
        server.offering = True
        await server.deal()
        out, _ = await process.communicate()
    os.close(ours)
    assert (process.returncode, out) == (0, b"x")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
async def test_a_terminal_counts_the_more_urgent_jobs_of_the_database(server: StandIn, migrated_dsn: str) -> None:
    import pty

    async with served(migrated_dsn, voice="say", page="ocr") as store:
        await store.enqueue_many(
            [NewJob("voice", priority=2), NewJob("voice", priority=1), NewJob("voice"), NewJob("page", priority=2)]
        )
    server.offering = False
    for dsn, told in (
        (migrated_dsn, "number 3 in line (2 unclaimed jobs before it)"),
        ("postgresql://127.0.0.1:9/none", "number 1 in line; its turn"),
    ):
        ours, theirs = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            *ROTA, "exec", "say", "x", env={**environment(server), "ROTA_DSN": dsn}, stdin=subprocess.DEVNULL,
            stdout=PIPE, stderr=theirs,
        )  # fmt: skip
        os.close(theirs)
        shown = ""
        async with asyncio.timeout(WAIT_S):
            while told not in shown:
                shown += (await asyncio.to_thread(os.read, ours, 4096)).decode()
            process.send_signal(signal.SIGINT)
            await process.communicate()
        os.close(ours)
        assert process.returncode == 130


async def test_the_more_urgent_jobs_are_counted_now_and_then(migrated_dsn: str) -> None:
    """A terminal looks every second, and each question takes a connection."""
    now = 100.0
    above = Above(Settings(dsn=migrated_dsn), clock=lambda: now)
    call = Call("say", ())
    async with served(migrated_dsn, voice="say") as store:
        assert await above.count(call) == 0
        await store.enqueue_many([NewJob("voice", priority=1)])
        now += ASK_EVERY_S - 0.1
        assert await above.count(call) == 0
        now += 0.1
        assert await above.count(call) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
async def test_a_terminal_shows_what_a_call_waits_for_that_stands_in_no_line(server: StandIn) -> None:
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    process = await asyncio.create_subprocess_exec(
        *ROTA, "exec", "speech", env=environment(server), stdin=subprocess.DEVNULL, stdout=PIPE, stderr=theirs
    )
    os.close(theirs)
    shown = ""
    async with asyncio.timeout(WAIT_S):
        while shown.count("waiting: no exec server that is connected offers speech") < 2:
            shown += (await asyncio.to_thread(os.read, ours, 4096)).decode()
        process.send_signal(signal.SIGINT)
        await process.communicate()
    os.close(ours)
    assert max(map(len, shown.split("\r\x1b[K"))) == 59, "a line that went on could not be written over"
    assert process.returncode == 130


async def test_slots_tell_of_jobs_that_no_worker_has_claimed_where_there_is_a_database(
    server: StandIn, migrated_dsn: str
) -> None:
    async with served(migrated_dsn, film="cat", page="ocr") as store:
        await store.enqueue_many([NewJob("film"), NewJob("film"), NewJob("page"), NewJob("film", delay_s=60.0)])
    async with real_exec_server() as real:
        words = [*ROTA, "slots", "--exec-addresses", f"127.0.0.1:{real.port}"]
        for dsn, told in ((migrated_dsn, 2), ("postgresql://127.0.0.1:9/none", None)):
            process = await asyncio.create_subprocess_exec(
                *words, "--json", env={**environment(None), "ROTA_DSN": dsn}, stdin=subprocess.DEVNULL, stdout=PIPE
            )
            out, _ = await asyncio.wait_for(process.communicate(), WAIT_S)
            assert process.returncode == 0
            (seen,) = json.loads(out)
            assert seen.get("unclaimed", {}).get("all") == told
            assert (seen["draining"], seen["jobs"], seen["waitgroups"]["all"]["running"]) == (False, [], 0)


async def shell(server: StandIn, script: str) -> tuple[int | None, bytes, str]:
    """A line of a shell, in which `$rota` is the program."""
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", script, env=environment(server) | {"rota": " ".join(ROTA)}, stdin=subprocess.DEVNULL,
        stdout=PIPE, stderr=PIPE,
    )  # fmt: skip
    async with asyncio.timeout(WAIT_S):
        out, err = await process.communicate()
    return process.returncode, out, err.decode()


@pytest.mark.parametrize(
    ("script", "status", "out"),
    [
        ("$rota exec cat <&-", 0, b""),
        ("$rota exec say x >&-", 0, b""),
        ("$rota exec fail 2>&-", 3, b"{"),
        ("$rota exec fail 2>/dev/full", 3, b"{"),
        ("$rota exec fail >/dev/full", 3, b""),
        ("$rota exec fail | true; exit ${PIPESTATUS[0]}", 3, b""),
        ("$rota --version <&- >&- 2>&-", 0, b""),
    ],
)
async def test_a_stream_that_is_closed_or_full_changes_no_status(
    server: StandIn, script: str, status: int, out: bytes
) -> None:
    found, written, err = await shell(server, script)
    assert (found, written) == (status, out), err


@pytest.mark.parametrize("script", ["$rota exec flood | head -n 1", "$rota exec flood -o >(head -n 1)"])
async def test_a_reader_who_has_enough_ends_the_command_as_sigpipe_ends_a_filter(server: StandIn, script: str) -> None:
    status, out, err = await shell(server, f"{script}; status=${{PIPESTATUS[0]}}; wait; exit $status")
    assert (status, out, err) == (141, b"y\n", "")
    await server.until(lambda: not server.running)


async def test_an_output_that_does_not_fit_makes_a_status(server: StandIn) -> None:
    status, _, err = await shell(server, "$rota exec say x > /dev/full")
    assert status == 1
    assert "No space left" in err


async def test_an_output_is_looked_at_before_the_command_runs(server: StandIn, tmp_path: Path) -> None:
    for target, said in ((tmp_path, "is a folder"), (tmp_path / "none" / "out", "There is no folder")):
        status, _, err = await run(server, "exec", "hang", "-o", str(target))
        assert status == 2
        assert said in err
    status, _, err = await run(server, "exec", "cat", "-i", "/dev/null")
    assert status == 2
    assert "no regular file" in err
    assert not server.wants


async def test_an_output_may_be_a_pipe_or_a_link(server: StandIn, tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("real")
    reading = asyncio.create_task(asyncio.to_thread(pipe.read_bytes))
    assert (await run(server, "exec", "say", "x", "-o", str(pipe)))[0] == 0
    assert (await reading, pipe.is_fifo()) == (b"x", True)
    assert (await run(server, "exec", "say", "y", "-o", str(link)))[0] == 0
    assert ((tmp_path / "real").read_bytes(), link.is_symlink()) == (b"y", True)
