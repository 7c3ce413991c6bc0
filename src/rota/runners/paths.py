"""Names of files in a session: what one may look like, and its one spelling.

A session's paths are virtual and relative: `in/0001.mp4`. Everything that another system or another reader could take
for more than that is refused here: schemes and drives (`:`), backslashes, `..`, look-alikes of a slash, names that
Windows gives to devices, components that Windows would shorten. Links are not known here, only spelling is.

Invariant: what `session_path` returns joins below any folder without leaving it, on every platform.
Spec: runners, "Media session ops and argv validation".
"""

import re
import unicodedata

from rota.errors import PathNotAllowed

PATH_CHARACTERS_MAX = 1024
COMPONENT_BYTES_MAX = 255
"""What Linux, macOS and Windows file systems hold in one name."""

_ENCODED = re.compile(r"%(?:2e|2f|5c|00)", re.IGNORECASE)
_ENVIRONMENT = re.compile(r"\$\{?[A-Z_]{2,}\}?/|%[A-Z_]{2,}%")
_SLASH_LIKE = frozenset("\u2044\u2215\u29f5\u29f8\u29f9\ufe68\uff0f\uff3c")
_TURNS_TEXT = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_DEVICES = frozenset(
    ["CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"]
    + [f"{port}{digit}" for port in ("COM", "LPT") for digit in "0123456789\u00b9\u00b2\u00b3"]
)


def session_path(text: str) -> str:
    """Bring a path of a session to its one spelling.

    Args:
        text: What a caller wrote, such as `./in/0001.mp4`.

    Returns:
        The path without `.` and empty components, in Unicode's composed form, because some systems take both forms for
        one name and some for two: `in/0001.mp4`.

    Raises:
        PathNotAllowed: It could mean something outside of the session; the message says why.
    """
    if not text:
        raise PathNotAllowed("the path is empty")
    if len(text) > PATH_CHARACTERS_MAX:
        raise PathNotAllowed(f"the path is longer than {PATH_CHARACTERS_MAX} characters")
    for character in text:
        _check_character(character)
    text = unicodedata.normalize("NFC", text)
    if text[0] in "/~" or _ENVIRONMENT.match(text):
        raise PathNotAllowed("the path is not relative to the session")
    if text[0] == "-":
        raise PathNotAllowed("it begins with '-': write './-name'")
    if _ENCODED.search(text):
        raise PathNotAllowed("it holds an encoded dot, slash or NUL")
    components = [part for part in text.split("/") if part not in {"", "."}]
    if not components:
        raise PathNotAllowed("the path names the session's folder itself")
    for component in components:
        _check_component(component)
    return "/".join(components)


def _check_character(character: str) -> None:
    if character == ":":
        raise PathNotAllowed("it holds a colon: URLs, protocols and drives are not allowed")
    if character == "\\":
        raise PathNotAllowed("it holds a backslash")
    if character in _SLASH_LIKE:
        raise PathNotAllowed("it holds a character that looks like a slash")
    if character in _TURNS_TEXT:
        raise PathNotAllowed("it holds a character that turns the direction of text")
    if unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"}:
        raise PathNotAllowed("it holds a control character")


def _check_component(component: str) -> None:
    if component == "..":
        raise PathNotAllowed("it holds '..'")
    if component[-1] in ". ":
        raise PathNotAllowed("a part of it ends in a dot or a blank, which some systems drop")
    if not unicodedata.normalize("NFKC", component).strip(". "):
        raise PathNotAllowed("a part of it looks like dots")
    if len(component.encode()) > COMPONENT_BYTES_MAX:
        raise PathNotAllowed(f"a part of it is longer than {COMPONENT_BYTES_MAX} bytes")
    if component.partition(".")[0].rstrip(" ").upper() in _DEVICES:
        raise PathNotAllowed("a part of it is the name of a device on Windows")
