"""Reading what ffmpeg says: its progress, and why it failed."""

import pytest

from rota.io.ffmpeg_run import REASON_CHARS_MAX, ProgressReader, decisive_line


def report(**values: object) -> bytes:
    return "".join(f"{key}={value}\n" for key, value in values.items()).encode()


def test_progress_is_the_share_of_the_length() -> None:
    reader = ProgressReader(10.0)

    assert reader.feed(report(frame=1, out_time_us=2_500_000, progress="continue")) == 0.25
    assert reader.feed(report(frame=2, out_time_us=5_000_000, progress="continue")) == 0.5
    assert reader.feed(report(frame=3, out_time_us=9_900_000, progress="end")) == 1.0
    assert reader.out_time_s == 9.9


def test_bytes_may_be_cut_anywhere() -> None:
    stream = b"".join(
        report(frame=n, fps="0.00", out_time_us=n * 1_000_000, speed="2x", progress="continue") for n in range(1, 5)
    )
    reader = ProgressReader(4.0)

    told = [reader.feed(bytes([byte])) for byte in stream]

    assert [fraction for fraction in told if fraction is not None] == [0.25, 0.5, 0.75, 1.0]


def test_several_reports_at_once_tell_the_newest() -> None:
    reader = ProgressReader(10.0)
    both = report(out_time_us=1_000_000, progress="continue") + report(out_time_us=7_000_000, progress="continue")

    assert reader.feed(both) == 0.7


def test_progress_never_falls_and_stays_between_0_and_1() -> None:
    reader = ProgressReader(10.0)

    told = [
        reader.feed(report(out_time_us=micros, progress="continue"))
        for micros in (-5_000_000, 8_000_000, 2_000_000, 25_000_000)
    ]

    assert told == [0.0, 0.8, 0.8, 1.0]


def test_what_does_not_move_is_not_progress() -> None:
    reader = ProgressReader(10.0)
    still = report(frame=1, total_size=48, out_time_us=1_000_000, speed="1x", progress="continue")

    assert reader.feed(still) == 0.1
    assert reader.feed(still.replace(b"1x", b"0.5x")) is None
    assert reader.feed(still.replace(b"48", b"96")) == 0.1


@pytest.mark.parametrize("duration_s", [None, 0.0])
def test_without_a_length_progress_only_says_that_it_lives(duration_s: float | None) -> None:
    reader = ProgressReader(duration_s)

    assert reader.feed(report(out_time_us=3_000_000, progress="continue")) == 0.0
    assert reader.feed(report(out_time_us=4_000_000, progress="end")) == 1.0


def test_times_that_are_not_known_yet() -> None:
    reader = ProgressReader(10.0)

    assert reader.feed(report(frame=0, out_time_us="N/A", out_time_ms="N/A", progress="continue")) == 0.0
    assert reader.out_time_s is None


def test_old_ffmpeg_calls_microseconds_ms() -> None:
    reader = ProgressReader(10.0)

    assert reader.feed(report(out_time_ms=5_000_000, progress="continue")) == 0.5


def test_a_line_without_end_is_not_kept() -> None:
    reader = ProgressReader(10.0)

    for _ in range(100):
        assert reader.feed(b"x" * 100_000) is None
    assert max(len(str(value)) for value in vars(reader).values()) < 10_000
    assert reader.feed(b"\n" + report(out_time_us=5_000_000, progress="continue")) == 0.5


def test_the_first_telling_error_is_the_reason() -> None:
    stderr = (
        "[mov,mp4,m4a @ 0x55d0] [info] some news\n"
        "[in#0 @ 0x55d1] [error] Error opening input: Invalid data found when processing input\n"
        "[mov,mp4,m4a @ 0x55d0] [error] moov atom not found\n"
        "[h264 @ 0x55d0] [error] a later one\n"
        "[error] Error opening input files: Invalid data found when processing input\n"
    )

    assert decisive_line(stderr) == "moov atom not found"


def test_a_generic_error_is_better_than_none() -> None:
    assert decisive_line("[info] a\n[error] Conversion failed!\n[info] b\n") == "Conversion failed!"


def test_without_marked_errors_the_last_line_is_the_reason() -> None:
    assert decisive_line("Traceback\nOSError: gone\n\n") == "OSError: gone"
    assert decisive_line("") == ""


def test_a_refused_format_is_said_in_words() -> None:
    assert "can refer to other files" in decisive_line("[hls @ 0x1] [error] Format not on whitelist 'aac,ac3'\n")


def test_the_reason_is_one_printable_line() -> None:
    line = decisive_line("[error] \x1b[31mred\x07 " + "x" * 1000)

    assert line.isprintable()
    assert len(line) == REASON_CHARS_MAX
