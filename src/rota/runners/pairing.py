"""Pairing codes and the pool's secrets: how they look, and what is kept of them. Pure.

A code is read aloud and typed: two groups of letters without those that look alike. The first group only finds the row;
the second is the secret, kept as a hash, and a code allows few attempts, so that nobody can search it.

Spec: runners, "Connection handshake and authentication"; issue 5, "Pairing".
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rota.errors import PairingError

LETTERS: Final = "ABCDEFGHJKMNPQRSTVWXYZ23456789"
"""30 letters and digits, without I, L, O, U, 0 and 1."""
SELECTOR_LENGTH: Final = 4
SECRET_LENGTH: Final = 8
"""30^8 secrets, of which a code allows 5 to be tried: one in 130 billion."""
CODE_PATTERN: Final = r"^[\s\-–—]*([A-HJKMNP-TV-Za-hjkmnp-tv-z2-9][\s\-–—]*){12}$"
"""What `read_code` reads, for whoever checks it before."""
ATTEMPTS_MAX: Final = 5
VALID_S: Final = 600.0
"""How long a code is good, unless its maker says otherwise."""
VALID_S_MAX: Final = 86_400.0
"""A code that lies about for longer is for somebody else to find."""
OVERLAP_S: Final = 86_400.0
"""How long the key or secret before is good after a rotation: a day, in which every machine is told."""
OVERLAP_S_MAX: Final = 7 * 86_400
NAME_MAX: Final = 200
"""Characters of an organisation's id, and of a device's name."""
CREDENTIAL_PREFIX: Final = "rpool_"


@dataclass(frozen=True, slots=True)
class Code:
    """A pairing code: `selector` finds it, `secret` proves it."""

    selector: str
    secret: str

    def __str__(self) -> str:
        return f"{self.selector}-{self.secret[:4]}-{self.secret[4:]}"

    def __repr__(self) -> str:
        return f"Code({self.selector}-…)"

    @property
    def hash(self) -> bytes:
        """What is kept of it."""
        return hashlib.sha256(f"rota-pairing-v1|{self.selector}|{self.secret}".encode()).digest()


def new_code(choice: Callable[[str], str]) -> Code:
    """A code of letters that `choice` draws; give it `secrets.choice`."""
    drawn = "".join(choice(LETTERS) for _ in range(SELECTOR_LENGTH + SECRET_LENGTH))
    return Code(drawn[:SELECTOR_LENGTH], drawn[SELECTOR_LENGTH:])


def check_name(what: str, text: str) -> None:
    """Refuses a name that nobody can have meant, such as the empty one of a shell's unset variable.

    Raises: PairingError with code bad_name.
    """
    if not text.strip() or len(text) > NAME_MAX or not text.isprintable():
        raise PairingError(f"{text[:50]!r} is no {what}: give 1 to {NAME_MAX} printable characters.", code="bad_name")


def read_code(text: str) -> Code:
    """A code as somebody typed it: case, blanks and dashes do not matter.

    Raises: PairingError if it cannot be one.
    """
    letters = re.sub(r"[\s\-–—]", "", text[:100]).upper()
    if len(letters) != SELECTOR_LENGTH + SECRET_LENGTH or not set(letters) <= set(LETTERS):
        raise PairingError("This is no pairing code: it looks like ABCD-EFGH-JKMN.", code="invalid_code")
    return Code(letters[:SELECTOR_LENGTH], letters[SELECTOR_LENGTH:])


def new_credential(token: str) -> str:
    """A secret of the pool; `token` comes from `secrets.token_urlsafe(32)`."""
    return CREDENTIAL_PREFIX + token


VERDICTS: Final = {
    "wrong": "This pairing code is wrong. Check it, or ask for a new one (rota runner code).",
    "used": "This pairing code was used already. Ask for a new one (rota runner code).",
    "expired": "This pairing code is too old. Ask for a new one (rota runner code).",
    "locked": "This pairing code was tried too often. Ask for a new one (rota runner code).",
}
