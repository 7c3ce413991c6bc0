"""Outputs: the muxer that is pinned before a name, and the further files that some muxers write."""

import re

from rota.errors import ArgvNotAllowed
from rota.runners.argv.commandline import Given
from rota.runners.argv.files import Touched
from rota.runners.argv.formats import MUXER_OF_EXTENSION, MUXERS, STILL_EXTENSIONS, extension
from rota.runners.argv.inputs import PROTOCOLS
from rota.runners.argv.tee import inside_format, tee_outputs
from rota.runners.argv.written import MANY_FILES, written_files

_ENCRYPTED = ("-protocol_whitelist", "crypto,file,pipe")
_NUMBERED = re.compile(r"%0?\d*d")


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
    if muxer in MANY_FILES:
        path = written_files(muxer, name, argument=argument, touched=touched)
    else:
        path = touched.write(argument, name)
    return pins, "./" + path


def _muxer(name: str, wanted: str | None, argument: str) -> str:
    if wanted is not None:
        muxer = wanted
        if muxer not in MUXERS and muxer not in MANY_FILES and muxer != "tee":
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


class _Nothing:
    """A session without files: only the spelling of a path counts."""

    def entry(self, path: str) -> None:
        return None

    def paths(self) -> tuple[str, ...]:
        return ()

    def text(self, path: str) -> None:
        return None

    def probed(self, path: str) -> None:
        return None


_NOTHING = _Nothing()
