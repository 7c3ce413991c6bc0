"""What a file is, by its first bytes: the demuxer to pin, or why the file may not be opened at all.

A name proves nothing (scenario S69: `clip.mp4` is a playlist). A demuxer that is pinned cannot be led to another
one, so a wrong guess among safe ones costs an error of ffmpeg's and nothing else; what must be right is the refusal
of texts that name other files.
"""

import re

from rota.errors import ArgvNotAllowed
from rota.runners.argv.files import Entry, Touched
from rota.runners.argv.formats import DEMUXER_OF_EXTENSION, SUBTITLES, extension
from rota.runners.argv.words import words

_BOMS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")

_SCRIPTS = re.compile(
    rb"(?P<playlist>\s*\#EXTM3U)|(?P<list>\s*ffconcat\b)|(?P<manifest>\s*(?:<\?xml|<!--|<MPD|<smil|<SmoothStreamingMedia"
    rb"|<svg|<!DOCTYPE|<html|<AssetMap|<CompositionPlaylist))|(?P<session>v=\d)|(?P<reference>\[Reference\]|\#RTPV|rtsptext)"
    rb"|(?P<index>\# VobSub index)",
    re.IGNORECASE,
)
"""Texts that name other files: m3u8, ffconcat, DASH and its like, SVG, IMF, SDP, RealMedia and ASX, VobSub."""

_SCRIPT_EXTENSIONS = words("m3u8 m3u mpd sdp ffconcat svg avs avsi vpy ism isml idx pls asx xspf smil ram")

_DANGER_IN_TEXT = re.compile(r"#EXTM3U|ffconcat|<MPD|^c=IN IP|^v=0|<CompositionPlaylist", re.IGNORECASE | re.MULTILINE)
"""What a probe of a demuxer that opens other files looks for anywhere in a text."""

_MAGIC: tuple[tuple[int, bytes, str], ...] = (
    (4, b"ftyp", "mov"), (4, b"moov", "mov"), (4, b"mdat", "mov"), (4, b"wide", "mov"), (4, b"free", "mov"),
    (4, b"skip", "mov"), (4, b"styp", "mov"), (4, b"moof", "mov"), (4, b"sidx", "mov"), (4, b"pnot", "mov"),
    (0, b"\x1a\x45\xdf\xa3", "matroska"), (0, b"OggS", "ogg"), (0, b"fLaC", "flac"), (0, b"FLV\x01", "flv"),
    (0, b"\x89PNG\r\n\x1a\n", "png_pipe"), (0, b"\xff\xd8\xff", "jpeg_pipe"),
    (0, b"GIF87a", "gif"), (0, b"GIF89a", "gif"),
    (0, b"II*\x00", "tiff_pipe"), (0, b"MM\x00*", "tiff_pipe"), (0, b"8BPS", "psd_pipe"), (0, b"qoif", "qoi_pipe"),
    (0, b"\x00\x00\x00\x0cjP  ", "j2k_pipe"), (0, b"\x76\x2f\x31\x01", "exr_pipe"), (0, b"SDPX", "dpx_pipe"),
    (0, b"XPDS", "dpx_pipe"), (0, b"caff", "caf"), (0, b".snd", "au"), (0, b"MAC ", "ape"), (0, b"TTA1", "tta"),
    (0, b"wvpk", "wv"), (0, b"DKIF", "ivf"), (0, b"#!AMR", "amr"), (0, b"riff\x2e\x91\xcf\x11", "w64"),
    (0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "asf"), (0, b"\x06\x0e\x2b\x34\x02\x05\x01\x01", "mxf"),
    (0, b".RMF", "rm"),
    (0, b"nut/multimedia container", "nut"), (0, b"YUV4MPEG2", "yuv4mpegpipe"), (0, b"\x7f\xfe\x80\x01", "dts"),
    (0, b"\xb7\xd8\x00\x20\x37\x49\xda\x11", "wtv"), (0, b"Creative Voice File", "voc"),
    (0, b"\x00\x00\x01\xba", "mpeg"),
    (0, b"\x00\x00\x01\xb3", "mpegvideo"), (0, b"BM", "bmp_pipe"),
)  # fmt: skip

_RIFF = {b"WAVE": "wav", b"AVI ": "avi", b"WEBP": "webp_pipe", b"XWMA": "xwma"}


def demuxer_of(argument: str, path: str, entry: Entry | None) -> str | None:
    """The demuxer that reads a file, by its content, and by its name where that does not show it.

    Args:
        argument: Where the file is named, for a message.
        path: The path in the session.
        entry: What is there; None for a missing file, which ffmpeg itself will report.

    Returns:
        A demuxer's name; None where neither says anything.

    Raises:
        ArgvNotAllowed: The file is a playlist or a script, which could name other files.
    """
    named = DEMUXER_OF_EXTENSION.get(extension(path))
    if entry is None or entry.head is None:
        _check_name(argument, path)
        return named
    found = by_head(entry.head)
    if found is not None and found.startswith("!"):
        raise ArgvNotAllowed(argument, f"{path!r} is {found[1:]}, which could name other files")
    if found is None:
        _check_name(argument, path)
    # Text subtitles and raw streams show little: a name that claims one of them is as good.
    return found or named


def _check_name(argument: str, path: str) -> None:
    if extension(path) in _SCRIPT_EXTENSIONS:
        raise ArgvNotAllowed(argument, f"{path!r} is named like a playlist or script, which could name other files")


def is_playlist(entry: Entry | None) -> bool:
    """Whether a file is an m3u8 playlist by its content."""
    return entry is not None and entry.head is not None and by_head(entry.head) == "!a playlist"


def by_head(head: bytes) -> str | None:
    """Tell a format by its first bytes.

    Args:
        head: The first bytes of the file.

    Returns:
        A demuxer's name; `!` and words for a text that could name other files; None if nothing is known of it.
    """
    for offset, magic, name in _MAGIC:
        if head.startswith(magic, offset):
            return name
    if head[:4] in {b"RIFF", b"RF64", b"BW64"}:
        return _RIFF.get(head[8:12])
    if head[:4] == b"FORM" and head[8:12] in {b"AIFF", b"AIFC"}:
        return "aiff"
    if _is_transport_stream(head):
        return "mpegts"
    return _text_format(head) or _stream_format(head)


def check_subtitles(argument: str, path: str, entry: Entry | None, touched: Touched) -> None:
    """Check a file that the `subtitles` filter opens: nothing pins its demuxer, so it may hold nothing but subtitles.

    Args:
        argument: Where it is named.
        path: The path in the session.
        entry: What is there.
        touched: Takes what is read of it.

    Raises:
        ArgvNotAllowed: It is neither text subtitles nor a film, or another demuxer might take it.
    """
    found = demuxer_of(argument, path, entry)
    if found in {"mov", "matroska"}:
        _check_binary(argument, path, entry)
        return
    if found not in SUBTITLES:
        raise ArgvNotAllowed(argument, f"{path!r} holds no subtitles")
    if entry is None or entry.head is None:
        return
    text = touched.probed(argument, path)
    if text.startswith((b"\xff\xfe", b"\xfe\xff")):
        # UTF-16: no probe that looks for words sees one in it, but nothing is lost by looking.
        text = text.replace(b"\0", b"")
    if b"\0" in text:
        raise ArgvNotAllowed(argument, f"{path!r} holds a NUL")
    # The words are plain ASCII, so the encoding of the rest does not matter.
    if _DANGER_IN_TEXT.search(text.decode("latin-1")):
        raise ArgvNotAllowed(argument, f"{path!r} holds words of a playlist, which could name other files")


def _check_binary(argument: str, path: str, entry: Entry | None) -> None:
    """A film that begins with a long text: the demuxers that look for words in a text stop at its first NUL."""
    if entry is None or entry.head is None:
        return
    text, nul, _ = entry.head.partition(b"\0")
    if not nul or _DANGER_IN_TEXT.search(text.decode("latin-1")):
        raise ArgvNotAllowed(argument, f"{path!r} begins with a text, as no film does")


def _is_transport_stream(head: bytes) -> bool:
    for size, offset in ((188, 0), (192, 4), (204, 0)):
        marks = head[offset : offset + size * 4 : size]
        if len(head) > offset + size and marks.strip(b"\x47") == b"":
            return True
    return False


def _text_format(head: bytes) -> str | None:
    text = head
    for bom in _BOMS:
        text = text.removeprefix(bom)
    # UTF-16 hides the words; no demuxer that names files reads it, but its look is taken apart all the same.
    flat = text.replace(b"\0", b"")[:HEAD_OF_TEXT_BYTES]
    script = _SCRIPTS.match(flat)
    if script:
        return f"!a {script.lastgroup}"
    if flat.startswith(b"WEBVTT"):
        return "webvtt"
    if flat.startswith(b";FFMETADATA"):
        return "ffmetadata"
    if flat.lstrip().startswith(b"[Script Info]"):
        return "ass"
    if re.match(rb"\s*\d+\s*\r?\n\s*\d+:\d\d:\d\d[,.]\d+\s*-->", flat):
        return "srt"
    return None


HEAD_OF_TEXT_BYTES = 1024


def _stream_format(head: bytes) -> str | None:
    if head[:3] == b"ID3":
        size = (head[6] << 21 | head[7] << 14 | head[8] << 7 | head[9]) + 10 if len(head) > 9 else 0
        return _stream_format(head[size:]) or "mp3"
    if len(head) > 1 and head[0] == 0xFF and head[1] & 0xF6 == 0xF0:
        return "aac"
    if len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0:
        return "mp3"
    if head[:2] == b"\x0b\x77":
        return "eac3" if len(head) > 5 and head[5] >> 3 > 10 else "ac3"
    start = re.match(rb"\x00?\x00\x00\x01(.)", head, re.DOTALL)
    if start:
        unit = start[1][0]
        if unit in {0x40, 0x42, 0x44, 0x46, 0x4E}:
            return "hevc"
        return "h264" if unit & 0x1F in {5, 6, 7, 9} else None
    return None
