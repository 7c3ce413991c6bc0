"""Serves a folder store's signed URLs: one GET or one PUT of one object, and nothing else. An ASGI app to be mounted.

No listing, no ranges, no unsigned access. An upload needs its length in advance, is bounded, and is there whole or
not at all. What is wrong is said as S3 says it, so that whoever reads one reads the other; addresses are not logged
here.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import BinaryIO, Final
from xml.sax.saxutils import escape

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from rota.errors import ObjectError, ObjectNotFound
from rota.objects.io.folder import CHUNK_BYTES, FolderStore
from rota.objects.signing import refusal
from rota.objects.store import CONTENT_TYPE

UPLOAD_BYTES_MAX: Final = 5 * 1024**3
"""What S3 takes in one PUT."""
STALL_S: Final = 120.0
"""A transfer on which nothing moves for so long is cut off, as runners do it at their end."""
REST_BYTES_MAX: Final = 8 * 1024 * 1024
REST_S_MAX: Final = 5.0
"""How much of an upload that is refused is read, and for how long: who is still sending when the connection is closed
may never see the answer."""


class FolderServer:
    """The app.

    Args:
        store: whose URLs are served.
        upload_bytes_max: a larger upload is refused.
        stall_s: an upload of which nothing comes for so long is given up.
    """

    def __init__(
        self, store: FolderStore, *, upload_bytes_max: int = UPLOAD_BYTES_MAX, stall_s: float = STALL_S
    ) -> None:
        self._store = store
        self._upload_bytes_max = upload_bytes_max
        self._stall_s = stall_s

    def app(self) -> Starlette:
        """The ASGI app; keys stand right below where it is mounted."""
        return Starlette(routes=[Route("/{key:path}", self._serve, methods=["GET", "HEAD", "PUT"])])

    async def _serve(self, request: Request) -> Response:
        store, key = self._store, request.path_params["key"]
        no = refusal(
            store.secret, method=request.method, key=key, query=request.query_params,
            content_type=request.headers.get("content-type"), now=store.clock(),
        )  # fmt: skip
        answer = _error(403, no.code, no.message) if no is not None else await self._answer(request, key)
        if request.method == "PUT" and answer.status_code not in (200, 408):
            await _read_the_rest(request)
        return answer

    async def _answer(self, request: Request, key: str) -> Response:
        try:
            return await (self._put(request, key) if request.method == "PUT" else self._get(key))
        except ObjectNotFound as error:
            return _error(404, "NoSuchKey", str(error))
        except ObjectError as error:
            return _error(507, "InsufficientStorage", str(error))

    async def _get(self, key: str) -> Response:
        head, file = await self._store.head(key), await self._store.open(key)
        size = file.seek(0, 2)
        file.seek(0)
        kind = CONTENT_TYPE if head is None or head.content_type is None else head.content_type
        # What a runner has uploaded is never shown by a browser as a page of this host.
        headers = {
            "content-length": str(size),
            "x-content-type-options": "nosniff",
            "content-disposition": "attachment",
        }
        return StreamingResponse(_chunks(file), headers=headers, media_type=kind)

    async def _put(self, request: Request, key: str) -> Response:
        length = request.headers.get("content-length", "")
        if not length.isdecimal():
            return _error(411, "MissingContentLength", "Say how long the object is in Content-Length.")
        if int(length) > self._upload_bytes_max:
            return _error(413, "EntityTooLarge", f"An object may have {self._upload_bytes_max:,} bytes.")
        try:
            kind = request.headers.get("content-type", CONTENT_TYPE)
            await self._store.write(key, _while_it_comes(request.stream(), self._stall_s), content_type=kind)
        except TimeoutError:
            return _error(408, "RequestTimeout", "The upload stood still, and nothing of it was kept.")
        except ClientDisconnect:
            return _error(400, "IncompleteBody", "The upload broke off, and nothing of it was kept.")
        return Response(status_code=200)


async def _read_the_rest(request: Request) -> None:
    count = 0
    # Starlette says RuntimeError of a stream that was read to its end.
    with contextlib.suppress(ClientDisconnect, TimeoutError, RuntimeError):
        async with asyncio.timeout(REST_S_MAX):
            async for chunk in request.stream():
                count += len(chunk)
                if count > REST_BYTES_MAX:
                    return


async def _while_it_comes(pieces: AsyncIterator[bytes], stall_s: float) -> AsyncIterator[bytes]:
    while True:
        try:
            async with asyncio.timeout(stall_s):
                piece = await anext(pieces)
        except StopAsyncIteration:
            return
        yield piece


async def _chunks(file: BinaryIO) -> AsyncIterator[bytes]:
    with file:
        while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
            yield chunk


def _error(status: int, code: str, message: str) -> Response:
    said = f"<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>"
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n{said}'
    return Response(body, status_code=status, media_type="application/xml")
