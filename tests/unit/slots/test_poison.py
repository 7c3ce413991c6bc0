from rota.slots.messages import Work
from rota.slots.poison import CRASHES_MAX, FORGET_S, PoisonGuard, left_running, subject_of

ONE, TWO = "a" * 32, "b" * 32


def test_what_the_client_says_stands_for_the_work() -> None:
    assert subject_of("s", Work(args=["1"], subject="job 7")) == subject_of("s", Work(args=["2"], subject="job 7"))
    assert subject_of("s", Work(args=["1"])) != subject_of("s", Work(args=["2"]))
    assert subject_of("s", Work(args=["1"])) != subject_of("t", Work(args=["1"]))
    assert len(subject_of("s", Work())) == 32


def test_what_a_record_leaves_running() -> None:
    lines = [f"+ {ONE}", f"+ {TWO}", f"+ {TWO}", f"- {ONE}", f"- {TWO}", "", "+ cut", f"- {'c' * 32}"]
    assert left_running(lines) == {TWO}


def test_work_is_refused_after_several_crashes_and_for_a_while() -> None:
    guard = PoisonGuard()
    for crash in range(CRASHES_MAX):
        assert guard.refuses(ONE, crash) is None
        guard.crashed([ONE], float(crash))
        guard = PoisonGuard(guard.suspects())
    told = guard.refuses(ONE, 60.0)
    assert told is not None
    assert "3 times" in told
    assert guard.refuses(TWO, 60.0) is None
    assert guard.refuses(ONE, FORGET_S + CRASHES_MAX) is None


def test_crashes_long_ago_do_not_add_up() -> None:
    guard = PoisonGuard()
    for crash in range(CRASHES_MAX * 2):
        guard.crashed([ONE], crash * FORGET_S)
    assert guard.refuses(ONE, CRASHES_MAX * 2 * FORGET_S - FORGET_S + 1) is None
    assert guard.suspects()[ONE].crashes == 1


def test_a_clock_that_was_a_year_ahead_refuses_nothing_for_a_year() -> None:
    guard = PoisonGuard()
    for crash in range(CRASHES_MAX):
        guard.crashed([ONE], 3e7 + crash)
    assert guard.refuses(ONE, 3e7) is not None
    assert guard.refuses(ONE, 0.0) is None
    guard.crashed([ONE], 0.0)
    assert guard.suspects()[ONE].crashes == 1


def test_what_is_forgotten_takes_no_room() -> None:
    guard = PoisonGuard()
    guard.crashed([f"{n:032}" for n in range(2000)], 0.0)
    assert len(guard.suspects()) == 1000
    guard.crashed([ONE], FORGET_S * 2)
    assert set(guard.suspects()) == {ONE}
