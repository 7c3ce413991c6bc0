"""What a look at exec servers says of one job's calls."""

from rota.slots.address import Address
from rota.slots.io.survey import Seen, calls_of
from rota.slots.messages import JobView, Overview, ServiceView, WaitgroupView


def seen(host: str, *jobs: JobView) -> Seen:
    overview = Overview(host, 1, {"all": WaitgroupView(2, running=2)}, {"ocr": ServiceView("all")}, list(jobs))
    return Seen(Address(host), overview)


def test_a_call_that_waits_at_several_is_told_once_with_the_shortest_line() -> None:
    looks = [
        seen("a", JobView("j.1", "c", "ocr", "waiting", ahead=5, for_s=3)),
        seen("b", JobView("j.1", "c", "ocr", "waiting", ahead=2, for_s=3), JobView("jj.1", "c", "ocr", "running")),
        Seen(Address("c"), error="away"),
    ]
    (call,) = calls_of("j", looks)
    assert call.words == (
        "Its call of ocr waits for a slot of http://b:8750 since 3 s; 2 get one before it, and 2 run; when its turn "
        "comes is not known yet."
    )


def test_what_runs_goes_first() -> None:
    looks = [
        seen(
            "a",
            JobView("j.1", "c", "ocr", "waiting", ahead=0, eta_low_s=3, eta_high_s=90),
            JobView("j.2", "c", "ocr", "running", for_s=9),
        )
    ]
    assert [call.words for call in calls_of("j", looks)] == [
        "Its command ocr runs at http://a:8750 since 9 s.",
        "Its call of ocr waits for a slot of http://a:8750 since 0 s; 0 get one before it, and 2 run; its turn comes "
        "in 3 to 90 s.",
    ]


def test_what_was_offered_a_slot_waits_no_more() -> None:
    (call,) = calls_of("j", [seen("a", JobView("j.1", "c", "ocr", "offered"))])
    assert call.words == "Its call of ocr has just been offered a slot of http://a:8750."
