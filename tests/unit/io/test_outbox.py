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
    peer.reads.set()
    await asyncio.wait_for(writing, 30)
    assert peer.got == ["x"]


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
