"""Local HLS playlists, compiled away: their segments, to be read one after the other.

No playlist demuxer is ever opened, because a playlist can name other files and addresses in many ways, and demuxers
have followed them in ways nobody wanted (CVE-2016-1897, CVE-2017-9993, CVE-2026-107697). What such a demuxer does
with a plain media playlist is to read its segments in order; so the command line names them itself. A playlist of one
variant is that variant. What changes what is read (keys, byte ranges, several variants) is refused; no other tag
matters, because ffmpeg never sees it.
"""

import posixpath
import re

from rota.errors import ArgvNotAllowed
from rota.runners.argv.files import Entry, Touched
from rota.runners.argv.formats import extension
from rota.runners.argv.sniff import demuxer_of, is_playlist

SEGMENTS_MAX = 500
"""All of them are open at once."""

NAME_CHARACTERS_MAX = 100_000
"""Linux gives a single argument 128 KiB."""

_HARMLESS = re.compile(
    r"#EXTINF:[\d.]+(?:,.*)?|#EXT-X-KEY:METHOD=NONE|#(?!EXT).*"
    r"|#EXT(?!INF|-X-(?:KEY|MAP|BYTERANGE|STREAM-INF|MEDIA|DEFINE|SKIP|PART)(?![\w-]))(?!.*(?:URI=|://)).*"
)
"""A tag that is not known is none of those that change what is read, and names nothing."""

_VARIANT = "#EXT-X-STREAM-INF:"
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
    if _VARIANT in text:
        path = _only_variant(argument, text, path, touched)
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


def _only_variant(argument: str, text: str, path: str, touched: Touched) -> str:
    names: list[str] = []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        if line.startswith("#") and not line.startswith(_VARIANT) and not _HARMLESS.fullmatch(line):
            raise ArgvNotAllowed(f"{argument}, line {number} of {path!r}", f"the tag {line[:40]!r} is not allowed")
        names += [line] if line.strip() and not line.startswith("#") else []
    if len(names) != 1 or text.count(_VARIANT) != 1:
        raise ArgvNotAllowed(argument, f"{path!r} names several playlists: give the one that is meant")
    variant, entry = _local(f"{argument}, in {path!r}", names[0], posixpath.dirname(path), touched)
    if extension(variant) not in {"m3u8", "m3u"} or not is_playlist(entry):
        raise ArgvNotAllowed(argument, f"{variant!r} is no playlist")
    return variant


def _local(where: str, name: str, folder: str, touched: Touched) -> tuple[str, Entry | None]:
    touched.resolve(where, "./" + name if name.startswith("-") else name)
    if "|" in name or name.startswith("/") or ".." in name.split("/"):
        raise ArgvNotAllowed(where, "a name in a playlist holds neither '|' nor '..'")
    return touched.read(where, "./" + posixpath.join(folder, name))


def _segment(where: str, name: str, folder: str, touched: Touched) -> tuple[str, str | None]:
    path, entry = _local(where, name, folder, touched)
    if "|" in path:
        raise ArgvNotAllowed(where, "a segment's path holds no '|'")
    demuxer = demuxer_of(where, path, entry)
    return path, "mov" if path.endswith(".m4s") and demuxer in {None, "mov"} else demuxer
