"""Outputs: the muxer that is pinned before a name, and the further files that some muxers write."""

import posixpath
import re

from rota.errors import ArgvNotAllowed
from rota.runners.argv.commandline import Given
from rota.runners.argv.files import Touched, wildcard
from rota.runners.argv.formats import MUXER_OF_EXTENSION, MUXERS, STILL_EXTENSIONS, extension
from rota.runners.argv.inputs import PROTOCOLS
from rota.runners.argv.tee import inside_format, tee_outputs

_SPECIAL = frozenset({"hls", "dash", "segment", "stream_segment", "ssegment", "image2"})
_ENCRYPTED = ("-protocol_whitelist", "crypto,file,pipe")
_NUMBERED = re.compile(r"%0?\d*d")
_CONVERSION = re.compile(r"%(?:0?\d*d|[YmdHMSjyFTs]|v|%)")
_DASH_FIELD = re.compile(r"\$(?:RepresentationID|Number|Bandwidth|Time|ext|SubNumber)?(?:%0?\d*d)?\$")


def pinned_output(name: str, *, argument: str, options: tuple[Given, ...], touched: Touched) -> tuple[list[str], str]:
    """Judge an output and pin how it is written.

    Args:
        name: The word that ends the output.
        argument: Where it stands, for a message.
        options: The options before it.
        touched: Takes the files that are written.

    Returns:
        The options to put before the name, and the name.

    Raises:
        ArgvNotAllowed: It is no file of the session, or its format is not allowed.
    """
    wanted = [given.value for given in options if given.rule.value == "format"]
    # A target such as pal-dvd says the format too.
    targets = [(given.value or "").rpartition("-")[2].rstrip("50") for given in options if given.rule.value == "target"]
    muxer = _muxer(name, (wanted or targets or [None])[-1], argument)
    if muxer == "tee":
        return [*PROTOCOLS, "-f", "tee"], tee_outputs(name, argument=argument, touched=touched)
    if name == "-":
        if muxer != "null":
            raise ArgvNotAllowed(argument, "standard output is no part of an op's result; '-' stands with -f null only")
        return [*PROTOCOLS, "-f", "null"], "-"
    # Its segments are written through the protocol crypto, which the muxer itself puts before their names.
    encrypted = muxer == "hls" and any(given.name == "hls_key_info_file" for given in options)
    pins = [*(_ENCRYPTED if encrypted else PROTOCOLS), "-f", muxer]
    if muxer in {"segment", "stream_segment", "ssegment"}:
        inside = next((given.value for given in reversed(options) if given.name == "segment_format"), None)
        if inside is None and extension(name) not in MUXER_OF_EXTENSION:
            raise ArgvNotAllowed(argument, "the format of the segments is unknown: give -segment_format")
        if inside is None:
            pins = ["-segment_format", inside_format(MUXER_OF_EXTENSION[extension(name)], argument), *pins]
    if muxer in _SPECIAL:
        path = written_pattern(name, argument=argument, touched=touched)
        if muxer == "dash":
            _default_names(path, r"(?:init|chunk)-stream.*|master\.m3u8|media_\d+\.m3u8", argument, touched)
        if muxer == "hls":
            stem = re.escape(posixpath.basename(path).rpartition(".")[0])
            _default_names(
                path, stem + r"-?\d*\.(?:ts|m4s|vtt|mp4)|init\.mp4|" + stem + r"_vtt\.m3u8", argument, touched
            )
    else:
        path = touched.write(argument, name)
    return pins, "./" + path


def written_pattern(name: str, *, argument: str, touched: Touched) -> str:
    """Resolve a name that may hold numbers, dates or, for DASH, fields.

    Args:
        name: The name as it is given to ffmpeg.
        argument: Where it stands, for a message.
        touched: Takes the names that may come of it.

    Returns:
        The name, resolved.

    Raises:
        ArgvNotAllowed: It leads outside, or holds a conversion that could.
    """
    if "%" in _CONVERSION.sub("", name):
        raise ArgvNotAllowed(argument, "a name holds numbers (%03d), dates (%Y%m%d-%H%M%S), %v or %% only")
    bare = _DASH_FIELD.sub("", _CONVERSION.sub("", name))
    if "%" not in name and bare == name:
        return touched.write(argument, name)
    folder, last = posixpath.split(name)
    if _CONVERSION.sub("", folder.replace("%v", "")) != folder.replace("%v", ""):
        raise ArgvNotAllowed(argument, "numbers and dates stand in the last part of a name only")
    if "%T" in last:
        raise ArgvNotAllowed(argument, "%T makes colons, which are not allowed in names")
    pieces = re.split(r"%(?:0?\d*d|[YmdHMSjyFTs]|v|%)|\$(?:\w*)(?:%0?\d*d)?\$", last)
    return touched.write_pattern(argument, name, wildcard(pieces))


def beside(name: str, output: str, *, argument: str, touched: Touched) -> str:
    """Judge a name that a muxer joins to the folder of its output.

    Args:
        name: The name as it is given.
        output: The path of the output.
        argument: Where it stands, for a message.
        touched: Takes the names that may come of it.

    Returns:
        The name, still relative to the folder of the output.

    Raises:
        ArgvNotAllowed: It leads outside.
    """
    if name.startswith("/") or ".." in name.split("/"):
        raise ArgvNotAllowed(argument, f"the path is not below the output's folder ({name[:60]!r})")
    touched.resolve(argument, name)
    folder = posixpath.dirname(output)
    # Where the folder holds `%v`, the hls muxer puts the master playlist beside the folders of the variants.
    for each in {folder, posixpath.dirname(folder)} if "%v" in folder else {folder}:
        written_pattern("./" + posixpath.join(each, name), argument=argument, touched=touched)
    return name


def _muxer(name: str, wanted: str | None, argument: str) -> str:
    if wanted is not None:
        muxer = wanted
        if muxer not in MUXERS and muxer not in _SPECIAL and muxer != "tee":
            raise ArgvNotAllowed(f"{argument} with -f {wanted[:40]}", "this output format is not allowed")
        return muxer
    if extension(name) in STILL_EXTENSIONS and _NUMBERED.search(name):
        return "image2"
    muxer = MUXER_OF_EXTENSION.get(extension(name), "")
    if not muxer:
        # The path itself is judged first: what is wrong with `http://…` is not its extension.
        Touched(_NOTHING).resolve(argument, name)
        raise ArgvNotAllowed(argument, "the name shows no format that is known here: give one with -f")
    return muxer


def _default_names(path: str, expression: str, argument: str, touched: Touched) -> None:
    touched.write_pattern(argument, "./" + path, expression)


class _Nothing:
    """A session without files: only the spelling of a path counts."""

    def entry(self, path: str) -> None:
        return None

    def paths(self) -> tuple[str, ...]:
        return ()

    def text(self, path: str) -> None:
        return None


_NOTHING = _Nothing()
