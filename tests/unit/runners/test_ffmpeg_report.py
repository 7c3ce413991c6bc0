"""What is kept of ffmpeg's complaints, and what is expected of a run."""

import random

import pytest

from rota.runners.ffmpeg_report import TAIL_CHARACTERS, Complaints, expected_s


def test_the_longest_input_is_found_however_the_bytes_are_cut() -> None:
    text = (
        b"Input #0\n  Duration: 00:00:10.50, start: 0\r\n"
        + b"\xff" * 9000
        + b"\n  Duration: 01:00:00.00, x\n  Duration: N/A,\n"
    )
    for seed in range(50):
        cut, said = random.Random(seed), Complaints()
        rest = text
        while rest:
            count = cut.randint(1, 4000)
            said.take(rest[:count])
            rest = rest[count:]
        assert said.duration_s == 3600


def test_the_tail_is_bounded_valid_text() -> None:
    said = Complaints()
    assert (said.tail, said.duration_s) == ("", None)
    for _ in range(1000):
        said.take(b"\x00\xff\x1b[31m warning \xc3\r" * 100)
    said.take(b"the end")
    assert len(said.tail) <= TAIL_CHARACTERS and said.tail.endswith("the end")
    assert said.tail.replace("\n", "").isprintable()
    said.tail.encode()


@pytest.mark.parametrize(
    ("argv", "duration_s", "expected"),
    [
        ("-i a -t 5 b", None, 5), ("-i a -t 5 b", 3, 3), ("-ss 00:00:10 -i a b", 25, 15),
        ("-ss 10 -i a -to 15 b", 60, 5),
        ("-i a b", 60, 60), ("-i a b", None, None), ("-ss 90 -i a b", 60, None), ("-i a -t 1:02:03.5 b", None, 3723.5),
        ("-i a -t 500ms b", None, 0.5), ("-i a -t what b", 7, 7), ("-i a -to", 7, 7),
    ],
)  # fmt: skip
def test_what_a_command_is_likely_to_write(argv: str, duration_s: float | None, expected: float | None) -> None:
    assert expected_s(argv.split(), duration_s) == expected
