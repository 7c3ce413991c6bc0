"""The exec server's ends of the pipes: stdin is fetched, stdout is put, each by one request of its own.

An output is only begun when it outgrows 4,000 bytes or the command has ended well, and only ended when the command has
ended well: whatever goes wrong, the reader sees a request that breaks off, never a short file (I9).
"""

import re
from collections.abc import AsyncIterator, Callable
from typing import Final
from urllib.parse import urlsplit

import aiohttp

from rota.errors import ArgumentsError, PipeError
from rota.slots.io.descriptors import Writer

CONNECT_S_MAX: Final = 10.0
READ_BYTES: Final = 256 * 1024
_PATH: Final = re.compile(r"/pipe/[A-Za-z0-9_-]{22,64}")


class Streams:
    """Fetches and puts.

    Attributes:
        hosts: the only hosts that are spoken to; empty: whatever a client names.
    """

    def __init__(self, hosts: tuple[str, ...] = ()) -> None:
        self.hosts = hosts
        self._session: aiohttp.ClientSession | None = None

    def check(self, name: str, url: str | None) -> None:
        """Refuses what is no pipe, so that a client cannot make this machine call whatever it can reach.

        Raises: ArgumentsError.
        """
        if url is None:
            return
        try:
            parts = urlsplit(url)
            fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            fits = False
        if not fits or parts.username or parts.query or parts.fragment or not _PATH.fullmatch(parts.path):
            raise ArgumentsError(f"The {name} is no pipe: give http://HOST:PORT/pipe/ID.")
        if self.hosts and parts.hostname not in self.hosts:
            raise ArgumentsError(f"The {name} is at {parts.hostname}, which server.pipe_hosts does not list.")

    async def fetch(self, url: str, writer: Writer, count: Callable[[int], None]) -> None:
        """Writes what the pipe holds to the command; one that stops reading is let be.

        Raises: PipeError if it does not come whole.
        """
        try:
            async with self._open().get(url, allow_redirects=False) as response:
                if response.status != 200:
                    raise PipeError(f"stdin cannot be fetched: its pipe answers {response.status}.")
                if response.content_length is None and response.headers.get("Transfer-Encoding", "") != "chunked":
                    raise PipeError("stdin has neither a length nor chunks, so its end could not be trusted.")
                async for chunk in response.content.iter_any():
                    try:
                        await writer.write(chunk)
                    except BrokenPipeError:
                        return
                    count(len(chunk))
        except (aiohttp.ClientError, OSError) as error:
            raise PipeError(f"stdin broke off: {_what(error)}.") from None

    async def put(self, url: str, chunks: AsyncIterator[bytes]) -> None:
        """Sends the chunks; one that raises breaks the request off.

        Raises: PipeError if they are not taken to the last byte.
        """
        try:
            async with self._open().put(url, data=chunks, allow_redirects=False) as response:
                if response.status not in (200, 201, 204):
                    raise PipeError(f"stdout is not taken: its pipe answers {response.status}.")
        except (aiohttp.ClientError, OSError) as error:
            raise PipeError(f"stdout broke off: {_what(error)}.") from None

    async def close(self) -> None:
        """Safe to repeat."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S_MAX),
                connector=aiohttp.TCPConnector(limit=0, force_close=True),
                auto_decompress=False,
                read_bufsize=READ_BYTES,
                headers={"Accept-Encoding": "identity"},
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


def _what(error: BaseException) -> str:
    """The error without the address: its id is a credential (I10)."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"{error.host}:{error.port} cannot be reached ({error.os_error.strerror})"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "it ended before its end"
    return type(error).__name__
