"""Inputs: what a name after `-i` may be, and the demuxer and whitelists that are pinned before it."""

import fnmatch
import posixpath
import re
from collections.abc import Sequence

from rota.errors import ArgvNotAllowed
from rota.runners.argv.files import Touched
from rota.runners.argv.filters import compile_graph
from rota.runners.argv.formats import DEMUXER_NAMES, DEMUXERS, PROBED, STILL_EXTENSIONS, extension
from rota.runners.argv.lists import check_list, is_list
from rota.runners.argv.playlists import joined_segments
from rota.runners.argv.sniff import demuxer_of, is_playlist

PROTOCOLS = ("-protocol_whitelist", "file,pipe")

_NUMBERED = re.compile(r"%(?:0?\d*)d")


def pinned_input(
    name: str, *, argument: str, wanted: str | None, pattern_type: str | None, touched: Touched
) -> tuple[list[str], str]:
    """Judge an input and pin how it is opened.

    Args:
        name: What follows `-i`.
        argument: Where it stands, for a message.
        wanted: The format that the caller gave with `-f`.
        pattern_type: The caller's `-pattern_type`.
        touched: Takes the files that are read.

    Returns:
        The options to put before `-i`, and the name to put after it.

    Raises:
        ArgvNotAllowed: It is no file of the session, or one that could name others.
    """
    if wanted == "lavfi":
        graph = compile_graph(name, argument=argument, touched=touched)
        return [*PROTOCOLS, "-format_whitelist", "lavfi", "-f", "lavfi"], graph
    if name == "-":
        raise ArgvNotAllowed(argument, "there is no standard input")
    if wanted in {"concat", "ffconcat"} or (wanted is None and is_list(*touched.resolve(argument, name))):
        path, _ = touched.read(argument, name)
        check_list(argument, path, touched)
        return [*PROTOCOLS, "-format_whitelist", f"concat,image2,{PROBED}", "-f", "concat", "-safe", "0"], "./" + path
    if pattern_type == "glob" or (pattern_type is None and wanted in {None, "image2"} and _is_numbered(name, touched)):
        return _images(name, argument=argument, glob=pattern_type == "glob", wanted=wanted, touched=touched)
    if pattern_type == "sequence" and _NUMBERED.search(name):
        return _images(name, argument=argument, glob=False, wanted=wanted, touched=touched)
    return _one_file(name, argument=argument, wanted=wanted, touched=touched)


def _one_file(name: str, *, argument: str, wanted: str | None, touched: Touched) -> tuple[list[str], str]:
    path, entry = touched.read(argument, name, exists=False)
    if wanted in {None, "hls"} and extension(path) in {"m3u8", "m3u"} and is_playlist(entry):
        # ffmpeg never sees the playlist: its segments are named one after the other.
        segments, demuxer = joined_segments(argument, path, touched)
        pins = ["-protocol_whitelist", "concat,file,pipe", "-format_whitelist", demuxer, "-f", demuxer]
        return pins, "concat:" + "|".join("./" + segment for segment in segments)
    sniffed = demuxer_of(argument, path, entry)
    if wanted is None:
        if sniffed is None:
            return [*PROTOCOLS, "-format_whitelist", PROBED], "./" + path
        return [*PROTOCOLS, "-format_whitelist", sniffed, "-f", sniffed], "./" + path
    if wanted == "image2":
        if extension(path) not in STILL_EXTENSIONS:
            raise ArgvNotAllowed(argument, f"{path!r} is not named like an image")
        return [*PROTOCOLS, "-format_whitelist", "image2", "-f", "image2", "-pattern_type", "none"], "./" + path
    demuxer = checked_demuxer(wanted, argument=argument)
    return [*PROTOCOLS, "-format_whitelist", demuxer, "-f", demuxer], "./" + path


def checked_demuxer(wanted: str, *, argument: str) -> str:
    """One spelling of a demuxer that may be named.

    Raises:
        ArgvNotAllowed: It is not allowed: a device, a playlist or a script.
    """
    demuxer = DEMUXER_NAMES.get(wanted, wanted)
    if demuxer not in DEMUXERS:
        raise ArgvNotAllowed(f"{argument} with -f {wanted[:40]}", "this input format is not allowed")
    return demuxer


def _is_numbered(name: str, touched: Touched) -> bool:
    # A staged file with this very name is that file, whatever ffmpeg would make of the name.
    if not _NUMBERED.search(name) or extension(name) not in STILL_EXTENSIONS:
        return False
    clean = name.removeprefix("./")
    return touched.files.entry(clean) is None


def _images(name: str, *, argument: str, glob: bool, wanted: str | None, touched: Touched) -> tuple[list[str], str]:
    if wanted not in {None, "image2"}:
        raise ArgvNotAllowed(argument, "a pattern of names is for images only")
    if extension(name) not in STILL_EXTENSIONS:
        raise ArgvNotAllowed(argument, "a pattern of names must end like an image")
    folder, last = posixpath.split(name)
    special = "%*?[{\\" if glob else "%"
    if any(character in special for character in folder) or (glob and set("{}\\%") & set(last)):
        raise ArgvNotAllowed(argument, "a pattern may stand in the last part of a path only, and without braces or '%'")
    if not glob and not len(_NUMBERED.findall(last)) == last.count("%") == 1:
        raise ArgvNotAllowed(argument, "a numbered name holds one number such as %03d")
    path, _ = touched.resolve(argument, name)
    for found in matches(path, glob=glob, names=touched.names(argument)):
        real, entry = touched.read(argument, "./" + found)
        demuxer_of(argument, real, entry)
    kind = "glob" if glob else "sequence"
    return [*PROTOCOLS, "-format_whitelist", "image2", "-f", "image2", "-pattern_type", kind], "./" + path


def matches(path: str, *, glob: bool, names: Sequence[str]) -> list[str]:
    """The staged names that a pattern stands for."""
    folder, last = posixpath.split(path)
    expression = fnmatch.translate(last) if glob else numbered_expression(last)
    return sorted(
        name
        for name in names
        if posixpath.dirname(name) == folder and re.fullmatch(expression, posixpath.basename(name))
    )


def numbered_expression(last: str) -> str:
    """A regular expression of the names that a numbered name stands for."""
    return r"-?\d+".join(re.escape(part) for part in _NUMBERED.split(last))
