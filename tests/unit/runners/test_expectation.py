"""Published media against what was asked for."""

from typing import Any

import pytest

from rota.runners.expectation import Media, mismatch

PROBED = {
    "format": {"format_name": "mov,mp4,m4a", "duration": "10.040000"},
    "streams": [
        {"codec_type": "video", "codec_name": "h264", "width": 1280, "height": 720},
        {"codec_type": "audio", "codec_name": "aac"},
    ],
}


@pytest.mark.parametrize(
    "expected",
    [
        Media(), Media(duration_s=10), Media(duration_s=10.5, tolerance_s=0.5), Media(video="h264", audio="aac"),
        Media(video=True, audio=True), Media(width=1280, height=720), Media(format="mp4"), Media(streams=2),
    ],
)  # fmt: skip
def test_what_fits(expected: Media) -> None:
    assert mismatch(expected, PROBED) is None


@pytest.mark.parametrize(
    ("expected", "word"),
    [
        (Media(duration_s=9), "10.04 s"), (Media(duration_s=10.6), "not 10.6 s"), (Media(video="hevc"), "h264"),
        (Media(video=False), "a stream of video"), (Media(audio=False), "a stream of audio"),
        (Media(width=1281), "1280"), (Media(height=1), "720"), (Media(format="webm"), "mov"),
        (Media(streams=1), "2 streams"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(expected: Media, word: str) -> None:
    assert word in str(mismatch(expected, PROBED))


@pytest.mark.parametrize(
    "probed",
    [
        {}, {"streams": []}, {"streams": 7}, {"format": "x", "streams": [7]}, {"streams": [{"codec_type": "video"}]},
        {"format": {"duration": "nan"}, "streams": [{"codec_type": "video", "codec_name": "\x1b[31m"}]},
        {"format": {"duration": []}, "streams": [{"codec_type": "video", "codec_name": "h264", "width": "1280"}]},
    ],
)  # fmt: skip
def test_ffprobe_is_not_trusted_either(probed: dict[str, Any]) -> None:
    wrong = mismatch(Media(duration_s=10, video="h264", width=1280), probed)
    assert wrong is not None and wrong.isprintable()


@pytest.mark.parametrize(
    ("streams", "wrong"),
    [
        ([("0.000000", "10.0"), ("0.0", "4.0")], None), ([("1.4", "10.0"), ("1.45", "9.9")], None),
        ([(None, None), ("N/A", "10.1")], None), ([(None, None)], None),
        ([("0.0", "0.04")], "0.04 s"), ([("0.0", "0.1"), ("0.0", "0.2")], "0.2 s"), ([("0.0", "nan")], "nan"),
        ([("0.0", "30.0")], "30 s"),
    ],
)  # fmt: skip
def test_a_container_does_not_say_how_long_its_streams_last(
    streams: list[tuple[str | None, str | None]], wrong: str | None
) -> None:
    told = [{"codec_type": "video", "start_time": start, "duration": length} for start, length in streams]
    probed = {"format": {"duration": "10.0"}, "streams": told}
    found = mismatch(Media(duration_s=10), probed)
    assert found is None if wrong is None else wrong in str(found)
