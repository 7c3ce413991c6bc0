"""What an input is taken for: by its content first (S69), then by its name."""

from pathlib import Path

import pytest

from rota.errors import ArgvNotAllowed
from rota.runners.argv import Entry, Listing, compile_argv
from rota.runners.argv.sniff import by_head, demuxer_of
from rota.runners.io.session_folder import SessionFolder


def compiled(*argv: str, files: list[str], contents: dict[str, str] | None = None) -> list[str]:
    return list(compile_argv("ffmpeg", [*argv, "-f", "null", "-"], Listing(files, contents or {})).argv)


def pinned(argv: list[str]) -> str:
    return argv[argv.index("-f") + 1]


@pytest.mark.parametrize(
    ("head", "demuxer"),
    [
        (b"\0\0\0\x20ftypisom", "mov"),
        (b"\x1a\x45\xdf\xa3....", "matroska"),
        (b"RIFF\0\0\0\0WAVEfmt ", "wav"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "webp_pipe"),
        (b"RIFF\0\0\0\0AVI LIST", "avi"),
        (b"OggS", "ogg"),
        (b"fLaC", "flac"),
        (b"FORM\0\0\0\0AIFFCOMM", "aiff"),
        (b"\x89PNG\r\n\x1a\n", "png_pipe"),
        (b"\xff\xd8\xff\xe0", "jpeg_pipe"),
        (b"ID3\x04\0\0\0\0\0\0\xff\xfb\x90", "mp3"),
        (b"\xff\xf1\x50\x80", "aac"),
        (b"\xff\xfb\x90\x64", "mp3"),
        ((b"\x47" + b"\0" * 187) * 4, "mpegts"),
        ((b"\0\0\0\0\x47" + b"\0" * 187) * 4, "mpegts"),
        (b"\0\0\0\x01\x67d", "h264"),
        (b"\0\0\0\x01\x40\x01", "hevc"),
        (b"\x0b\x77\0\0\0\x40", "ac3"),
        (b"\x0b\x77\0\0\0\x87", "eac3"),
        (b"WEBVTT\n", "webvtt"),
        (b"1\r\n00:00:00,500 --> 00:00:02,000\r\n", "srt"),
        (b"\xef\xbb\xbf[Script Info]", "ass"),
        (b";FFMETADATA1", "ffmetadata"),
        (b"#EXTM3U", "!a playlist"),
        (b"\xef\xbb\xbf\n#extm3u", "!a playlist"),
        (b"#\0E\0X\0T\0M\0003\0U\0", "!a playlist"),
        (b"ffconcat version 1.0", "!a list"),
        (b"  <?xml version='1.0'?>", "!a manifest"),
        (b"<MPD", "!a manifest"),
        (b"<svg ", "!a manifest"),
        (b"v=0\r\no=", "!a session"),
        (b"[Reference]\r\n", "!a reference"),
        (b"# VobSub index file", "!a index"),
        (b"", None),
        (b"file 'a.mp4'", None),
    ],
)
def test_a_head_shows_what_a_file_is(head: bytes, demuxer: str | None) -> None:
    assert by_head(head) == demuxer


def test_content_counts_for_more_than_a_name() -> None:
    entry = Entry(kind="file", head=b"\x1a\x45\xdf\xa3")
    assert demuxer_of("-i", "clip.mp4", entry) == "matroska"
    assert demuxer_of("-i", "clip.mp4", None) == "mov"
    with pytest.raises(ArgvNotAllowed, match="playlist"):
        demuxer_of("-i", "clip.mp4", Entry(kind="file", head=b"#EXTM3U"))


def test_what_nothing_is_known_of_is_looked_at_by_ffmpeg_among_formats_that_open_nothing_else() -> None:
    argv = compiled("-i", "thing", files=["thing"])
    allowed = argv[argv.index("-format_whitelist") + 1].split(",")
    assert "mov" in allowed
    assert not {"hls", "dash", "concat", "sdp", "image2", "lavfi", "tty", "imf", "vobsub", "svg_pipe"} & set(allowed)


@pytest.mark.parametrize(
    "wanted", ["hls", "dash", "tty", "sdp", "rtsp", "x11grab", "v4l2", "vobsub", "svg_pipe", "libgme"]
)
def test_devices_and_scripts_are_no_formats(wanted: str) -> None:
    with pytest.raises(ArgvNotAllowed, match="format is not allowed"):
        compiled("-f", wanted, "-i", "in.mp4", files=["in.mp4"])


def test_numbered_images_are_a_sequence_unless_a_file_has_that_very_name() -> None:
    argv = compiled("-i", "f_%02d.png", files=["f_01.png", "f_02.png"])
    assert argv[argv.index("-pattern_type") + 1] == "sequence"
    assert pinned(compiled("-i", "f_%02d.png", files=["f_%02d.png"])) == "png_pipe"
    assert pinned(compiled("-i", "f_%02d.mp4", files=[])) == "mov"


@pytest.mark.parametrize(
    "name", ["../*.png", "/etc/*.png", "{a,/etc/x}.png", "*/f.png", "a\\*.png", "*.txt", "%d/*.png"]
)
def test_a_pattern_stays_in_its_folder(name: str) -> None:
    with pytest.raises(ArgvNotAllowed):
        compiled("-pattern_type", "glob", "-i", name, files=["f.png"])


def test_a_playlist_among_images_is_refused() -> None:
    with pytest.raises(ArgvNotAllowed, match="playlist"):
        compiled("-pattern_type", "glob", "-i", "*.png", files=["a.png"], contents={"b.png": "#EXTM3U\n"})


SEGMENTS = ["h/0.ts", "h/1.ts"]


def test_a_local_playlist_is_compiled_away() -> None:
    text = "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2.0,\n0.ts\n#EXTINF:2,title\n1.ts\n#EXT-X-ENDLIST\n"
    argv = compiled("-i", "h/i.m3u8", files=SEGMENTS, contents={"h/i.m3u8": text})
    assert argv[argv.index("-i") + 1] == "concat:./h/0.ts|./h/1.ts"
    assert pinned(argv) == "mpegts"


@pytest.mark.parametrize(
    "line",
    [
        "/srv/x.ts",
        "../x.ts",
        "http://h/x.ts",
        "missing.ts",
        "0.ts|1.ts",
        '#EXT-X-KEY:METHOD=AES-128,URI="k"',
        "#EXT-X-BYTERANGE:1@0",
        "#EXT-X-STREAM-INF:BANDWIDTH=1",
        '#EXT-X-MEDIA:URI="x"',
        '#EXT-X-SESSION-DATA:URI="x"',
        "#EXT-X-PREFETCH:http://h/x.ts",
        "#EXT-X-DEFINE:NAME=a,VALUE=b",
        "#EXTINF:x",
        '#EXT-X-MAP:URI="/etc/x"',
        "i.m3u8",
        "sub.mp4",
    ],
)
def test_a_playlist_that_is_not_plain_is_refused(line: str) -> None:
    text = f"#EXTM3U\n#EXTINF:2,\n0.ts\n{line}\n"
    with pytest.raises(ArgvNotAllowed):
        compiled("-i", "h/i.m3u8", files=[*SEGMENTS, "h/sub.mp4"], contents={"h/i.m3u8": text})


def test_a_playlist_of_one_variant_is_that_variant() -> None:
    def judged(master: str, *, variant: str = "#EXTM3U\n#EXTINF:2,\n0.ts\n") -> list[str]:
        texts = {"i.m3u8": "#EXTM3U\n" + master, "h/v.m3u8": variant}
        return compiled("-i", "i.m3u8", files=SEGMENTS, contents=texts)

    one = "#EXT-X-STREAM-INF:BANDWIDTH=1\nh/v.m3u8\n"
    assert "concat:./h/0.ts" in judged("#EXT-X-VERSION:3\n#EXT-X-INDEPENDENT-SEGMENTS\n" + one)
    tags = "#EXTM3U\n#EXT-X-DISCONTINUITY\n#EXT-X-CUE-OUT:30\n#EXTINF:2,\n0.ts\n"
    assert "concat:./h/0.ts" in judged(one, variant=tags)
    for master in (one + one, one + "h/0.ts\n", "#EXT-X-STREAM-INF:BANDWIDTH=1\n", one.replace("h/v", "../h/v"),
                   one.replace("h/v", "i"), '#EXT-X-MEDIA:TYPE=AUDIO,URI="h/v.m3u8"\n' + one):  # fmt: skip
        with pytest.raises(ArgvNotAllowed):
            judged(master)
    for variant in ("not a list", "#EXTM3U\n#EXTINF:2,\n/etc/passwd\n", "#EXTM3U\n" + one.replace("h/", "")):
        with pytest.raises(ArgvNotAllowed):
            judged(one, variant=variant)


def test_a_list_that_says_what_it_is_needs_no_format_and_may_stand_in_a_list() -> None:
    head = "ffconcat version 1.0\n"
    texts = {"a.ffconcat": head + "file l/b.txt\nfile a.mp4\n", "l/b.txt": head + "file c.mp4\n"}
    argv = compiled("-i", "a.ffconcat", files=["a.mp4", "l/c.mp4"], contents=texts)
    assert pinned(argv) == "concat"
    assert compiled("-f", "concat", "-i", "a.ffconcat", files=["a.mp4", "l/c.mp4"], contents=texts) == argv
    for changed in ({"l/b.txt": head + "file ../c.mp4\n"}, {"l/b.txt": head + "file b.txt\n"}, {"l/b.txt": head}):
        with pytest.raises(ArgvNotAllowed):
            compiled("-i", "a.ffconcat", files=["a.mp4", "l/c.mp4"], contents=texts | changed)
    # A list called a film, a blank before its first word, a script by its name alone.
    for name, text in (
        ("a.mp4", head + "file b.mp4\n"),
        ("a.txt", " " + head + "file b.mp4\n"),
        ("a.avs", "Version()"),
    ):
        with pytest.raises(ArgvNotAllowed):
            compiled("-i", name, files=["b.mp4"], contents={name: text})


@pytest.mark.parametrize("path", ["d?x/l.txt", "d#x/l.txt", "d%d/l.txt"])
def test_a_list_is_not_where_its_names_would_be_joined_otherwise(path: str) -> None:
    beside = path.replace("l.txt", "a.png")
    with pytest.raises(ArgvNotAllowed, match=r"holds"):
        compiled("-f", "concat", "-i", path, files=[beside], contents={path: "file a.png\n"})


@pytest.mark.parametrize(
    ("line", "right"),
    [
        ("file a.mp4", True),
        ("file 'a.mp4'\nduration 2\ninpoint 1.5\noutpoint 00:00:02", True),
        ("# c\n\n\tfile\ta.mp4", True),
        ("file a\\.mp4", True),
        ("file './a.mp4'", True),
        ("file a.mp4\r", True),
        ("file a.mp4 b.mp4", False),
        ("file missing.mp4", False),
        ("file a.mp4\noption safe 0", False),
        ("file a.mp4\nstream_meta a b", False),
        ("file a.mp4\nduration x", False),
        ("ffconcat version 2.0\nfile a.mp4", False),
        ("# only a comment", False),
        ("file away", False),
        ("FILE a.mp4", False),
        ("file in%d.png", False),
        ("file #a.mp4", False),
        ("file -a.mp4", False),
        ("file 'a.mp4", True),
        ("file a.mp4\x00", False),
    ],
)
def test_a_list_is_read_as_ffmpeg_reads_it(line: str, right: bool) -> None:
    session = Listing(["a.mp4", "in%d.png"], {"l.txt": line}, {"away": "/etc/passwd"})
    argv = ["-f", "concat", "-i", "l.txt", "-f", "null", "-"]
    if right:
        assert compile_argv("ffmpeg", argv, session).reads == ("l.txt", "a.mp4")
    else:
        with pytest.raises(ArgvNotAllowed):
            compile_argv("ffmpeg", argv, session)


@pytest.mark.parametrize(
    "text",
    ["#EXTM3U\n../x.ts\n", "1\n00:00:00,500 --> 00:00:02,000\n<MPD dash:profile:isoff-live:2011\n", "plain text"],
)
def test_what_the_subtitles_filter_opens_holds_subtitles_only(text: str) -> None:
    with pytest.raises(ArgvNotAllowed):
        compiled("-i", "in.mp4", "-vf", "subtitles=s.txt", files=["in.mp4"], contents={"s.txt": text})


@pytest.mark.parametrize(
    "head", [b"\x1a\x45\xdf\xa3<MPD dash:profile:isoff-live:2011", b"aaaaftypqt  <MPD ", b"aaaaftyp"]
)
def test_a_film_that_begins_with_a_text_is_no_subtitles(head: bytes) -> None:
    """Nothing pins what the filter opens: a demuxer of manifests looks for its words up to the first NUL."""

    class Film(Listing):
        def entry(self, path: str) -> Entry | None:
            return Entry(kind="file", head=head) if path == "f.mkv" else super().entry(path)

    argv = ["-i", "in.mp4", "-vf", "subtitles=f.mkv", "-f", "null", "-"]
    with pytest.raises(ArgvNotAllowed, match="begins with a text"):
        compile_argv("ffmpeg", argv, Film(["in.mp4", "f.mkv"]))


@pytest.mark.parametrize("option", [["-y", "-n", "-sub_charenc", "../../x"], ["-vf", "subtitles=s.srt:charenc=../x"]])
def test_a_character_set_is_a_name(option: list[str]) -> None:
    text = {"s.srt": "1\n00:00:00,500 --> 00:00:02,000\nHello\n"}
    with pytest.raises(ArgvNotAllowed, match="charset"):
        compile_argv("ffmpeg", [*option[2:], "-i", "s.srt", *option[:2], "o.mp4"], Listing([], text))


def test_a_numbered_name_holds_one_number() -> None:
    with pytest.raises(ArgvNotAllowed, match="one number"):
        compiled("-i", "%d_%d.png", files=["1_1.png"])


@pytest.mark.parametrize(
    ("raw", "right"),
    [
        ("1\n00:00:00,500 --> 00:00:02,000\nGrüße\n".encode("cp1252"), True),
        ("\ufeff1\n00:00:00,500 --> 00:00:02,000\nGrüße\n".encode("utf-16-le"), True),
        (b"1\n00:00:00,500 --> 00:00:02,000\n" + b"line\n" * 300_000, True),
        (b"1\n00:00:00,500 --> 00:00:02,000\n" + b"line\n" * 20_000 + b"<MPD x\n\xfc", False),
        ("\ufeff1\n00:00:00,500 --> 00:00:02,000\nffconcat\n".encode("utf-16-le"), False),
        (b"1\n00:00:00,500 --> 00:00:02,000\na\0b\n", False),
    ],
)
def test_subtitles_are_of_any_encoding_and_length(raw: bytes, right: bool, tmp_path: Path) -> None:
    """What they may not hold is plain ASCII in each of them, and no probe looks further than its buffer goes."""
    (tmp_path / "s.srt").write_bytes(raw)
    argv = ["-f", "lavfi", "-i", "color", "-vf", "subtitles=s.srt:charenc=CP1252", "o.mp4"]
    if right:
        assert compile_argv("ffmpeg", argv, SessionFolder(tmp_path)).reads == ("s.srt",)
    else:
        with pytest.raises(ArgvNotAllowed):
            compile_argv("ffmpeg", argv, SessionFolder(tmp_path))


def test_long_subtitles_are_not_looked_through_again_and_again(tmp_path: Path) -> None:
    (tmp_path / "s.srt").write_bytes(b"1\n00:00:00,500 --> 00:00:02,000\n" + b"line\n" * 300_000)
    argv = ["-f", "lavfi", "-i", "color", "-vf", ",".join(["subtitles=s.srt"] * 100), "o.mp4"]
    with pytest.raises(ArgvNotAllowed, match="texts that are named"):
        compile_argv("ffmpeg", argv, SessionFolder(tmp_path))
