"""The client of exec servers against one that can be made to behave badly: calls, streams, faults."""

import asyncio
import io
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rota.commands import Call
from rota.errors import ExecFailed, ExecLost, ExecRefused, ExecStopped, NoSlot
from rota.io.commands import run_whole
from rota.slots.address import Address
from rota.slots.io.client import ClientOptions, SlotClient
from rota.slots.io.server import ExecServer
from rota.slots.messages import Cancel, Decline, EndedBy, Job, Receipt, Unwant, Want
from tests.integration.exec_stand_in import StandIn, Streams, cat, fail, hang, say
from tests.integration.real_exec_server import real_exec_server

COMMANDS = {"cat": cat, "say": say, "fail": fail, "hang": hang}


@asynccontextmanager
async def client_of(*servers: StandIn | ExecServer, **options: Any) -> AsyncIterator[SlotClient]:
    addresses = tuple(Address("127.0.0.1", server.port) for server in servers)
    client = SlotClient(ClientOptions(addresses, **options))
    client.start()
    try:
        async with asyncio.timeout(60):
            yield client
    finally:
        await client.stop()


async def run(client: SlotClient, service: str, *args: str, **facts: Any) -> bytes:
    return (await run_whole(client, Call(service, args, **facts))).output


async def test_a_small_command_runs_whole() -> None:
    async with StandIn(COMMANDS) as server, client_of(server) as client:
        done = await run_whole(client, Call("say", ("hello", "there")))
        assert done.output == b"hello there"
        assert done.receipt.ok


async def test_an_output_that_nobody_wants_has_no_stream() -> None:
    async def quiet(streams: Streams, _args: Any) -> Receipt:
        assert streams.job.job.stdout is None
        return Receipt(ended_by=EndedBy.EXIT, exit=0, stdout_prefix="x", bytes_out=1, digest="of x")

    async with StandIn({"quiet": quiet, "fail": fail, "hang": hang}) as server, client_of(server) as client:
        done = await run_whole(client, Call("quiet", output=False))
        assert (done.output, done.receipt.stdout_prefix) == (b"", "x")
        async with client.exec(Call("quiet", output=False)) as left_unread:
            pass
        assert left_unread.receipt.ok
        with pytest.raises(ExecFailed, match="no such codec"):
            await run(client, "fail", output=False)
        server.refuse_jobs = 1
        assert await run(client, "quiet", output=False) == b"", "its slot went to somebody else, and it waited again"
        lost = asyncio.create_task(run(client, "hang", output=False))
        await server.until(lambda: server.running)
        await server.crash()
        with pytest.raises(ExecLost):
            await lost


@pytest.mark.parametrize("old", [False, True])
async def test_a_command_writes_what_nobody_wants(old: bool) -> None:
    async with real_exec_server(old=old) as server, client_of(server) as client:
        done = await run_whole(client, Call("cat", stdin=b"y" * 100_000, output=False))
        assert (done.output, done.receipt.bytes_out) == (b"", 100_000)


@pytest.mark.parametrize("kind", ["bytes", "path", "file", "chunks", "async chunks", "stream", "empty"])
async def test_stdin_may_be_anything_that_has_bytes(kind: str, tmp_path: Path) -> None:
    data = bytes(range(256)) * 4000

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(data), 100_000):
            yield data[start : start + 100_000]

    path = tmp_path / "in"
    path.write_bytes(data)
    # One line longer than it would read as a line.
    stream = asyncio.StreamReader(limit=1000)
    stream.feed_data(data.replace(b"\n", b"\r"))
    stream.feed_eof()
    stdin: Any = {
        "bytes": data, "path": path, "file": io.BytesIO(data), "chunks": [data[:7], data[7:]], "empty": b"",
        "async chunks": pieces(), "stream": stream,
    }[kind]  # fmt: skip
    told = {"empty": b"", "stream": data.replace(b"\n", b"\r")}.get(kind, data)
    async with StandIn(COMMANDS) as server, client_of(server) as client:
        assert await run(client, "cat", stdin=stdin) == told


async def test_a_call_that_cannot_be_said_touches_no_other() -> None:
    async with StandIn(COMMANDS) as server, client_of(server) as client, client.exec(Call("hang")) as other:
        await other.started()
        for wrong in (Call("say", ["\ud800"]), Call("say", [float("nan")]), Call("say", priority=2**40)):
            with pytest.raises(ExecRefused):
                await run_whole(client, wrong)
        assert (await run_whole(client, Call("say", ["hello"], tenant="t" * 500))).output == b"hello"
        assert not other.has_ended
        assert len(server.connections) == 1
        other.cancel()


async def test_an_input_that_fails_here_says_how(tmp_path: Path) -> None:
    def failing() -> Iterator[bytes]:
        yield b"x" * 10_000
        raise ValueError("of the caller")

    async with real_exec_server() as server, client_of(server) as client:
        for stdin, words in (
            (tmp_path / "nothing", "FileNotFoundError"),
            (failing(), "ValueError: of the caller"),
            ([b"a", "b"], "TypeError: a chunk is str"),
        ):
            with pytest.raises(ExecFailed, match=r"its input could not be read here") as failed:
                await run_whole(client, Call("cat", stdin=stdin))  # type: ignore[arg-type]
            assert words in str(failed.value)
            assert failed.value.__cause__ is not None


async def test_text_is_no_stdin() -> None:
    async with StandIn(COMMANDS) as server, client_of(server) as client:
        with pytest.raises(ExecRefused, match="stdin=str"):
            await run(client, "cat", stdin="text")


async def test_output_streams_and_every_chunk_moves_the_lease() -> None:
    moves: list[None] = []
    async with StandIn(COMMANDS) as server, client_of(server) as client:
        async with client.exec(Call("cat", stdin=b"x" * 1_000_000, moved=lambda: moves.append(None))) as call:
            sizes = [len(chunk) async for chunk in call.stdout]
        assert sum(sizes) == 1_000_000 == call.receipt.bytes_out
        assert len(moves) >= len(sizes)


async def test_progress_of_the_exec_server_moves_the_lease() -> None:
    moved = asyncio.Event()
    async with StandIn(COMMANDS) as server, client_of(server) as client:
        with pytest.raises(TimeoutError):
            async with client.exec(Call("hang", moved=moved.set)) as call:
                await call.started()
                moved.clear()
                await moved.wait()
                raise TimeoutError
        await server.until(lambda: not server.running)


async def test_a_command_that_fails_raises_with_its_receipt_i9() -> None:
    async with StandIn(COMMANDS) as server, client_of(server) as client:
        with pytest.raises(ExecFailed, match=r"status 3.*no such codec") as raised:
            await run(client, "fail")
        assert raised.value.receipt.stdout_prefix == "{"
        async with client.exec(Call("fail", check=False)) as call:
            assert [chunk async for chunk in call.stdout] == []
        assert call.receipt.exit == 3


async def test_output_that_is_shorter_than_its_receipt_never_looks_whole_i9() -> None:
    async def short(streams: Streams, _args: Any) -> Receipt:
        return await streams.write(b"part", length=8)

    async with StandIn({"short": short}) as server, client_of(server) as client:
        with pytest.raises(ExecFailed, match="did not arrive whole"):
            await run(client, "short")


async def test_output_with_another_digest_is_refused_i9() -> None:
    async def wrong(streams: Streams, _args: Any) -> Receipt:
        receipt = await streams.write(b"good")
        return Receipt(ended_by=receipt.ended_by, exit=0, bytes_out=4, digest="blake3:" + "0" * 64)

    async with StandIn({"wrong": wrong}) as server, client_of(server) as client:
        with pytest.raises(ExecFailed, match="did not arrive whole"):
            await run(client, "wrong")


async def test_leaving_the_block_unread_waits_for_the_end() -> None:
    async with StandIn(COMMANDS) as server, client_of(server) as client:
        async with client.exec(Call("cat", stdin=b"y" * 500_000)) as call:
            pass
        assert call.receipt.bytes_out == 500_000


async def test_leaving_the_block_in_the_middle_cancels() -> None:
    async def endless(streams: Streams, _args: Any) -> Receipt:
        async def body() -> AsyncIterator[bytes]:
            while True:
                yield b"z" * 65_536

        async with streams.session.put(str(streams.job.job.stdout), data=body()):
            raise AssertionError

    async with StandIn({"endless": endless}) as server, client_of(server) as client:
        async with client.exec(Call("endless")) as call:
            async for _ in call.stdout:
                break
        assert call.receipt.ended_by == EndedBy.CANCELLED
        assert server.count(Cancel) == 1


async def test_a_handler_that_is_cancelled_cancels_its_command_s43() -> None:
    async with StandIn(COMMANDS) as server, client_of(server) as client:
        task = asyncio.create_task(run(client, "hang"))
        await server.until(lambda: server.running)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.until(lambda: not server.running)


async def test_cancel_stops_the_command_and_the_wait() -> None:
    async with StandIn(COMMANDS, slots=1) as server, client_of(server) as client:
        async with client.exec(Call("hang")) as first:
            await first.started()
            async with client.exec(Call("hang")) as second:
                await server.until(lambda: server.wants)
                second.cancel()
            assert second.receipt.ended_by == EndedBy.CANCELLED
            await server.until(lambda: not server.wants)
            first.cancel()
        assert first.receipt.ended_by == EndedBy.CANCELLED
        with pytest.raises(RuntimeError, match="inside"):
            _ = first.stdout


async def test_the_place_in_line_is_the_least_that_is_told() -> None:
    async with StandIn(COMMANDS, slots=1) as server, client_of(server) as client, client.exec(Call("hang")) as first:
        await first.started()
        assert await first.position() is None
        async with client.exec(Call("hang")) as second, client.exec(Call("hang")) as third:
            await server.until(lambda: len(server.wants) == 2)
            places = await asyncio.gather(second.position(), third.position())
            assert [place and place.ahead for place in places] == [0, 1]
            for call in (first, second, third):
                call.cancel()


async def test_who_does_not_wait_for_a_place_any_more_leaves_it_to_others() -> None:
    async with StandIn(COMMANDS, slots=1) as server, client_of(server) as client, client.exec(Call("hang")) as first:
        await first.started()
        async with client.exec(Call("hang")) as second:
            await server.until(lambda: server.wants)
            one, other = (asyncio.create_task(second.position()) for _ in range(2))
            await asyncio.sleep(0)
            one.cancel()
            place = await other
            assert place is not None and place.ahead == 0
            second.cancel()
        first.cancel()


async def test_a_call_that_was_left_by_an_error_may_be_cancelled_once_more() -> None:
    async with StandIn(COMMANDS) as server, client_of(server) as client:
        with pytest.raises(ValueError, match="of the caller"):
            async with client.exec(Call("hang")) as run:
                await run.started()
                raise ValueError("of the caller")
        run.cancel()
        assert not run.cancelled


async def test_no_slot_within_the_limit_is_an_error_that_sends_the_job_back() -> None:
    async with StandIn(COMMANDS, slots=1) as server, client_of(server) as client, client.exec(Call("hang")) as first:
        await first.started()
        with pytest.raises(NoSlot, match="every slot for say was taken") as raised:
            await run(client, "say", wait_s=0.1)
        assert raised.value.after_s == 60
        with pytest.raises(NoSlot, match=r"offers speech.*cat, fail, hang, say"):
            await run(client, "speech", wait_s=0.1)
        await server.until(lambda: server.count(Unwant) == 1)
        first.cancel()


async def test_without_an_exec_server_the_wait_ends_too() -> None:
    client = SlotClient(ClientOptions((Address("127.0.0.1", 9),)))
    with pytest.raises(NoSlot, match=r"no exec server is connected \(http://127.0.0.1:9"):
        await run(client, "say", wait_s=0.1)
    await client.stop()


async def test_two_offers_race_and_one_is_declined_at_once() -> None:
    async with StandIn(COMMANDS) as one, StandIn(COMMANDS, name="two") as two, client_of(one, two) as client:
        one.offering = two.offering = False
        async with client.exec(Call("hang")) as call:
            await one.until(lambda: one.wants)
            await two.until(lambda: two.wants)
            one.offering = two.offering = True
            # Both offers are under way before the client answers either.
            await asyncio.gather(one.deal(), two.deal())
            await call.started()
            taken = [
                asyncio.create_task(server.until(lambda server=server: server.count(Job))) for server in (one, two)
            ]  # type: ignore[misc]
            await asyncio.wait(taken, return_when=asyncio.FIRST_COMPLETED)
            loser = two if taken[0].done() else one
            for task in taken:
                task.cancel()
            await loser.until(lambda: not loser.offers and loser.count(Decline) == 1)
            assert one.count(Job) + two.count(Job) == 1
            assert client.tally().offers == {"taken": 1, "surplus": 1}
            call.cancel()


async def test_an_exec_server_crashes_and_its_command_is_lost_s46() -> None:
    async with StandIn(COMMANDS) as server, client_of(server) as client:
        with pytest.raises(ExecLost, match="broke while hang ran"):
            async with client.exec(Call("hang", stdin=b"never read")) as call:
                await call.started()
                await server.until(lambda: server.running)
                await server.crash()
                async for _ in call.stdout:
                    pass
        assert all(len(pipes) == 0 for pipes in client._pipes.values()), "nothing is kept for it"


async def test_parked_calls_wait_on_the_others_and_come_back_on_reconnect_s39() -> None:
    async with StandIn(COMMANDS) as one, StandIn(COMMANDS, name="two") as two, client_of(one, two) as client:
        one.offering = two.offering = False
        call = asyncio.create_task(run(client, "say", "at last"))
        await one.until(lambda: one.wants)
        await two.until(lambda: two.wants)
        await one.crash()
        one.heard.clear()
        await one.listen()
        await one.until(lambda: one.count(Want) == 1)
        assert len(two.wants) == 1, "it went on waiting there"
        one.offering = True
        await one.deal()
        assert await call == b"at last"


async def test_a_drop_between_offer_and_job_sends_nothing_for_the_old_offer_s37() -> None:
    async with StandIn(COMMANDS) as server, client_of(server) as client:
        server.offering = False
        call = asyncio.create_task(run(client, "say", "once"))
        await server.until(lambda: server.wants)
        await server.crash()
        server.heard.clear()
        server.offering = True
        await server.listen()
        assert await call == b"once"
        assert [type(message) for message in server.heard] == [Want, Job]


@pytest.mark.parametrize("reading", [False, True])
async def test_an_offer_that_expired_before_its_job_is_asked_for_again_s37(reading: bool) -> None:
    async with StandIn(COMMANDS) as server, client_of(server) as client:
        server.refuse_jobs = 1
        async with client.exec(Call("cat", stdin=b"abc")) as call:
            if not reading:
                await server.until(lambda: server.count(Job) == 2)
            assert b"".join([chunk async for chunk in call.stdout]) == b"abc"
        assert [type(message) for message in server.heard] == [Want, Job, Want, Job]


async def test_a_command_that_was_handed_back_counts_no_try() -> None:
    async def stopped(_streams: Streams, _args: Any) -> Receipt:
        return Receipt(ended_by=EndedBy.STOPPED, error="This exec server ends.", retryable=True)

    async with StandIn({"stopped": stopped}) as server, client_of(server) as client:
        with pytest.raises(ExecStopped, match="handed back") as raised:
            await run(client, "stopped")
        assert raised.value.after_s < 60


async def test_a_job_that_is_too_large_is_refused_by_name_and_frees_the_slot() -> None:
    async with StandIn(COMMANDS) as server, client_of(server) as client:
        with pytest.raises(ExecRefused, match="pipe"):
            await run(client, "say", "x" * 2_000_000)
        await server.until(lambda: server.count(Decline) == 1)
        assert not server.offers


async def test_what_drains_gets_no_wants() -> None:
    async with StandIn(COMMANDS) as server, client_of(server) as client:
        await run(client, "say", "it is there")
        changed = asyncio.Event()
        client.watch(changed.set)
        server.draining = True
        await server.greet_again()
        await changed.wait()
        with pytest.raises(NoSlot):
            await run(client, "say", "hi", wait_s=0.2)


async def test_the_token_is_sent_and_a_wrong_one_is_said(caplog: pytest.LogCaptureFixture) -> None:
    async with StandIn(COMMANDS) as server:
        server.token = "s3cret"
        async with client_of(server, token="s3cret") as client:
            assert await run(client, "say", "hi") == b"hi"
        async with client_of(server, token="wrong") as client:
            while "exec_token" not in caplog.text:
                await asyncio.sleep(0.01)
            with pytest.raises(NoSlot, match="it wants another token"):
                await run(client, "say", "hi", wait_s=0.1)
        assert "exec_token" in caplog.text
        assert "wrong" not in caplog.text


async def test_instances_tell_what_may_be_claimed_s40() -> None:
    async with StandIn(COMMANDS, slots=4) as one, client_of(one) as client:
        changes: list[int] = []
        services = {"k": ["say"]}
        changed = asyncio.Event()

        def note() -> None:
            changes.append(client.room("k", services=services, running={}))
            changed.set()

        client.watch(note)
        while not changes:
            await asyncio.wait_for(changed.wait(), 30)
        assert changes == [4 + 2]
        changed.clear()
        await one.crash()
        await asyncio.wait_for(changed.wait(), 30)
        assert changes[-1] == 0, "no exec server, nothing claimed"


async def test_stop_may_come_first_and_twice() -> None:
    client = SlotClient(ClientOptions(()))
    await client.stop()
    client.start()
    client.start()
    await client.stop()
    await client.stop()


def test_an_app_may_be_used_in_one_event_loop_after_another() -> None:
    async def once(client: SlotClient) -> None:
        async with asyncio.timeout(30):
            with pytest.raises(NoSlot):
                await run(client, "say", "hi", wait_s=0.05)
        await client.stop()

    client = SlotClient(ClientOptions((Address("127.0.0.1", 9),)))
    for _ in range(2):
        asyncio.run(once(client))
