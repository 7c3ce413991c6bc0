"""Reads what `rota jobs why` and `rota doctor` say of runners: the database first, then every gateway that runs.

Who is connected stands in the memory of each gateway and nowhere else, so each is asked; one that does not answer is
named. Nothing is written.
"""

import asyncio
import json
import ssl
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import aiohttp
import msgspec

from rota.io.postgres import Database
from rota.queue.why_facts import AHEAD_MAX, PauseFacts
from rota.runners import api
from rota.runners.explain import GatewaySeen, RunnerFacts
from rota.runners.health import RunnerHealth
from rota.runners.io.store import RunnerStore, Statements
from rota.runners.io.trust import trusted_gateways
from rota.runners.records import RunnerJob
from rota.settings import Settings

LIVE_S: Final = 60.0
"""Each gateway says every 10 seconds that it is there."""
ANSWER_S: Final = 5.0
"""How long a gateway may take to say who is connected; what it does not say, the explanation says."""


async def read_runners(database: Database, settings: Settings) -> RunnerHealth:
    """How gateways and runner jobs are, for the doctor.

    Raises: DatabaseAway, DatabaseError, SettingsError.
    """
    return await Survey(database, settings).health()


class Survey(Statements):
    """What is looked at.

    Args:
        database: where the jobs are.
        settings: the token of the internal API, and what its certificates are trusted by.
    """

    def __init__(self, database: Database, settings: Settings) -> None:
        super().__init__(database)
        self._settings = settings

    async def facts(self, job_id: Any, *, now: datetime | None = None) -> tuple[RunnerJob, RunnerFacts]:
        """A runner job and what surrounds it.

        Raises: JobNotFound.
        """
        job = await RunnerStore(self.database).job(job_id)
        (row,) = await self._fetch("why_runner_job.sql", job_id, LIVE_S, AHEAD_MAX, now)
        values = dict(row)
        facts = RunnerFacts(
            gateways=await self._asked(values.pop("gateways")), asked=self._settings.gateway_token is not None,
            pauses=[PauseFacts(**pause) for pause in json.loads(values.pop("pauses"))],
            cap=self._settings.gateway_org_slots, declined=json.loads(values.pop("declined")), **values,
        )  # fmt: skip
        return job, facts

    async def health(self, *, now: datetime | None = None) -> RunnerHealth:
        """How gateways and runner jobs are."""
        (row,) = await self._fetch("runner_health.sql", LIVE_S, now)
        values = dict(row)
        return RunnerHealth(
            gateways=await self._asked(values.pop("gateways")), asked=self._settings.gateway_token is not None,
            groups=await RunnerStore(self.database).demand(), disabled=json.loads(values.pop("disabled")),
            held_by=json.loads(values.pop("held_by")), cap=self._settings.gateway_org_slots, **values,
        )  # fmt: skip

    async def _asked(self, text: str) -> list[GatewaySeen]:
        gateways = [GatewaySeen(**one) for one in json.loads(text)]
        token = self._settings.gateway_token
        if token is None or not gateways:
            return gateways
        timeout = aiohttp.ClientTimeout(total=ANSWER_S)
        headers = {"Authorization": f"Bearer {token}"}
        tls = trusted_gateways(self._settings.gateway_ca)
        async with aiohttp.ClientSession(timeout=timeout, headers=headers) as http:
            return list(await asyncio.gather(*(self._ask(http, gateway, tls) for gateway in gateways)))

    async def _ask(self, http: aiohttp.ClientSession, gateway: GatewaySeen, tls: ssl.SSLContext | None) -> GatewaySeen:
        try:
            async with http.get(
                gateway.address + "/internal/v1/runners", allow_redirects=False, ssl=tls or True
            ) as answer:
                body = await answer.read()
                if answer.status != 200:
                    return replace(gateway, error=f"it answered with status {answer.status}")
                return replace(gateway, runners=msgspec.json.decode(body, type=api.Runners).runners)
        except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError) as error:
            return replace(gateway, error=str(error)[:200] or type(error).__name__)
