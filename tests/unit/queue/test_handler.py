"""Handlers: which functions may be one, how they are called, and what their payload is decoded into."""

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import msgspec
import pydantic
import pytest

from rota import Context
from rota.errors import PayloadError, SettingsError
from rota.queue.handler import Handler, make_handler
from rota.queue.kind import Kind
from rota.queue.retry import Fixed

if TYPE_CHECKING:
    from rota.somewhere import OnlyForTheTypeChecker


def handler_of(function: Callable[..., Any], **options: Any) -> Handler:
    return make_handler(function, kind=Kind("resize", **options))


def refusal(function: Any, **options: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        handler_of(function, **options)
    assert "'resize'" in str(caught.value)
    return str(caught.value)


# --- how it is called ---


def test_a_handler_takes_both_one_or_nothing() -> None:
    assert handler_of(lambda ctx, payload: (ctx, payload)).call("ctx", {"a": 1}) == ("ctx", {"a": 1})
    assert handler_of(lambda ctx: ctx).call("ctx", {"a": 1}) == "ctx"
    assert handler_of(lambda: "nothing").call("ctx", {"a": 1}) == "nothing"


def test_names_do_not_matter_and_defaults_may_stay() -> None:
    def by_position(a: Any, b: Any = None, /, c: int = 3, *, d: int = 4, **rest: Any) -> Any:
        return a, b, c, d, rest

    assert handler_of(by_position).call("ctx", "payload") == ("ctx", "payload", 3, 4, {})


def test_what_takes_any_arguments_is_given_both() -> None:
    assert handler_of(lambda *args: args).call("ctx", "payload") == ("ctx", "payload")
    assert handler_of(lambda ctx, *args: (ctx, args)).call("ctx", "payload") == ("ctx", ("payload",))


def test_a_decorator_without_wraps_hands_both_on() -> None:
    def careless(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @careless
    def resize(ctx: Any, payload: Any) -> Any:
        return ctx, payload

    assert handler_of(resize).call("ctx", "payload") == ("ctx", "payload")


@pytest.mark.parametrize(
    ("function", "shown"),
    [
        (lambda a, b, c: None, "(a, b, c)"),
        (lambda ctx, *, payload: None, "(ctx, payload)"),
        (lambda ctx, payload, *, more: None, "(ctx, payload, more)"),
        (lambda ctx=None, *, more: None, "(ctx, more)"),
    ],
)
def test_a_function_that_needs_more_is_refused(function: Callable[..., Any], shown: str) -> None:
    assert refusal(function) == (
        f"The handler of kind 'resize' takes {shown}; it may take (ctx, payload), (ctx) or nothing."
    )


class Model(pydantic.BaseModel):
    n: int


class Record(msgspec.Struct):
    n: int


@dataclass
class Own:
    n: int


def first(annotation: Any, *, more: bool) -> Callable[..., Any]:
    """A function whose first parameter has this annotation."""

    def alone(n: Any) -> None: ...
    def both(n: Any, m: Any) -> None: ...

    made = both if more else alone
    made.__annotations__["n"] = annotation
    return made


@pytest.mark.parametrize(
    "annotation", [int, str | None, list[int], dict[str, Any], Annotated[str, "x"], TypedDict("T", {}), "str"]
)
def test_data_in_the_place_of_the_context_is_refused(annotation: Any) -> None:
    for more in (False, True):
        said = refusal(first(annotation, more=more))
        assert "takes n: " in said and ", where it is given its context: write (ctx, n: " in said
    assert refusal(first(int, more=False)).endswith("write (ctx, n: int).")


@pytest.mark.parametrize("annotation", [Model, Record, Own])
def test_a_class_of_the_program_may_be_a_context_of_its_own_beside_a_payload(annotation: Any) -> None:
    assert "write (ctx, n: " in refusal(first(annotation, more=False))
    handler_of(first(annotation, more=True))


@pytest.mark.parametrize(
    "annotation", [Any, object, Context, "Context", "OnlyForTheTypeChecker", Callable[[], Any], Context | None]
)
def test_any_other_annotation_may_mean_the_context(annotation: Any) -> None:
    for more in (False, True):
        handler_of(first(annotation, more=more))


def test_what_is_no_function_is_refused() -> None:
    assert refusal(5).startswith("The handler of kind 'resize' is no function: ")


def test_generators_are_refused() -> None:
    def generator(ctx: Any) -> Any:
        yield ctx

    async def async_generator(ctx: Any) -> Any:
        yield ctx

    for function in (generator, async_generator):
        assert refusal(function) == (
            "The handler of kind 'resize' is a generator: return one result in place of `yield`."
        )


def test_methods_partials_and_objects_can_be_handlers() -> None:
    class Resizer:
        def resize(self, ctx: Any, payload: dict[str, int]) -> Any:
            return ctx, payload

        async def __call__(self, ctx: Any) -> Any:
            return ctx

    method = handler_of(Resizer().resize)
    assert method.call("ctx", {"a": 1}) == ("ctx", {"a": 1})
    assert method.kind.payload_type == dict[str, int]
    assert handler_of(functools.partial(Resizer.resize, Resizer())).kind.payload_type == dict[str, int]
    called = handler_of(Resizer())
    assert called.is_async
    coroutine = called.call("ctx", None)
    assert inspect.iscoroutine(coroutine)
    coroutine.close()


# --- where it runs ---


async def on_the_loop(ctx: Any) -> None: ...


def in_a_thread(ctx: Any) -> None: ...


def test_where_it_runs_follows_from_the_function() -> None:
    assert handler_of(on_the_loop).is_async
    assert handler_of(on_the_loop, isolation="async").is_async
    assert not handler_of(in_a_thread).is_async
    assert not handler_of(in_a_thread, isolation="thread").is_async
    assert not handler_of(in_a_thread, isolation="process").is_async


def test_an_isolation_that_does_not_fit_the_function_is_refused() -> None:
    assert refusal(in_a_thread, isolation="async") == (
        "Kind 'resize' has isolation='async', but its handler is a plain function: make it async."
    )
    for isolation in ("thread", "process"):
        assert refusal(on_the_loop, isolation=isolation) == (
            f"Kind 'resize' has isolation='{isolation}', but its handler is async: make it a plain function."
        )
    assert refusal(in_a_thread, isolation="fiber").endswith("give async, thread or process.")


def test_a_child_process_needs_a_handler_that_it_can_import() -> None:
    for function in (lambda ctx: None, functools.partial(in_a_thread)):
        assert "its handler stands inside another function" in refusal(function, isolation="process")


# --- what the payload becomes ---


@dataclass
class Size:
    width: int
    height: int = 9


class SizeDict(TypedDict):
    width: int


class SizeStruct(msgspec.Struct):
    width: int


class SizeModel(pydantic.BaseModel):
    width: int


@pytest.mark.parametrize(
    ("payload_type", "text", "value"),
    [
        (Size, '{"width": 3}', Size(3)),
        (SizeDict, '{"width": 3}', {"width": 3}),
        (SizeStruct, '{"width": 3}', SizeStruct(3)),
        (SizeModel, '{"width": 3}', SizeModel(width=3)),
        (int, "3", 3),
        (str, '"3"', "3"),
        (list[Size], '[{"width": 3, "height": 4}]', [Size(3, 4)]),
        (dict[str, int], '{"width": 3}', {"width": 3}),
        (Size | None, "null", None),
        (None, "null", None),
        (Any, '{"width": [3, null]}', {"width": [3, None]}),
        (object, '{"width": 3}', {"width": 3}),
    ],
)
def test_the_annotation_is_what_the_payload_becomes(payload_type: Any, text: str, value: Any) -> None:
    def resize(ctx: Any, payload: payload_type) -> None: ...

    assert handler_of(resize).decode(text) == value
    assert handler_of(lambda ctx, payload: None, payload_type=payload_type).decode(text) == value


def test_the_name_of_the_type_is_enough() -> None:
    def resize(ctx: "Nothing that exists", size: "Size") -> "nor this": ...  # noqa: F722

    def resize_many(ctx: Any, sizes: "list[Size]", *, more: "OnlyForTheTypeChecker" = None) -> None: ...

    def resize_each(ctx: Any, sizes: list["Size"]) -> None: ...

    assert handler_of(resize).decode('{"width": 3}') == Size(3)
    assert handler_of(resize_many).decode('[{"width": 3}]') == [Size(3)]
    assert handler_of(resize_each).decode('[{"width": 3}]') == [Size(3)]


FUTURE = """
from __future__ import annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from somewhere import Context, OnlyForTheTypeChecker

@dataclass
class Size:
    width: int

async def top(ctx: Context, size: Size) -> OnlyForTheTypeChecker: ...

async def not_at_run_time(ctx: Context, size: OnlyForTheTypeChecker) -> None: ...

def make(use):
    @dataclass
    class Local:
        width: int

    async def seen(ctx: Context, size: Local) -> None:
        return Local

    async def unseen(ctx: Context, size: Local) -> None: ...

    return (seen if use else unseen), Local
"""


@pytest.fixture(scope="module")
def future() -> types.SimpleNamespace:
    """A module whose annotations are all text."""
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(FUTURE, "future.py", "exec", dont_inherit=True), names)
    return types.SimpleNamespace(**names)


def test_annotations_that_are_text_are_looked_up_where_the_function_stands(future: Any) -> None:
    assert handler_of(future.top).kind.payload_type is future.Size

    @functools.wraps(future.top)
    def wrapper(*args: Any) -> Any: ...

    assert handler_of(wrapper).kind.payload_type is future.Size


def test_a_class_inside_a_function_is_found_where_the_handler_uses_it(future: Any) -> None:
    handler, local = future.make(use=True)
    assert handler_of(handler).decode('{"width": 3}') == local(3)


def test_a_type_that_is_not_there_at_run_time_is_refused_and_not_passed_over(future: Any) -> None:
    for function in (future.not_at_run_time, future.make(use=False)[0]):
        assert refusal(function).startswith(
            f"The payload type {inspect.signature(function).parameters['size'].annotation!r}"
        )
        assert refusal(function).endswith(
            "Define or import it at the top of the module, or give payload=… to @app.job."
        )
        assert handler_of(function, payload_type=dict).decode('{"a": 1}') == {"a": 1}


def test_a_class_inside_a_function_needs_no_name() -> None:
    @dataclass
    class Local:
        width: int

    def resize(ctx: Any, size: Local) -> None: ...

    assert handler_of(resize).decode('{"width": 3}') == Local(3)


def test_a_handler_may_use_what_is_set_below_it() -> None:
    def handler(ctx: Any, payload: int) -> int:
        return payload + later

    made = handler_of(handler)
    later = 5
    assert made.call(None, made.decode("2")) == 7


def test_without_an_annotation_or_a_payload_any_json_will_do() -> None:
    for function in (lambda ctx, payload: None, lambda ctx: None, lambda: None, lambda *args: None):
        handler = handler_of(function)
        assert handler.kind.payload_type is Any
        assert handler.decode('{"a": [1, 2.5, "x", null]}') == {"a": [1, 2.5, "x", None]}


def test_the_type_that_the_kind_gives_goes_first() -> None:
    def resize(ctx: Any, size: Size) -> None: ...

    assert handler_of(resize, payload_type=dict).decode('{"width": 3}') == {"width": 3}


def test_constraints_in_the_annotation_count() -> None:
    def resize(ctx: Any, width: Annotated[int, msgspec.Meta(ge=1)]) -> None: ...

    assert handler_of(resize).decode("3") == 3
    with pytest.raises(PayloadError, match=">= 1"):
        handler_of(resize).decode("0")


def test_a_payload_that_does_not_fit_names_its_place() -> None:
    def resize(ctx: Any, sizes: list[Size]) -> None: ...

    with pytest.raises(PayloadError) as caught:
        handler_of(resize).decode('[{"width": 1}, {"width": "wide"}]')
    assert caught.value.path == "$[1].width"


def test_a_type_that_no_json_becomes_is_refused() -> None:
    def resize(ctx: Any, payload: type[int] | complex | Callable[[], None]) -> None: ...

    assert refusal(resize).startswith("The payload type of kind 'resize' cannot be read from JSON: ")


# --- its kind ---


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"limit": -1}, "has limit=-1"),
        ({"lease_s": 0.5, "heartbeat_s": 0.1}, "has lease_s=0.5"),
        ({"lease_s": 10.0, "heartbeat_s": 6.0}, "has heartbeat_s=6.0 with lease_s=10.0"),
        ({"max_tries": 0}, "has max_tries=0"),
        ({"retry": 30}, "has a retry without wait_s"),
    ],
)
def test_a_kind_that_cannot_work_is_refused(options: dict[str, Any], said: str) -> None:
    assert refusal(on_the_loop, **options).startswith(f"Kind 'resize' {said}")


def test_a_limit_can_be_changed_and_all_else_stays() -> None:
    handler = handler_of(on_the_loop, limit=3, retry=Fixed(1.0))
    changed = handler.with_limit(0)
    assert changed.kind.limit == 0
    assert changed == dataclasses.replace(handler, kind=dataclasses.replace(handler.kind, limit=0))
