"""The tee muxer: several outputs in one argument, `[f=mp4]a.mp4|[f=mpegts]b.ts`.

Each is judged like an output of its own and written with its format pinned. Quotes and backslashes are refused: they
could hide a second output or another option, and nothing here needs them.
"""

import re

from rota.errors import ArgvNotAllowed
from rota.runners.argv.files import Touched
from rota.runners.argv.formats import MUXER_OF_EXTENSION, MUXERS, extension
from rota.runners.argv.values import check_value
from rota.runners.argv.written import written_files, written_pattern

_SLAVE = re.compile(r"(?:\[(?P<options>[^\[\]\\'|]*)\])?(?P<name>[^\[\]\\'|]+)")
_STREAMS = re.compile(r"[avs\d,]+")
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
    out: list[str] = []
    for part in name.split("|"):
        slave = _SLAVE.fullmatch(part)
        if not slave:
            raise ArgvNotAllowed(argument, f"{part[:60]!r} is no output of a tee")
        options = dict(_option(each, argument, touched) for each in (slave["options"] or "").split(":") if each)
        wanted = options.pop("f", None) or MUXER_OF_EXTENSION.get(extension(slave["name"]), "")
        if wanted in _MANY_FILES:
            path = written_files(wanted, slave["name"], argument=argument, touched=touched)
        else:
            path = touched.write(argument, slave["name"])
            wanted = inside_format(wanted, argument)
        if wanted == "segment" and "segment_format" not in options:
            options["segment_format"] = inside_format(MUXER_OF_EXTENSION.get(extension(path), ""), argument)
        pinned = {"f": wanted, **options}
        out.append("[" + ":".join(f"{key}={value}" for key, value in pinned.items()) + "]./" + path)
    return "|".join(out)


def inside_format(wanted: str, argument: str) -> str:
    """A muxer of one file, for what is written inside of another.

    Raises:
        ArgvNotAllowed: It is not allowed there.
    """
    if wanted not in MUXERS:
        raise ArgvNotAllowed(argument, f"the format {wanted[:40]!r} is not allowed inside of another")
    return wanted


def _option(text: str, argument: str, touched: Touched) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ArgvNotAllowed(argument, f"{text[:40]!r} is no option of an output of a tee")
    if key == "f":
        return key, value if value in _MANY_FILES else inside_format(value, argument)
    if key == "segment_format":
        return key, inside_format(value, argument)
    if key == "hls_segment_filename":
        return key, "./" + written_pattern(value, argument=argument, touched=touched)
    if key == "hls_flags":
        return key, check_value("hls_flags", value, argument=argument)
    if key == "onfail" and value in {"abort", "ignore"}:
        return key, value
    if key == "select" and _STREAMS.fullmatch(value):
        return key, value
    if re.fullmatch(r"bsfs(?:/[avs]\d*)?", key):
        return key, check_value("bsf", value, argument=argument)
    return key, check_value("muxer_options", text, argument=argument).partition("=")[2]
