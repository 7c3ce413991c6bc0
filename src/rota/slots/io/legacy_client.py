"""The older protocol on a client's side: an exec server without `/broker` is asked for a token once a second.

It looks like a connection that may offer any service, so the demand needs to know nothing of it: a token is an offer,
the answer to the PUT is the end of the command. It is polled only while something waits, and once for each service and
not for each call.

Nothing else knows of this module but the client that falls back to it; it is deleted with `legacy`.

Spec: slot broker, "Failure matrix" (old execserver) and "Migration".
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import Final

import aiohttp
import msgspec

from rota.io.reach import why_not_reached
from rota.slots.address import Address
from rota.slots.messages import (
    Cancel,
    Decline,
    Done,
    EndedBy,
    Error,
    ErrorCode,
    Job,
    Offer,
    Query,
    Receipt,
    ServerMessage,
    Unwant,
    Want,
    from_client,
)  # fmt: skip

POLL_S: Final = 1.0
"""The seed: `GET /token` once a second."""
ANSWER_S: Final = 10.0
"""How long the answer to such a question may take."""
RECEIPT_HEADER: Final = "X-Rota-Receipt"
READ_BYTES: Final = 256 * 1024


class LegacyLink:
    """An address that is polled.

    Args:
        number: names it in this process.
        address: where to.
        token: the shared token, or None.
        tls: for `https`; None uses the system's certificates.
        heard: told what an exec server would have said.
    """

    def __init__(
        self,
        number: int,
        address: Address,
        *,
        token: str | None,
        tls: ssl.SSLContext | None,
        heard: Callable[[ServerMessage], None],
    ) -> None:
        self.number = number
        self.local_host = "127.0.0.1"
        self.frame_bytes_max = READ_BYTES
        self._address = address
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._tls = tls
        self._heard = heard
        self._wants: dict[str, Want] = {}
        self._polls: dict[str, asyncio.Task[None]] = {}
        self._tokens: dict[str, str] = {}
        self._commands: dict[str, asyncio.Task[None]] = {}
        self._session: aiohttp.ClientSession | None = None
        self._closing: asyncio.Task[None] | None = None

    def send(self, frame: bytes) -> None:
        """Takes what would be sent to an exec server that has a broker."""
        match from_client(frame):
            case Want() as want:
                self._wants[want.job_id] = want
                if want.service not in self._polls:
                    self._polls[want.service] = self._task(self._poll(want.service))
            case Unwant(job_id) | Decline(job_id):
                # A token that is not used ends by itself.
                self._wants.pop(job_id, None)
                self._tokens.pop(job_id, None)
            case Job(job_id) as job:
                self._commands[job_id] = self._task(self._run(job, self._tokens.pop(job_id)))
            case Cancel(job_id):
                if (command := self._commands.get(job_id)) is not None:
                    command.cancel()
            case Query() | None:
                pass

    def close(self) -> None:
        """Ends it; nothing is reported afterwards."""
        self._heard = _ignored
        if self._closing is None:
            self._closing = self._task(self._close())

    @property
    def over(self) -> bool:
        """Whether it was closed, and all of it has ended."""
        return self._closing is not None and self._closing.done()

    async def closed(self) -> None:
        """Returns when it has ended; after `close`."""
        if self._closing is not None:
            await asyncio.wait([self._closing])

    async def _close(self) -> None:
        tasks = [*self._polls.values(), *self._commands.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._session is not None:
            await self._session.close()

    def _task(self, work: "asyncio._CoroutineLike[None]") -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work)

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_S),
                auto_decompress=False,
                connector=aiohttp.TCPConnector(ssl=self._tls or True),
            )
        return self._session

    def _next(self, service: str) -> Want | None:
        """The call that gets the next token."""
        waiting = [want for want in self._wants.values() if want.service == service]
        return max(waiting, key=lambda want: want.priority, default=None)

    async def _poll(self, service: str) -> None:
        try:
            while self._next(service) is not None:
                status, token = await self._ask(service)
                want = self._next(service)
                if token is not None and want is not None:
                    del self._wants[want.job_id]
                    self._tokens[want.job_id] = token
                    self._heard(Offer(want.job_id))
                    continue
                if status == HTTPStatus.NOT_FOUND and want is not None:
                    del self._wants[want.job_id]
                    self._heard(Error(ErrorCode.UNKNOWN_SERVICE, "It is not offered there.", want.job_id))
                    continue
                await asyncio.sleep(POLL_S)
        finally:
            del self._polls[service]

    async def _ask(self, service: str) -> tuple[int, str | None]:
        try:
            async with asyncio.timeout(ANSWER_S):
                async with self._http().get(self._address.route(f"/token/{service}"), headers=self._headers) as answer:
                    if answer.status != HTTPStatus.OK:
                        return answer.status, None
                    return answer.status, str((await answer.json())["token"])
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError):
            return 0, None

    async def _run(self, job: Job, token: str) -> None:
        message: ServerMessage
        try:
            message = await self._put(job, token)
        except asyncio.CancelledError:
            message = Done(job.job_id, Receipt(ended_by=EndedBy.CANCELLED, error="It was cancelled by its caller."))
        except (aiohttp.ClientError, OSError) as error:
            broken = Receipt(ended_by=EndedBy.BROKEN, error=f"The exec server broke off: {why_not_reached(error)}.")
            message = Done(job.job_id, broken)
        finally:
            self._commands.pop(job.job_id, None)
        self._heard(message)

    async def _put(self, job: Job, token: str) -> ServerMessage:
        told = msgspec.to_builtins(job.job)
        streams = told.pop("stdin", None), told.pop("stdout", None)
        query = {"token": token, "job": msgspec.json.encode(told).decode()}
        body = None if streams[0] is None else self._fetch(streams[0])
        async with self._http().put(
            self._address.route("/job"), params=query, data=body, headers=self._headers
        ) as answer:
            if answer.status == HTTPStatus.NOT_FOUND:
                return Error(ErrorCode.NO_OFFER, "Token not found", job.job_id)
            if answer.status != HTTPStatus.OK:
                return Done(job.job_id, _bad(answer.status, await answer.read()))
            count = 0

            async def output() -> AsyncIterator[bytes]:
                nonlocal count
                async for chunk in answer.content.iter_any():
                    count += len(chunk)
                    yield chunk

            if streams[1] is None:
                async for _ in output():
                    pass  # nobody wants it
            else:
                async with self._http().put(streams[1], data=output()) as taken:
                    taken.raise_for_status()
            header = answer.headers.get(RECEIPT_HEADER)
            receipt = Receipt(ended_by=EndedBy.EXIT, exit=0, bytes_out=count)
            return Done(job.job_id, receipt if header is None else msgspec.json.decode(header, type=Receipt))

    async def _fetch(self, url: str) -> AsyncIterator[bytes]:
        async with self._http().get(url) as response:
            response.raise_for_status()
            async for chunk in response.content.iter_any():
                yield chunk


def _bad(status: int, body: bytes) -> Receipt:
    try:
        return msgspec.json.decode(body, type=Receipt)
    except msgspec.DecodeError:
        text = " ".join(body.decode("utf-8", "replace").split())[:500]
        return Receipt(
            ended_by=EndedBy.REFUSED, error=f"The exec server answered {status}: {text}", retryable=status >= 500
        )


def _ignored(_message: ServerMessage) -> None:
    pass
