"""Checks who runners are, many in one go: a storm of hellos costs as few statements as one. It decides nothing about
jobs.

The order is that of the costs: the clock, then one look for all devices and one for all secrets of the pool, then the
signatures, then the nonces of those that were good.

Spec: runners, "Connection handshake and authentication".
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from rota.runners import gateway_events as events
from rota.runners.codes import CloseCode
from rota.runners.handshake import Refusal
from rota.runners.io.devices import Devices
from rota.runners.io.proving import judge, used_before
from rota.runners.io.store import RunnerStore
from rota.runners.matching import RunnerKind
from rota.runners.messages import DeviceAuth
from rota.runners.records import Device

SIGNATURES_IN_A_ROW: Final = 16
"""After so many, about 2 ms, the loop has its turn: heartbeats do not wait for a crowd at the door."""

UNKNOWN_CREDENTIAL: Final = Refusal(CloseCode.UNAUTHENTICATED, "the pool's credential is unknown or was replaced")

Answer = events.Verified | events.Refused


class Hellos:
    """The checks of one replica.

    Args:
        devices, store: the database.
        instance: this replica's name.
    """

    def __init__(self, devices: Devices, store: RunnerStore, *, instance: str) -> None:
        self._devices = devices
        self._store = store
        self._instance = instance

    async def check(self, asked: Sequence[events.Authenticate], *, waits: Callable[[int], bool]) -> list[Answer]:
        """Checks them, and tells the other replicas of those that are good and still there.

        Args:
            asked: the hellos.
            waits: whether a connection is still there. A runner that has gone elsewhere meanwhile, because nobody
                answered here, must not lose its newer connection to an older one.

        Returns: what to make of each, in order.
        Raises: DatabaseAway.
        """
        answers = await self._identify(asked)
        good = [answer for answer in answers if isinstance(answer, events.Verified) and waits(answer.connection)]
        if not good:
            return answers
        # Before their jobs are moved here: the replica that one left hears of both in this order.
        orders = await self._store.announce([(one.identity.runner_id, None) for one in good], instance=self._instance)
        order_of = {one.connection: order for one, order in zip(good, orders, strict=True)}
        return [
            replace(one, order=order_of[one.connection])
            if isinstance(one, events.Verified) and one.connection in order_of
            else one
            for one in answers
        ]

    async def _identify(self, asked: Sequence[events.Authenticate]) -> list[Answer]:
        ids = {one.hello.auth.device_id for one in asked if isinstance(one.hello.auth, DeviceAuth)}
        secrets = {one.hello.auth.credential for one in asked if not isinstance(one.hello.auth, DeviceAuth)}
        devices = await self._devices.find(ids) if ids else {}
        good = await self._devices.good_credentials(secrets) if secrets else set()
        answers: list[Answer] = []
        for place, one in enumerate(asked, 1):
            auth = one.hello.auth
            if isinstance(auth, DeviceAuth):
                answers.append(_of_device(one, auth, devices.get(auth.device_id)))
            elif auth.credential in good:
                identity = events.Identity(f"pool:{auth.worker_name}", RunnerKind.CLOUD_POOL, None)
                answers.append(events.Verified(one.connection, identity))
            else:
                answers.append(_refused(one, UNKNOWN_CREDENTIAL))
            if place % SIGNATURES_IN_A_ROW == 0:
                await asyncio.sleep(0)
        return await self._once(asked, answers)

    async def _once(self, asked: Sequence[events.Authenticate], answers: list[Answer]) -> list[Answer]:
        """Refuses those whose hello was used before, here or elsewhere."""
        shown = [
            (one.hello.auth.device_id, one.hello.auth.nonce)
            if isinstance(one.hello.auth, DeviceAuth) and isinstance(answer, events.Verified)
            else None
            for one, answer in zip(asked, answers, strict=True)
        ]
        nonces = {pair for pair in shown if pair is not None}
        fresh = await self._devices.use_nonces(nonces) if nonces else set()
        found: list[Answer] = []
        for one, answer, pair in zip(asked, answers, shown, strict=True):
            if pair is None or pair in fresh:
                fresh.discard(pair or ("", ""))
                found.append(answer)
            else:
                found.append(_refused(one, used_before()))
        return found


def _of_device(asked: events.Authenticate, auth: DeviceAuth, device: Device | None) -> Answer:
    found = judge(device, auth, host=asked.host)
    if isinstance(found, Refusal):
        return _refused(asked, found)
    identity = events.Identity(found.device.device_id, RunnerKind.DESKTOP, found.device.org_id)
    return events.Verified(asked.connection, identity)


def _refused(asked: events.Authenticate, refusal: Refusal) -> events.Refused:
    return events.Refused(asked.connection, refusal.code, refusal.reason, tells_time=refusal.tells_time)
