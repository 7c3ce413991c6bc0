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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

OWN_LENGTH_MIN: Final = 12
"""Secrets of this program that are shorter are not looked for: they would be found in ordinary words."""
NEAR: Final = 16_384
"""Characters on either side of a mark within which the whole of a credential stands."""
NEAR_MAX: Final = 32
"""Marks around which it is worth looking one by one."""
URL_FIELDS: Final = frozenset({"url", "putUrl"})
"""Where an op carries a presigned URL: of stage, publish, render and the entries of hydrate's manifest."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of credential.

    Attributes:
        what: in words.
        marks: one of these is in each text that has it; looked for first, which costs little.
        pattern: what it looks like.
        any_case: whether the marks are of the text in lower case.
        in_urls: whether it is looked for in presigned URLs too, whose query is a credential by design.
    """

    what: str
    marks: tuple[str, ...]
    pattern: re.Pattern[str]
    any_case: bool = False
    in_urls: bool = False

    def may_be_in(self, text: str, lowered: str) -> bool:
        """Whether a text has a mark of it."""
        seen = lowered if self.any_case else text
        return any(mark in seen for mark in self.marks)

    def is_in(self, text: str, lowered: str) -> bool:
        """Whether a text has it. Around a few marks it is looked for there alone, which makes long texts cheap."""
        seen = lowered if self.any_case else text
        if len(seen) != len(text):  # some letters are two in lower case, and a place in one is none in the other
            return self.pattern.search(text) is not None
        ends: list[int] = []
        for mark in self.marks:
            at = seen.find(mark)
            while at >= 0:
                ends.append(at)
                if len(ends) > NEAR_MAX:
                    return self.pattern.search(text) is not None
                at = seen.find(mark, at + 1)
        return any(self.pattern.search(text, max(0, at - NEAR), at + NEAR) is not None for at in ends)


def _shape(what: str, pattern: str, *marks: str, any_case: bool = False, in_urls: bool = False) -> Shape:
    flags = re.ASCII | re.IGNORECASE if any_case else re.ASCII
    return Shape(what, marks, re.compile(pattern, flags), any_case, in_urls)


# Where a word begins is looked for behind it, so that a long text with many of them is read once.
SHAPES: Final = (
    _shape("a PEM block", r"-----BEGIN [A-Z0-9 ]{1,60}-----", "-----BEGIN ", in_urls=True),
    _shape(
        "an address of a database or a broker",
        r"(?<![a-z0-9])(?:postgres(?:ql)?|mysql|mariadb|mongodb|rediss?|amqps?|mssql|sqlserver)(?:\+[a-z0-9]+)?://",
        "postgres", "mysql", "mariadb", "mongodb", "redis", "amqp", "mssql", "sqlserver", any_case=True,
    ),
    _shape("an address with a password", r"://[^\s/?#@:]*:[^\s/?#@]+@", "://", in_urls=True),
    _shape("an access key of AWS", r"(?<![A-Z0-9])(?:AKIA|ASIA|AIDA|AROA|AGPA|ANPA)[A-Z0-9]{16}(?![A-Z0-9])",
           "AKIA", "ASIA", "AIDA", "AROA", "AGPA", "ANPA"),
    _shape("a presigned URL", r"[?&](?:x-amz-signature|x-goog-signature|signature|sig)=",
           "-signature=", "?signature=", "&signature=", "?sig=", "&sig=", any_case=True),
    _shape("a JSON web token", r"(?<![\w-])eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}", ".eyJ", in_urls=True),
    _shape("a bearer token", r"\bbearer\s+[\w+/.~=-]{20,}", "bearer", any_case=True, in_urls=True),
    _shape("an Authorization header", r"\bauthorization\s*:", "authorization", any_case=True, in_urls=True),
    _shape("a password", r"\b(?:password|passwd|secret_?key|api_?key|access_?key)\s*=\s*[^\s&;]{4,}",
           "passw", "secretkey", "secret_key", "apikey", "api_key", "accesskey", "access_key", any_case=True),
    _shape("a secret of the pool", r"(?<![\w-])rpool_[\w-]{20,}", "rpool_", in_urls=True),
    _shape("a provider's key", r"(?<![\w-])(?:sk|pk|rk)[-_](?:[\w-]{0,40}[-_])?(?=[A-Za-z0-9]*\d)[A-Za-z0-9]{20,}",
           "sk-", "sk_", "pk-", "pk_", "rk-", "rk_"),
    _shape("a provider's key",
           r"(?<![\w-])(?:gh[pousr]_|github_pat_|glpat-|hf_|r8_|npm_|xox[abeprs]-|whsec_)[\w-]{16,}",
           "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "hf_", "r8_", "npm_", "xox", "whsec_"),
    _shape("a provider's key", r"(?<![\w-])AIza[\w-]{35}", "AIza"),
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
    names: set[str] = set()
    whole = "\n".join(_texts(value, names))
    lowered = whole.lower()
    shapes = [shape for shape in SHAPES if shape.may_be_in(whole, lowered)]
    named = not NAMES.isdisjoint(map(_bare, names))
    if not (shapes or named or any(secret in whole for secret in secrets)):
        return None  # nearly everything
    for where, name, text in _places(value):
        if name is not None and text and _bare(name) in NAMES:
            return Finding(where, "a field that is named as a credential")
        lent = urls and name in URL_FIELDS
        what = _what(text, shapes, lent=lent, own=secrets)
        if what is not None:
            return Finding(where, what)
    return None


def _texts(value: Any, names: set[str]) -> Iterator[str]:
    """Every text, and the names of all fields. Deep values need no deep stack."""
    pending: list[Any] = [value]
    while pending:
        found = pending.pop()
        if isinstance(found, str):
            yield found
        elif isinstance(found, Mapping):
            names.update(map(str, found))
            yield from map(str, found)
            pending.extend(found.values())
            if found.get("encoding") == "base64" and isinstance(found.get("content"), str):
                yield _decoded(found["content"])
        elif isinstance(found, list | tuple):
            pending.extend(found)


def _places(value: Any) -> Iterator[tuple[str, str | None, str]]:
    """Every text with the path to it and the name of its field; keys are texts too."""
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
                if found.get("encoding") == "base64" and isinstance(found.get("content"), str):
                    yield f"{where}.content".lstrip("."), None, _decoded(found["content"])
            case list() | tuple():
                pending.extend((f"{where}[{index}]", name, inner) for index, inner in enumerate(found))


def _what(text: str, shapes: Sequence[Shape], *, lent: bool, own: Collection[str]) -> str | None:
    if any(secret in text for secret in own):
        return "a secret of this gateway"
    lowered = text.lower()
    for shape in shapes:
        if (shape.in_urls or not lent) and shape.is_in(text, lowered):
            return shape.what
    return None


def _decoded(content: str) -> str:
    try:
        # Credentials are ASCII; and what is only that is put into lower case ten times as fast.
        return base64.b64decode(content).decode("ascii", "ignore")
    except (binascii.Error, ValueError):
        return ""


def _bare(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()
