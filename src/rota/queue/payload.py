"""Payloads and results as JSON: what may be stored, and how a stored one becomes the handler's type. Pure.

PostgreSQL's jsonb holds neither U+0000 nor a lone surrogate, and JSON holds neither NaN nor infinity; a value with one
of them is refused here, by the name of its field, before anything is sent. Nothing is ever repaired by editing JSON
text: what a user typed comes back as it was.

Spec: job queue, "The table" (payload).
"""

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Final

import msgspec

from rota.errors import PayloadError

PAYLOAD_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of JSON text in one payload or result. Larger things belong into an object store, and their address here."""

TEXT_BYTES_MAX: Final = 8 * 1024
"""Bytes of an error or a progress text; longer ones are cut."""


def _is_model(value: Any) -> bool:
    return hasattr(value, "model_dump") and not isinstance(value, type)


def _from_model(value: Any) -> Any:
    """What msgspec asks for types that it does not know."""
    if _is_model(value):
        return value.model_dump(mode="json")
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


_encode: Final = msgspec.json.Encoder(enc_hook=_from_model).encode


def encode(value: Any, *, what: str = "payload", bytes_max: int = PAYLOAD_BYTES_MAX) -> str:
    """Turns a value into JSON text that the database will take.

    Args:
        value: anything JSON can say, a dataclass, a TypedDict, a msgspec Struct, a pydantic model.
        what: how to call it in an error.
        bytes_max: the limit in bytes of UTF-8.

    Returns: JSON text.

    Raises: PayloadError with the field's path.
    """
    try:
        text = _encode(value)
    except (UnicodeEncodeError, TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        path, reason = _find_fault(value, "$", 0) or ("$", str(error))
        raise PayloadError(f"The {what} cannot be stored: {path} {reason}.", path=path) from None
    # msgspec writes NaN as null and U+0000 as an escape: the slow look is taken only where one of them may be.
    if b"null" in text or b"\\u0000" in text:
        fault = _find_fault(msgspec.to_builtins(value, str_keys=True, enc_hook=_from_model), "$", 0)
        if fault is not None:
            raise PayloadError(f"The {what} cannot be stored: {fault[0]} {fault[1]}.", path=fault[0])
    if len(text) > bytes_max:
        raise PayloadError(
            f"The {what} has {len(text):,} bytes of JSON; at most {bytes_max:,} are allowed. "
            "Store the bytes elsewhere and put their address here."
        )
    return text.decode()


def check_text(name: str, text: str | None) -> None:
    """Refuses text that PostgreSQL cannot hold, such as a tenant or a key with U+0000.

    Raises: PayloadError that names it.
    """
    if text is None:
        return
    fault = _text_fault(text)
    if fault is not None:
        raise PayloadError(f"{name} cannot be stored: it {fault}.", path=name)


def cut_text(text: str, *, bytes_max: int = TEXT_BYTES_MAX) -> str:
    """Makes any text storable: cut by bytes at a code-point border, U+0000 and lone surrogates replaced."""
    raw = text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace")
    if len(raw) <= bytes_max:
        return raw.decode()
    return raw[: bytes_max - len("…".encode())].decode("utf-8", "ignore") + "…"


def decoder(payload_type: Any) -> Callable[[str], Any]:
    """Makes the function that turns stored JSON text into the handler's type; it raises PayloadError with the path.

    Args:
        payload_type: a dataclass, TypedDict, msgspec Struct, pydantic model, builtin type, or `Any`.

    Raises: TypeError if this type cannot be decoded into at all.
    """
    if hasattr(payload_type, "model_validate_json"):
        return lambda text: _validate_pydantic(payload_type, text)
    decode = msgspec.json.Decoder(payload_type).decode

    def checked(text: str) -> Any:
        try:
            return decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise _does_not_fit(str(error)) from None

    return checked


def readable(text: str) -> Any:
    """The value of stored JSON text, for those who look at jobs; the text itself, where Python's json could not read or
    write the value again: PostgreSQL keeps numbers of more digits, and what is nested deeper."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(_DEPTH_MAX + 2):
        if not level:
            return value
        below = [child for each in level for child in (each.values() if isinstance(each, dict) else each)]
        level = [child for child in below if isinstance(child, dict | list)]
    return text


def _does_not_fit(reason: str) -> PayloadError:
    match = re.search(r" - at `(.+)`$", reason)
    path = match.group(1) if match else "$"
    said = reason[: match.start()] if match else reason
    return PayloadError(f"The payload does not fit the handler's type: {path}: {said}.", path=path)


def _validate_pydantic(model: Any, text: str) -> Any:
    try:
        return model.model_validate_json(text)
    except ValueError as error:
        details: Callable[[], Sequence[Mapping[str, Any]]] | None = getattr(error, "errors", None)
        if details is None:
            raise
        first = details()[0]
        path = "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
        raise PayloadError(f"The payload does not fit the handler's type: {path}: {first['msg']}.", path=path) from None


def _text_fault(text: str) -> str | None:
    if "\0" in text:
        return "has the character U+0000, which PostgreSQL cannot store"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"has a lone surrogate (U+{ord(text[error.start]):04X}), which is no Unicode text"
    return None


_DEPTH_MAX: Final = 500
"""Levels of nesting; a value that contains itself has more."""


def _find_fault(value: Any, path: str, depth: int) -> tuple[str, str] | None:
    """The path and the reason of the first thing in a value that JSON in PostgreSQL cannot hold."""
    if depth > _DEPTH_MAX:
        return path[:200], f"is nested over {_DEPTH_MAX} levels deep, or contains itself"
    if isinstance(value, str):
        fault = _text_fault(value)
        return None if fault is None else (path, fault)
    if isinstance(value, float):
        return None if math.isfinite(value) else (path, f"is {value}, which JSON cannot hold")
    for step, child in _children(value):
        if isinstance(child, str) and step.startswith("{"):
            fault = _text_fault(child)
            if fault is not None:
                return path, f"has a key that {fault}"
            continue
        found = _find_fault(child, path + step, depth + 1)
        if found is not None:
            return found
    if not _is_tree(value):
        try:
            _encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
            return path, f"is a {type(value).__name__}: {error}"
    return None


def _is_tree(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple | Set | msgspec.Struct) or dataclasses.is_dataclass(value)


def _children(value: Any) -> list[tuple[str, Any]]:
    """Steps and values one level down; a step `{}` stands for a key itself."""
    if isinstance(value, Mapping):
        keys: list[tuple[str, Any]] = [("{}", key) for key in value if isinstance(key, str)]
        return keys + [(f".{_plain(key)}", child) for key, child in value.items()]
    if isinstance(value, msgspec.Struct):
        return [(f".{name}", getattr(value, name)) for name in value.__struct_fields__]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f".{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value)]
    if _is_model(value):
        return [(f".{name}", child) for name, child in value]
    if isinstance(value, list | tuple | Set):
        return [(f"[{index}]", child) for index, child in enumerate(value)]
    return []


def _plain(key: Any) -> str:
    return cut_text(str(key), bytes_max=80)
