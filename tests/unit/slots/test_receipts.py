import signal

import pytest

from rota.slots.messages import EndedBy
from rota.slots.output import Stderr, Stdout
from rota.slots.receipts import Facts, Reason, receipt, refused, went_well


def facts(status: int | None, reason: Reason | None = None, out: bytes = b"", err: bytes = b"") -> Facts:
    stdout, stderr = Stdout(10_000), Stderr()
    stdout.take(out)
    stderr.take(err)
    return Facts(
        reason=reason, status=status, stdout=stdout, stderr=stderr, bytes_in=3, duration_s=1.5,
        peak_memory_bytes=7, streamed=False, delivered=False,
    )  # fmt: skip


def test_a_command_that_went_well() -> None:
    made = receipt(facts(0, out=b"hi", err=b"error: not really\n"))
    assert made.ok
    assert (made.exit, made.signal, made.stderr_line, made.stdout_prefix) == (0, None, None, "hi")
    assert (made.bytes_in, made.bytes_out, made.duration_s, made.peak_memory_bytes) == (3, 2, 1.5, 7)
    assert not made.retryable


def test_an_exit_status_keeps_its_line() -> None:
    made = receipt(facts(3 << 8, err=b"no such file\n"))
    assert (made.ended_by, made.exit, made.stderr_line, made.ok) == ("exit", 3, "no such file", False)
    assert not made.retryable


@pytest.mark.parametrize(
    ("number", "name", "retryable"),
    [(signal.SIGSEGV, "SIGSEGV", False), (signal.SIGKILL, "SIGKILL", True), (63, "signal 63", False)],
)
def test_a_signal_has_its_name(number: int, name: str, retryable: bool) -> None:
    made = receipt(facts(int(number)))
    assert (made.exit, made.signal, made.retryable) == (None, name, retryable)


@pytest.mark.parametrize("ended_by", list(EndedBy))
def test_the_reason_stands_before_how_it_then_ended(ended_by: EndedBy) -> None:
    made = receipt(facts(signal.SIGKILL, Reason(ended_by, "because")))
    assert (made.ended_by, made.error, made.signal) == (ended_by, "because", "SIGKILL")
    assert made.retryable == (ended_by in (EndedBy.STOPPED, EndedBy.BROKEN))
    assert not made.ok


def test_what_never_began() -> None:
    assert refused("no").ended_by == "refused"
    assert receipt(facts(None, Reason(EndedBy.BROKEN, "gone"))).exit is None


def test_only_status_0_of_its_own_is_committed() -> None:
    assert went_well(0, None)
    assert not went_well(1 << 8, None)
    assert not went_well(0, Reason(EndedBy.TIMEOUT, ""))
    assert not went_well(None, None)
