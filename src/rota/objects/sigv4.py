"""Amazon's signature version 4 for one kind of URL: a PUT that binds its content type. Pure.

The client library signs the host only, which leaves the content type to whoever holds the URL. GET URLs come from the
library. Checked in the tests against a store that is not ours.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import SplitResult, quote, urlsplit

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Signer:
    """Whose signature it is. `endpoint` is the address that the bearer dials; the bucket stands in the path."""

    endpoint: str
    bucket: str
    region: str
    access_key_id: str
    secret_access_key: str = field(repr=False)


def presign_put(signer: Signer, key: str, *, content_type: str, expires_s: int, now: datetime) -> str:
    """The URL that writes `key` with exactly this content type.

    Args:
        signer: whose.
        key: of the object.
        content_type: has to be sent as it stands here.
        expires_s: seconds from `now`, at most 604,800.
        now: the signer's clock, in UTC.
    """
    address = urlsplit(signer.endpoint)
    host = _host(address)
    path = f"{address.path.rstrip('/')}/{quote(f'{signer.bucket}/{key}', safe='/~')}"
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    scope = f"{stamp[:8]}/{signer.region}/s3/aws4_request"
    query = _query(
        {
            "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
            "X-Amz-Credential": f"{signer.access_key_id}/{scope}",
            "X-Amz-Date": stamp,
            "X-Amz-Expires": str(expires_s),
            "X-Amz-SignedHeaders": "content-type;host",
        }
    )
    headers = f"content-type:{content_type}\nhost:{host}\n"
    request = "\n".join(["PUT", path, query, headers, "content-type;host", "UNSIGNED-PAYLOAD"])
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(request.encode()).hexdigest()])
    secret = f"AWS4{signer.secret_access_key}".encode()
    for part in (stamp[:8], signer.region, "s3", "aws4_request"):
        secret = hmac.digest(secret, part.encode(), "sha256")
    signature = hmac.digest(secret, text.encode(), "sha256").hex()
    return f"{address.scheme}://{host}{path}?{query}&X-Amz-Signature={signature}"


def _host(address: SplitResult) -> str:
    """As HTTP clients write it, because it is signed: in lower case, with a port only if it is not the scheme's own."""
    name, port = (address.hostname or "").lower(), address.port
    name = f"[{name}]" if ":" in name else name
    return name if port is None or port == _PORTS.get(address.scheme) else f"{name}:{port}"


def _query(fields: Mapping[str, str]) -> str:
    return "&".join(f"{quote(name, safe='~')}={quote(value, safe='~')}" for name, value in sorted(fields.items()))
