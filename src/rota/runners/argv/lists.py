"""Lists for the concat demuxer: read as ffmpeg reads them, and allowed if every entry is media of the session.

Only the directives that say which part of which file is played are known; `option` could open the protocols again.
An entry may be such a list itself, if it says so in its first bytes, as the demuxer asks for, and in its name.
"""

import posixpath
import re

from rota.errors import ArgvNotAllowed
from rota.runners.argv.files import Entry, Touched
from rota.runners.argv.formats import DEMUXER_OF_EXTENSION, extension
from rota.runners.argv.sniff import demuxer_of
from rota.runners.argv.tokens import Cursor, take

ENTRIES_MAX = 10_000
DEPTH_MAX = 4
"""Lists in lists."""

_HEADER = b"ffconcat version 1.0"
"""What the demuxer itself looks for, at the very beginning."""

_VALUES = frozenset({"duration", "inpoint", "outpoint"})
_TIME = re.compile(r"-?[\d:.]+(?:us|ms|s)?")
_KNOWN = frozenset({"stream", "exact_stream_id", "chapter", "file_packet_metadata", "file_packet_meta"})
_DIRECTIVE = re.compile(r"[ \t]*([^ \t]*)(?:[ \t]+(.*))?", re.DOTALL)
_PATTERN_CHARACTERS = frozenset("%*?[{")


def is_list(path: str, entry: Entry | None) -> bool:
    """Whether ffmpeg would take a file for a list unasked, and its name does not pretend that it is media."""
    named = extension(path) in DEMUXER_OF_EXTENSION
    return not named and entry is not None and entry.head is not None and entry.head.startswith(_HEADER)


def check_list(argument: str, path: str, touched: Touched, *, depth: int = 0) -> None:
    """Check a staged concat list.

    Args:
        argument: Where the list is named.
        path: The list, in the session.
        touched: Takes the entries as files that are read.
        depth: How many lists it stands in.

    Raises:
        ArgvNotAllowed: An entry is missing, no media, or outside; or a directive is unknown.
    """
    if {"?", "#"} & set(path):
        # The demuxer joins names as addresses are joined: what follows one of these is no folder there.
        raise ArgvNotAllowed(argument, f"the path of a list holds '?' or '#' ({path!r})")
    if depth >= DEPTH_MAX:
        raise ArgvNotAllowed(argument, f"lists stand in more than {DEPTH_MAX} lists")
    text = touched.text(argument, path)
    if "\0" in text:
        raise ArgvNotAllowed(argument, f"the list {path!r} holds a NUL")
    count = 0
    for number, line in enumerate(re.split(r"[\n\r]", text.removeprefix("\ufeff")), start=1):
        where = f"{argument}, line {number} of {path!r}"
        found = _DIRECTIVE.fullmatch(line)
        keyword, rest = found.groups(default="") if found else ("", "")
        if not keyword or keyword.startswith("#"):
            continue
        if keyword == "file":
            count += 1
            _check_entry(where, rest, folder=posixpath.dirname(path), touched=touched, depth=depth)
        else:
            _check_directive(where, keyword, rest)
        if count > ENTRIES_MAX:
            raise ArgvNotAllowed(where, f"the list has more than {ENTRIES_MAX} entries")
    if not count:
        raise ArgvNotAllowed(argument, f"the list {path!r} names no file")


def _check_directive(where: str, keyword: str, rest: str) -> None:
    if keyword == "ffconcat":
        if rest.split() != ["version", "1.0"]:
            raise ArgvNotAllowed(where, "the version of the list is unknown")
    elif keyword in _VALUES:
        if not _TIME.fullmatch(rest.strip()):
            raise ArgvNotAllowed(where, f"{keyword} is no time")
    elif keyword not in _KNOWN:
        raise ArgvNotAllowed(where, f"the directive {keyword!r} is not allowed")


def _check_entry(where: str, rest: str, *, folder: str, touched: Touched, depth: int) -> None:
    cursor = Cursor(rest)
    name = take(cursor, " \t\r\n")
    if rest[cursor.at :].strip():
        raise ArgvNotAllowed(where, "something follows the name of the file: quote a name that holds blanks")
    if name.startswith("/"):
        raise ArgvNotAllowed(where, f"the path is not relative to the session ({name!r})")
    # Before it is joined: what ffmpeg takes for a protocol stands at the beginning of the entry.
    if ".." in name.split("/"):
        raise ArgvNotAllowed(where, f"the path holds '..' ({name!r})")
    joined = posixpath.join(folder, name)
    if _PATTERN_CHARACTERS & set(joined) or name.startswith("#"):
        raise ArgvNotAllowed(where, f"the name holds a character of patterns or addresses ({joined!r})")
    touched.resolve(where, "./" + name if name.startswith("-") else name)
    path, entry = touched.read(where, "./" + joined)
    if is_list(path, entry):
        check_list(where, path, touched, depth=depth + 1)
    else:
        demuxer_of(where, path, entry)
