"""One write for all that is said in one turn of the event loop; reading stops only when that outlasts the turn."""

import asyncio
from typing import cast

from rota.io.batched import AT_ONCE_BYTES, BatchedTransport


class Wire:
    """A transport that notes what is done to it."""

    def __init__(self) -> None:
        self.done: list[object] = []

    def write(self, data: bytes) -> None:
        self.done.append(data)

    def get_write_buffer_size(self) -> int:
        return 7

    def is_closing(self) -> bool:
        return "close" in self.done

    def pause_reading(self) -> None:
        self.done.append("pause")

    def resume_reading(self) -> None:
        self.done.append("resume")

    def write_eof(self) -> None:
        self.done.append("eof")

    def close(self) -> None:
        self.done.append("close")

    def get_extra_info(self, name: str) -> str:
        return f"its {name}"


def batched() -> tuple[BatchedTransport, Wire]:
    wire = Wire()
    return BatchedTransport(cast(asyncio.Transport, wire)), wire


async def test_what_is_said_in_one_turn_goes_out_at_once_and_in_order() -> None:
    transport, wire = batched()
    transport.write(b"a")
    transport.writelines([b"b", b"c"])
    assert (wire.done, transport.get_write_buffer_size()) == ([], 10)
    await asyncio.sleep(0)
    assert (wire.done, transport.get_write_buffer_size()) == ([b"abc"], 7)
    transport.write(b"d")
    await asyncio.sleep(0)
    assert wire.done == [b"abc", b"d"]


async def test_much_does_not_wait_so_that_the_transport_can_say_stop() -> None:
    transport, wire = batched()
    transport.write(b"a")
    transport.write(bytes(AT_ONCE_BYTES))
    assert wire.done == [b"a" + bytes(AT_ONCE_BYTES)]
    await asyncio.sleep(0)
    assert len(wire.done) == 1


async def test_nothing_is_lost_before_an_end() -> None:
    transport, wire = batched()
    transport.write(b"a")
    transport.write_eof()
    transport.write(b"b")
    transport.pause_reading()
    transport.close()
    await asyncio.sleep(0)
    assert wire.done == [b"a", "eof", b"b", "close"]


async def test_a_pause_that_is_over_in_the_same_turn_is_none() -> None:
    transport, wire = batched()
    transport.pause_reading()
    transport.resume_reading()
    await asyncio.sleep(0)
    assert wire.done == []
    transport.pause_reading()
    await asyncio.sleep(0)
    transport.pause_reading()
    await asyncio.sleep(0)
    assert wire.done == ["pause"]
    transport.resume_reading()
    await asyncio.sleep(0)
    assert wire.done == ["pause", "resume"]
    assert transport.get_extra_info("peername") == "its peername"
