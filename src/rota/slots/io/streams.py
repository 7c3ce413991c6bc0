"""The exec server's ends of the pipes: stdin is fetched, stdout is put, each by one request of its own.

An output is only begun when it outgrows 4,000 bytes or the command has ended well, and only ended when the command has
ended well: whatever goes wrong, the reader sees a request that breaks off, never a short file (I9).
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from typing import Final
from urllib.parse import urlsplit

from rota.errors import ArgumentsError, PipeError
from rota.slots.io.descriptors import Writer
from rota.slots.io.pipe_line import Ended, PipeLine
from rota.slots.pipe_http import AnswerReader, BadMessage

CONNECT_S_MAX: Final = 10.0
_PATH: Final = re.compile(r"/pipe/[A-Za-z0-9_-]{22,64}")
_PLACE: Final = re.compile(r"(\[[0-9A-Fa-f:.]+(%[\w.-]+)?\]|[\w.-]+)(:[0-9]{1,5})?", re.ASCII)


class Streams:
    """Fetches and puts.

    Attributes:
        hosts: the only hosts that are spoken to; empty: whatever a client names.
    """

    def __init__(self, hosts: tuple[str, ...] = ()) -> None:
        self.hosts = hosts

    def check(self, name: str, url: str | None) -> None:
        """Refuses what is no pipe, so that a client cannot make this machine call whatever it can reach.

        Raises: ArgumentsError.
        """
        if url is None:
            return
        try:
            parts = urlsplit(url)
            fits = parts.scheme == "http" and _PLACE.fullmatch(parts.netloc) is not None and parts.port != 0
        except ValueError:
            fits = False
        if not fits or parts.query or parts.fragment or not _PATH.fullmatch(parts.path):
            raise ArgumentsError(f"The {name} is no pipe: give http://HOST:PORT/pipe/ID.")
        if self.hosts and parts.hostname not in self.hosts:
            raise ArgumentsError(f"The {name} is at {parts.hostname}, which server.pipe_hosts does not list.")

    async def fetch(self, url: str, writer: Writer, count: Callable[[int], None]) -> None:
        """Writes what the pipe holds to the command; one that stops reading is let be.

        Raises: PipeError if it does not come whole.
        """
        reader = AnswerReader()
        async with _dialed(url) as line:
            try:
                await line.send(reader.request("GET", *_parts(url), chunked=False))
                answer = await line.answer(reader)
                if answer.status != 200:
                    raise PipeError(f"stdin cannot be fetched: its pipe answers {answer.status}.")
                if answer.body is None:
                    raise PipeError("stdin has neither a length nor chunks, so its end could not be trusted.")
                async for piece in line.pieces(answer.body, answer.rest):
                    try:
                        await writer.write(piece)
                    except BrokenPipeError:
                        return
                    count(len(piece))
            except (OSError, Ended, BadMessage) as error:
                raise PipeError(f"stdin broke off: {_what(error)}.") from None
            line.close()

    async def put(self, url: str, chunks: AsyncIterator[memoryview]) -> None:
        """Sends the chunks, each before the next is asked for; one that raises breaks the request off.

        Raises: PipeError if they are not taken to the last byte.
        """
        reader = AnswerReader()
        async with _dialed(url) as line:
            sending = asyncio.ensure_future(_send(line, reader.request("PUT", *_parts(url), chunked=True), chunks))
            answering = asyncio.ensure_future(line.answer(reader))
            try:
                await asyncio.wait({sending, answering}, return_when=asyncio.FIRST_COMPLETED)
                if sending.done():
                    sending.result()
                answer = await answering
            except (OSError, Ended, BadMessage) as error:
                raise PipeError(f"stdout broke off: {_what(error)}.") from None
            finally:
                whole = sending.done()
                sending.cancel()
                answering.cancel()
                await asyncio.wait({sending, answering})
            if not whole or answer.status not in (200, 201, 204):
                raise PipeError(f"stdout is not taken: its pipe answers {answer.status}.")
            line.close()


async def _send(line: PipeLine, head: bytes, chunks: AsyncIterator[memoryview]) -> None:
    await line.send(head)
    async for chunk in chunks:
        await line.send_chunk(chunk)
    await line.send_end()


@contextlib.asynccontextmanager
async def _dialed(url: str) -> AsyncIterator[PipeLine]:
    """A connection to where a pipe is; cut when it is left, unless it was closed.

    Raises: PipeError if nobody is there.
    """
    parts = urlsplit(url)
    host, port = str(parts.hostname), parts.port or 80
    try:
        async with asyncio.timeout(CONNECT_S_MAX):
            line = await PipeLine.dial(host, port)
    except TimeoutError:
        raise PipeError(f"{host}:{port} did not answer within {CONNECT_S_MAX:g} s.") from None
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise PipeError(f"{host}:{port} cannot be reached ({why}).") from None
    try:
        yield line
    finally:
        line.cut()


def _parts(url: str) -> tuple[str, str]:
    """What a request names: host with port, and path."""
    parts = urlsplit(url)
    return parts.netloc, parts.path


def _what(error: BaseException) -> str:
    """The error without the address: its id is a credential (I10)."""
    return "it ended before its end" if isinstance(error, Ended) else str(error) or type(error).__name__
