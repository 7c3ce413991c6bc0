"""Lists for the concat demuxer: read as ffmpeg reads them, and allowed if every entry is media of the session.

Only the directives that say which part of which file is played are known. `option` could open the protocols again,
and a list in a list is no media.
"""

import posixpath
import re

from rota.errors import ArgvNotAllowed
from rota.runners.argv.files import Touched
from rota.runners.argv.sniff import demuxer_of
from rota.runners.argv.tokens import Cursor, take

ENTRIES_MAX = 10_000

_VALUES = frozenset({"duration", "inpoint", "outpoint"})
_TIME = re.compile(r"-?[\d:.]+(?:us|ms|s)?")
_KNOWN = frozenset({"stream", "exact_stream_id", "chapter", "file_packet_metadata", "file_packet_meta"})
_DIRECTIVE = re.compile(r"[ \t]*([^ \t]*)(?:[ \t]+(.*))?", re.DOTALL)
_PATTERN_CHARACTERS = frozenset("%*?[{")


def check_list(argument: str, path: str, touched: Touched) -> None:
    """Check a staged concat list.

    Args:
        argument: Where the list is named.
        path: The list, in the session.
        touched: Takes the entries as files that are read.

    Raises:
        ArgvNotAllowed: An entry is missing, no media, or outside; or a directive is unknown.
    """
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
            _check_entry(where, rest, folder=posixpath.dirname(path), touched=touched)
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


def _check_entry(where: str, rest: str, *, folder: str, touched: Touched) -> None:
    cursor = Cursor(rest)
    name = take(cursor, " \t\r\n")
    if rest[cursor.at :].strip():
        raise ArgvNotAllowed(where, "something follows the name of the file: quote a name that holds blanks")
    if name.startswith("/"):
        raise ArgvNotAllowed(where, f"the path is not relative to the session ({name!r})")
    # Before it is joined: what ffmpeg takes for a protocol stands at the beginning of the entry.
    if ".." in name.split("/"):
        raise ArgvNotAllowed(where, f"the path holds '..' ({name!r})")
    if _PATTERN_CHARACTERS & set(name):
        raise ArgvNotAllowed(where, f"the name holds a character of patterns ({name!r})")
    touched.resolve(where, name)
    path, entry = touched.read(where, "./" + posixpath.join(folder, name))
    demuxer_of(where, path, entry)
