"""A look at all exec servers that can be reached: what each has, what waits and what runs there.

It stands beside the client of a worker and parks no wants. Behind a balancer it dials on until it has met an instance
that it knows, as the pool does, so one look may miss some of a large fleet.
"""

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rota.durations import span
from rota.slots.address import Address
from rota.slots.io.links import NoBroker, SocketLink
from rota.slots.messages import Hello, Overview, Query, ServerMessage

DIALS_MAX: Final = 32
"""Connections to one address in one look."""
DOUBLES_MAX: Final = 3
"""So many instances that are known already, one after the other, end the look at an address."""
ANSWER_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One exec server. `error` is why there is no overview, in words."""

    address: Address
    overview: Overview | None = None
    error: str | None = None


async def look_at(addresses: Sequence[Address], *, token: str | None, tls: ssl.SSLContext | None) -> list[Seen]:
    """Asks every exec server behind these addresses how it is; one that does not answer is named too."""
    found = await asyncio.gather(*(_look_at(address, token=token, tls=tls) for address in addresses))
    return [seen for group in found for seen in group]


@dataclass(frozen=True, slots=True)
class JobCall:
    """One exec call of a job.

    Attributes:
        address: where it runs, or waits with the fewest before it.
        service: what it wants.
        state: `waiting`, `offered` or `running`.
        for_s: for how long it has been that.
        ahead: how many calls get a slot before it there; None once it has one.
        running: commands that run in those slots.
        eta_low_s, eta_high_s: when its turn may come there, in seconds from now; a guess, None without one.
    """

    address: str
    service: str
    state: str
    for_s: float
    ahead: int | None = None
    running: int = 0
    eta_low_s: float | None = None
    eta_high_s: float | None = None

    @property
    def words(self) -> str:
        """The call in a sentence."""
        if self.state == "running":
            return f"Its command {self.service} runs at {self.address} since {self.for_s:.0f} s."
        if self.state == "offered":
            return f"Its call of {self.service} has just been offered a slot of {self.address}."
        line = "" if self.ahead is None else f"; {self.ahead} get one before it, and {self.running} run"
        turn = "when its turn comes is not known yet"
        if self.eta_low_s is not None and self.eta_high_s is not None:
            turn = f"its turn comes in {span(self.eta_low_s, self.eta_high_s)}"
        return f"Its call of {self.service} waits for a slot of {self.address} since {self.for_s:.0f} s{line}; {turn}."


def calls_of(job_id: str, seen: Sequence[Seen]) -> list[JobCall]:
    """The exec calls of a job, each once: what runs first, then by the calls before them."""
    best: dict[str, JobCall] = {}
    for one in seen:
        for view in one.overview.jobs if one.overview is not None else ():
            if not view.job_id.startswith(f"{job_id}."):
                continue
            assert one.overview is not None, "views are of an overview"
            # A service that is declared no more may yet run.
            service = one.overview.services.get(view.service)
            running = 0 if service is None else one.overview.waitgroups[service.waitgroup].running
            call = JobCall(
                one.address.shown, view.service, view.state, view.for_s, view.ahead, running, view.eta_low_s,
                view.eta_high_s,
            )  # fmt: skip
            known = best.get(view.job_id)
            if known is None or _rank(call) < _rank(known):
                best[view.job_id] = call
    return sorted(best.values(), key=_rank)


def _rank(call: JobCall) -> tuple[bool, int]:
    return call.state != "running", call.ahead or 0


async def _look_at(address: Address, *, token: str | None, tls: ssl.SSLContext | None) -> list[Seen]:
    found: dict[str, Seen] = {}
    doubles = 0
    for number in range(DIALS_MAX):
        answer = await _ask(number, address, token=token, tls=tls)
        if isinstance(answer, str):
            return [*found.values(), Seen(address, error=answer)] if not found else list(found.values())
        if answer.instance_id in found:
            doubles += 1
            if doubles >= DOUBLES_MAX:
                break
        else:
            found[answer.instance_id] = Seen(address, answer)
            doubles = 0
    return [found[name] for name in sorted(found)]


async def _ask(number: int, address: Address, *, token: str | None, tls: ssl.SSLContext | None) -> Overview | str:
    answered: asyncio.Future[Overview | str] = asyncio.get_running_loop().create_future()

    def answer(said: Overview | str) -> None:
        if not answered.done():
            answered.set_result(said)

    async def heard(link: SocketLink, message: ServerMessage) -> None:
        match message:
            case Hello():
                link.say(Query())
            case Overview():
                answer(message)
            case _:
                pass

    def ended(_link: SocketLink, how: str | NoBroker) -> None:
        answer("an older exec server, without a broker" if isinstance(how, NoBroker) else how)

    link = SocketLink(number, address, token=token, tls=tls, heard=heard, ended=ended)
    try:
        async with asyncio.timeout(ANSWER_S):
            return await answered
    except TimeoutError:
        return f"it did not answer within {ANSWER_S:g} s"
    finally:
        link.close()
        await link.closed()
