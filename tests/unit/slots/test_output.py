import pytest
from blake3 import blake3

from rota.slots.output import STDERR_TAIL_BYTES, Stderr, Stdout, lines_of


def stderr(*chunks: bytes) -> Stderr:
    kept = Stderr()
    for chunk in chunks:
        kept.take(chunk)
    return kept


def test_stdout_is_counted_digested_and_its_beginning_kept() -> None:
    out = Stdout(1_000_000)
    data = bytes(range(256)) * 100
    assert b"".join(out.take(data[at : at + 777]) for at in range(0, len(data), 777)) == data
    assert (out.count, out.prefix, out.digest) == (len(data), data[:4000], "blake3:" + blake3(data).hexdigest())
    assert not out.over
    assert out.dropped(delivered=False, streamed=False) == len(data) - 4000
    assert out.dropped(delivered=True, streamed=True) == 0


def test_what_is_over_the_cap_is_counted_to_the_byte() -> None:
    out = Stdout(5)
    assert [out.take(b"abc"), out.take(b"def"), out.take(b"ghi")] == [b"abc", b"de", b""]
    assert (out.count, out.over, out.prefix) == (9, True, b"abcde")
    assert out.dropped(delivered=False, streamed=True) == 4
    assert out.digest == "blake3:" + blake3(b"abcdefghi").hexdigest()


@pytest.mark.parametrize(
    ("chunks", "line"),
    [
        ([b""], None),
        ([b"one\ntwo\n"], "two"),
        ([b"frame= 1\rframe= 2\r\x1b[31mError opening file\x1b[0m\nConversion done\n"], "Error opening file"),
        ([b'Traceback\n  File "x"\nValueError: no\n'], "ValueError: no"),
        ([b"cannot open x\n", b"note\n" * 10_000], "cannot open x"),
        ([b"a" * 900 + b" failed\n"], "a" * 500),
        ([b"\xff\xfe bad\n"], "�� bad"),
    ],
)
def test_the_line_that_says_why(chunks: list[bytes], line: str | None) -> None:
    assert stderr(*chunks).decisive_line == line


def test_stderr_is_bounded() -> None:
    kept = stderr(*[b"x" * 100_000] * 20)
    assert kept.count == 2_000_000
    assert len(kept._tail) <= 2 * STDERR_TAIL_BYTES


def test_the_newest_line() -> None:
    assert stderr(b"10%\r20%\r", b"30%\r").last_line == "30%"
    assert stderr().last_line is None


def test_lines_without_escapes() -> None:
    assert lines_of(b"\x1b[1mbold\x1b[0m \x07\n\n  \nx") == ["bold", "x"]
