"""An S3-compatible store, through obstore; the one module that imports it.

URLs are signed for the name that runners dial, which may be another than the one that this program uses (S87). A PUT
URL binds its content type.
"""

from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import obstore
from obstore.store import S3Store

from rota.errors import ObjectError, ObjectNotFound
from rota.io.log import redact
from rota.objects.keys import check_key
from rota.objects.sigv4 import Signer, presign_put
from rota.objects.store import CONTENT_TYPE, GET_S, PUT_S, Head, check_content_type, check_expires_s

CHUNK_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    """Where a bucket is and who uses it.

    Attributes:
        endpoint: the address of the store, as this program dials it.
        public_endpoint: as runners dial it; None: the same.
        bucket, region: what they are called.
        access_key_id, secret_access_key: the account.
    """

    endpoint: str
    bucket: str
    access_key_id: str
    secret_access_key: str = field(repr=False)
    region: str = "us-east-1"
    public_endpoint: str | None = None


class S3ObjectStore:
    """The objects of one bucket."""

    def __init__(self, settings: S3Settings) -> None:
        outer = settings.public_endpoint or settings.endpoint
        self._store = _store(settings, settings.endpoint)
        self._outer = _store(settings, outer)
        self._signer = Signer(
            outer, settings.bucket, settings.region, settings.access_key_id, settings.secret_access_key
        )

    async def mint_get(self, key: str, *, expires_s: int = GET_S) -> str:
        """See `ObjectStore`."""
        return await obstore.sign_async(
            self._outer, "GET", check_key(key), timedelta(seconds=check_expires_s(expires_s))
        )

    async def mint_put(self, key: str, *, content_type: str = CONTENT_TYPE, expires_s: int = PUT_S) -> str:
        """See `ObjectStore`."""
        return presign_put(
            self._signer,
            check_key(key),
            content_type=check_content_type(content_type),
            expires_s=check_expires_s(expires_s),
            now=datetime.now(UTC),
        )

    async def head(self, key: str) -> Head | None:
        """See `ObjectStore`."""
        try:
            found = await obstore.get_async(self._store, check_key(key), options={"head": True})
        except FileNotFoundError:
            return None
        except Exception as error:
            raise _wrong(error) from None
        kind = found.attributes.get("Content-Type")
        return Head(found.meta["size"], found.meta["e_tag"] or "", None if kind is None else str(kind))

    async def keys(self, prefix: str) -> AsyncIterator[str]:
        """See `ObjectStore`."""
        folder, _, _ = prefix.rpartition("/")
        found: list[str] = []
        try:
            # The library lists by whole parts of keys.
            async for batch in obstore.list(self._store, folder or None):
                found += [meta["path"] for meta in batch if meta["path"].startswith(prefix)]
        except Exception as error:
            raise _wrong(error) from None
        for key in sorted(found):
            yield key

    async def copy(self, source: str, target: str) -> None:
        """See `ObjectStore`."""
        try:
            await obstore.copy_async(self._store, check_key(source), check_key(target))
        except FileNotFoundError:
            raise ObjectNotFound(f"There is no object {source!r}.") from None
        except Exception as error:
            raise _wrong(error) from None

    async def delete(self, key: str) -> None:
        """See `ObjectStore`."""
        try:
            await obstore.delete_async(self._store, check_key(key))
        except FileNotFoundError:
            return
        except Exception as error:
            raise _wrong(error) from None

    async def read(self, key: str) -> AsyncIterator[bytes]:
        """See `ObjectStore`."""
        try:
            found = await obstore.get_async(self._store, check_key(key))
            async for chunk in found.stream(min_chunk_size=CHUNK_BYTES):
                yield bytes(chunk)
        except FileNotFoundError:
            raise ObjectNotFound(f"There is no object {key!r}.") from None
        except Exception as error:
            raise _wrong(error) from None

    async def write(self, key: str, content: bytes | AsyncIterable[bytes], *, content_type: str = CONTENT_TYPE) -> None:
        """See `ObjectStore`."""
        try:
            await obstore.put_async(
                self._store,
                check_key(key),
                _pieces(content),
                attributes={"Content-Type": check_content_type(content_type)},
            )
        except Exception as error:
            raise _wrong(error) from None

    async def close(self) -> None:
        """The library closes its connections when nobody holds it."""


def _store(settings: S3Settings, endpoint: str) -> S3Store:
    return S3Store(
        settings.bucket, endpoint=endpoint, region=settings.region, access_key_id=settings.access_key_id,
        secret_access_key=settings.secret_access_key, virtual_hosted_style_request=False,
        client_options={"allow_http": endpoint.startswith("http:")},
    )  # fmt: skip


async def _pieces(content: bytes | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    async for chunk in content:
        yield chunk


def _wrong(error: Exception) -> ObjectError:
    """What the library raises quotes addresses and answers at length."""
    line = redact(str(error)).partition("\n")[0][:300]
    return error if isinstance(error, ObjectError) else ObjectError(f"The object store cannot be used: {line}")
