"""Kept answers: small ones in memory, large ones on disk, and always the same as they were (S64)."""

from pathlib import Path

from rota.runners.agent_events import Answer
from rota.runners.io.answers import INLINE_BYTES_MAX, Answers
from rota.runners.messages import OpError


def test_small_and_large_answers_come_back_as_they_were(tmp_path: Path) -> None:
    answers = Answers(tmp_path / "answers")
    small = Answer(result={"bytes": 3, "sha256": "ab", "odd": [None, 1.5, "ü"]})
    large = Answer(result={"content": "x" * INLINE_BYTES_MAX})
    failed = Answer(error=OpError(code="timeout", message="it took over 3 s", retryable=True))
    for op_id, answer in {"a": small, "b": large, "c": failed}.items():
        answers.keep(op_id, answer)
    assert [answers.recall(op_id) for op_id in "abcd"] == [small, large, failed, None]
    assert len(list((tmp_path / "answers").iterdir())) == 1


def test_what_is_forgotten_takes_no_disk(tmp_path: Path) -> None:
    answers = Answers(tmp_path / "answers")
    for number in range(5):
        answers.keep(str(number), Answer(result={"content": "x" * INLINE_BYTES_MAX * 2}))
    for number in range(4):
        answers.forget(str(number))
        answers.forget("never kept")
    assert answers.recall("0") is None
    assert answers.recall("4") is not None
    assert len(list((tmp_path / "answers").iterdir())) == 1


def test_without_a_disk_they_stay_in_memory_and_a_lost_file_is_no_answer(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    large = Answer(result={"content": "x" * INLINE_BYTES_MAX})
    blocked = Answers(tmp_path / "file")
    blocked.keep("a", large)
    assert blocked.recall("a") == large
    kept = Answers(tmp_path / "answers")
    kept.keep("a", large)
    (tmp_path / "answers" / "1").write_bytes(b"\xc1")
    assert kept.recall("a") is None
    (tmp_path / "answers" / "1").unlink()
    assert kept.recall("a") is None
