"""What a store of objects can do, whichever it is. Pure: one protocol and what it hands out.

A minted URL is a bearer secret for one object and one method. It is minted when an op is issued and never stored; who
shows it to anybody cuts its query off first (I10).
"""

import re
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
from typing import Final, Protocol

from rota.errors import ObjectError

GET_S: Final = 15 * 60
PUT_S: Final = 30 * 60
"""How long the URLs of the protocol are good for."""
EXPIRES_S_MAX: Final = 7 * 24 * 3600
"""As S3."""
CONTENT_TYPE: Final = "application/octet-stream"


def check_expires_s(expires_s: int) -> int:
    """How long a URL is good for, if that is 1 to `EXPIRES_S_MAX`.

    Raises: ObjectError.
    """
    if not 1 <= expires_s <= EXPIRES_S_MAX:
        raise ObjectError(f"A URL is good for 1 to {EXPIRES_S_MAX:,} seconds, not {expires_s:,}.")
    return expires_s


_CONTENT_TYPE: Final = re.compile(r"(?=.{1,200}\Z)[!-~]+(?: [!-~]+)*")


def check_content_type(text: str) -> str:
    """The content type, if it arrives as it was signed: servers drop blanks around a header's value, signatures take
    many blanks for one, and few agree on what is no ASCII.

    Raises: ObjectError.
    """
    if not _CONTENT_TYPE.fullmatch(text):
        raise ObjectError(
            f"{text[:80]!r} is no content type that every store signs alike. Give ASCII such as video/mp4, with single "
            "blanks and none around it."
        )
    return text


@dataclass(frozen=True, slots=True)
class Head:
    """What a store says of an object. `etag` changes whenever the content does."""

    size_bytes: int
    etag: str
    content_type: str | None = None


class ObjectStore(Protocol):
    """A store of objects by key. Each method raises ObjectError for a bad key and when the store cannot be used."""

    async def mint_get(self, key: str, *, expires_s: int = GET_S) -> str:
        """A URL that reads this object until `expires_s` from now."""

    async def mint_put(self, key: str, *, content_type: str = CONTENT_TYPE, expires_s: int = PUT_S) -> str:
        """A URL that writes this object, with this content type and no other, until `expires_s` from now."""

    async def head(self, key: str) -> Head | None:
        """What is there; None: nothing."""

    def keys(self, prefix: str) -> AsyncIterator[str]:
        """The keys that begin so, sorted."""

    async def copy(self, source: str, target: str) -> None:
        """Makes `target` what `source` is now. Raises: ObjectNotFound if there is no source."""

    async def delete(self, key: str) -> None:
        """Removes an object; that there is none is no error."""

    def read(self, key: str) -> AsyncIterator[bytes]:
        """The content, piece by piece. Raises: ObjectNotFound."""

    async def write(self, key: str, content: bytes | AsyncIterable[bytes], *, content_type: str = CONTENT_TYPE) -> None:
        """Writes an object: all of it or nothing."""

    async def close(self) -> None:
        """Lets go of connections; safe to repeat."""
