"""What a worker makes of the pauses that a poll answers, and which pauses can be stored."""

from typing import Any

import pytest

from rota.errors import RotaError
from rota.queue.pause import NOTHING_PAUSED, Paused, check, paused_of


def test_words_of_a_poll() -> None:
    assert paused_of(()) == NOTHING_PAUSED
    paused = paused_of(("kind:thumbnail", "kind:all:", "kind:a:b", "tenant:acme"))
    assert paused == Paused(kinds=frozenset({"thumbnail", "all:", "a:b"}), tenants=frozenset({"acme"}))
    assert paused.holds("thumbnail") and paused.holds("a:b") and not paused.holds("mail")
    assert paused_of(("all:",)).holds("whatever")


@pytest.mark.parametrize(
    "bad",
    [
        {"note": "x" * 501}, {"note": "\0"}, {"paused_by": "x" * 501}, {"for_s": 0.0}, {"for_s": -1.0},
        {"for_s": float("nan")}, {"for_s": float("inf")},
    ],
)  # fmt: skip
def test_what_cannot_be_stored_is_refused_by_name(bad: dict[str, Any]) -> None:
    with pytest.raises(RotaError, match=next(iter(bad))):
        check(**{"note": None, "paused_by": None, "for_s": None, **bad})
    check(note="x" * 500, paused_by="me", for_s=0.5)
