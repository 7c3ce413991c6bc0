"""Local HLS playlists, compiled away: their segments, to be read one after the other.

No playlist demuxer is ever opened, because a playlist can name other files and addresses in many ways, and demuxers
have followed them in ways nobody wanted (CVE-2016-1897, CVE-2017-9993, CVE-2026-107697). What such a demuxer does
with a plain media playlist is to read its segments in order; so the command line names them itself. Anything but a
plain one (keys, byte ranges, variants, discontinuities) is refused.
"""

import posixpath
import re

from rota.errors import ArgvNotAllowed
from rota.runners.argv.files import Touched
from rota.runners.argv.sniff import demuxer_of

SEGMENTS_MAX = 500
"""All of them are open at once."""

NAME_CHARACTERS_MAX = 100_000
"""Linux gives a single argument 128 KiB."""

_HARMLESS = re.compile(
    r"#EXTM3U|#EXT-X-(?:VERSION|TARGETDURATION|MEDIA-SEQUENCE|DISCONTINUITY-SEQUENCE|START):[\w.,=-]*|#EXTINF:[\d.]+(?:,.*)?"
    r"|#EXT-X-(?:PLAYLIST-TYPE:(?:VOD|EVENT)|ALLOW-CACHE:(?:YES|NO)|INDEPENDENT-SEGMENTS|ENDLIST|GAP)"
    r"|#EXT-X-PROGRAM-DATE-TIME:[\w:.+-]+|#EXT-X-KEY:METHOD=NONE|#(?!EXT).*"
)
_MAP = re.compile(r'#EXT-X-MAP:URI="([^"]*)"')
_JOINED = frozenset({"mpegts", "mov", "aac", "mp3", "ac3", "eac3", "webvtt"})


def joined_segments(argument: str, path: str, touched: Touched) -> tuple[list[str], str]:
    """Read a playlist and name its segments.

    Args:
        argument: Where the playlist is named.
        path: The playlist, in the session.
        touched: Takes the segments as files that are read.

    Returns:
        The segments in order, and the demuxer that reads them all.

    Raises:
        ArgvNotAllowed: It is no plain media playlist, or a segment is missing or no media of the session.
    """
    text = touched.text(argument, path)
    segments: list[str] = []
    demuxers: set[str | None] = set()
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        where = f"{argument}, line {number} of {path!r}"
        found = _MAP.fullmatch(line)
        if not line.strip() or (not found and _HARMLESS.fullmatch(line)):
            continue
        if line.startswith("#") and not found:
            raise ArgvNotAllowed(where, f"the tag {line[:40]!r} is not allowed")
        if found and segments:
            raise ArgvNotAllowed(where, "a map stands before the first segment only")
        segment, demuxer = _segment(where, found[1] if found else line, posixpath.dirname(path), touched)
        segments.append(segment)
        demuxers.add(demuxer)
        if len(segments) > SEGMENTS_MAX:
            raise ArgvNotAllowed(where, f"the playlist has more than {SEGMENTS_MAX} segments")
    if not segments or sum(map(len, segments)) > NAME_CHARACTERS_MAX:
        raise ArgvNotAllowed(argument, f"the playlist {path!r} names no file, or too many")
    demuxer = next(iter(demuxers))
    if len(demuxers) > 1 or demuxer not in _JOINED:
        raise ArgvNotAllowed(argument, f"the segments of {path!r} are not all of one format that can be joined")
    return segments, demuxer


def _segment(where: str, name: str, folder: str, touched: Touched) -> tuple[str, str | None]:
    touched.resolve(where, name)
    if "|" in name or name.startswith("/") or ".." in name.split("/"):
        raise ArgvNotAllowed(where, "a segment's name holds neither '|' nor '..'")
    path, entry = touched.read(where, "./" + posixpath.join(folder, name))
    if "|" in path:
        raise ArgvNotAllowed(where, "a segment's path holds no '|'")
    demuxer = demuxer_of(where, path, entry)
    return path, "mov" if path.endswith(".m4s") and demuxer in {None, "mov"} else demuxer
