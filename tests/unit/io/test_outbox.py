"""Frames to a slow reader: in order, never more than the bound, never waited for."""

import asyncio

from rota.io.outbox import WRITE_TIMEOUT_S, Outbox


class Peer:
    def __init__(self) -> None:
        self.got: list[str] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.now = 0.0

    async def send(self, frame: str) -> None:
        await self.reads.wait()
        self.got.append(frame)


async def test_frames_go_out_in_order_and_what_is_there_at_the_end_too() -> None:
    peer = Peer()
    outbox = Outbox(peer.send, lambda: peer.now)
    writing = asyncio.create_task(outbox.run())
    outbox.put("a")
    await asyncio.sleep(0)
    outbox.put("b")
    outbox.put("c")
    outbox.close()
    outbox.put("too late")
    await asyncio.wait_for(writing, 30)
    assert peer.got == ["a", "b", "c"]


async def test_a_reader_that_is_too_slow_ends_it() -> None:
    peer = Peer()
    peer.reads.clear()
    outbox = Outbox(peer.send, lambda: peer.now, bytes_max=10_000)
    writing = asyncio.create_task(outbox.run())
    outbox.put("x")
    await asyncio.sleep(0)
    for _ in range(9):
        outbox.put("x" * 1000)
    assert not outbox.overflowed
    outbox.put("x" * 1000)
    assert outbox.overflowed
    await asyncio.wait_for(writing, 30)  # it does not wait for the reader
    assert peer.got == []


async def test_a_frame_that_cannot_be_written_for_long_ends_it() -> None:
    peer = Peer()
    peer.reads.clear()
    outbox = Outbox(peer.send, lambda: peer.now)
    writing = asyncio.create_task(outbox.run())
    outbox.put("x")
    await asyncio.sleep(0)
    peer.now = WRITE_TIMEOUT_S + 1
    outbox.put("y")
    assert outbox.overflowed
    peer.reads.set()
    await asyncio.wait_for(writing, 30)


async def test_what_was_written_makes_room() -> None:
    peer = Peer()
    outbox = Outbox(peer.send, lambda: peer.now, bytes_max=10_000)
    writing = asyncio.create_task(outbox.run())
    for _ in range(100):
        outbox.put("x" * 1000)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    outbox.close()
    await asyncio.wait_for(writing, 30)
    assert not outbox.overflowed
    assert len(peer.got) == 100


async def test_what_can_be_written_at_once_is_and_never_before_what_waits() -> None:
    peer, able = Peer(), True

    def at_once(frame: str) -> bool:
        if able:
            peer.got.append(frame)
        return able

    outbox = Outbox(peer.send, lambda: peer.now, at_once=at_once)
    writing = asyncio.create_task(outbox.run())
    for frame in ("a", "b", "c"):
        outbox.put(frame)
    assert peer.got == ["a", "b", "c"]
    able = False
    outbox.put("d")
    assert peer.got == ["a", "b", "c"]
    able = True
    outbox.put("e")
    assert peer.got == ["a", "b", "c", "d", "e"]
    peer.reads.clear()
    able = False
    outbox.put("f")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    able = True  # the writer has it in hand: what comes after it waits
    outbox.put("g")
    peer.reads.set()
    outbox.close()
    await asyncio.wait_for(writing, 30)
    assert peer.got == ["a", "b", "c", "d", "e", "f", "g"]
