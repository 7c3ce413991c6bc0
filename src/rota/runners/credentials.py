"""What looks like a credential in what an engine wants sent to a runner. Pure.

A runner is a machine that nobody has to trust, so nothing that opens anything goes there: no provider's key, no address
of a database, no token of the platform. What an engine sends is refused rather than changed, because a spec or an argv
with a hole in it would do something else than was asked. The one secret that an op may carry is a URL for one object,
in the field that is made for it. A shape is no proof: what is made to look harmless passes, and rests on its engine.

Spec: runners, "Security invariants" (no message or op ever carries a provider credential), "Presigned URLs".
"""

import base64
import binascii
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

OWN_LENGTH_MIN: Final = 12
"""Secrets of this program that are shorter are not looked for: they would be found in ordinary words."""
URL_FIELDS: Final = frozenset({"url", "putUrl"})
"""Where an op carries a presigned URL: of stage, publish, render and the entries of hydrate's manifest."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of credential.

    Attributes:
        what: in words.
        marks: one of these is in each text that has it, in lower case; looked for first, which costs little.
        pattern: what it looks like.
        in_urls: whether it is looked for in presigned URLs too, whose query is a credential by design.
    """

    what: str
    marks: tuple[str, ...]
    pattern: re.Pattern[str]
    in_urls: bool = False


def _shape(what: str, pattern: str, *marks: str, in_urls: bool = False) -> Shape:
    return Shape(what, marks, re.compile(pattern, re.ASCII), in_urls)


SHAPES: Final = (
    _shape("a PEM block", r"-----BEGIN [A-Z0-9 ]{1,60}-----", "-----begin ", in_urls=True),
    _shape(
        "an address of a database or a broker",
        r"(?i)(?<![a-z0-9])(?:postgres(?:ql)?|mysql|mariadb|mongodb|rediss?|amqps?|mssql|sqlserver)(?:\+[a-z0-9]+)?://",
        "postgres", "mysql", "mariadb", "mongodb", "redis", "amqp", "mssql", "sqlserver",
    ),
    _shape("an address with a password", r"://[^\s/?#@:]*:[^\s/?#@]+@", "://", in_urls=True),
    _shape("an access key of AWS", r"(?<![A-Z0-9])(?:AKIA|ASIA|AIDA|AROA|AGPA|ANPA)[A-Z0-9]{16}(?![A-Z0-9])",
           "akia", "asia", "aida", "aroa", "agpa", "anpa"),
    _shape("a presigned URL", r"(?i)[?&](?:x-amz-signature|x-goog-signature|signature|sig)=", "?", "&"),
    _shape("a JSON web token", r"(?<![\w-])eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}", "eyj", in_urls=True),
    _shape("a bearer token", r"(?i)\bbearer\s+[\w+/.~=-]{20,}", "bearer", in_urls=True),
    _shape("an Authorization header", r"(?i)\bauthorization\s*:", "authorization", in_urls=True),
    _shape("a password", r"(?i)\b(?:password|passwd|secret_?key|api_?key|access_?key)\s*=\s*[^\s&;]{4,}",
           "passw", "secret", "key"),
    _shape("a secret of the pool", r"(?<![\w-])rpool_[\w-]{20,}", "rpool_", in_urls=True),
    _shape("a provider's key", r"(?<![\w-])(?:sk|pk|rk)[-_](?:[\w-]{0,40}[-_])?(?=[A-Za-z0-9]*\d)[A-Za-z0-9]{20,}",
           "sk-", "sk_", "pk-", "pk_", "rk-", "rk_"),
    _shape("a provider's key",
           r"(?<![\w-])(?:gh[pousr]_|github_pat_|glpat-|hf_|r8_|npm_|xox[abeprs]-|whsec_)[\w-]{16,}",
           "gh", "glpat-", "hf_", "r8_", "npm_", "xox", "whsec_"),
    _shape("a provider's key", r"(?<![\w-])AIza[\w-]{35}", "aiza"),
    _shape("a reference to a secret", r"^env:[A-Za-z_]\w*$", "env:"),
)  # fmt: skip

NAMES: Final = frozenset(
    {
        "accesskey", "accesskeyid", "accesstoken", "apikey", "apitoken", "authorization", "authtoken", "bearertoken",
        "clientsecret", "connectionstring", "credential", "credentials", "databaseurl", "dbpassword", "dsn", "idtoken",
        "jobtoken", "passphrase", "passwd", "password", "privatekey", "refreshtoken", "secret", "secretaccesskey",
        "secretkey", "sessiontoken", "signingkey",
    }
)  # fmt: skip
"""Names of fields that hold nothing but a credential, without case, dashes and underscores."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A credential, by where it stands; never by what it is."""

    where: str
    what: str


def find_credential(value: Any, *, own: Collection[str] = (), urls: bool = False) -> Finding | None:
    """The first thing in a JSON value that looks like a credential.

    Args:
        value: what an engine wants sent.
        own: secrets of this program, in whatever text they stand.
        urls: whether fields named as those of an op may hold a presigned URL.

    Returns: where it stands and what it looks like; None: there is none.
    """
    secrets = [secret for secret in own if len(secret) >= OWN_LENGTH_MIN]
    for where, name, text in _texts(value):
        if name is not None and text and _bare(name) in NAMES:
            return Finding(where, "a field that is named as a credential")
        lent = urls and name in URL_FIELDS
        what = _what(text, lent=lent, own=secrets)
        if what is not None:
            return Finding(where, what)
    return None


def _texts(value: Any) -> Iterator[tuple[str, str | None, str]]:
    """Every text with the path to it and the name of its field; keys are texts too. Deep values need no deep stack."""
    pending: list[tuple[str, str | None, Any]] = [("", None, value)]
    while pending:
        where, name, found = pending.pop()
        match found:
            case str():
                yield where, name, found
            case Mapping():
                for key, inner in found.items():
                    yield where, None, str(key)
                    pending.append((f"{where}.{str(key)[:60]}".lstrip("."), str(key), inner))
                content = found.get("content")
                if found.get("encoding") == "base64" and isinstance(content, str):
                    yield f"{where}.content".lstrip("."), None, _decoded(content)
            case list() | tuple():
                pending.extend((f"{where}[{index}]", name, inner) for index, inner in enumerate(found))


def _what(text: str, *, lent: bool, own: Collection[str]) -> str | None:
    if any(secret in text for secret in own):
        return "a secret of this gateway"
    lowered = text.lower()
    for shape in SHAPES:
        if lent and not shape.in_urls:
            continue
        if any(mark in lowered for mark in shape.marks) and shape.pattern.search(text):
            return shape.what
    return None


def _decoded(content: str) -> str:
    try:
        return base64.b64decode(content).decode("latin-1")
    except (binascii.Error, ValueError):
        return ""


def _bare(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()
