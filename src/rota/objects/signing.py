"""URLs of the folder store: one object, one method, one span of time, signed. Pure.

The span is judged once, when a request begins, from the URL's own date: a download may go on beyond it, and a URL
that is good for seven days is good after twenty minutes (S85). A signer whose clock is a little ahead is believed
(S86). The signature does not name a host: the base is the address that the runner dials, whatever the store is called
inside (S87).
"""

import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode

SKEW_S: Final = 15 * 60
"""How far ahead a signer's clock may be; as S3."""

_FIELDS: Final = frozenset({"method", "date", "expires", "type", "signature"})
_NUMBER: Final = re.compile("0|[1-9][0-9]{0,11}")


@dataclass(frozen=True, slots=True)
class Grant:
    """What a URL allows."""

    method: str
    key: str
    date_s: int
    expires_s: int
    content_type: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a URL is not served: a word as S3 has it, and a sentence."""

    code: str
    message: str


def signed_url(base: str, secret: bytes, grant: Grant) -> str:
    """The URL that carries a grant.

    Args:
        base: the address of the store as the bearer dials it, without a slash at its end.
        secret: the store's key.
        grant: what is allowed.
    """
    query = {"method": grant.method, "date": grant.date_s, "expires": grant.expires_s}
    if grant.content_type:
        query["type"] = grant.content_type
    query["signature"] = _signature(secret, grant)
    return f"{base}/{quote(grant.key)}?{urlencode(query)}"


def refusal(
    secret: bytes, *, method: str, key: str, query: Mapping[str, str], content_type: str | None, now: float
) -> Refusal | None:
    """Why a request is not allowed; None: it is.

    Args:
        secret: the store's key.
        method, key, query, content_type: of the request; the key decoded.
        now: the store's clock, in seconds since 1970.
    """
    if not _FIELDS.issuperset(query):
        return Refusal("SignatureDoesNotMatch", "This address has more to it than what was signed.")
    if not (_NUMBER.fullmatch(query.get("date", "")) and _NUMBER.fullmatch(query.get("expires", ""))):
        return Refusal("AccessDenied", "This address is not signed.")
    try:
        grant = Grant(query["method"], key, int(query["date"]), int(query["expires"]), query.get("type", ""))
    except KeyError:
        return Refusal("AccessDenied", "This address is not signed.")
    signature = query.get("signature", "").encode(errors="replace")
    if not hmac.compare_digest(_signature(secret, grant).encode(), signature):
        return Refusal("SignatureDoesNotMatch", "The signature is not that of this address.")
    if method != grant.method:
        return Refusal("MethodNotAllowed", f"This address is good for {grant.method} only.")
    if grant.content_type and content_type != grant.content_type:
        return Refusal("SignatureDoesNotMatch", f"The content type has to be {grant.content_type}, exactly.")
    if now < grant.date_s - SKEW_S:
        return Refusal("RequestTimeTooSkewed", "The signer's clock is more than 15 minutes ahead of the store's.")
    if now >= grant.date_s + grant.expires_s:
        return Refusal("AccessDenied", "Request has expired.")
    return None


def _signature(secret: bytes, grant: Grant) -> str:
    text = "\n".join(
        ["rota-object-v1", grant.method, grant.key, str(grant.date_s), str(grant.expires_s), grant.content_type]
    )
    return urlsafe_b64encode(hmac.digest(secret, text.encode(errors="surrogatepass"), "sha256")).decode().rstrip("=")
