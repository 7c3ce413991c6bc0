"""A handler as the worker sees it: the function, its kind, and how to call it. Pure.

A handler is `async def f(ctx, payload)`, or a plain function of the same shape that runs in a thread. It may leave
out the payload, or both. The payload's type comes from the annotation of the second parameter.
"""

import contextlib
import functools
import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass, replace
from datetime import date, time
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Final
from uuid import UUID

from msgspec import Struct

from rota.errors import SettingsError
from rota.queue import payload as payloads
from rota.queue.kind import Kind

PAYLOAD_TYPE = "__rota_payload__"
"""The attribute of a function that keeps a payload type given to the decorator, so that a child process finds it."""


@dataclass(frozen=True, slots=True)
class Handler:
    """One kind's function.

    Attributes:
        kind: its settings.
        function: what the program gave.
        call: takes (ctx, payload) and calls the function with as much of it as that takes.
        is_async: whether calling it gives a coroutine.
        decode: turns stored JSON text into what the function takes; raises PayloadError.
    """

    kind: Kind
    function: Callable[..., Any]
    call: Callable[[Any, Any], Any]
    is_async: bool
    decode: Callable[[str], Any]

    def with_limit(self, limit: int) -> "Handler":
        """The same handler with another limit."""
        return replace(self, kind=replace(self.kind, limit=limit))


def make_handler(function: Callable[..., Any], *, kind: Kind) -> Handler:
    """Reads a function's signature and checks that it can be a handler of this kind.

    Args:
        function: `f(ctx, payload)`, `f(ctx)` or `f()`, async or not.
        kind: its settings; the payload type is taken from the annotation unless the kind gives one.

    Raises: SettingsError that names the kind and says what does not fit.
    """
    name = kind.name
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise SettingsError(f"The handler of kind {name!r} is a generator: return one result in place of `yield`.")
    if kind.isolation == "async" and not is_async:
        raise SettingsError(f"Kind {name!r} has isolation='async', but its handler is a plain function: make it async.")
    if kind.isolation in ("thread", "process") and is_async:
        raise SettingsError(
            f"Kind {name!r} has isolation={kind.isolation!r}, but its handler is async: make it a plain function."
        )
    if kind.isolation == "process" and "<" in getattr(function, "__qualname__", "<"):
        raise SettingsError(
            f"Kind {name!r} has isolation='process', but its handler stands inside another function: "
            "a child process can only import what stands at the top of a module."
        )
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise SettingsError(f"The handler of kind {name!r} is no function: {error}.") from None
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    # What takes (*args) is most often a decorator around a handler.
    taken = 2 if any(p.kind is p.VAR_POSITIONAL for p in parameters) else min(len(positional), 2)
    if len(required) > taken or any(p.kind is p.KEYWORD_ONLY for p in required):
        raise SettingsError(
            f"The handler of kind {name!r} takes ({', '.join(p.name for p in parameters)}); "
            "it may take (ctx, payload), (ctx) or nothing."
        )
    if positional and _is_data(_annotation_if_there(function, positional[0], kind=name), alone=len(positional) == 1):
        shown = inspect.formatannotation(positional[0].annotation)
        raise SettingsError(
            f"The handler of kind {name!r} takes {positional[0].name}: {shown} first, where it is given its context: "
            f"write (ctx, {positional[0].name}: {shown})."
        )
    payload_type = kind.payload_type
    if payload_type is Any and len(positional) >= 2:
        payload_type = _annotation(function, positional[1], kind=name)
    try:
        decode = payloads.decoder(payload_type)
    except TypeError as error:
        raise SettingsError(f"The payload type of kind {name!r} cannot be read from JSON: {error}.") from None
    kind.check()
    # It is called for every job, so the usual one is called as it is.
    call = function if taken == 2 else functools.partial(_call_with_less, function, taken)
    return Handler(replace(kind, payload_type=payload_type), function, call, is_async, decode)


def _call_with_less(function: Callable[..., Any], taken: int, context: Any, _payload: Any) -> Any:
    return function(*(context,)[:taken])


DATA: Final = (bool, int, float, str, bytes, list, tuple, dict, set, frozenset, Enum, date, time, UUID, Decimal)


def _is_data(annotation: Any, *, alone: bool) -> bool:
    """Whether this can only be meant for a payload. Beside one, a class of the program may be a context of its own,
    made by a decorator."""
    kind = typing.get_origin(annotation) or annotation
    if kind is Annotated:
        return _is_data(typing.get_args(annotation)[0], alone=alone)
    if kind in (typing.Union, types.UnionType):
        return all(_is_data(one, alone=alone) for one in typing.get_args(annotation))
    if not isinstance(kind, type):
        return kind is typing.Literal
    if alone and (issubclass(kind, Struct) or is_dataclass(kind) or hasattr(kind, "model_fields")):
        return True
    return issubclass(kind, (*DATA, types.NoneType))


def _annotation_if_there(function: Callable[..., Any], parameter: inspect.Parameter, *, kind: str) -> Any:
    try:
        return _annotation(function, parameter, kind=kind)
    except SettingsError:
        return Any


def _annotation(function: Callable[..., Any], parameter: inspect.Parameter, *, kind: str) -> Any:
    """The type of this parameter alone: the other annotations may exist for a type checker only."""
    if parameter.annotation is parameter.empty:
        return Any
    alone = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    inner: Any = inspect.unwrap(function)
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(inner.func)
    code = getattr(inner, "__code__", None)
    cells = zip(code.co_freevars, inner.__closure__ or (), strict=True) if code is not None else ()
    around = {}
    for name, cell in cells:
        # One that is empty has no value yet, as a variable that is set below the handler has none.
        with contextlib.suppress(ValueError):
            around[name] = cell.cell_contents
    try:
        hints = typing.get_type_hints(alone, getattr(inner, "__globals__", {}), around, include_extras=True)
    except Exception as error:
        raise SettingsError(
            f"The payload type {parameter.annotation!r} of kind {kind!r} is not to be found when the program runs "
            f"({error}). Define or import it at the top of the module, or give payload=… to @app.job."
        ) from error
    return hints[parameter.name]
