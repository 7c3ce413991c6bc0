"""Which rules remove ended jobs: no job falls under two, and none is missed."""

from hypothesis import given
from hypothesis import strategies as st

from rota.queue.retention import Keep, Rule, rules

DAY_S = 86_400.0


def test_without_a_word_of_any_kind_there_are_two_rules() -> None:
    assert rules([], keep_s=7 * DAY_S, keep_failed_s=30 * DAY_S) == [
        Rule(None, False, 7 * DAY_S), Rule(None, True, 30 * DAY_S)
    ]  # fmt: skip


def test_a_kind_has_its_own() -> None:
    found = rules([Keep("b", 60.0), Keep("a", None, 90.0)], keep_s=50.0, keep_failed_s=70.0)
    assert found == [
        Rule(None, False, 50.0, ("a", "b")), Rule(None, True, 70.0, ("a", "b")),
        Rule("a", False, 50.0), Rule("a", True, 90.0),
        Rule("b", False, 60.0), Rule("b", True, 70.0),
    ]  # fmt: skip


def test_failed_jobs_never_go_before_the_others() -> None:
    found = rules([Keep("a", 60.0, 10.0)], keep_s=50.0, keep_failed_s=20.0)
    assert [rule.keep_s for rule in found] == [50.0, 50.0, 60.0, 60.0]


keeps = st.lists(
    st.builds(Keep, st.sampled_from("abcd"), st.none() | st.floats(0, 100), st.none() | st.floats(0, 100)),
    unique_by=lambda keep: keep.kind,
)


@given(keeps, st.sampled_from("abcdef"), st.booleans())
def test_each_job_falls_under_one_rule(said: list[Keep], kind: str, failed: bool) -> None:
    fitting = [
        rule
        for rule in rules(said, keep_s=5.0, keep_failed_s=7.0)
        if rule.failed == failed and (kind not in rule.others if rule.kind is None else rule.kind == kind)
    ]
    assert len(fitting) == 1
