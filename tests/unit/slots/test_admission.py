"""Claim shares (S40)."""

import pytest

from rota.slots.admission import HEADROOM, LEGACY_SHARE, Instance, pool_of, room, share


def pod(name: str = "a", *, clients: int = 1, slots: int = 4, draining: bool = False) -> Instance:
    return Instance(
        name, {"transcode": "video", "probe": "video", "ocr": "text"}, {"video": slots, "text": 1}, clients, draining
    )


@pytest.mark.parametrize(("clients", "least"), [(5, 8), (4, 10), (1, 40)])
def test_a_share_of_forty_slots_follows_the_clients_s40(clients: int, least: int) -> None:
    assert share("transcode", [pod(slots=40, clients=clients)]) == least + HEADROOM


def test_without_an_exec_server_nothing_is_claimed_s40() -> None:
    assert share("transcode", []) == 0
    assert room("video", services={"video": ["transcode"]}, running={}, instances=[]) == 0


def test_shares_are_rounded_up_for_each_instance_and_the_headroom_counts_once() -> None:
    assert share("transcode", [pod("a", slots=4, clients=3), pod("b", slots=1, clients=3)]) == 2 + 1 + HEADROOM


def test_what_drains_or_does_not_offer_the_service_has_no_share() -> None:
    assert share("transcode", [pod(draining=True)]) == 0
    assert share("speech", [pod()]) == 0


def test_an_address_that_is_polled_gives_a_little() -> None:
    assert share("anything", [], legacy=2) == 2 * LEGACY_SHARE + HEADROOM


def test_kinds_that_draw_from_the_same_slots_share_them() -> None:
    services = {"big": ["transcode"], "small": ["probe"], "text": ["ocr"]}
    running = {"big": 3, "small": 1, "text": 1}
    assert room("small", services=services, running=running, instances=[pod(slots=4)]) == 4 + HEADROOM - 4
    assert room("text", services=services, running=running, instances=[pod(slots=4)]) == 1 + HEADROOM - 1


def test_a_kind_of_two_services_has_the_room_of_the_scarcer() -> None:
    services = {"both": ["transcode", "ocr"]}
    assert room("both", services=services, running={}, instances=[pod(slots=40)]) == 1 + HEADROOM


def test_room_is_never_below_none() -> None:
    assert room("big", services={"big": ["transcode"]}, running={"big": 50}, instances=[pod()]) == 0


def test_a_pool_is_all_that_draws_from_the_same_slots_anywhere() -> None:
    other = Instance("b", {"probe": "any", "speech": "any"}, {"any": 2})
    assert pool_of(["transcode"], [pod()]) == ("probe", "transcode")
    assert pool_of(["probe"], [pod(), other]) == ("probe", "speech", "transcode")
    assert pool_of(["ocr", "unknown"], [pod(), other]) == ("ocr", "unknown")
