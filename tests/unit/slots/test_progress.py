from rota.slots.progress import CPU_STEP_S, Movement


def test_bytes_and_cpu_time_are_moves_and_life_is_none() -> None:
    moves = Movement(100.0)
    assert moves.still_s(101.0) == 1.0
    moves.saw(bytes_count=1, cpu_s=0.0, now=102.0)
    assert moves.still_s(103.0) == 1.0
    moves.saw(bytes_count=1, cpu_s=CPU_STEP_S / 2, now=104.0)
    assert moves.still_s(104.0) == 2.0
    moves.saw(bytes_count=1, cpu_s=CPU_STEP_S, now=105.0)
    assert moves.still_s(105.0) == 0.0


def test_cpu_time_that_trickles_adds_up() -> None:
    moves = Movement(0.0)
    for second in range(1, 11):
        moves.saw(bytes_count=0, cpu_s=second * CPU_STEP_S / 5, now=float(second))
    assert moves.still_s(10.0) == 0.0


def test_a_process_that_ended_takes_its_time_out_of_the_sum() -> None:
    moves = Movement(0.0)
    moves.saw(bytes_count=0, cpu_s=50.0, now=1.0)
    moves.saw(bytes_count=0, cpu_s=0.0, now=2.0)
    assert moves.still_s(2.0) == 1.0
    moves.saw(bytes_count=0, cpu_s=CPU_STEP_S, now=3.0)
    assert moves.still_s(3.0) == 0.0
