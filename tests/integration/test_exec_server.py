"""An exec server on real sockets: what is said, who gets in, what a broken or hostile client can do."""

import asyncio
import contextlib
import json
import random

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from rota.errors import SettingsError
from rota.io import serving
from rota.io.serving import FRAMES_IN_A_ROW
from rota.slots.broker import BAD_FRAMES_MAX, Broker
from rota.slots.io.server import ExecServer, Listen
from rota.slots.messages import (
    OVERVIEW_ROWS_MAX,
    Cancel,
    Decline,
    Done,
    Error,
    Hello,
    Job,
    Offer,
    Overview,
    Position,
    Progress,
    Query,
    Queued,
    Receipt,
    Unwant,
    Work,
)
from rota.slots.progress import Moved
from rota.slots.rules import Rules
from tests.integration.exec_servers import WAIT_S, Hands, client_of, exec_server


async def test_one_call_from_want_to_done() -> None:
    async with exec_server() as (server, hands), client_of(server) as client:
        job_id = await client.want()
        assert await client.expect(Offer) == Offer(job_id)
        await client.send(Job(job_id, Work(args={"height": 720}, stdin="http://x/pipe/1")))
        await hands.until(lambda: job_id in hands.running)
        assert hands.running[job_id] == Work(args={"height": 720}, stdin="http://x/pipe/1")
        hands.moved(job_id, Moved(10, 20, "half"))
        assert await client.expect(Progress) == Progress(job_id, 10, 20, "half")
        assert server.broker.in_use == 1
        hands.end(job_id, Receipt(ended_by="exit", exit=3, stderr_line="no"))
        assert await client.expect(Done) == Done(job_id, Receipt(ended_by="exit", exit=3, stderr_line="no"))
        assert server.broker.in_use == 0


async def test_a_want_that_waits_is_told_so_and_can_be_asked_for() -> None:
    async with exec_server() as (server, _), client_of(server) as client:
        await client.want("a")
        await client.expect(Offer)
        await client.want("b")
        assert await client.expect(Queued) == Queued("b")
        await client.send(Query("b"))
        assert await client.expect(Position) == Position("b", 0, 1, 1)
        await client.send(Query())
        overview = await client.expect(Overview)
        assert [(job.job_id, job.state, job.ahead) for job in overview.jobs] == [
            ("a", "offered", None),
            ("b", "waiting", 0),
        ]
        async with httpx.AsyncClient(trust_env=False) as http:
            found = (await http.get(f"{server.address}/overview")).json()
        assert [job["job_id"] for job in found["jobs"]] == ["a", "b"]


async def test_a_want_whose_slot_comes_at_once_is_not_told_that_it_waits() -> None:
    async with exec_server() as (server, hands), client_of(server) as client:
        hands.at_once = True
        await client.want("a")
        await client.expect(Offer)
        await client.want("b")
        await client.send(Job("a", Work()))  # both in one turn: "b" stands in line for no time
        assert isinstance(await client.get(), Done)
        assert await client.get() == Offer("b")
        await client.send(Query("b"))
        assert isinstance(await client.get(), Position)


async def test_frames_keep_their_order_whichever_way_they_take() -> None:
    """More of them in one write than one client may have handled in a row, whole ones and one in pieces."""
    names = [f"j{number}" for number in range(5 * FRAMES_IN_A_ROW)]
    wants = [f'{{"type":"WANT","job_id":"{name}","service":"cut"}}' for name in names]
    async with exec_server(wants_max=len(names)) as (server, _), client_of(server) as client:
        for number, want in enumerate(wants):
            await client.websocket.send([want[:9], want[9:]] if number == FRAMES_IN_A_ROW // 2 else want)
        await client.send(Query(names[-1]))
        assert (await client.expect(Position)).ahead == len(names) - 2
        calls = server.broker.clients[1].calls
        assert list(calls) == names


async def test_a_session_that_fails_takes_its_wants_along_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    async with exec_server() as (server, _), client_of(server) as client, client_of(server) as other:
        await client.want("a")
        await client.expect(Offer)
        monkeypatch.setattr(server.exchange, "garble", None)
        await client.send("what is this")
        assert await client.closed() == 1011
        await other.want("b")
        assert await other.expect(Offer) == Offer("b")


async def test_cancel_stops_a_command_and_its_slot_is_free_only_when_it_is_dead() -> None:
    async with exec_server() as (server, hands), client_of(server) as client:
        hands.dies = False
        job_id = await client.want()
        await client.expect(Offer)
        await client.send(Job(job_id, Work()))
        await client.send(Cancel(job_id))
        await hands.until(lambda: hands.cancelled)
        assert server.broker.in_use == 1
        hands.end(job_id, Receipt(ended_by="cancelled"))
        assert (await client.expect(Done)).receipt.ended_by == "cancelled"
        assert server.broker.in_use == 0


async def test_hello_is_sent_again_when_the_number_of_clients_changes() -> None:
    async with exec_server() as (server, _), client_of(server) as first:
        async with client_of(server):
            while (await first.expect(Hello)).clients != 2:
                pass
        while (await first.expect(Hello)).clients != 1:
            pass


async def test_drain_deals_no_slot_and_hands_back_what_does_not_end() -> None:
    async with exec_server(processes=2) as (server, hands), client_of(server) as client:
        for job_id in ("a", "b", "c"):
            await client.want(job_id)
        for job_id in ("a", "b"):
            await client.expect(Offer)
            await client.send(Job(job_id, Work()))
        await hands.until(lambda: len(hands.running) == 2)
        draining = asyncio.create_task(server.drain(WAIT_S))
        while not (await client.expect(Hello)).draining:
            pass
        async with httpx.AsyncClient(trust_env=False) as http:
            assert (await http.get(f"{server.address}/readyz")).status_code == 503
            assert (await http.get(f"{server.address}/healthz")).status_code == 200
        hands.end("a")
        assert (await client.expect(Done)).job_id == "a"
        assert server.broker.in_use == 1, "the freed slot is not dealt to c"
        stopping = asyncio.create_task(server.stop())
        done = await client.expect(Done)
        assert (done.job_id, done.receipt.ended_by, done.receipt.retryable) == ("b", "stopped", True)
        assert await client.closed() == 1001
        await asyncio.gather(draining, stopping)


async def test_what_is_not_a_frame_is_answered_by_name_and_touches_nobody_else() -> None:
    async with exec_server(processes=2) as (server, _), client_of(server) as bad, client_of(server) as good:
        await bad.want("a")
        await bad.expect(Offer)
        for frame, code, job_id in [
            ("no json", "bad_frame", None),
            ('{"type":"WANT","job_id":"b"}', "bad_frame", "b"),
            ('{"type":"WANT","job_id":"b","service":"mp3"}', "unknown_service", "b"),
            ('{"type":"WANT","job_id":"a","service":"cut"}', "duplicate_want", "a"),
            ('{"type":"JOB","job_id":"b","job":{}}', "no_offer", "b"),
            ('{"type":"QUERY","job_id":"b"}', "unknown_job", "b"),
        ]:
            await bad.send('{"type":"HULLABALOO"}')  # ignored
            await bad.send(frame)
            error = await bad.expect(Error)
            assert (error.code, error.job_id) == (code, job_id), error.message
        await bad.send(Decline("b"))
        await bad.send(Unwant("b"))
        assert server.broker.in_use == 1
        assert (await good.want("a"), (await good.expect(Offer)).job_id) == ("a", "a")


async def test_out_of_turn_words_leave_the_slots_as_they_are() -> None:
    """S38."""
    async with exec_server() as (server, hands), client_of(server) as client:
        job_id = await client.want()
        await client.expect(Offer)
        await client.send(Job(job_id, Work()))
        await client.send(Job(job_id, Work()))
        assert (await client.expect(Error)).code == "running"
        await client.send(Decline(job_id))
        assert (await client.expect(Error)).code == "running"
        await client.send(Unwant(job_id))
        assert (await client.expect(Error)).code == "running"
        await client.want(job_id)
        assert (await client.expect(Error)).code == "duplicate_want"
        assert (hands.started, server.broker.in_use) == ([job_id], 1)
        hands.end(job_id)
        await client.expect(Done)
        await client.send(Job(job_id, Work()))
        assert (await client.expect(Error)).code == "no_offer"
        assert (hands.started, server.broker.in_use) == ([job_id], 0)


@pytest.mark.parametrize("size", [50_000_000])
async def test_a_frame_of_50_mb_closes_its_client_and_no_other(size: int) -> None:
    """S38."""
    async with exec_server() as (server, _), client_of(server, max_size=None) as hostile, client_of(server) as other:
        await other.want("a")
        await other.expect(Offer)
        with pytest.raises(ConnectionClosed):
            await hostile.send('{"type":"WANT","job_id":"' + "x" * size + '"}')
            await hostile.closed()
            await hostile.send("{}")
        await other.until_clients(1)
        assert server.broker.in_use == 1


async def test_a_client_that_sends_nothing_but_garbage_is_shut_out() -> None:
    """S38."""
    async with exec_server() as (server, _), client_of(server) as hostile:
        for _ in range(BAD_FRAMES_MAX):
            await hostile.send("garbage")
        assert await hostile.closed() == 1008


async def test_a_late_job_of_a_client_that_came_back_is_refused() -> None:
    """S37."""
    async with exec_server() as (server, hands), client_of(server) as other:
        async with client_of(server) as client:
            await client.want("a")
            await client.expect(Offer)
            await other.want("b")
            await other.expect(Queued)
        assert (await other.expect(Offer)).job_id == "b"
        async with client_of(server) as client:
            await client.send(Job("a", Work()))
            assert (await client.expect(Error)).code == "no_offer"
            await client.want("a")
            await client.expect(Queued)
            await other.send(Job("b", Work()))
            await hands.until(lambda: hands.running)
            hands.end("b")
            await client.expect(Offer)
            await client.send(Job("a", Work()))
            await hands.until(lambda: "a" in hands.running)
    assert hands.started == ["b", "a"]


async def test_an_offer_that_nobody_answers_goes_to_the_next() -> None:
    """S37."""
    async with (
        exec_server(offer_timeout_s=0.05) as (server, _),
        client_of(server) as silent,
        client_of(server) as next_,
    ):
        await silent.want("a")
        await silent.expect(Offer)
        await next_.want("b")
        await next_.expect(Queued)
        assert (await next_.expect(Offer)).job_id == "b"
        assert (await silent.expect(Error)).code == "offer_expired"


async def test_sockets_cut_at_random_moments_leave_no_slot_in_use() -> None:
    """S31 on real sockets; a thousand cuts without them are in tests/unit/slots/test_broker.py."""
    chance = random.Random(31)
    async with exec_server(processes=3) as (server, hands), client_of(server) as witness:

        async def cut(number: int) -> None:
            async with client_of(server) as client:
                job_id = await client.want(f"cut{number}")
                if chance.random() < 0.6:
                    await client.expect(Offer)
                    if chance.random() < 0.6:
                        await client.send(Job(job_id, Work()))
                        if chance.random() < 0.5:
                            await hands.until(lambda: job_id in hands.started)
                client.websocket.transport.abort()

        async def finish() -> None:
            while True:
                await hands.until(lambda: hands.running)
                hands.end(chance.choice(list(hands.running)))
                await asyncio.sleep(0)

        finishing = asyncio.create_task(finish())
        for start in range(0, 120, 12):
            await asyncio.gather(*(cut(start + number) for number in range(12)))
        finishing.cancel()
        await witness.until_clients(1)
        await hands.until(lambda: not hands.running)
        assert (server.broker.in_use, server.broker.waiting) == (0, 0)
        assert hands.most <= 3


async def test_a_task_that_is_cancelled_between_reservation_and_offer_leaves_no_slot() -> None:
    """S31: the session's own task ends while its offer lies in the outbox."""
    async with exec_server() as (server, _), client_of(server) as witness:
        (of_witness,) = server._sessions
        async with client_of(server) as client:
            (session,) = server._sessions - {of_witness}
            await client.want("a")
            await witness.want("b")
            await witness.expect(Queued)
            session.cancel()
            assert (await witness.expect(Offer)).job_id == "b"
        assert server.broker.in_use == 1


async def test_a_link_that_is_dead_without_a_word_is_noticed_and_its_command_stopped() -> None:
    """S39, the exec server's side: nothing is answered any more, and no reset comes."""
    async with exec_server(listen=Listen(ping_s=1.0)) as (server, hands):
        websocket = await connect(f"ws://127.0.0.1:{server.port}/broker", proxy=None, ping_interval=None)
        await websocket.recv()
        await websocket.send('{"type":"WANT","job_id":"a","service":"cut"}')
        while json.loads(await websocket.recv())["type"] != "OFFER":
            pass
        await websocket.send('{"type":"JOB","job_id":"a","job":{}}')
        await hands.until(lambda: hands.running)
        websocket.transport.pause_reading()  # its pings stay unanswered from here on
        await hands.until(lambda: hands.cancelled == ["a"])
        await hands.until(lambda: not hands.running)
        assert (server.broker.in_use, server.broker.clients) == (0, {})
        websocket.transport.abort()


async def test_a_client_that_does_not_read_is_dropped_instead_of_filling_the_memory() -> None:
    async with exec_server(listen=Listen(outbox_bytes_max=200_000)) as (server, _), client_of(server) as other:
        websocket = await connect(f"ws://127.0.0.1:{server.port}/broker", proxy=None, ping_interval=None, max_queue=1)
        for number in range(OVERVIEW_ROWS_MAX):
            await other.want(f"{number}{'x' * 90}")
        await other.want("last")
        while await other.expect(Queued) != Queued("last"):
            pass
        websocket.transport.pause_reading()
        with pytest.raises(ConnectionClosed):
            async with asyncio.timeout(WAIT_S):
                while True:
                    await websocket.send('{"type":"QUERY"}')  # the answer is large
        await other.until_clients(1)


async def test_a_token_is_asked_of_everyone_but_those_who_look_whether_it_lives(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with exec_server(listen=Listen(token="s3cret")) as (server, _):
        for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "s3cre"}):
            with pytest.raises(InvalidStatus) as caught:
                async with connect(f"ws://127.0.0.1:{server.port}/broker", proxy=None, additional_headers=header):
                    pass
            assert caught.value.response.status_code == 401
        assert caplog.text.count("a client is refused") == 3
        assert "completing handshake" not in caplog.text, "an answer is no failure"
        async with client_of(server, additional_headers={"Authorization": "Bearer s3cret"}) as client:
            await client.want()
            await client.expect(Offer)
        async with httpx.AsyncClient(trust_env=False) as http:
            assert (await http.get(f"{server.address}/healthz")).status_code == 200
            assert (await http.get(f"{server.address}/metrics")).status_code == 401
            with_token = await http.get(f"{server.address}/metrics", headers={"Authorization": "Bearer s3cret"})
            assert "rota_slots_in_use{" in with_token.text


@pytest.mark.parametrize("weight", ["%C2%B2", "%D9%A3", "-1", "1e3", "999999", ""])
async def test_a_weight_that_is_none_is_one(weight: str) -> None:
    async with exec_server(weight_max=1000) as (server, _):
        async with connect(f"ws://127.0.0.1:{server.port}/broker?weight={weight}", proxy=None) as websocket:
            assert b"HELLO" in (await asyncio.wait_for(websocket.recv(decode=False), WAIT_S))
        await asyncio.sleep(0)
        assert not any(group.book.weight(1) != 1 for group in server.broker.groups.values())


async def test_an_id_with_a_line_break_at_its_end_is_none() -> None:
    async with exec_server() as (server, _), client_of(server) as client:
        await client.send('{"type":"WANT","job_id":"a\\n","service":"cut"}')
        assert (await client.expect(Error)).code == "bad_frame"
        assert server.broker.in_use == 0


@pytest.mark.parametrize("head", [b"", b"GET /healthz HTTP/1.1\r\nHost:", b"GET /broker HTTP/1.1\r\nUpgrade: x\r\n"])
async def test_who_does_not_say_what_it_wants_is_cut_off(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HEAD_S_MAX", 0.2)
    async with exec_server() as (server, _), client_of(server) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head)
        assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        writer.close()
        # Who has said it stays, however long it is silent.
        await client.want("j1")
        assert await client.expect(Offer) == Offer("j1")


async def test_a_head_without_an_end_is_cut_off() -> None:
    async with exec_server() as (server, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nX: " + b"a" * (serving.HEAD_BYTES_MAX + 1))
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        writer.close()
        async with httpx.AsyncClient() as http:
            assert (await http.get(f"{server.address}/healthz")).text == "alive\n"


async def test_a_page_in_a_browser_gets_nowhere() -> None:
    async with exec_server() as (server, _):
        with pytest.raises(InvalidStatus) as caught:
            async with connect(f"ws://127.0.0.1:{server.port}/broker", proxy=None, origin="http://evil.example"):
                pass
        assert caught.value.response.status_code == 403


def test_off_loopback_it_does_not_start_without_a_token() -> None:
    broker = Broker(Rules("box:1", {"cut": "cpu"}, {"cpu": 1}))
    for host in ("0.0.0.0", "::", "192.0.2.7", "exec.example"):
        with pytest.raises(SettingsError, match="set a token"):
            ExecServer(broker, Listen(host), Hands)
    ExecServer(broker, Listen("0.0.0.0", token="s3cret"), Hands)


async def test_an_address_that_is_taken_is_a_sentence() -> None:
    async with exec_server() as (server, _):
        broker = Broker(Rules("box:2", {"cut": "cpu"}, {"cpu": 1}))
        with pytest.raises(SettingsError, match=r"cannot listen on .*: another program has this port\. Stop it"):
            await ExecServer(broker, Listen(port=server.port), Hands).start()


async def test_stop_may_come_twice_and_before_start() -> None:
    server = ExecServer(Broker(Rules("box:1", {"cut": "cpu"}, {"cpu": 1})), Listen(), Hands)
    await server.stop()
    await server.start()
    await server.start()
    await server.stop()
    await server.stop()
