"""The frames of the slot broker against golden files: what other implementations can build on."""

import json
from pathlib import Path
from typing import Any

import pytest

from rota.errors import ProtocolError
from rota.slots import messages
from rota.slots.messages import ClientMessage, ServerMessage, encode, from_client, from_server

FIXTURES = sorted((Path(__file__).parent / "fixtures" / "slots").glob("*.json"))
TYPES = {kind.__struct_config__.tag: kind for kind in (*ClientMessage.__args__, *ServerMessage.__args__)}


def decode(frame: str | bytes) -> Any:
    return from_client(frame) or from_server(frame)


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_each_golden_frame_is_read_and_written_alike(path: Path) -> None:
    frame = path.read_text().strip()
    message = decode(frame)
    assert isinstance(message, TYPES[path.stem.split(".")[0].upper()])
    assert encode(message).decode() == frame


def test_each_type_has_a_golden_frame() -> None:
    assert {path.stem.split(".")[0].upper() for path in FIXTURES} == set(TYPES)


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_unknown_fields_are_ignored(path: Path) -> None:
    content = json.loads(path.read_text())
    more = {"news": {"deep": [1, None]}, **content, "more": 1}
    if "receipt" in more:
        more["receipt"] = {**more["receipt"], "gpu_s": 1.5}
    assert decode(json.dumps(more)) == decode(path.read_text())


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_each_field_that_must_be_there_is_missed_by_name(path: Path) -> None:
    content = json.loads(path.read_text())
    for field in TYPES[content["type"]].__struct_fields__:
        if field not in content or field in {f for f, d in zip(*_defaults(TYPES[content["type"]]), strict=True) if d}:
            continue
        less = {name: value for name, value in content.items() if name != field}
        with pytest.raises(ProtocolError, match=rf"{content['type']} frame.*`{field}`"):
            decode(json.dumps(less))


def _defaults(kind: Any) -> tuple[list[str], list[bool]]:
    fields = list(kind.__struct_fields__)
    without = len(fields) - len(kind.__struct_defaults__)
    return fields, [number >= without for number in range(len(fields))]


def test_unknown_types_are_ignored_by_both_sides() -> None:
    assert from_client('{"type":"PARLEY","job_id":7}') is None
    assert from_server('{"type":"PARLEY","job_id":7}') is None
    assert from_client('{"type":"OFFER","job_id":"a"}') is None, "a client's word only"


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        ("", "truncated"),
        ("hello", "malformed"),
        ("[]", "object"),
        ('{"job_id":"a"}', "`type`"),
        ('{"type":7}', "type"),
        ('{"type":"WANT","service":"s"}', "`job_id`"),
        ('{"type":"WANT","job_id":"","service":"s"}', "job_id"),
        ('{"type":"WANT","job_id":"../x","service":"s"}', "job_id"),
        ('{"type":"WANT","job_id":"a","service":"s","priority":"high"}', "priority"),
        ('{"type":"WANT","job_id":"a","service":"s","priority":99999999999}', "priority"),
        ('{"type":"JOB","job_id":"a","job":{"args":{"x":{"y":1}}}}', "args"),
        ("[" * 100_000, "no good"),
        (b"\xff\xfe{}", "no good"),
        (b'{"type":"WANT","job_id":"a","service":"\xff"}', "no good"),
    ],
)
def test_a_bad_frame_is_refused_with_its_place(frame: str | bytes, says: str) -> None:
    with pytest.raises(ProtocolError, match=says) as caught:
        from_client(frame)
    assert caught.value.code == "bad_frame"


def test_a_refused_frame_names_its_job_where_one_can_be_read() -> None:
    with pytest.raises(ProtocolError) as caught:
        from_client('{"type":"WANT","job_id":"a7"}')
    assert caught.value.job_id == "a7"


def test_a_frame_that_the_other_side_does_not_take_is_not_made() -> None:
    big = messages.Job("a", messages.Work(args=["x" * 2000]))
    assert len(encode(big)) > 2000
    with pytest.raises(ProtocolError, match=r"JOB would be a frame of 2,.* takes 1,000") as caught:
        encode(big, frame_bytes_max=1000)
    assert (caught.value.code, caught.value.job_id) == ("frame_too_large", "a")


def test_ok_is_only_an_exit_with_status_0() -> None:
    assert messages.Receipt(ended_by="exit", exit=0).ok
    assert not messages.Receipt(ended_by="exit", exit=1).ok
    assert not messages.Receipt(ended_by="exit", signal="SIGSEGV").ok
    assert not messages.Receipt(ended_by="exit", exit=0, error="the output broke off").ok
    assert not messages.Receipt(ended_by="timeout", exit=0).ok
