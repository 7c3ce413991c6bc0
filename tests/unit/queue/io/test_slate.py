"""What a worker notes for its warden, as the warden reads it."""

import os
from uuid import UUID

from rota.ids import JobId
from rota.queue.io.slate import Slate
from rota.queue.io.warden_process import APART_MAX, ID_BYTES, SLATE_BYTES, suspects_of


def job(number: int) -> JobId:
    return JobId(UUID(int=(1 << 120) + number))


def step(slate: Slate, job_id: JobId) -> None:
    slate.memory[:ID_BYTES] = job_id.bytes


def read(slate: Slate) -> list[str]:
    """As the warden does: from the file, after the worker."""
    return suspects_of(os.pread(slate.descriptor, SLATE_BYTES, 0))


def test_nobody_is_suspect_where_nothing_runs() -> None:
    slate = Slate()
    assert read(slate) == []
    assert slate.stepping is None


def test_whose_step_runs_is_suspect_until_it_has_ended() -> None:
    slate = Slate()
    step(slate, job(1))
    assert read(slate) == [job(1).hex]
    assert slate.stepping == job(1).bytes
    slate.begin[0] = 0
    assert read(slate) == []
    assert slate.stepping is None


def test_what_runs_apart_is_suspect_too_and_its_place_is_used_again() -> None:
    slate = Slate()
    step(slate, job(1))
    places = [slate.begins_apart(job(number)) for number in (2, 3)]
    assert set(read(slate)) == {job(number).hex for number in (1, 2, 3)}
    slate.ended_apart(places[0])
    assert set(read(slate)) == {job(1).hex, job(3).hex}
    assert slate.begins_apart(job(4)) == places[0]


def test_where_not_everybody_could_be_noted_nobody_can_be_told_from_the_others() -> None:
    slate = Slate()
    step(slate, job(0))
    places = [slate.begins_apart(job(number)) for number in range(1, APART_MAX + 1)]
    assert len(read(slate)) == 1 + APART_MAX
    unnoted = [slate.begins_apart(job(number)) for number in (5000, 5001)]
    assert read(slate) == []
    for place in unnoted:
        slate.ended_apart(place)
    assert len(read(slate)) == 1 + APART_MAX
    for place in places:
        slate.ended_apart(place)
    assert read(slate) == [job(0).hex]


def test_its_memory_is_closed_with_it() -> None:
    slate = Slate()
    descriptor = slate.descriptor
    del slate
    try:
        os.fstat(descriptor)
    except OSError:
        return
    raise AssertionError("its file is open")
