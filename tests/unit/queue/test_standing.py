"""What workers say of what holds their jobs back, and the place in line that comes of it."""

from dataclasses import replace

from rota.commands import CallInLine, KindShare, Place, Standing
from rota.queue.standing import (
    ServerFacts,
    calls_of,
    heard,
    kinds_before,
    kinds_of,
    news,
    place_of_queued,
    said,
    sharing,
    taken,
    unclaimed_of,
)

VIDEO = ("cut", "mix")
WAITS = CallInLine("j1", "cut", 5, 10.0, Place(2, 1, 30.0, 60.0))
STANDING = Standing(
    1,
    {
        "film": KindShare(("cut",), VIDEO, 3), "clip": KindShare(("mix",), VIDEO, 3),
        "page": KindShare(("ocr",), ("ocr",), 1),
    },
    (WAITS, CallInLine("j2", "cut", 0, 1.0, runs=True)),
    (("cut", 5, 1), ("mix", 0, 4), ("ocr", 9, 7)),
)  # fmt: skip
ONE = ServerFacts(cpus=4, cpus_kept=1, cpu_kinds={"hash": 10}, exec=STANDING)
OTHER = ServerFacts(exec=Standing(1, {"film": KindShare(("cut",), VIDEO, 3)}, (), (("cut", 0, 2),)))


def test_facts_come_back_as_they_were_said_and_those_of_another_version_are_none() -> None:
    assert heard(said(ONE)) == ONE
    assert said(ONE) == said(heard(said(ONE)))
    assert heard('{"cpus": 2, "later": [1]}') == ServerFacts(cpus=2)
    assert heard('{"exec": {"kinds": 3}}') == taken({"cpus": "many"}) == ServerFacts()


def test_time_that_goes_by_is_no_news_and_a_step_forward_is() -> None:
    def later(call: CallInLine) -> ServerFacts:
        return replace(ONE, exec=replace(STANDING, calls=(call, STANDING.calls[1])))

    assert news(later(replace(WAITS, for_s=99.0, place=Place(2, 1, 20.0, 50.0)))) == news(ONE)
    assert news(later(replace(WAITS, place=Place(1, 1, 30.0, 60.0)))) != news(ONE)
    assert news(replace(ONE, exec=replace(STANDING, connected=0))) != news(ONE)
    assert news(ServerFacts(cpus=3)) == news(ServerFacts())
    known = replace(ONE, exec=replace(STANDING, times={"cut": (1.0, 2.0)}))
    assert news(known) == news(replace(known, exec=replace(STANDING, times={"cut": (1.0, 9.0)}))) != news(ONE)


def test_kinds_share_what_their_services_draw_from() -> None:
    assert sharing("film", [ONE, OTHER]) == ["clip", "film"]
    assert sharing("page", [ONE, OTHER]) == ["page"]
    assert sharing("hash", [ONE, OTHER]) == sharing("film", [ServerFacts()]) == []
    assert kinds_of("mix", STANDING) == ["clip", "film"]
    assert kinds_of("unheard", STANDING) == []
    assert kinds_before("mix", [ServerFacts(), OTHER, ONE]) == ["clip", "film"]
    assert kinds_before("unheard", [ONE, OTHER]) == []


def test_a_call_stands_behind_what_nobody_has_claimed() -> None:
    (call,) = calls_of("j1", ONE, unclaimed=3)
    assert call.place == Place(5, 1, 60.0, 120.0, 3)
    (runs,) = calls_of("j2", ONE, unclaimed=3)
    assert (runs.place, runs.runs) == (None, True)
    assert calls_of("j3", ONE, unclaimed=3) == calls_of("j1", None, unclaimed=3) == []


def test_a_job_that_nobody_has_claimed_stands_behind_the_calls_that_wait_and_are_not_less_urgent() -> None:
    before = {"film": 3, "clip": 1}
    assert place_of_queued("film", 0, [ONE, OTHER], unclaimed=before) == Place(1 + 4 + 2 + 4, unclaimed=4)
    assert place_of_queued("film", 1, [ONE, OTHER], unclaimed={}) == Place(1)
    assert place_of_queued("film", 6, [ONE, OTHER], unclaimed={}) == Place(0)


def timed(slots: int = 2, **times: tuple[float, float]) -> ServerFacts:
    """ONE, where a film has so many slots, and these run times are known."""
    kinds = {name: replace(share, slots=slots) for name, share in STANDING.kinds.items()}
    return replace(ONE, exec=replace(STANDING, kinds=kinds, times=times))


def test_its_turn_comes_when_all_before_it_have_had_a_slot_for_as_long_as_their_services_take() -> None:
    one = timed(cut=(10.0, 20.0), mix=(1.0, 3.0))
    # Parked: one cut and four of mix. In the database: three films, which cut, and a clip, which mixes.
    found = place_of_queued("film", 0, [one], unclaimed={"film": 3, "clip": 1})
    assert (found.ahead, found.eta_low_s, found.eta_high_s) == (9, (4 * 10 + 5 * 1) / 2, (4 * 20 + 5 * 3) / 2 + 20)
    first = place_of_queued("film", 6, [one], unclaimed={})
    assert (first.ahead, first.eta_low_s, first.eta_high_s) == (0, 0, 20), "the one that runs may have just begun"
    wider = place_of_queued("film", 6, [one, timed(cut=(5.0, 60.0))], unclaimed={"film": 2})
    assert (wider.eta_low_s, wider.eta_high_s) == (5, 120), "as wide as what any worker saw"


def test_no_time_is_told_where_one_is_not_known() -> None:
    for one in (timed(cut=(10.0, 20.0)), timed(slots=0, cut=(10.0, 20.0), mix=(1.0, 3.0))):
        found = place_of_queued("film", 0, [one], unclaimed={"clip": 1})
        assert (found.ahead, found.eta_low_s, found.eta_high_s) == (6, None, None)
    runs = place_of_queued("film", 9, [timed(mix=(1.0, 3.0))], unclaimed={"clip": 1})
    assert runs.eta_low_s is None, "how long the one takes that runs is not known"


def test_jobs_that_need_the_services_of_a_waitgroup_and_nobody_has_claimed() -> None:
    due = {"film": 3, "clip": 2, "page": 5, "hash": 9}
    assert unclaimed_of(VIDEO, due, [ONE, OTHER]) == 5
    assert unclaimed_of(["ocr", "more"], due, [ONE, OTHER]) == 5
    assert unclaimed_of(["more"], due, [ONE, OTHER]) == 0
