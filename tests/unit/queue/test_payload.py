"""Payloads: what may be stored, what is refused by its field, and how stored JSON becomes a handler's type."""

import enum
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.errors import PayloadError
from rota.queue.payload import PAYLOAD_BYTES_MAX, TEXT_BYTES_MAX, check_text, cut_text, decoder, encode, readable

NUL = "has the character U+0000, which PostgreSQL cannot store"
SURROGATE = "has a lone surrogate (U+D800), which is no Unicode text"
NAN, INF = float("nan"), float("inf")


@dataclass
class Size:
    width: int
    tags: list[str] = field(default_factory=list)


class Picture(msgspec.Struct, rename="camel"):
    file_name: str
    sizes: list[Size] = []


class Order(pydantic.BaseModel):
    number: int
    note: Any = None
    share: float = 0.0


class Line(TypedDict):
    name: str
    price: int


class Colour(enum.Enum):
    RED = "red"
    BAD = "r\0ed"


def refusal(value: Any, **options: Any) -> PayloadError:
    with pytest.raises(PayloadError) as caught:
        encode(value, **options)
    return caught.value


# What may be stored


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        ("null", '"null"'),
        ([], "[]"),
        ({"a": [1, -2.5, True, None, "x"]}, '{"a":[1,-2.5,true,null,"x"]}'),
        ({1: "int", 2.5: "float"}, '{"1":"int","2.5":"float"}'),
        ((1, 2), "[1,2]"),
        ({1}, "[1]"),
        (2**64, "18446744073709551616"),
        (-(2**70), "-1180591620717411303424"),
        (datetime(2026, 1, 2, tzinfo=UTC), '"2026-01-02T00:00:00Z"'),
        (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (b"\x00\xff", '"AP8="'),
        (Colour.RED, '"red"'),
        (Size(3, ["a"]), '{"width":3,"tags":["a"]}'),
        (Picture("a.png", [Size(1)]), '{"fileName":"a.png","sizes":[{"width":1,"tags":[]}]}'),
        (Line(name="x", price=2), '{"name":"x","price":2}'),
        (Order(number=1), '{"number":1,"note":null,"share":0.0}'),
        ({"orders": [Order(number=1, note=Order(number=2))]}, None),
    ],
)
def test_what_is_stored(value: Any, text: str | None) -> None:
    stored = encode(value)
    assert text is None or stored == text
    json.loads(stored)


@pytest.mark.parametrize("text", ["\\u0000", "\\ud800", "\\\\u0000", "😀👩‍👩‍👧 漢字", '"', "\x01\x7f\u2028", "null"])
def test_text_comes_back_as_it_was_typed(text: str) -> None:
    """S8: six visible characters are six characters."""
    assert json.loads(encode({text: [text]})) == {text: [text]}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(json_values)
def test_any_json_value_is_stored_unless_postgresql_could_not(value: Any) -> None:
    if "\\u0000" in json.dumps(value) and "\0" in str(flat(value)):
        assert "U+0000" in str(refusal(value))
    else:
        assert json.loads(encode(value)) == value
        assert decoder(Any)(encode(value)) == value


def flat(value: Any) -> str:
    """All texts of a value, its keys among them."""
    if isinstance(value, dict):
        return "".join(key + flat(child) for key, child in value.items())
    if isinstance(value, list):
        return "".join(map(flat, value))
    return value if isinstance(value, str) else ""


# What is refused, by its field


BAD = {
    "nul": ("a\0b", NUL),
    "surrogate": ("a\ud800b", SURROGATE),
    "nan": (NAN, "is nan, which JSON cannot hold"),
    "inf": (INF, "is inf, which JSON cannot hold"),
    "-inf": (-INF, "is -inf, which JSON cannot hold"),
    "object": (object(), "is a object: Encoding objects of type object is unsupported"),
    "enum": (Colour.BAD, NUL),
}
PLACES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "whole": (lambda bad: bad, "$"),
    "nested": (lambda bad: {"a": {"b": [0, bad]}}, "$.a.b[1]"),
    "lists": (lambda bad: [[bad], bad], "$[0][0]"),
    "tuple": (lambda bad: (None, {"x": bad}), "$[1].x"),
    "dataclass": (lambda bad: Size(1, [bad]), "$.tags[0]"),
    "struct": (lambda bad: {"p": Picture("a", [Size(1), Size(2, [bad])])}, "$.p.sizes[1].tags[0]"),
    "pydantic": (lambda bad: Order(number=1, note={"deep": [bad]}), "$.note.deep[0]"),
    "pydantic inside": (lambda bad: [{"order": Order(number=1, note=bad)}], "$[0].order.note"),
}


@pytest.mark.parametrize(
    ("bad", "place"),
    [
        (bad, place)
        for bad in BAD
        for place in PLACES
        # A model says itself what it is in JSON, and makes null of NaN in a field of any type.
        if not (place.startswith("pydantic") and bad.endswith(("nan", "inf")))
    ],
)
def test_the_first_bad_field_is_named(bad: str, place: str) -> None:
    """S7."""
    value, reason = BAD[bad]
    wrap, path = PLACES[place]
    error = refusal(wrap(value))
    assert error.path == path
    assert str(error) == f"The payload cannot be stored: {path} {reason}."


@pytest.mark.parametrize(("key", "reason"), [("k\0", NUL), ("k\ud800", SURROGATE), (Colour.BAD, NUL)])
def test_a_bad_key_is_named_by_where_it_stands(key: Any, reason: str) -> None:
    error = refusal({"a": [{key: 1}]})
    assert error.path == "$.a[0]"
    assert str(error) == f"The payload cannot be stored: $.a[0] has a key that {reason}."


def test_a_field_of_a_model_that_is_no_number() -> None:
    assert refusal(Order(number=1, share=NAN)).path == "$.share"


@pytest.mark.parametrize(
    "value",
    [{(1, 2): 3}, Order, Size, 10**5000, (x for x in [1])],
    ids=["tuple key", "model", "dataclass", "huge", "generator"],
)
def test_what_json_cannot_say(value: Any) -> None:
    assert refusal(value).path == "$"


def test_what_the_value_is_called() -> None:
    assert str(refusal(NAN, what="result")).startswith("The result cannot be stored: $ is nan")


def test_a_value_that_contains_itself() -> None:
    ring: list[Any] = []
    ring.append({"again": ring})
    error = refusal({"ring": ring})
    assert "is nested over 500 levels deep, or contains itself" in str(error)
    assert error.path.startswith("$.ring[0].again[0].again")
    assert len(str(error)) < 400


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("null", None),
        ("[]", []),
        ('{"a": [1, {"b": "c"}]}', {"a": [1, {"b": "c"}]}),
        ("9" * 4300, int("9" * 4300)),
        ("9" * 4301, "9" * 4301),
        ('{"n": [%s]}' % ("9" * 9000), '{"n": [%s]}' % ("9" * 9000)),
        (nested(501), json.loads(nested(501))),
        *[(nested(depth), nested(depth)) for depth in (502, 900, 985, 990, 995, 1100, 100_000)],
        ('{"a":' * 600 + "1" + "}" * 600, '{"a":' * 600 + "1" + "}" * 600),
    ],
    ids=lambda given: str(given)[:12],
)
def test_what_python_cannot_read_is_shown_as_its_text(text: str, value: Any) -> None:
    assert readable(text) == value
    assert json.dumps({"jobs": [{"payload": readable(text)}]}, indent=2), "it can be written, too"


@pytest.mark.parametrize("depth", [400, 700, 990, 3000, 200_000])
@pytest.mark.parametrize("inmost", [1, None])
def test_deep_values_are_stored_or_refused_and_nothing_else(depth: int, inmost: Any) -> None:
    value = inmost
    for _ in range(depth):
        value = [value]
    try:
        stored = encode(value)
    except PayloadError:
        assert depth > 500
    else:
        assert stored.count("[") == depth


def test_the_limit_in_bytes() -> None:
    assert encode("x" * 98, bytes_max=100) == f'"{"x" * 98}"'
    error = refusal("x" * 99, bytes_max=100)
    assert str(error) == (
        "The payload has 101 bytes of JSON; at most 100 are allowed. "
        "Store the bytes elsewhere and put their address here."
    )
    assert error.path == "$"
    refusal("漢" * 33, bytes_max=100)  # 99 bytes and two quotes
    assert len(encode("x" * 8_000_000)) == 8_000_002  # S9
    refusal("x" * PAYLOAD_BYTES_MAX)


# Text outside JSON


@pytest.mark.parametrize("text", [None, "", "漢字 😀", "\\u0000", "\x01"])
def test_text_that_can_be_stored(text: str | None) -> None:
    check_text("tenant", text)


@pytest.mark.parametrize(("text", "reason"), [("a\0", NUL), ("\ud800", SURROGATE)])
def test_text_that_cannot_be_stored(text: str, reason: str) -> None:
    with pytest.raises(PayloadError) as caught:
        check_text("tenant", text)
    assert str(caught.value) == f"tenant cannot be stored: it {reason}."
    assert caught.value.path == "tenant"


@pytest.mark.parametrize(
    ("text", "bytes_max", "cut"),
    [
        ("", 10, ""),
        ("0123456789", 10, "0123456789"),
        ("0123456789x", 10, "0123456…"),
        ("😀😀😀", 12, "😀😀😀"),
        ("😀😀😀x", 12, "😀😀…"),
        ("a😀😀😀", 12, "a😀😀…"),
        ("ab😀😀😀", 12, "ab😀…"),
        ("é" * 6, 11, "éééé…"),
        ("a\0b\ud800c", 20, "a�b?c"),
    ],
)
def test_a_cut_is_at_a_code_point(text: str, bytes_max: int, cut: str) -> None:
    assert cut_text(text, bytes_max=bytes_max) == cut


@given(st.text(st.characters(codec=None)), st.integers(3, 60))
def test_any_text_can_be_stored_after_a_cut(text: str, bytes_max: int) -> None:
    cut = cut_text(text, bytes_max=bytes_max)
    check_text("text", cut)
    assert len(cut.encode()) <= bytes_max
    assert cut_text(cut, bytes_max=bytes_max) == cut


def test_two_thousand_characters_of_four_bytes() -> None:
    """S10."""
    text = "😀" * 2000
    assert cut_text(text) == text
    assert len(cut_text("😀" * 2049).encode()) <= TEXT_BYTES_MAX


# Decoding


@pytest.mark.parametrize(
    ("payload_type", "text", "value"),
    [
        (Any, '{"a": [1, null]}', {"a": [1, None]}),
        (dict, '{"a": 1}', {"a": 1}),
        (int, "1180591620717411303424", 2**70),
        (Size, '{"width": 3, "more": true}', Size(3)),
        (Picture, '{"fileName": "a", "sizes": [{"width": 1}]}', Picture("a", [Size(1)])),
        (Line, '{"name": "x", "price": 2}', {"name": "x", "price": 2}),
        (Order, '{"number": 5}', Order(number=5)),
        (list[Size], '[{"width": 1}]', [Size(1)]),
        (datetime, '"2026-01-02T00:00:00Z"', datetime(2026, 1, 2, tzinfo=UTC)),
    ],
)
def test_json_becomes_the_handlers_type(payload_type: Any, text: str, value: Any) -> None:
    assert decoder(payload_type)(text) == value


@pytest.mark.parametrize("value", [Size(3, ["a"]), Picture("a", [Size(1)]), Order(number=1, note=[1])])
def test_there_and_back(value: Any) -> None:
    assert decoder(type(value))(encode(value)) == value


@pytest.mark.parametrize(
    ("payload_type", "text", "path", "reason"),
    [
        (Size, "{}", "$", "Object missing required field `width`"),
        (Size, '{"width": "3"}', "$.width", "Expected `int`, got `str`"),
        (Picture, '{"fileName": "a", "sizes": [{"width": 1}, {"width": null}]}', "$.sizes[1].width", "Expected `int`"),
        (list[Line], '[{"name": "x", "price": 1.5}]', "$[0].price", "Expected `int`, got `float`"),
        (int, "[]", "$", "Expected `int`, got `array`"),
        (Order, '{"number": "many"}', "$.number", "Input should be a valid integer"),
        (Order, "{}", "$.number", "Field required"),
        (Any, "[" * 5000 + "]" * 5000, "$", "maximum recursion depth exceeded"),
    ],
)
def test_what_does_not_fit_is_named(payload_type: Any, text: str, path: str, reason: str) -> None:
    with pytest.raises(PayloadError) as caught:
        decoder(payload_type)(text)
    assert caught.value.path == path
    assert str(caught.value).startswith(f"The payload does not fit the handler's type: {path}: {reason}")


def test_the_models_own_rule() -> None:
    class Even(pydantic.BaseModel):
        numbers: list[int]

        @pydantic.field_validator("numbers")
        @classmethod
        def all_even(cls, numbers: list[int]) -> list[int]:
            if any(number % 2 for number in numbers):
                raise ValueError("odd one out")
            return numbers

    with pytest.raises(PayloadError, match=r"\$.numbers: Value error, odd one out"):
        decoder(Even)('{"numbers": [1]}')


def test_a_type_that_json_cannot_become() -> None:
    with pytest.raises(TypeError):
        decoder(object())
