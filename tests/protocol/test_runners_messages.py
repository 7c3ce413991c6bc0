"""The frames of the runner protocol against golden files, and the rules that the seed has for such files.

A gateway's own frames are read as a runner reads them and the other way round; both sides may say heartbeat, drain and
bye, and a file says whose it is by its variant.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rota.errors import ProtocolError
from rota.runners import messages, ops
from rota.runners.codes import CancelReason, CloseCode, FailureClass, JobType, OpCode, Outcome, RejectReason
from rota.runners.frames import PAYLOAD_BYTES_MAX, READ_BYTES_MAX, Frame, encode, from_gateway, from_runner
from rota.runners.messages import TEXT_MAX, AnyMessage, GatewayMessage, RunnerMessage

FIXTURES = sorted((Path(__file__).parent / "fixtures" / "runners").glob("*.json"))
FROM_RUNNER = {kind.type: kind for kind in RunnerMessage.__args__}
FROM_GATEWAY = {kind.type: kind for kind in GatewayMessage.__args__}
CATALOGUE = {
    "hello", "welcome", "heartbeat", "ready", "assign", "accept", "reject", "progress", "op.request", "op.response",
    "complete", "fail", "cancel", "drain", "bye",
}  # fmt: skip
JOB = "0197c7a0-0000-7000-8000-0000000000a1"
each_fixture = pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)


def type_of(path: Path) -> str:
    return next(name for name in sorted(CATALOGUE, key=len, reverse=True) if path.name.startswith(f"{name}."))


def of_gateway(path: Path) -> bool:
    kind = type_of(path)
    return kind not in FROM_RUNNER or (kind in FROM_GATEWAY and not path.stem.split(".")[-1].startswith("runner"))


def read(path: Path, content: Any = None) -> Frame:
    text = path.read_text() if content is None else json.dumps(content)
    frame = from_gateway(text) if of_gateway(path) else from_runner(text)
    assert frame is not None
    return frame


def as_it_travels(part: messages.Part) -> Any:
    return json.loads(msgspec.json.encode(ops.plain(part)))


def test_the_catalogue_has_fifteen_types_and_each_has_a_golden_file() -> None:
    assert len(CATALOGUE) == 15
    assert set(FROM_RUNNER) | set(FROM_GATEWAY) == CATALOGUE
    assert {type_of(path) for path in FIXTURES} == CATALOGUE


@each_fixture
def test_a_golden_file_is_an_envelope_named_by_its_type(path: Path) -> None:
    content = json.loads(path.read_text())
    assert (content["v"], content["type"]) == (1, type_of(path))
    assert isinstance(content["id"], str)
    assert isinstance(content["payload"], dict)
    kind = (FROM_GATEWAY if of_gateway(path) else FROM_RUNNER)[content["type"]]
    for name in kind.needs:
        assert content[name]


@each_fixture
def test_a_golden_file_holds_obviously_fake_values(path: Path) -> None:
    text = path.read_text()
    for url in re.findall(r"https?://[^\"\s]+", text):
        assert re.fullmatch(r"https://[a-z]+\.invalid/[^?]+\?sig=FIXTURE", url)
    for secret in re.findall(r'"(?:jobToken|credential|sig|nonce)": "([^"]*)"', text):
        assert secret == "FIXTURE.job.token" or secret.startswith("FIXTURE-")
    assert not re.search(r"eyJ[A-Za-z0-9_-]{10}|BEGIN|(?i:api_?key|secret|password)|AKIA|sk-", text)


@each_fixture
def test_each_golden_frame_is_read_and_written_alike(path: Path) -> None:
    frame = read(path)
    assert type(frame.message) is (FROM_GATEWAY if of_gateway(path) else FROM_RUNNER)[type_of(path)]
    assert json.loads(encode(frame)) == json.loads(path.read_text())


@each_fixture
def test_unknown_fields_are_ignored_at_every_depth(path: Path) -> None:
    free = {"args", "result", "spec", "metrics"}

    def more(value: Any) -> Any:
        if isinstance(value, list):
            return [more(item) for item in value]
        if not isinstance(value, dict):
            return value
        return {**{name: item if name in free else more(item) for name, item in value.items()}, "news": {"deep": [1]}}

    assert read(path, more(json.loads(path.read_text()))) == read(path)


@each_fixture
def test_each_field_that_must_be_there_is_missed_by_name(path: Path) -> None:
    content = json.loads(path.read_text())
    kind = (FROM_GATEWAY if of_gateway(path) else FROM_RUNNER)[content["type"]]
    for field in (field for field in msgspec.structs.fields(kind) if field.required):
        less = {name: value for name, value in content["payload"].items() if name != field.encode_name}
        with pytest.raises(ProtocolError, match=f"`{field.encode_name}`"):
            read(path, {**content, "payload": less})
    for name in ("v", "type", "id", "payload", *kind.needs):
        with pytest.raises(ProtocolError, match=f"`{name}`"):
            read(path, {key: value for key, value in content.items() if key != name})


@each_fixture
def test_no_secret_is_in_how_a_message_is_shown(path: Path) -> None:
    shown = repr(read(path))
    assert "FIXTURE" not in shown.replace("FIXTURE-nonce-0123456789", "")


@pytest.mark.parametrize("path", [path for path in FIXTURES if type_of(path) == "op.request"], ids=lambda p: p.stem)
def test_the_arguments_of_each_op_have_a_type(path: Path) -> None:
    request = read(path).message
    assert isinstance(request, messages.OpRequest)
    types = [job_type for job_type, known in ops.OPS.items() if request.op in known]
    for job_type in types:
        assert as_it_travels(ops.args_of(job_type, request.op, request.args)) == request.args
    if not types:
        assert request.op == "teleport"


@pytest.mark.parametrize(
    "path",
    [path for path in FIXTURES if type_of(path) == "op.response" and "error-" not in path.stem],
    ids=lambda path: path.stem,
)
def test_the_result_of_each_op_has_a_type(path: Path) -> None:
    response = read(path).message
    assert isinstance(response, messages.OpResponse)
    assert response.result is not None
    op = path.stem.removeprefix("op.response.").split("-")[0]
    for job_type in (job_type for job_type, known in ops.OPS.items() if op in known):
        assert as_it_travels(ops.result_of(job_type, op, response.result)) == response.result


def test_each_op_has_golden_frames_of_both_directions() -> None:
    for op in ops.MEDIA_OPS.keys() | ops.WORKSPACE_OPS.keys():
        names = {path.stem for path in FIXTURES}
        assert {f"op.request.{op}", f"op.response.{op}"} <= names


def test_each_word_of_the_seeds_lists_has_a_golden_frame() -> None:
    told = " ".join(path.read_text() for path in FIXTURES)
    for words in (
        RejectReason, CancelReason, FailureClass, Outcome, JobType,
        OpCode,
    ):  # fmt: skip
        for word in words:
            assert f'"{word}"' in told


def test_unknown_types_are_ignored_by_both_sides() -> None:
    news = '{"v":1,"type":"parley","id":"1","payload":{"x":1}}'
    assert from_runner(news) is None
    assert from_gateway(news) is None
    welcome = next(path for path in FIXTURES if path.stem == "welcome.pool")
    assert from_runner(welcome.read_text()) is None, "a gateway's word only"


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        ("", "truncated"),
        ("hello", "malformed"),
        ("[]", "object"),
        ("null", "object"),
        ('{"v":1,"type":"ready","id":"1","payload":{"freeSlots":-1}}', "freeSlots"),
        ('{"v":1,"type":"ready","id":"1","payload":{"freeSlots":"2"}}', "freeSlots"),
        ('{"v":1,"type":"ready","id":"1","payload":{"freeSlots":1e400}}', "ready"),
        ('{"v":1,"type":"ready","id":"1","payload":[]}', "ready"),
        ('{"v":1,"type":"ready","id":7,"payload":{}}', "id"),
        ('{"v":"1","type":"ready","id":"1","payload":{}}', r"\$\.v"),
        ('{"v":1,"type":7,"id":"1","payload":{}}', "type"),
        ('{"v":1,"type":"accept","id":"1","jobId":"7","payload":{"leaseEpoch":1,"jobToken":""}}', "jobId"),
        (f'{{"v":1,"type":"accept","id":"1","jobId":"{JOB}","payload":{{"leaseEpoch":1.5,"jobToken":""}}}}', "Epoch"),
        (
            f'{{"v":1,"type":"accept","id":"1","jobId":"{JOB}","payload":{{"leaseEpoch":{2**63},"jobToken":""}}}}',
            "Epoch",
        ),
        ("[" * 100_000, "no good"),
        (b"\xff\xfe{}", "no good"),
        (b'{"v":1,"type":"bye","id":"1","payload":{"reason":"\xff"}}', "no good"),
    ],
)
def test_a_bad_frame_is_refused_with_its_place(frame: str | bytes, says: str) -> None:
    with pytest.raises(ProtocolError, match=says) as caught:
        from_runner(frame)
    assert caught.value.code == "bad_message"


@pytest.mark.parametrize("version", [0, 2, 99])
def test_another_envelope_version_is_told_apart(version: int) -> None:
    """S55"""
    with pytest.raises(ProtocolError, match=f"version {version}; supported is 1") as caught:
        from_runner(f'{{"v":{version},"kind":"something else"}}')
    assert caught.value.code == "unsupported_version"


@pytest.mark.parametrize(
    ("ok", "extra"),
    [("true", ""), ("false", ""), ("true", ',"result":{},"error":{"code":"c","message":"m","retryable":false}')],
)
def test_a_response_has_either_a_result_or_an_error(ok: str, extra: str) -> None:
    payload = f'{{"leaseEpoch":1,"jobToken":"t","opId":"a","ok":{ok}{extra}}}'
    with pytest.raises(ProtocolError, match="`result` if `ok`") as caught:
        from_runner(f'{{"v":1,"type":"op.response","id":"1","jobId":"{JOB}","sessionId":"{JOB}","payload":{payload}}}')
    assert caught.value.job_id == JOB


def progress_of(size: int) -> bytes:
    """A complete whose payload has exactly this size."""
    head, tail = b'{"leaseEpoch":1,"jobToken":"t","outcome":"succeeded","result":{"x":"', b'"}}'
    payload = head + b"x" * (size - len(head) - len(tail)) + tail
    return f'{{"v":1,"type":"complete","id":"1","payload":{payload.decode()},"jobId":"{JOB}"}}'.encode()


def test_the_payload_limit_is_exact_in_both_directions() -> None:
    """S48"""
    allowed = progress_of(PAYLOAD_BYTES_MAX)
    frame = from_runner(allowed)
    assert frame is not None
    assert encode(frame) == allowed
    assert len(allowed) < READ_BYTES_MAX
    with pytest.raises(ProtocolError, match="4,194,305 bytes") as caught:
        from_runner(progress_of(PAYLOAD_BYTES_MAX + 1))
    assert (caught.value.code, caught.value.job_id) == ("message_too_large", JOB)
    message = frame.message
    assert isinstance(message, messages.Complete)
    assert message.result is not None
    larger = msgspec.structs.replace(message, result={"x": message.result["x"] + "x"})
    with pytest.raises(ProtocolError, match="presigned URL"):
        encode(Frame("1", larger, JOB))


def test_the_close_codes_are_the_seeds() -> None:
    assert {int(code) for code in CloseCode} == {1000, 1001, 1009, 4400, 4401, 4403, 4408, 4409, 4429}


def test_arguments_that_are_no_good_say_which() -> None:
    with pytest.raises(ProtocolError, match="no op 'teleport', only: stage, ffmpeg") as caught:
        ops.args_of("video.compile", "teleport", {})
    assert caught.value.code == "unsupported_op"
    with pytest.raises(ProtocolError, match="no op 'stat'"):
        ops.args_of("remotion.workspace-session", "stat", {})
    for args in ({}, {"path": "a", "maxBytes": PAYLOAD_BYTES_MAX + 1}, {"path": 7, "maxBytes": 1}):
        with pytest.raises(ProtocolError, match="arguments of read") as caught:
            ops.args_of("video.compile", "read", args)
        assert caught.value.code == "invalid_args"
    with pytest.raises(ProtocolError, match="result of stat"):
        ops.result_of("video.compile", "stat", {"exists": "yes"})


@pytest.mark.parametrize("of", [str, str.encode])
def test_a_nul_in_what_is_written_down_is_shown_and_stops_nothing(of: Callable[[str], str | bytes]) -> None:
    def said(kind: str, **fields: Any) -> Any:
        payload = {"leaseEpoch": 1, "jobToken": "t"} | fields
        job = "0197c7a0-0000-7000-8000-0000000000a1"
        envelope = {"v": 1, "type": kind, "id": "1", "jobId": job, "sessionId": job, "payload": payload}
        frame = from_runner(of(json.dumps(envelope)))
        assert frame is not None and (frame.id, frame.job_id) == ("1", job)
        return frame.message

    fail = {"class": "input", "code": "bad", "message": "a\0b", "retryable": False}
    assert said("fail", **fail).message == "a\ufffdb"
    deep = {"x\0": ["\0", {"y": "\0z", "n": 1, "no": None}]}
    clean = {"x\ufffd": ["\ufffd", {"y": "\ufffdz", "n": 1, "no": None}]}
    assert said("complete", outcome="succeeded", result=deep, metrics=deep).result == clean
    assert said("progress", stage="s", percent=1.5, detail="\0").detail == "\ufffd"
    # What a file holds is not changed on its way, and words that look like an escape are none.
    read = {"content": "a\0b", "encoding": "utf8", "bytes": 3}
    assert said("op.response", opId="1", ok=True, result=read).result == read
    assert said("complete", outcome="succeeded", result={"x": "\\u0000"}).result == {"x": "\\u0000"}


@pytest.mark.parametrize(
    ("kind", "field", "payload"),
    [
        ("fail", "message", {"class": "input", "code": "bad", "retryable": False}),
        ("progress", "detail", {"stage": "encode"}),
        ("reject", "message", {"reason": "busy"}),
    ],
)
def test_a_long_text_is_cut_and_its_message_counts(kind: str, field: str, payload: dict[str, Any]) -> None:
    """The end of a job is not lost because a program had much to say."""

    def said(text: str) -> Any:
        job = "0197c7a0-0000-7000-8000-0000000000a1"
        whole = {"leaseEpoch": 1, "jobToken": "t", field: text} | payload
        frame = from_runner(json.dumps({"v": 1, "type": kind, "id": "1", "jobId": job, "payload": whole}))
        assert frame is not None
        return getattr(frame.message, field)

    assert said("é" * TEXT_MAX) == "é" * TEXT_MAX
    assert said("é" * (TEXT_MAX + 1)) == "é" * (TEXT_MAX - 1) + "…"
    assert said("x" * 3_000_000) == "x" * (TEXT_MAX - 1) + "…"


def test_every_message_is_of_one_of_both_sides() -> None:
    assert set(AnyMessage.__args__) == set(RunnerMessage.__args__) | set(GatewayMessage.__args__)
