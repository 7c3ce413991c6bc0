"""Keepers as whoever runs commands takes them."""

import asyncio

import psutil

from rota.slots.io.keepers import Keepers


async def test_who_is_cancelled_while_a_keeper_starts_leaves_none_behind() -> None:
    keepers = Keepers()
    try:
        async with asyncio.timeout(60):
            taking = asyncio.create_task(keepers.take())
            await asyncio.sleep(0)
            taking.cancel()
            await asyncio.wait([taking])
            assert taking.cancelled()
            keeper = await keepers.take()
            nursery = psutil.Process(keeper.pid).parent()
            assert nursery is not None
            while len(found := nursery.children()) > 1:
                await asyncio.sleep(0.01)
            assert [child.pid for child in found] == [keeper.pid]
    finally:
        await keepers.close()
