"""The engine's end of the gateway's internal API: one method for each route, over HTTP.

A request whose answer was lost is asked again where that is safe: reads, cancels, creations by their idempotency key,
and ops by their opId, whose answer the runner keeps. Nothing else is tried twice here.

Spec: runners, "Engine to gateway", "Gateway internal API (engine-facing)", "Idempotency".
"""

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any, Final

import aiohttp
import msgspec

from rota.errors import GatewayAway, JobNotFound, OpInFlight, OpTimeout, SessionError
from rota.io.clock import lease_clock
from rota.io.log import redact
from rota.io.reach import why_not_reached
from rota.runners.engine_answers import AGAIN_S, JobView, OpAnswer, read_answer, read_job, read_staging, refused

CONNECT_S: Final = 10.0
"""How long a gateway, or the balancer before it, may take to accept a connection."""
ANSWER_S: Final = 30.0
"""How long a short request may take."""
WAIT_S: Final = 30
"""One long poll; proxies often cut at 60 s."""
LOST_S: Final = 60.0
"""How long a request whose answer was lost is asked again: longer than a lease, in which a runner finds another
gateway."""
HELD_S: Final = 20.0
"""A request that was lost after so long was taken: a balancer's limit cut it off, and no gateway is missing."""
AGAIN_FIRST_S: Final = 0.2
AGAIN_MOST_S: Final = 5.0
"""The pauses between such tries, which double."""
OP_SLACK_S: Final = 15.0
"""What the gateway gets on top of an op's own time, to say itself that it is over."""
ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
"""An answer holds one payload of at most 4 MiB, whose text JSON may write with escapes."""


class GatewayClient:
    """Speaks to one gateway, or to the balancer before many.

    Args:
        url: where it serves, such as `http://gateway:8760`.
        token: the shared token.
        tls: for https; None trusts what the system does.
        lost_s: how long a request is asked again whose answer was lost.
    """

    def __init__(
        self, url: str, *, token: str | None, tls: ssl.SSLContext | None = None, lost_s: float = LOST_S
    ) -> None:
        self._base = url.rstrip("/") + "/internal/v1"
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._tls = tls
        self._lost_s = lost_s
        self._http: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Closes its connections; safe to repeat, and it opens new ones when it is used again."""
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    async def create(self, body: Mapping[str, Any]) -> JobView:
        """Creates a job, or finds the one that has its idempotency key."""
        return read_job(await self._insist("POST", "/jobs", body=body))

    async def job(self, job_id: str, *, wait_s: int = 0, until: str = "ended") -> JobView:
        """Reads a job; with `wait_s`, when it has ended, or the window is over; until `running`, also when a runner has
        accepted it.

        Raises: JobNotFound.
        """
        query = {} if wait_s <= 0 else {"wait": f"{wait_s}s", "until": until}
        return read_job(await self._insist("GET", f"/jobs/{job_id}", query=query, answer_s=wait_s + ANSWER_S))

    async def staging(self, job_id: str) -> int:
        """A number for `runner-staging/{jobId}/{n}` that nobody else gets; one whose answer was lost is not used.

        Raises: JobNotFound.
        """
        return read_staging(await self._insist("POST", f"/jobs/{job_id}/staging"))

    async def verdict(self, job_id: str, message: str) -> None:
        """Says that an output of this job was refused: it fails with class `runner`.

        Raises: JobNotFound; GatewayRefused if it has ended otherwise.
        """
        await self._insist("POST", f"/jobs/{job_id}/verdict", body={"message": message[:2000]})

    async def cancel(self, job_id: str) -> None:
        """Cancels a job; one that has ended is let be."""
        await self._insist("DELETE", f"/jobs/{job_id}")

    async def runners(self, *, org: str | None = None, caps: str | None = None) -> Any:
        """Which runners the replica that answers has: a hint, never a promise."""
        query = {name: value for name, value in (("org", org), ("caps", caps)) if value is not None}
        return msgspec.json.decode(await self._insist("GET", "/runners", query=query))

    async def scaling(self) -> Any:
        """How many slots the pool should have, and what that is made of."""
        return msgspec.json.decode(await self._insist("GET", "/scaling"))

    async def op(self, session_id: str, *, op_id: str, op: str, args: Mapping[str, Any], timeout_s: int) -> OpAnswer:
        """Runs one op and waits for its answer. Asked again with the same opId, it is not run again.

        Raises: SessionLost, SessionNotFound, OpInFlight, OpCancelled, OpTimeout, GatewayAway.
        """
        body = {"opId": op_id, "op": op, "args": args, "timeoutSec": timeout_s}
        path, answer_s = f"/sessions/{session_id}/ops", timeout_s + OP_SLACK_S
        return read_answer(await self._insist("POST", path, body=body, answer_s=answer_s, own_op=True))

    async def _insist(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        answer_s: float = ANSWER_S,
        own_op: bool = False,
    ) -> bytes:
        """Asks until there is an answer, for a while."""
        began = lease_clock()
        until: float | None = None
        pause_s = AGAIN_FIRST_S
        while True:
            asked_at = lease_clock()
            try:
                return await self._ask(method, path, body=body, query=query, answer_s=answer_s)
            except GatewayAway:
                pass
            except OpInFlight:
                # After a lost answer this is our own op, which still runs.
                if not own_op or until is None:
                    raise
            except OpTimeout:
                # Before its time is over it is the gateway that ends: the runner goes on, and another gateway is asked.
                if not own_op or lease_clock() >= began + answer_s - OP_SLACK_S:
                    raise
            now = lease_clock()
            if until is None or now >= asked_at + HELD_S:
                until = min(now, began + answer_s) + self._lost_s
            if now >= until:
                raise GatewayAway(
                    f"The gateway at {redact(self._base)} has not answered for {self._lost_s:g} s. Is `rota gateway` "
                    "running, and is ROTA_GATEWAY_URL right?",
                    after_s=AGAIN_S,
                )
            await asyncio.sleep(pause_s)
            pause_s = min(AGAIN_MOST_S, pause_s * 2)

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None,
        query: Mapping[str, str] | None,
        answer_s: float,
    ) -> bytes:
        if self._http is None:
            self._http = aiohttp.ClientSession(
                headers=self._headers,
                connector=aiohttp.TCPConnector(ssl=self._tls or True, limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            )
        try:
            async with asyncio.timeout(answer_s):
                async with self._http.request(
                    method, self._base + path, params=query, allow_redirects=False,
                    data=None if body is None else msgspec.json.encode(body),
                    headers={} if body is None else {"Content-Type": "application/json"},
                ) as answer:  # fmt: skip
                    content = await _whole(answer)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise GatewayAway(
                f"The gateway does not answer: {redact(why_not_reached(error))}.", after_s=AGAIN_S
            ) from None
        if answer.status < 300:
            return content
        raise _error_of(answer.status, content, path)


async def _whole(answer: aiohttp.ClientResponse) -> bytes:
    content = bytearray()
    async for chunk in answer.content.iter_any():
        content += chunk
        if len(content) > ANSWER_BYTES_MAX:
            raise aiohttp.ClientPayloadError(f"the answer is larger than {ANSWER_BYTES_MAX:,} bytes")
    return bytes(content)


def _error_of(status: int, content: bytes, path: str) -> SessionError | JobNotFound:
    error = refused(status, content)
    if getattr(error, "code", None) == "job_not_found":
        return JobNotFound(f"The gateway knows no runner job {path.rpartition('/')[2]}.")
    return error
