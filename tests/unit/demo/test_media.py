"""The pure parts of the media work: sizes, ffmpeg's loudness report, and the PNG writer."""

import struct
import zlib

import pytest

from rota.demo.media import fit_720, misses_an_end, png, read_loudness
from rota.demo.results import ProbeResult

SUMMARY = """\
[info]     title           : Summary: I: -1.0 LUFS
[Parsed_ebur128_0 @ 0x7f96] [info] Summary:

  Integrated loudness:
    I:         {i} LUFS
    Threshold: -31.8 LUFS

  Loudness range:
    LRA:         2.5 LU
    Threshold: -41.8 LUFS
    LRA low:   -21.8 LUFS
    LRA high:  -19.3 LUFS

  True peak:
    Peak:      {peak} dBFS
[out#0/null @ 0x7f96] [info] video:0KiB audio:1034KiB
"""


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ((1920, 1080), (1280, 720)),
        ((1080, 1920), (720, 1280)),
        ((640, 360), (640, 360)),  # never larger
        ((641, 361), (640, 360)),  # even
        ((1, 1), (2, 2)),
        ((3840, 1600), (1728, 720)),
        ((1998, 1080), (1332, 720)),
        ((100_000, 720), (4096, 28)),
    ],
)
def test_fit_720(given: tuple[int, int], made: tuple[int, int]) -> None:
    assert fit_720(*given) == made


def stating(*, duration_s: float | None, audio_s: float | None, reliable: bool = True) -> ProbeResult:
    return ProbeResult(
        container="mov",
        size_bytes=1,
        duration_s=duration_s,
        audio_duration_s=audio_s,
        reliable_length=reliable,
        streams=[],
        codecs=[],
        width=None,
        height=None,
        fps=None,
        video_index=0,
        audio_index=None if audio_s is None else 1,
    )


@pytest.mark.parametrize(
    ("facts", "read_s", "has_errors", "misses"),
    [
        (stating(duration_s=60, audio_s=60), 60.0, False, False),
        (stating(duration_s=60, audio_s=60), 59.5, False, False),  # encoder delay, edit list
        (stating(duration_s=60, audio_s=60), 50.0, False, True),  # sound has no holes
        (stating(duration_s=60, audio_s=None), 10.0, False, False),  # the last picture may stay to the end
        (stating(duration_s=60, audio_s=None), 10.0, True, True),
        (stating(duration_s=60, audio_s=None), 59.9, True, False),  # a scratch, and nothing missing
        (stating(duration_s=60, audio_s=60), 59.5, True, True),
        (stating(duration_s=60, audio_s=10), 10.0, False, False),  # the sound alone was asked for
        (stating(duration_s=60, audio_s=60, reliable=False), 10.0, True, False),  # it was only an estimate
        (stating(duration_s=None, audio_s=None), 10.0, True, False),
    ],
)
def test_missing_end(facts: ProbeResult, read_s: float, has_errors: bool, misses: bool) -> None:
    assert misses_an_end(facts, read_s=read_s, has_errors=has_errors) is misses


def test_loudness_report() -> None:
    assert read_loudness(SUMMARY.format(i="-21.8", peak="-13.4")) == {
        "integrated_lufs": -21.8,
        "range_lu": 2.5,
        "true_peak_dbtp": -13.4,
    }


def test_silence_is_none_because_json_has_no_infinity() -> None:
    assert read_loudness(SUMMARY.format(i="-70.0", peak="-inf")) == {
        "integrated_lufs": None,
        "range_lu": None,
        "true_peak_dbtp": None,
    }


def test_no_report_is_no_number() -> None:
    assert read_loudness("[error] something else\n")["integrated_lufs"] is None


def test_png_holds_the_pixels() -> None:
    rgba = bytes(range(3 * 2 * 4))
    file = png(rgba, width=3)

    assert file.startswith(b"\x89PNG\r\n\x1a\n")
    chunks = {}
    at = 8
    while at < len(file):
        (length,) = struct.unpack(">I", file[at : at + 4])
        kind, data = file[at + 4 : at + 8], file[at + 8 : at + 8 + length]
        assert struct.unpack(">I", file[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + data)
        chunks[kind] = data
        at += 12 + length
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    assert struct.unpack(">II", chunks[b"IHDR"][:8]) == (3, 2)
    assert zlib.decompress(chunks[b"IDAT"]) == b"\0" + rgba[:12] + b"\0" + rgba[12:]
