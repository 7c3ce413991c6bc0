"""What a worker notes for its warden, as the warden reads it, and whom that makes a suspect."""

import os
import threading
import time
from uuid import UUID

import pytest

from rota.ids import JobId
from rota.queue.io.slate import Slate
from rota.queue.io.warden_process import APART_MAX, BUSY_TICKS, ID_BYTES, SLATE_BYTES, Noted, busy_of, ticks_of

MAIN = 100
NOBODY: set[int] = set()


def job(number: int) -> JobId:
    return JobId(UUID(int=(1 << 120) + number))


def step(slate: Slate, job_id: JobId) -> None:
    slate.memory[:ID_BYTES] = job_id.bytes


def read(slate: Slate) -> Noted:
    """As the warden does: from the file, after the worker."""
    return Noted.of(os.pread(slate.descriptor, SLATE_BYTES, 0))


def suspects(slate: Slate, *busy: int) -> set[str]:
    return read(slate).suspects(set(busy), main=MAIN)


def ids(*numbers: int) -> set[str]:
    return {job(number).hex for number in numbers}


def test_nobody_is_suspect_where_nothing_runs() -> None:
    slate = Slate()
    assert suspects(slate) == suspects(slate, MAIN) == NOBODY
    assert slate.stepping is None


def test_whose_step_runs_is_suspect_until_it_has_ended() -> None:
    slate = Slate()
    step(slate, job(1))
    assert suspects(slate) == suspects(slate, MAIN) == ids(1)
    assert slate.stepping == job(1).bytes
    slate.begin[0] = 0
    assert suspects(slate) == suspects(slate, MAIN) == NOBODY
    assert slate.stepping is None


def test_of_what_runs_in_threads_the_one_that_computes_is_suspect() -> None:
    slate = Slate()
    places = [slate.begins_apart(job(number), thread=200 + number) for number in (2, 3)]
    assert suspects(slate, 203) == ids(3)
    step(slate, job(1))
    assert suspects(slate, MAIN) == ids(1)
    assert suspects(slate, 203) == ids(3), "whose step runs waits for the interpreter"
    assert suspects(slate, 202, 203) == ids(2, 3)
    assert suspects(slate, 202, 999) == NOBODY, "it may be a thread that somebody has started"
    slate.ended_apart(places[1])
    assert suspects(slate, 203) == NOBODY, "it is somebody's own thread"
    assert slate.begins_apart(job(4), thread=204) == places[1], "its place is used again"
    assert suspects(slate, 204) == ids(4)


def test_where_the_event_loop_computes_between_steps_nobody_is_suspect() -> None:
    slate = Slate()
    slate.begins_apart(job(2), thread=202)
    assert suspects(slate, MAIN) == suspects(slate, MAIN, 202) == NOBODY, "it may be a task that somebody has started"


def test_where_nobody_computes_all_who_may_wait_in_c_code_are_suspects() -> None:
    slate = Slate()
    slate.begins_apart(job(2), thread=202)
    assert suspects(slate) == NOBODY, "or it is a task that a coroutine has started"
    step(slate, job(1))
    assert suspects(slate) == ids(1, 2)


def test_what_runs_in_a_child_process_is_no_suspect_and_is_known() -> None:
    slate = Slate()
    step(slate, job(1))
    slate.begins_apart(job(5))
    assert suspects(slate) == ids(1)
    assert read(slate).children == [job(5).hex]


def test_where_not_everybody_could_be_noted_nobody_can_be_told_from_the_others() -> None:
    slate = Slate()
    step(slate, job(0))
    places = [slate.begins_apart(job(number), thread=number) for number in range(1, APART_MAX + 1)]
    assert len(suspects(slate)) == 1 + APART_MAX
    unnoted = [slate.begins_apart(job(number), thread=number) for number in (5000, 5001)]
    assert suspects(slate) == suspects(slate, MAIN) == NOBODY
    for place in unnoted:
        slate.ended_apart(place)
    assert len(suspects(slate)) == 1 + APART_MAX
    for place in places:
        slate.ended_apart(place)
    assert suspects(slate) == ids(0)


def test_its_file_is_closed_with_it() -> None:
    slate = Slate()
    descriptor = slate.descriptor
    del slate
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_who_computed_between_two_samples_is_busy() -> None:
    before = {1: 10, 2: 10, 3: 10}
    assert busy_of(before, {1: 10, 2: 10 + BUSY_TICKS, 3: 10 + BUSY_TICKS - 1, 4: 99}) == {2}
    assert busy_of({}, before) == NOBODY, "there was no sample"


def test_the_system_says_what_a_thread_takes() -> None:
    if not os.path.exists(f"/proc/{os.getpid()}/task"):
        assert ticks_of(os.getpid()) == {}
        return
    found, ended = list[int](), threading.Event()

    def compute() -> None:
        found.append(threading.get_native_id())
        while not ended.is_set():
            sum(range(10_000))

    thread = threading.Thread(target=compute)
    before = ticks_of(os.getpid())
    thread.start()
    try:
        gives_up_at = time.monotonic() + 60
        while ticks_of(os.getpid()).get(found[0] if found else 0, 0) < BUSY_TICKS:
            assert time.monotonic() < gives_up_at
            time.sleep(0.01)
        assert found[0] in busy_of({found[0]: 0, **before}, ticks_of(os.getpid()))
    finally:
        ended.set()
        thread.join()
    assert ticks_of(0) == {}
