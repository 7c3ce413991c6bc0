"""Properties of the runner fabric's pure parts, against naive models and against noise."""

import json
from collections import OrderedDict
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rota.errors import ProtocolError
from rota.runners import handshake
from rota.runners.frames import Frame, encode, from_gateway, from_runner
from rota.runners.gateway import Gateway
from rota.runners.gateway_admission import Rules
from rota.runners.gateway_events import Garbled, Opened, Received, Tick, Verified
from rota.runners.matching import Queued, RunnerKind, Target, belongs, choose, lacks
from rota.runners.session import ANSWERS_KEPT, OpLog, Repeat
from rota.runners.timers import Timers
from rota.runners.token import TokenKeys
from tests.protocol.test_runners_messages import FIXTURES, of_gateway, read
from tests.simulation.runner_store import capabilities_of, identity_of, needs_of

FROM_RUNNERS = [read(path) for path in FIXTURES if not of_gateway(path)]
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@given(st.sampled_from(FIXTURES), st.data())
@settings(max_examples=300, deadline=None)
def test_a_frame_with_anything_in_it_is_read_or_refused(path: Any, data: st.DataObject) -> None:
    """Each field of each message, replaced by anything: nothing but a `ProtocolError` comes of it."""
    content = json.loads(path.read_text())
    where = data.draw(st.sampled_from([content, content["payload"]]))
    if where:
        where[data.draw(st.sampled_from(sorted(where)))] = data.draw(anything)
    text = json.dumps(content)
    for decode in (from_runner, from_gateway):
        try:
            frame = decode(text)
        except ProtocolError as error:
            assert error.code in ("bad_message", "unsupported_version", "message_too_large")
            continue
        assert frame is None or decode(encode(frame)) == frame


@given(st.binary(max_size=200) | st.text(max_size=200))
@settings(deadline=None)
def test_noise_is_refused(noise: bytes | str) -> None:
    try:
        assert from_runner(noise) is None
    except ProtocolError as error:
        assert error.code in ("bad_message", "unsupported_version")


@given(st.lists(st.integers(0, 600) | st.just(-1), max_size=900))
@settings(max_examples=60, deadline=None)
def test_ops_are_known_as_by_a_model(asked: list[int]) -> None:
    """-1 ends the op that runs."""
    log, kept, seen = OpLog(), OrderedDict[str, None](), set[str]()
    running: str | None = None
    for number in asked:
        if number < 0:
            if running is not None:
                kept[running] = None
                aged = [kept.popitem(last=False)[0]] if len(kept) > ANSWERS_KEPT else []
                assert log.ended(running) == aged
                running = None
            continue
        op_id = f"op-{number}"
        expected = (
            Repeat.RUNNING if op_id == running
            else Repeat.KEPT if op_id in kept
            else Repeat.EXPIRED if op_id in seen
            else Repeat.BUSY if running is not None
            else Repeat.NEW
        )  # fmt: skip
        assert log.ask(op_id) is expected
        if expected is Repeat.NEW:
            running = op_id
            seen.add(op_id)


@given(st.lists(st.tuples(st.sampled_from(["set", "drop", "due"]), st.integers(0, 4), st.integers(0, 20))))
def test_timers_fire_as_in_a_model(steps: list[tuple[str, int, int]]) -> None:
    timers, model = Timers[int](), dict[int, float]()
    for what, key, at in steps:
        if what == "set":
            timers.set(key, at)
            model[key] = min(at, model.get(key, at))
        elif what == "drop":
            timers.drop(key)
            model.pop(key, None)
        else:
            fired = timers.due(at)
            assert sorted(fired) == sorted(k for k, t in model.items() if t <= at)
            assert [model[k] for k in fired] == sorted(model[k] for k in fired)
            model = {k: t for k, t in model.items() if t > at}
        assert timers.next_at() == min(model.values(), default=None)


jobs = st.lists(
    st.tuples(
        st.sampled_from(list(Target)), st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["video.compile", "video.analyze.extract"]), st.integers(-1, 1), st.integers(0, 3),
        st.sampled_from([10, 20_000]),
    ),
    max_size=12,
)  # fmt: skip


@given(jobs, st.sampled_from([None, "a", "b"]), st.integers(0, 5), st.none() | st.integers(1, 3), st.integers(0, 2))
def test_what_is_dealt_may_go_there_and_nobody_is_over_his_cap(
    made: list[Any], org_id: str | None, slots: int, cap: int | None, busy: int
) -> None:
    identity, capabilities = identity_of("r", org_id), capabilities_of()
    queued = [
        Queued(f"j{number}", needs_of(target, org, kind, size), priority, float(at))
        for number, (target, org, kind, priority, at, size) in enumerate(made)
    ]
    chosen = choose(
        queued, kind=identity.kind, org_id=org_id, capabilities=capabilities, slots=slots,
        pool_running={"a": busy}, pool_cap=cap, without=["j0"],
    )  # fmt: skip
    assert len(chosen) <= slots
    assert len({job.job_id for job in chosen}) == len(chosen)
    fits = [
        job for job in queued
        if belongs(job.needs, kind=identity.kind, org_id=org_id) and lacks(job.needs, capabilities) is None
        and job.job_id != "j0"
    ]  # fmt: skip
    assert set(chosen) <= set(fits)
    pool = identity.kind == RunnerKind.CLOUD_POOL
    for org in "abc":
        of_org = [job for job in chosen if job.needs.org_id == org]
        if pool and cap is not None:
            assert len(of_org) <= max(0, cap - (busy if org == "a" else 0))
        ranked = sorted(
            (job for job in fits if job.needs.org_id == org), key=lambda j: (-j.priority, j.created_at, j.job_id)
        )
        assert of_org == ranked[: len(of_org)], "within an organisation: by priority, then age"
    if not pool or cap is None:
        assert len(chosen) == min(slots, len(fits)), "no slot is left free while a job fits"
        if chosen and len(chosen) < len(fits):
            left = max(job.priority for job in fits if job not in chosen)
            assert min(job.priority for job in chosen) >= left, "no lower priority before a higher one"


@given(st.lists(st.sampled_from(FROM_RUNNERS) | st.just("garbled") | st.just("tick"), max_size=30), st.integers(0, 99))
@settings(max_examples=300, deadline=None)
def test_no_order_of_messages_breaks_a_gateway(script: list[Any], seed: int) -> None:
    """Out of order, repeated, before and after the welcome, about jobs that were never assigned."""
    gateway = Gateway(Rules("g"), TokenKeys([b"k" * 32]), Random(seed))
    gateway.handle(Opened(1, "h"), 0.0, 0.0)
    gateway.handle(Verified(1, identity_of("r", None)), 0.0, 0.0)
    now = 0.0
    for step in script:
        now += seed % 7
        event = Garbled(1, "bad_message", "x") if step == "garbled" else Tick() if step == "tick" else None
        if isinstance(step, Frame):
            event = Received(1, step)
        assert event is not None
        for command in gateway.handle(event, now, now):
            if type(command).__name__ == "Authenticate":
                gateway.handle(Verified(1, identity_of("r", None)), now, now)
            assert type(command).__name__ not in ("Succeed", "FailJob", "EndCancelled", "NoteProgress", "StoreAccept")
    assert gateway.jobs == {}


@given(st.text(max_size=30))
def test_versions_of_any_text_are_compared(text: str) -> None:
    handshake.negotiate(text)
    assert not handshake.is_older("1.2", "1.2")
    handshake.is_older(text, "1.0")
