"""Values of options that name no file: their shape."""

import re
from collections.abc import Mapping

from rota.errors import ArgvNotAllowed
from rota.runners.argv import options_numeric
from rota.runners.argv.formats import BITSTREAM_FILTERS
from rota.runners.argv.graph import parse_options
from rota.runners.argv.tokens import Cursor, escape, take

VALUE_CHARACTERS_MAX = 64 * 1024
"""Some thousand times of key frames or segments."""

_NUMBER = r"[-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|\.\d+)(?:[kKMGTmunp]i?)?[bB]?(?:dB)?"

_SHAPES: Mapping[str, re.Pattern[str]] = {
    "number": re.compile(rf"{_NUMBER}(?:[/:]{_NUMBER})?|[A-Za-z_][\w.-]*|INT_MAX"),
    "time": re.compile(r"[-+]?(?:\d{1,20}:){0,2}\d{0,20}\.?\d{0,20}(?:us|ms|s)?"),
    "word": re.compile(r"[\w.+-]+"),
    "level": re.compile(r"[a-z0-9+-]+"),
    # A file's number may be missing: `v` is `0:v`.
    "map": re.compile(r"(?=.)-?\d*(?::[^\x00-\x1f\[\]]*|[A-Za-z#][^\x00-\x1f\[\]]*)?\??|\[[^\x00-\x1f\[\]]+\]"),
    "keyframes": re.compile(r"[^\x00-\x08\x0e-\x1f]+"),
    "plain": re.compile(r"[^\x00-\x1f\x7f]*"),
    "text": re.compile(r"[^\x00]*"),
    "hwaccel": re.compile(r"none|auto"),
    # Its names become parts of paths where an output's name holds `%v`.
    "stream_groups": re.compile(r"[\w:, =-]*"),
    "strftime": re.compile(r"0|1|true|false"),
    # It is only written into a playlist, where a whole address is common; nothing is opened by it.
    "prefix": re.compile(r"(?:https?://[\w.-]+(?::\d+)?/|/)?(?![/~])(?!.*\.\.)[\w./-]*"),
    "target": re.compile(r"(?:(?:pal|ntsc|film)-)?(?:vcd|svcd|dvd|dv|dv50)"),
    # The C library's iconv loads tables by this name.
    "charset": re.compile(r"[A-Za-z0-9][\w.:+-]{0,40}", re.ASCII),
}
_REASONS = {
    "hwaccel": "devices are not opened",
    "prefix": "a prefix of entries is a path or an http address",
}

_DICTIONARY = re.compile(r"(\w[\w-]*)=([\w.+,-]*)")
_BITSTREAM_KEY = re.compile(r"[A-Za-z][\w-]*", re.ASCII)
_NUMERIC_OF_OUTPUTS = frozenset((options_numeric.OF_OUTPUTS + options_numeric.OF_BOTH).split())


def check_value(kind: str, value: str, *, argument: str) -> str:
    """Check a value that names no file.

    Args:
        kind: The kind of the option's rule.
        value: The value.
        argument: The option, for a message.

    Returns:
        The value.

    Raises:
        ArgvNotAllowed: It has not the shape of its kind.
    """
    if len(value) > VALUE_CHARACTERS_MAX:
        raise ArgvNotAllowed(argument, f"its value is longer than {VALUE_CHARACTERS_MAX} characters")
    if kind == "hls_flags":
        return _flags(value, argument)
    if kind == "muxer_options":
        return _dictionary(value, argument)
    if kind == "bsf":
        return _bitstream_filters(value, argument)
    if not _SHAPES[kind].fullmatch(value) or (kind == "time" and not re.search(r"\d", value)):
        raise ArgvNotAllowed(argument, _REASONS.get(kind, f"{value[:60]!r} is no {kind} that is known here"))
    return value


def _flags(value: str, argument: str) -> str:
    words = re.findall(r"[a-z_0-9]+", value)
    if not re.fullmatch(r"[a-z_0-9+-]+", value) or any(not re.fullmatch(r"[a-z_]+", word) for word in words):
        raise ArgvNotAllowed(argument, "flags are words joined by '+'")
    return value


def _dictionary(value: str, argument: str) -> str:
    for part in value.split(":"):
        pair = _DICTIONARY.fullmatch(part)
        if not pair or pair[1] not in _NUMERIC_OF_OUTPUTS:
            raise ArgvNotAllowed(argument, f"{part[:60]!r} is no option of a muxer that is allowed here")
    return value


def _bitstream_filters(value: str, argument: str) -> str:
    """Read a list of bitstream filters as ffmpeg does, and write it anew: `setts=ts='if(eq(N,0),0,PTS)',null`."""
    cursor = Cursor(value)
    out: list[str] = []
    while cursor.next:
        name, equals, options = take(cursor, ",").partition("=")
        cursor.at += 1
        if name not in BITSTREAM_FILTERS:
            raise ArgvNotAllowed(argument, f"the bitstream filter {name[:40]!r} is not allowed")
        written: list[str] = []
        for option in parse_options(options):
            # The first may be given by its place alone. None of these filters has an option that names a file.
            if not (option.key is None and not written) and not _BITSTREAM_KEY.fullmatch(option.key or ""):
                raise ArgvNotAllowed(
                    argument, f"the option {option.key or option.value[:40]!r} of {name} is not allowed"
                )
            if any(character < " " for character in option.value):
                raise ArgvNotAllowed(argument, f"a value of {name} holds a control character")
            written.append(option.written)
        out.append(escape(name + equals + ":".join(written), ","))
    if not out:
        raise ArgvNotAllowed(argument, "it names no bitstream filter")
    return ",".join(out)
