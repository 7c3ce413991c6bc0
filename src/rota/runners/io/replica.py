"""One replica of the gateway as a whole: its rules, its database, its sockets, and what it does by the clock.

By the clock it looks for queued jobs that a lost notification did not tell of, for cancels and for revoked devices; it
ends what is over, removes what no one needs, and says that it is there. Any number of replicas do so beside each other:
what each writes is fenced by epochs.

Spec: runners, "Job lifecycle, leases and fencing" (reaper), "Gateway internal API".
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random, SystemRandom
from typing import Final

import msgspec
from starlette.routing import BaseRoute

from rota.errors import DatabaseAway, SettingsError
from rota.io.log import get_logger
from rota.io.postgres import Database, Target
from rota.io.serving import Place, is_loopback
from rota.queue.io.wakeup import Wakeup
from rota.runners import gateway_events as events
from rota.runners.gateway import Gateway
from rota.runners.gateway_admission import Rules
from rota.runners.io.device_api import DeviceApi
from rota.runners.io.devices import Devices
from rota.runners.io.exchange import Exchange
from rota.runners.io.figures import Figures
from rota.runners.io.gateway_server import GatewayServer
from rota.runners.io.internal_api import InternalApi
from rota.runners.io.retention import Retention
from rota.runners.io.store import RunnerStore
from rota.runners.io.trust import trusted_gateways
from rota.runners.io.usage import UsageBook
from rota.runners.io.waiters import Waiters
from rota.runners.matching import Needs
from rota.runners.messages import Requires
from rota.runners.records import Waiting
from rota.runners.token import TokenKeys
from rota.settings import Settings, secrets_of

LOOK_S: Final = 1.0
"""Between two looks for queued jobs and cancels: what a lost notification costs."""
REAP_S: Final = 10.0
"""The protocol's."""
TIDY_S: Final = 60.0
DAY_S: Final = 86_400.0
BARRED_S: Final = 30.0
"""Between two looks for who may not be connected any more; the protocol asks for one a minute at least."""
LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")
EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - looked for, not listened on
DATABASE_SIZE: Final = 8

log = get_logger("rota.gateway")


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a replica looks, in seconds; shorter in tests."""

    look_s: float = LOOK_S
    reap_s: float = REAP_S
    tidy_s: float = TIDY_S
    barred_s: float = BARRED_S


class Replica:
    """One `rota gateway`.

    Args:
        settings: those that begin with `gateway_`, and the token of metrics.
        target: the database.
        instance: its name: one start of one process.
        pace: how often it looks.
        more: routes that it serves beside its own.
        clock: seconds that never step, for all that connections and jobs wait for; None: the event loop's.

    Raises: SettingsError if it has no key, or would listen beyond this machine without its names.
    """

    def __init__(
        self,
        settings: Settings,
        target: Target,
        *,
        instance: str,
        pace: Pace | None = None,
        more: Sequence[BaseRoute] = (),
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._settings = settings
        self._target = target
        self._pace = pace or Pace()
        self._more = more
        self._clock = clock
        self._names = names_of(settings)
        self._keys = keys_of(settings)
        self._tls = trusted_gateways(settings.gateway_ca)
        self._rules = Rules(instance, settings.gateway_min_agent, settings.gateway_hellos_per_s)
        self._database = Database(target, size=DATABASE_SIZE)
        self._tasks: list[asyncio.Task[None]] = []
        self._server: GatewayServer | None = None

    @property
    def server(self) -> GatewayServer:
        """Its sockets, while it is started."""
        assert self._server is not None, "the gateway is not started"
        return self._server

    @property
    def exchange(self) -> Exchange:
        """Its runners and its rules, while it is started."""
        return self.server.exchange

    async def start(self) -> None:
        """Connects and listens.

        Raises: DatabaseAway, SchemaError, SettingsError.
        """
        await self._database.start()
        try:
            await self._start()
        except BaseException:
            await self._database.stop()
            raise

    async def _start(self) -> None:
        settings = self._settings
        store, devices = RunnerStore(self._database), Devices(self._database)
        await store.depth()  # a schema that is missing is found before anybody connects
        gateway = Gateway(self._rules, self._keys, SystemRandom())
        exchange = Exchange(gateway, store, devices, org_cap=settings.gateway_org_slots, clock=self._clock)
        self._figures = Figures(gateway.registry)
        self._waiters = Waiters(store)
        api = InternalApi(
            exchange, self._waiters, token=settings.gateway_token, buffer=settings.gateway_buffer_slots,
            secrets=secrets_of(settings), tls=self._tls,
        )  # fmt: skip
        place = Place(settings.gateway_host, settings.gateway_port, settings.gateway_cert, settings.gateway_cert_key)
        door = DeviceApi(devices, names=self._names)
        server = GatewayServer(
            exchange, api, self._figures, place, names=self._names,
            metrics_token=settings.metrics_token, more=[*door.routes(), *self._more],
        )  # fmt: skip
        await server.start()
        self._server = server
        self._address = (settings.gateway_address or server.serving.address).rstrip("/")
        ears = Wakeup(
            self._target, heard=self._heard, connected=self._connected, random=Random(),  # noqa: S311 - jitter
            on=f"{self._target.schema}_runners",
        )  # fmt: skip
        self._soon, self._barred = asyncio.Event(), asyncio.Event()
        pace = self._pace
        retention = Retention(
            self._database, keep_s=settings.keep_days * DAY_S, keep_failed_s=settings.keep_failed_days * DAY_S,
            audit_s=settings.gateway_audit_days * DAY_S,
        )  # fmt: skip
        self._tasks = [
            asyncio.create_task(ears.run()),
            asyncio.create_task(self._every(pace.look_s, self._look, soon=self._soon)),
            asyncio.create_task(self._every(pace.reap_s, self._reap)),
            asyncio.create_task(self._every(pace.tidy_s, retention.remove)),
            asyncio.create_task(self._every(pace.barred_s, exchange.look_for_barred, soon=self._barred)),
        ]
        log.info("gateway started", address=server.serving.address, instance=self._rules.instance)
        if settings.gateway_address is None and settings.gateway_host in EVERYWHERE:
            # Which of this machine's addresses the others can use, only a person knows; the token goes where it leads.
            log.warning("other gateways cannot reach this one: set gateway_address", address=self._address)

    def drain(self, deadline_s: float | None = None) -> None:
        """Deals no more jobs and tells the runners; what runs goes on."""
        self.exchange.happened(events.Drain("the gateway ends", None if deadline_s is None else int(deadline_s)))

    async def stop(self) -> None:
        """Says goodbye to the runners, who keep their jobs and dial another replica; safe to repeat."""
        if self._server is None:
            return
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await self._server.exchange.stop()
        await self._server.stop()
        await self._database.stop()
        self._server = None
        log.info("gateway stopped", instance=self._rules.instance)

    # What the database tells

    def _connected(self) -> None:
        # Anything may have been said while nobody listened.
        self._soon.set()
        self._barred.set()
        self._waiters.look()
        self.exchange.happened(events.Listening())

    def _heard(self, said: str) -> None:
        word, _, rest = said.partition(":")
        exchange = self.exchange
        try:
            match word:
                case "job":
                    told = msgspec.json.decode(rest, type=tuple[str, str, str, str | None, str | None, int, int])
                    self._demand(Waiting(*told))
                case "accepted":
                    self._waiters.told(rest)
                case "ended":
                    self._waiters.told(rest)
                    exchange.happened(events.JobEnded(rest))
                case "cancel" | "enabled":
                    self._soon.set()
                case "revoked":
                    exchange.happened(events.Revoked(rest))
                case "disabled":
                    exchange.happened(events.Forbidden(rest))
                case "credential":
                    self._barred.set()
                case "connected":
                    runner_id, instance, order = msgspec.json.decode(rest, type=tuple[str, str, int])
                    if instance != self._rules.instance:
                        exchange.happened(events.Elsewhere(runner_id, order))
                case "moved":
                    job_id, epoch, instance = msgspec.json.decode(rest, type=tuple[str, int, str])
                    if instance != self._rules.instance:
                        exchange.happened(events.Moved(events.Lease(job_id, epoch)))
        except msgspec.DecodeError:
            log.warning("a notification is not understood", word=word[:20])

    def _demand(self, one: Waiting) -> None:
        requires = Requires(runtime_image_digest=one.runtime_digest, fontset_version=one.fontset_version)
        needs = Needs(one.target, one.org_id, one.job_type, requires, one.output_bytes_max)
        self.exchange.happened(events.Demand(needs, one.jobs))

    # What is done by the clock

    async def _every(
        self, period_s: float, work: Callable[[], Awaitable[None]], *, soon: asyncio.Event | None = None
    ) -> None:
        asked = soon or asyncio.Event()
        while True:
            try:
                await work()
            except DatabaseAway as error:
                log.warning("the database does not answer", error=str(error))
            except Exception:
                log.exception("what a gateway does by the clock failed")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(period_s):
                    await asked.wait()
            asked.clear()

    async def _look(self) -> None:
        exchange = self.exchange
        registry = exchange.gateway.registry
        if exchange.gateway.jobs:
            # Each time anew: a job may be on its way here, from a claim or with its runner, when it is first seen.
            for lease, reason in (await exchange.store.cancels(self._rules.instance)).items():
                exchange.happened(events.CancelJob(str(lease.job_id), reason))
        if registry.any_free():
            for one in await exchange.store.demand():
                self._demand(one)

    async def _reap(self) -> None:
        store = self.exchange.store
        await store.see_gateway(self._rules.instance, self._address)
        done = await store.reap()
        for job_id, state in done.items():
            log.info("runner job is over", job_id=str(job_id), state=state)
        await UsageBook(self._database).record()
        self._figures.waits(await store.depth())


def keys_of(settings: Settings) -> TokenKeys:
    """What signs job tokens.

    Raises: SettingsError if there is no key, or one is too short.
    """
    keys = [key.strip().encode() for key in (settings.gateway_key or "").split(",") if key.strip()]
    try:
        return TokenKeys(keys)
    except ValueError:
        raise SettingsError(
            "A gateway needs a key for job tokens, the same for all replicas: set ROTA_GATEWAY_KEY to 32 random "
            "characters or more, such as `openssl rand -hex 32` prints."
        ) from None


def names_of(settings: Settings) -> frozenset[str]:
    """The host names by which runners may dial this gateway.

    Raises: SettingsError if it listens beyond this machine, and they are not set.
    """
    if settings.gateway_names:
        return frozenset(name.strip().strip("[]").rstrip(".").lower() for name in settings.gateway_names.split(","))
    if not is_loopback(settings.gateway_host):
        raise SettingsError(
            f"A gateway on {settings.gateway_host} has to know by which names runners dial it, because each signs the "
            "name: set ROTA_GATEWAY_NAMES=runner.example.com."
        )
    return frozenset({*LOOPBACK_NAMES, settings.gateway_host.lower()})
