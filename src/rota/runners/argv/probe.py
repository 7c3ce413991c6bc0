"""The command line of ffprobe: one input, what to show of it, and how."""

import re
from collections.abc import Mapping, Sequence

from rota.errors import ArgvNotAllowed
from rota.runners.argv.codecs import DECODERS
from rota.runners.argv.commandline import split_option
from rota.runners.argv.files import Touched
from rota.runners.argv.inputs import pinned_input
from rota.runners.argv.options import REFUSED, RULES
from rota.runners.argv.values import check_value
from rota.runners.argv.words import words

_SWITCHES = words("""
    hide_banner unit prefix byte_binary_prefix sexagesimal pretty show_data show_error show_format show_frames
    show_packets show_programs show_streams show_stream_groups show_chapters show_program_version
    show_library_versions show_versions show_pixel_formats show_private_data private count_frames count_packets
    bitexact find_stream_info analyze_frames sections
    """)
_OF_THE_PROGRAM = frozenset({
    "show_program_version", "show_library_versions", "show_versions", "show_pixel_formats", "sections",
})  # fmt: skip
"""What needs no input."""

_NEGATED = frozenset({"show_private_data", "private", "find_stream_info", "hide_banner"})

_VALUES: Mapping[str, re.Pattern[str]] = {
    "v": re.compile(r"[a-z0-9+-]+"),
    "loglevel": re.compile(r"[a-z0-9+-]+"),
    "select_streams": re.compile(r"[\w.:#+@ -]+"),
    "show_entries": re.compile(r"[\w:=,.+ -]+"),
    "show_log": re.compile(r"\w+"),
    "show_data_hash": re.compile(r"\w+"),
    "data_dump_format": re.compile(r"\w+"),
    "show_optional_fields": re.compile(r"-?\w+"),
    "read_intervals": re.compile(r"[\d:.+%#,mus-]*"),
    "print_filename": re.compile(r"[^\x00-\x1f]+"),
    "threads": re.compile(r"\d+"),
}
_WRITER = re.compile(r"(?:default|compact|csv|flat|ini|json|xml|mermaid|mermaidhtml)(?:=[^\x00-\x08\x0e-\x1f]*)?")


def compile_ffprobe(argv: Sequence[str], touched: Touched) -> list[str]:
    """Judge a command line of ffprobe and write it anew.

    Args:
        argv: The elements, without the program.
        touched: Takes the files that it names.

    Returns:
        The command line to run instead.

    Raises:
        ArgvNotAllowed: It is refused.
    """
    out: list[str] = []
    names: list[tuple[str, str]] = []
    wanted: str | None = None
    pattern_type: str | None = None
    at = 0
    while at < len(argv):
        element = argv[at]
        at += 1
        if not element.startswith("-") or element == "-":
            names.append((repr(element[:80]), element))
            continue
        name, specifier = split_option(element)
        if not specifier and (name in _SWITCHES or (name.startswith("no") and name[2:] in _NEGATED)):
            out.append("-" + name)
            continue
        if at >= len(argv):
            raise ArgvNotAllowed(element[:60], "its value is missing, or the option is not allowed")
        value = argv[at]
        at += 1
        if name == "i" and not specifier:
            names.append((f"-i {value[:80]!r}", value))
        elif name == "f" and not specifier:
            wanted = value
        elif name == "pattern_type":
            pattern_type = value
        else:
            out += _option(name, specifier, value, touched)
    if len(names) != 1:
        if names:
            for argument, each in names:
                touched.resolve(argument, each)
            raise ArgvNotAllowed(names[1][0], "ffprobe reads one input")
        if _OF_THE_PROGRAM & {option.removeprefix("-") for option in out}:
            return out
        raise ArgvNotAllowed("the command line", "there is no input")
    pins, path = pinned_input(
        names[0][1], argument=names[0][0], wanted=wanted, pattern_type=pattern_type, touched=touched
    )
    return [*out, *pins, "-i", path]


def _option(name: str, specifier: str, value: str, touched: Touched) -> list[str]:
    argument = "-" + name + (f":{specifier}" if specifier else "")
    if not specifier and name in _VALUES:
        if not _VALUES[name].fullmatch(value):
            raise ArgvNotAllowed(argument, f"the value {value[:60]!r} is not allowed")
        return [argument, value]
    if not specifier and name in {"of", "print_format", "output_format"}:
        if not _WRITER.fullmatch(value):
            raise ArgvNotAllowed(argument, f"the writer {value[:60]!r} is not allowed")
        return [argument, value]
    if not specifier and name == "o":
        return [argument, "./" + touched.write(argument, value)]
    if name in {"codec", "c", "vcodec", "acodec", "scodec"}:
        if value not in DECODERS:
            raise ArgvNotAllowed(f"{argument} {value[:40]}", "this codec is not allowed")
        return [argument, value]
    if name == "safe" and value in {"0", "1", "-1"}:
        return []
    rule = RULES.get(name)
    if rule is not None and rule.value == "hwaccel":
        # ffprobe decodes in software and knows no such option; what is meant by `auto` is what it does.
        check_value(rule.value, value, argument=argument)
        return []
    if rule is None or "input" not in rule.places or rule.value not in {"plain", "number", "text", "word", "charset"}:
        raise ArgvNotAllowed(argument, REFUSED.get(name, "this option is not allowed"))
    return [argument, check_value(rule.value, value, argument=argument)]
