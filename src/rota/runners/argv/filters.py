"""Filters of a graph: which are allowed, which options of theirs name files, and what is made of those.

A filter is known by its name and options in `filters_video` and `filters_audio`. Options of this module's table name
files: what is read must be in the session, what is written may be new. `movie` opens its file without any of the
command line's whitelists, so its demuxer and protocols are pinned in its own options.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

from rota.errors import ArgvNotAllowed
from rota.runners.argv import filters_audio, filters_video
from rota.runners.argv.commands import compile_commands
from rota.runners.argv.files import Touched
from rota.runners.argv.formats import DEMUXER_NAMES, DEMUXERS, PROBED, STILL_EXTENSIONS, extension
from rota.runners.argv.graph import Filter, Graph, Option, emit, parse
from rota.runners.argv.sniff import check_subtitles, demuxer_of
from rota.runners.argv.tokens import Cursor, escape, take
from rota.runners.argv.values import check_value
from rota.runners.argv.written import written_pattern

Role = Literal[
    "read", "image", "media", "subtitles", "folder", "write", "numbered", "font", "charset", "models", "commands",
    "refuse",
]  # fmt: skip


def _paragraphs(table: str) -> Mapping[str, frozenset[str]]:
    rows = table.strip().replace("\n    ", " ").splitlines()
    return {words[0]: frozenset(words[1:]) for words in map(str.split, rows)}


OPTIONS: Mapping[str, frozenset[str]] = {**_paragraphs(filters_video.TABLE), **_paragraphs(filters_audio.TABLE)}

GENERIC = frozenset({"enable", "threads"})
"""What libavfilter gives every filter; one that has no timeline refuses `enable` itself."""

ROLES: Mapping[str, Mapping[str, Role]] = {
    "movie": {"filename": "media", "format_opts": "refuse"},
    "amovie": {"filename": "media", "format_opts": "refuse"},
    "subtitles": {"filename": "subtitles", "fontsdir": "folder", "charenc": "charset"},
    "ass": {"filename": "subtitles", "fontsdir": "folder"},
    "drawtext": {"fontfile": "read", "textfile": "read", "font": "font"},
    "lut3d": {"file": "read"},
    "lut1d": {"file": "read"},
    "curves": {"psfile": "read", "plot": "write"},
    "selectivecolor": {"psfile": "read"},
    "removelogo": {"filename": "image"},
    "nnedi": {"weights": "read"},
    "find_rect": {"object": "image"},
    "cover_rect": {"cover": "image"},
    "fieldhint": {"hint": "read"},
    "arnndn": {"model": "read"},
    "sofalizer": {"sofa": "read"},
    "life": {"filename": "read"},
    "cellauto": {"filename": "read"},
    "showcqt": {"fontfile": "read", "axisfile": "image", "font": "font"},
    "flite": {"textfile": "read"},
    "vidstabtransform": {"input": "read"},
    "vidstabdetect": {"result": "write"},
    "metadata": {"file": "write"},
    "ametadata": {"file": "write"},
    "psnr": {"stats_file": "write"},
    "ssim": {"stats_file": "write"},
    "ssim360": {"stats_file": "write"},
    "xpsnr": {"stats_file": "write"},
    "vmafmotion": {"stats_file": "write"},
    "loudnorm": {"stats_file": "write"},
    "libvmaf": {"log_path": "write", "model": "models", "model_path": "read", "feature": "models"},
    "deshake": {"filename": "write"},
    "signature": {"filename": "numbered"},
    "paletteuse": {"debug_kdtree": "write"},
    "firequalizer": {"dumpfile": "write"},
    "sendcmd": {"commands": "commands", "filename": "commands"},
    "asendcmd": {"commands": "commands", "filename": "commands"},
}
"""The options that name files, by filter. A test holds them against ffmpeg's own lists of options of type string."""

_ALIASES: Mapping[str, Mapping[str, str]] = {
    "movie": {"f": "format_name", "si": "stream_index", "sp": "seek_point", "s": "streams"},
    "amovie": {"f": "format_name", "si": "stream_index", "sp": "seek_point", "s": "streams"},
    "subtitles": {"f": "filename"},
    "ass": {"f": "filename"},
    "removelogo": {"f": "filename"},
    "life": {"f": "filename"},
    "cellauto": {"f": "filename"},
    "arnndn": {"m": "model"},
    "psnr": {"f": "stats_file"},
    "ssim": {"f": "stats_file"},
    "ssim360": {"f": "stats_file"},
    "xpsnr": {"f": "stats_file"},
    "sendcmd": {"c": "commands", "f": "filename"},
    "asendcmd": {"c": "commands", "f": "filename"},
}

_PLACES: Mapping[str, str] = {
    "movie": "filename format_name stream_index seek_point streams loop discontinuity dec_threads",
    "amovie": "filename format_name stream_index seek_point streams loop discontinuity dec_threads",
    "subtitles": "filename original_size fontsdir alpha charenc stream_index force_style",
    "ass": "filename original_size fontsdir alpha shaping",
    "drawtext": "fontfile text textfile",
    "lut3d": "file",
    "lut1d": "file interp",
    "curves": "preset master red green blue all psfile plot",
    "selectivecolor": "correction_method reds yellows greens cyans blues magentas whites neutrals blacks psfile",
    "removelogo": "filename",
    "nnedi": "weights deint field planes nsize nns qual etype pscrn",
    "find_rect": "object threshold mipmaps",
    "cover_rect": "cover mode",
    "fieldhint": "hint mode",
    "arnndn": "model mix",
    "sofalizer": "sofa gain rotation elevation radius type",
    "life": "filename size rate rule",
    "cellauto": "filename pattern rate size rule",
    "showcqt": "size fps bar_h axis_h sono_h fullhd",
    "flite": "",
    "vidstabtransform": "input smoothing optalgo maxshift maxangle crop invert relative zoom",
    "vidstabdetect": "result shakiness accuracy stepsize mincontrast show tripod",
    "metadata": "mode key value function expr file direct",
    "ametadata": "mode key value function expr file direct",
    "psnr": "stats_file stats_version output_max",
    "ssim": "stats_file",
    "ssim360": "stats_file",
    "xpsnr": "stats_file",
    "vmafmotion": "stats_file",
    "loudnorm": "I LRA TP measured_I measured_LRA measured_TP measured_thresh offset linear dual_mono print_format",
    "libvmaf": "",
    "deshake": "x y w h rx ry edge blocksize contrast search filename",
    "signature": "detectmode nb_inputs filename format",
    "paletteuse": "dither bayer_scale diff_mode new",
    "firequalizer": "gain gain_entry delay accuracy wfunc fixed multi zero_phase scale dumpfile dumpscale",
    "sendcmd": "commands filename",
    "asendcmd": "commands filename",
}
"""The order of options by place, for filters that name files: there each option is written with its name."""

_DEFAULT_FILES: Mapping[str, tuple[str, str]] = {
    "vidstabdetect": ("result", "transforms.trf"),
    "vidstabtransform": ("input", "transforms.trf"),
    "nnedi": ("weights", "nnedi3_weights.bin"),
}

_FONT = re.compile(
    # showcqt takes `|` for the colon, which would have to be escaped three times.
    r"[\w ,.&'+-]+(?:[:|](?:style|weight|slant|width)=[\w ]+|[:|](?:bold|italic|oblique|medium|light))*"
)

_MODEL_KEY = re.compile(r"[A-Za-z]\w*(?:\.\w+)?", re.ASCII)
_MODEL_VALUE = re.compile(r"[\w.+-]*", re.ASCII)


def compile_graph(text: str, *, argument: str, touched: Touched) -> str:
    """Judge a graph and write it anew.

    Args:
        text: The graph as it stands in the argv.
        argument: Where it stands, for a message.
        touched: Takes the files that the graph names.

    Returns:
        The graph in one spelling, with every file resolved and pinned.

    Raises:
        ArgvNotAllowed: It does not parse, or holds something that is not allowed.
    """
    graph = parse(text, argument=argument)
    chains = tuple(tuple(_compile_filter(each, argument, touched) for each in chain) for chain in graph.chains)
    return emit(Graph(scaler_flags=graph.scaler_flags, chains=chains))


def _compile_filter(each: Filter, argument: str, touched: Touched) -> Filter:
    where = f"{argument}, filter {each.name}"
    known = OPTIONS.get(each.name)
    if known is None:
        raise ArgvNotAllowed(where, "this filter is not allowed")
    named = False
    for option in each.options:
        if option.key is None:
            if named:
                raise ArgvNotAllowed(
                    where, f"the value {option.value[:40]!r} has no name and stands after one that has"
                )
            continue
        named = True
        if option.key not in known and option.key not in GENERIC:
            raise ArgvNotAllowed(where, f"the option {option.key[:40]!r} is not allowed")
    if each.name not in ROLES:
        return each
    options = _with_names(each, where)
    out: list[Option] = []
    for key, value in options:
        role = ROLES[each.name].get(key)
        judged = value if role is None else _JUDGES[role](f"{where}, option {key}", value, touched)
        if judged is not None:
            # A file of commands is put in the place of its name.
            out.append(Option("commands" if role == "commands" else key, judged))
    if each.name in _DEFAULT_FILES and _DEFAULT_FILES[each.name][0] not in {key for key, _ in options}:
        key, default = _DEFAULT_FILES[each.name]
        judged = _JUDGES[ROLES[each.name][key]](f"{where}, option {key}", default, touched)
        out.append(Option(key, judged or default))
    if each.name in {"movie", "amovie"}:
        out = _pin_movie(out, where, touched)
    return replace(each, options=tuple(out))


def _with_names(each: Filter, where: str) -> list[tuple[str, str]]:
    places = _PLACES[each.name].split()
    aliases = _ALIASES.get(each.name, {})
    found: list[tuple[str, str]] = []
    known: set[str] = set()
    for index, option in enumerate(each.options):
        if option.key is None and index >= len(places):
            raise ArgvNotAllowed(where, f"the value {option.value[:40]!r} needs the name of its option")
        key = places[index] if option.key is None else aliases.get(option.key, option.key)
        if key in known and key in ROLES[each.name]:
            raise ArgvNotAllowed(where, f"the option {key} is given twice")
        known.add(key)
        found.append((key, option.value))
    if {"commands", "filename"} <= known:
        raise ArgvNotAllowed(where, "give commands or a file of them")
    return found


def _read(where: str, value: str, touched: Touched) -> str:
    return "./" + touched.read(where, value)[0]


def _image(where: str, value: str, touched: Touched) -> str:
    path, entry = touched.read(where, value)
    demuxer = demuxer_of(where, path, entry)
    if extension(path) not in STILL_EXTENSIONS and not (demuxer or "").endswith("_pipe"):
        raise ArgvNotAllowed(where, f"{path!r} is no image")
    if {"%", "*", "?", "[", "{"} & set(path):
        raise ArgvNotAllowed(where, f"the name of the image {path!r} holds a character of patterns")
    return "./" + path


def _media(where: str, value: str, touched: Touched) -> str:
    return "./" + touched.read(where, value)[0]


def _subtitles(where: str, value: str, touched: Touched) -> str:
    path, entry = touched.read(where, value)
    check_subtitles(where, path, entry, touched)
    return "./" + path


def _folder(where: str, value: str, touched: Touched) -> str:
    return "./" + touched.folder(where, value)


def _write(where: str, value: str, touched: Touched) -> str | None:
    if value == "-":
        # ffmpeg's standard output is not part of an op's result; without a file the filter writes to the log.
        return None
    return "./" + touched.write(where, value)


def _numbered(where: str, value: str, touched: Touched) -> str:
    # One file for each input: `sig%d.xml` becomes sig0.xml and sig1.xml.
    return "./" + written_pattern(value, argument=where, touched=touched)


def _models(where: str, value: str, touched: Touched) -> str:
    """Models or features of libvmaf: `version=vmaf_v0.6.1:name=a|path=model.json`, with one more level of quotes."""
    models: list[str] = []
    for text in value.split("|"):
        options: list[str] = []
        cursor = Cursor(text)
        while cursor.next:
            key, equals, given = take(cursor, ":").partition("=")
            cursor.at += 1
            if not equals or not _MODEL_KEY.fullmatch(key):
                raise ArgvNotAllowed(where, f"{key[:40]!r} is no option of a model or feature")
            if key == "path":
                given = "./" + touched.read(where, given)[0]
            elif not _MODEL_VALUE.fullmatch(given):
                raise ArgvNotAllowed(where, f"the value {given[:40]!r} of {key} is not allowed")
            options.append(f"{key}={escape(given, ':|')}")
        models.append(":".join(options))
    return "|".join(models)


def _font(where: str, value: str, touched: Touched) -> str:
    if not _FONT.fullmatch(value):
        raise ArgvNotAllowed(where, "a font is a family's name with style or weight; give a file with fontfile")
    return value


def _charset(where: str, value: str, touched: Touched) -> str:
    return check_value("charset", value, argument=where)


def _refuse(where: str, value: str, touched: Touched) -> str:
    raise ArgvNotAllowed(where, "this option is not allowed")


def _commands(where: str, value: str, touched: Touched) -> str:
    def judged(where: str, name: str, options: tuple[Option, ...]) -> tuple[Option, ...]:
        each = Filter(inputs=(), name=name, instance=None, options=options, outputs=())
        if any(option.key is None for option in options):
            raise ArgvNotAllowed(where, f"options of {name} have names here")
        return _compile_filter(each, where, touched).options

    if where.endswith("filename"):
        path, _ = touched.read(where, value)
        value = touched.text(where, path)
    return compile_commands(where, value, refused=_never_set, judge=judged)


def _never_set(name: str) -> frozenset[str]:
    # `all` and names that nobody knows may be any filter.
    names = {name} if name in OPTIONS else ROLES.keys()
    return frozenset(option for each in names for option in (*ROLES.get(each, {}), *_ALIASES.get(each, {})))


_JUDGES: Mapping[Role, Callable[[str, str, Touched], str | None]] = {
    "read": _read,
    "image": _image,
    "media": _media,
    "subtitles": _subtitles,
    "folder": _folder,
    "write": _write,
    "numbered": _numbered,
    "font": _font,
    "charset": _charset,
    "models": _models,
    "commands": _commands,
    "refuse": _refuse,
}


def _pin_movie(options: list[Option], where: str, touched: Touched) -> list[Option]:
    values = {option.key: option.value for option in options}
    filename = values.get("filename")
    if not filename:
        raise ArgvNotAllowed(where, "it names no file")
    wanted = values.get("format_name")
    path, entry = touched.resolve(where, filename)
    sniffed = demuxer_of(where, path, entry)
    if wanted is not None:
        wanted = DEMUXER_NAMES.get(wanted, wanted)
        if wanted not in DEMUXERS:
            raise ArgvNotAllowed(where, f"the format {wanted[:40]!r} is not allowed")
    demuxer = wanted or sniffed
    kept = [option for option in options if option.key != "format_name"]
    if demuxer is not None:
        kept.append(Option("format_name", demuxer))
    pins = f"protocol_whitelist=file,pipe:format_whitelist={demuxer or PROBED}"
    return [*kept, Option("format_opts", pins)]
