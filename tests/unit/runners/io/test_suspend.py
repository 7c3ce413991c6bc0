"""Sleep is seen by two clocks that drift apart."""

from rota.runners.io.suspend import SuspendWatch


def test_only_a_drift_of_the_clocks_is_a_sleep() -> None:
    counting, awake = [100.0], [5.0]
    watch = SuspendWatch(lambda: counting[0], lambda: awake[0])
    assert watch.slept_s() is None
    counting[0], awake[0] = 160.0, 65.0
    assert watch.slept_s() is None, "a busy minute is no sleep"
    counting[0], awake[0] = 761.0, 66.0
    assert watch.slept_s() == 600.0
    assert watch.slept_s() is None, "each is told once"
    counting[0] += 1.9
    assert watch.slept_s() is None
