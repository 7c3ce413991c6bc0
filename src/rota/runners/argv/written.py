"""Names that muxers of many files make of the one that they are given: numbered, dated, beside it.

None of them may lead out of the session, not even through a link that is there already.
"""

import posixpath
import re

from rota.errors import ArgvNotAllowed
from rota.runners.argv.files import Touched, wildcard

MANY_FILES = frozenset({"hls", "dash", "segment", "stream_segment", "ssegment", "image2"})
"""The muxers that write more than the one file that they are given."""

_CONVERSION = re.compile(r"%(?:0?\d*d|[aAbBFHIYjmdMpSsTuwyGV]|v|%)")
"""Numbers, a variant, and the parts of dates without a slash."""

_DASH_FIELD = re.compile(r"\$(?:RepresentationID|Number|Bandwidth|Time|ext|SubNumber)?(?:%0?\d*d)?\$")


def written_files(muxer: str, name: str, *, argument: str, touched: Touched) -> str:
    """Resolve the name of an output of a muxer of many files, and the names that it makes of it unasked.

    Args:
        muxer: One of `MANY_FILES`.
        name: The name as it is given to ffmpeg.
        argument: Where it stands, for a message.
        touched: Takes the names that may come of it.

    Returns:
        The name, resolved.

    Raises:
        ArgvNotAllowed: One of them leads outside.
    """
    path = written_pattern(name, argument=argument, touched=touched)
    if muxer == "dash":
        names = r"(?:init|chunk)-stream.*|master\.m3u8|media_\d+\.m3u8"
        touched.write_pattern(argument, "./" + path, f"(?:{names})")
    if muxer == "hls":
        stem = re.escape(posixpath.splitext(posixpath.basename(path))[0])
        names = stem + r"-?\d*\.(?:ts|m4s|vtt|mp4)|init\.mp4|" + stem + r"_vtt\.m3u8"
        touched.write_pattern(argument, "./" + path, f"(?:{names})")
    return path


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
    pieces = re.split(_CONVERSION.pattern + r"|\$(?:\w*)(?:%0?\d*d)?\$", last)
    return touched.write_pattern(argument, name, wildcard(pieces))


def check_older_playlist(output: str, *, argument: str, touched: Touched) -> None:
    """Judge the playlist that `append_list` goes on with: its segments may be deleted.

    Args:
        output: The playlist's path, resolved.
        argument: Where the flag stands, for a message.
        touched: Knows the session's files.

    Raises:
        ArgvNotAllowed: Its text is not known, or it names something that is not below its folder.
    """
    if "%" in output:
        raise ArgvNotAllowed(argument, "append_list goes with one playlist, without numbers in its name")
    if touched.files.entry(output) is None:
        return
    for line in re.split(r"[\r\n\0]", touched.text(argument, output)):
        if line and not line.startswith("#"):
            beside(line, output, argument=f"{argument}, {output!r}", touched=touched)


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
