"""Moves bytes between a session and an object store, by URLs that are secrets.

A URL is used as it is, once, and never told: not in logs, not in errors, not in what is raised (I10, S66). No
redirect is followed, nothing is decompressed: what is counted and hashed is what arrives. Reading stops at the first
byte that is too many. An upload always says its length, never begins if it is too long, and is done when all of it was
taken. In neither direction is a silent store waited for.
"""

import asyncio
import hashlib
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import BinaryIO, Final
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from rota.errors import SettingsError
from rota.runners.codes import OpCode
from rota.runners.dial import is_here, is_near
from rota.runners.failures import OpFailure
from rota.runners.io.trust import proxy_to
from rota.runners.ops import Moved

CHUNK_BYTES: Final = 1024 * 1024
PIECE_BYTES: Final = 256 * 1024
"""What an upload moves at a time: a line that takes less than this in `STALL_S` is taken to be dead."""
CONNECT_S: Final = 30.0
STALL_S: Final = 120.0
"""No byte for this long: the other end is taken to be gone. An op's own timeout bounds what is merely slow."""
NEAR: Final = "The URL of the object leads to the runner's own machine, and its gateway is elsewhere."
ERROR_BYTES_MAX: Final = 16 * 1024
"""What is read of a store's answer to find its code."""

_CODE: Final = re.compile(rb"<Code>([A-Za-z0-9_.]{1,80})</Code>")
_CLOCK: Final = re.compile(rb"RequestTimeTooSkewed|expired|not yet valid|X-Amz-Date", re.IGNORECASE)
_SENDABLE: Final = re.compile(r"[!-~]+")
_PASSING: Final = frozenset({403, 408, 409, 425, 429})
"""Answers after which a fresh URL, or patience, may help; as may all from 500 on."""

OnBytes = Callable[[int, int | None], None]
"""Told how many bytes have moved, and of how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSettings:
    """How a runner reaches object stores.

    Attributes:
        tls: whom it trusts; None: whom the system trusts.
        plain: also without TLS beyond this machine, for development.
        near: also to this machine itself. A gateway elsewhere has no store here, and whatever else listens here is none
            of its business.
        gateway: the name that the gateway is dialled by, which is a store's, too, wherever it leads.
        connect_s, stall_s: patience with a connection that does not come up, and with one that is silent.
    """

    tls: ssl.SSLContext | None = None
    plain: bool = False
    near: bool = True
    gateway: str = ""
    connect_s: float = CONNECT_S
    stall_s: float = STALL_S


class Transfers:
    """The transfers of one runner; make it in the event loop that uses it."""

    def __init__(self, settings: TransferSettings | None = None) -> None:
        self._settings = settings if settings is not None else TransferSettings()
        self._session: aiohttp.ClientSession | None = None
        self._names = _Names({self._settings.gateway})

    async def get(
        self, url: str, write: Callable[[bytes], None], *, bytes_max: int, too_large: OpFailure, moved: OnBytes
    ) -> Moved:
        """Reads an object.

        Args:
            url: of it, presigned.
            write: takes the pieces, in a thread.
            bytes_max: more are not read.
            too_large: is raised then.
            moved: is told how far it is.

        Returns: how much came, and its digest.

        Raises: OpFailure with `stage_failed`, or `too_large`.
        """
        address = _address(url, self._settings, OpCode.STAGE_FAILED)
        proxy = self._proxy(address, OpCode.STAGE_FAILED)
        digest, count = hashlib.sha256(), 0

        async def read() -> None:
            nonlocal count
            async with self._client().get(
                address, allow_redirects=False, proxy=proxy, headers={"Accept-Encoding": "identity"}
            ) as answer:
                if answer.status != 200:
                    raise await _refused(answer, OpCode.STAGE_FAILED)
                if answer.content_length is not None and answer.content_length > bytes_max:
                    raise too_large
                async for chunk in answer.content.iter_chunked(CHUNK_BYTES):
                    count += len(chunk)
                    if count > bytes_max:
                        raise too_large
                    await asyncio.to_thread(_take, chunk, digest.update, write)
                    moved(count, answer.content_length)

        try:
            await self._while_it_moves(read(), lambda: count)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, _NearError) as error:
            raise _broken(error, OpCode.STAGE_FAILED) from None
        return Moved(bytes=count, sha256=digest.hexdigest())

    async def put(self, url: str, file: BinaryIO, *, size: int, content_type: str, moved: OnBytes) -> Moved:
        """Writes an object: the first `size` bytes of a file, which has to hold as many.

        Args:
            url: of it, presigned.
            file: opened, at its beginning.
            size: how long the object is.
            content_type: is sent exactly as it stands here: it may be part of the signature (S83).
            moved: is told how far it is.

        Returns: how much went, and its digest.

        Raises: OpFailure with `publish_failed`.
        """
        address = _address(url, self._settings, OpCode.PUBLISH_FAILED)
        proxy = self._proxy(address, OpCode.PUBLISH_FAILED)
        digest = hashlib.sha256()
        sent = 0
        short = OpFailure(OpCode.PUBLISH_FAILED, "The file became shorter while it was read.", retryable=True)

        async def pieces() -> AsyncIterator[bytes]:
            nonlocal sent
            while sent < size:
                chunk = await asyncio.to_thread(_give, file, min(PIECE_BYTES, size - sent), digest.update)
                if not chunk:
                    raise short
                sent += len(chunk)
                yield chunk
                moved(sent, size)

        async def write() -> None:
            async with self._client().put(
                address, allow_redirects=False, proxy=proxy, data=pieces() if size else b"",
                headers={"Content-Type": content_type, "Content-Length": str(size)},
            ) as answer:  # fmt: skip
                if answer.status not in (200, 201, 204):
                    raise await _refused(answer, OpCode.PUBLISH_FAILED)
                if sent < size:
                    raise OpFailure(
                        OpCode.PUBLISH_FAILED, "The object store said yes before it had the whole file.", retryable=True
                    )

        try:
            await self._while_it_moves(write(), lambda: sent)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, _NearError) as error:
            if sent < size and _caused_by(error, short):
                raise short from None
            raise _broken(error, OpCode.PUBLISH_FAILED) from None
        return Moved(bytes=size, sha256=digest.hexdigest())

    async def close(self) -> None:
        """Closes all connections; safe to repeat."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _while_it_moves(self, work: Coroutine[None, None, None], count: Callable[[], int]) -> None:
        """Waits for a transfer as long as bytes move. The client's own limit knows reading only: a store that takes
        no more of an upload, or says "go on" for ever, would be waited for.

        Raises: TimeoutError, and what the transfer raises.
        """
        task, seen = asyncio.ensure_future(work), count()
        try:
            while not (await asyncio.wait({task}, timeout=self._settings.stall_s + self._settings.connect_s))[0]:
                if count() == seen:
                    raise TimeoutError
                seen = count()
            task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    def _proxy(self, address: URL, code: str) -> str | None:
        try:
            proxy = proxy_to(address.host or "", address.port or 0, tls=address.scheme == "https")
        except SettingsError as error:
            raise OpFailure(code, str(error), retryable=True) from None
        if proxy is not None:
            # It is looked up here, and may stand here; what is behind it is looked up there.
            self._names.trusted.add(urlsplit(proxy).hostname or "")
        return proxy

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            settings = self._settings
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    ssl=True if settings.tls is None else settings.tls,
                    resolver=None if settings.near else self._names,
                ),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_s, sock_read=settings.stall_s),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=["User-Agent", "Content-Type"],
                read_bufsize=CHUNK_BYTES,
                trust_env=False,  # a .netrc would add an account to what the URL alone allows
            )
        return self._session


class _NearError(Exception):
    """A name leads to this machine."""


class _Names(AbstractResolver):
    """Names are looked up, and what leads to this machine leads nowhere, except for those that are trusted."""

    def __init__(self, trusted: set[str]) -> None:
        self.trusted = trusted

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await aiohttp.ThreadedResolver().resolve(host, port, family)
        if host not in self.trusted:
            found = [place for place in found if not is_near(place["host"])]
            if not found:
                raise _NearError
        return found

    async def close(self) -> None:
        """There is nothing to let go of."""


def _take(chunk: bytes, update: Callable[[bytes], None], write: Callable[[bytes], None]) -> None:
    update(chunk)
    write(chunk)


def _give(file: BinaryIO, size: int, update: Callable[[bytes], None]) -> bytes:
    chunk = os.read(file.fileno(), size)
    update(chunk)
    return chunk


def _address(url: str, settings: TransferSettings, code: str) -> URL:
    """The URL as it is: decoding and encoding it again could break its signature. What is not plain ASCII is none that
    a store has signed, and could begin a line of its own in the request."""
    if not _SENDABLE.fullmatch(url):
        raise OpFailure(code, "The URL of the object has characters that no URL has: percent-encode them.")
    try:
        parts = urlsplit(url)
        host, address = parts.hostname, URL(url, encoded=True)
        _ = parts.port
    except ValueError:
        raise OpFailure(code, "The URL of the object is no URL.") from None
    if parts.scheme not in ("https", "http") or not host or parts.username is not None:
        raise OpFailure(code, "The URL of the object is not one of https with a host and no account.")
    if not settings.near and host != settings.gateway and is_near(host):
        raise OpFailure(code, NEAR)
    if parts.scheme == "http" and not settings.plain and not is_here(host):
        raise OpFailure(code, "The URL of the object is not https, and this runner is not in development.")
    return address


async def _refused(answer: aiohttp.ClientResponse, code: str) -> OpFailure:
    """What a store's refusal is, in the store's word for it and none of its other words, which may quote the URL."""
    if 300 <= answer.status < 400:
        return OpFailure(code, f"The object store answered {answer.status}: redirects are not followed.")
    try:
        async with asyncio.timeout(5):
            body = await answer.content.read(ERROR_BYTES_MAX)
    except (aiohttp.ClientError, OSError, TimeoutError):
        body = b""
    found = _CODE.search(body)
    word = f" ({found[1].decode()})" if found else ""
    clock = (
        " The URL's time is up or not yet come: mint a fresh one, and look at the clocks."
        if _CLOCK.search(body)
        else ""
    )
    retryable = answer.status in _PASSING or answer.status >= 500
    return OpFailure(code, f"The object store answered {answer.status}{word}.{clock}", retryable=retryable)


def _broken(error: Exception, code: str) -> OpFailure:
    """What a failed transfer is: by its kind, because the texts of libraries may quote the URL."""
    match error:
        case _NearError():
            return OpFailure(code, NEAR)
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError() | aiohttp.ClientSSLError():
            return OpFailure(code, "The object store's certificate is not trusted here. See runner_ca.")
        case aiohttp.ClientProxyConnectionError():
            return OpFailure(code, f"The proxy cannot be reached ({_errno(error)}).", retryable=True)
        case aiohttp.ClientConnectorError():
            return OpFailure(code, f"The object store cannot be reached ({_errno(error)}).", retryable=True)
        case TimeoutError():
            return OpFailure(code, "The object store was silent for too long.", retryable=True)
        case aiohttp.ClientPayloadError():
            return OpFailure(code, "The transfer broke off before its end.", retryable=True)
        case aiohttp.InvalidURL() | ValueError():
            return OpFailure(code, "The URL or the content type cannot be sent.")
        case aiohttp.ClientHttpProxyError():
            return OpFailure(code, f"The proxy answered {error.status}.", retryable=True)
        case aiohttp.ClientResponseError():
            return OpFailure(code, "The object store's answer is no good HTTP.", retryable=True)
        case _:
            return OpFailure(
                code, f"The connection to the object store broke ({type(error).__name__}).", retryable=True
            )


def _errno(error: aiohttp.ClientConnectorError) -> str:
    if isinstance(error.os_error, socket.gaierror):
        return "its name is not known here"
    return os.strerror(error.os_error.errno) if error.os_error.errno else type(error.os_error).__name__


def _caused_by(error: BaseException | None, cause: Exception) -> bool:
    while error is not None and error is not cause:
        error = error.__cause__ or error.__context__
    return error is cause
