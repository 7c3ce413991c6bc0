"""Places in line."""

from rota.commands import Place


def test_jobs_that_stand_in_no_line_yet_move_a_place_back_and_its_time_with_it() -> None:
    assert Place(3, 2, 40.0, 60.0).behind(4) == Place(7, 2, 80.0, 120.0, 4)
    assert Place(0, 1, None, None).behind(2) == Place(2, 1, None, None, 2)
    assert Place(3, 2, 40.0, 60.0).behind(0) == Place(3, 2, 40.0, 60.0)
