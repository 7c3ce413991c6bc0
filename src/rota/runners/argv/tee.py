"""The tee muxer: several outputs in one argument, `[f=mp4]a.mp4|[f=mpegts]b.ts`.

Each is judged like an output of its own and written with its format pinned. Quotes and backslashes come off twice, as
the muxer takes them off: once where the outputs are told apart, once in the options of each.
"""

import re

from rota.errors import ArgvNotAllowed
from rota.runners.argv.files import Touched
from rota.runners.argv.formats import MUXER_OF_EXTENSION, MUXERS, extension
from rota.runners.argv.tokens import Cursor, escape, take
from rota.runners.argv.values import check_value
from rota.runners.argv.written import written_files, written_pattern

_KEY = re.compile(r"[ \t]*([A-Za-z0-9_/]+)[ \t]*=", re.ASCII)
_STREAMS = re.compile(r"[\w:#,-]+", re.ASCII)
_MANY_FILES = frozenset({"hls", "segment"})


def tee_outputs(name: str, *, argument: str, touched: Touched) -> str:
    """Judge the outputs of a tee and write them anew.

    Args:
        name: The word that ends the output.
        argument: Where it stands, for a message.
        touched: Takes the files that are written.

    Returns:
        The word with every format pinned and every path resolved.

    Raises:
        ArgvNotAllowed: One of them is not allowed.
    """
    cursor = Cursor(name)
    out: list[str] = []
    while cursor.next or not out:
        slave = take(cursor, "|")
        cursor.at += 1
        given, output = _parts(slave, argument)
        options = dict(_option(key, value, argument, touched) for key, value in given)
        wanted = options.pop("f", None) or MUXER_OF_EXTENSION.get(extension(output), "")
        if wanted in _MANY_FILES:
            path = written_files(wanted, output, argument=argument, touched=touched)
        else:
            path = touched.write(argument, output)
            wanted = inside_format(wanted, argument)
        if wanted == "segment" and "segment_format" not in options:
            options["segment_format"] = inside_format(MUXER_OF_EXTENSION.get(extension(path), ""), argument)
        pinned = {"f": wanted, **options}
        written = ":".join(f"{key}={escape(value, ':]')}" for key, value in pinned.items())
        out.append(escape(f"[{written}]./{path}", "|"))
    return "|".join(out)


def _parts(slave: str, argument: str) -> tuple[list[tuple[str, str]], str]:
    """The options and the name of one output."""
    if not slave.startswith("["):
        return [], slave
    cursor = Cursor(slave, 1)
    found: list[tuple[str, str]] = []
    while cursor.next != "]":
        key = _KEY.match(slave, cursor.at)
        if not key:
            raise ArgvNotAllowed(argument, f"{slave[:60]!r} is no output of a tee")
        cursor.at = key.end()
        found.append((key[1], take(cursor, ":]")))
        if cursor.next == ":":
            cursor.at += 1
    return found, slave[cursor.at + 1 :]


def inside_format(wanted: str, argument: str) -> str:
    """A muxer of one file, for what is written inside of another.

    Raises:
        ArgvNotAllowed: It is not allowed there.
    """
    if wanted not in MUXERS:
        raise ArgvNotAllowed(argument, f"the format {wanted[:40]!r} is not allowed inside of another")
    return wanted


def _option(key: str, value: str, argument: str, touched: Touched) -> tuple[str, str]:
    if key == "f":
        return key, value if value in _MANY_FILES else inside_format(value, argument)
    if key == "segment_format":
        return key, inside_format(value, argument)
    if key == "hls_segment_filename":
        return key, "./" + written_pattern(value, argument=argument, touched=touched)
    if key == "hls_flags":
        if "append_list" in value:
            raise ArgvNotAllowed(argument, "the flag append_list is not allowed in a tee")
        return key, check_value("hls_flags", value, argument=argument)
    if key == "onfail" and value in {"abort", "ignore"}:
        return key, value
    if key == "select" and _STREAMS.fullmatch(value):
        return key, value
    if re.fullmatch(r"bsfs(?:/[avs]\d*)?", key):
        return key, check_value("bsf", value, argument=argument)
    return key, check_value("muxer_options", f"{key}={value}", argument=argument).partition("=")[2]
