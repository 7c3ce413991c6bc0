"""What published media has to be, and whether it is. Pure: a spec of the platform's and ffprobe's words in, words out.

A runner's output is untrusted (I11): what it says of it is never asked here.

Spec: runners, "Presigned URLs and object storage".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

TOLERANCE_S: Final = 0.5
"""How far a length may be off: a cut at key frames, an encoder's padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """What an output has to be; what is None is not asked.

    Attributes:
        duration_s: its length, give or take `tolerance_s`: what its container says, and what its streams last.
        tolerance_s: in seconds.
        video, audio: the codec of its first such stream, as ffprobe names it; True: any; False: there is none.
        width, height: of its video, in pixels.
        format: one of the names that ffprobe gives its container, such as `mp4`.
        streams: how many it has, of whatever kind.
    """

    duration_s: float | None = None
    tolerance_s: float = TOLERANCE_S
    video: str | bool | None = None
    audio: str | bool | None = None
    width: int | None = None
    height: int | None = None
    format: str | None = None
    streams: int | None = None


def mismatch(expected: Media, probed: Mapping[str, Any]) -> str | None:
    """What is not as expected, in words; None: all is.

    Args:
        expected: what was asked for.
        probed: ffprobe's JSON with `format` and `streams`.
    """
    container = _mapping(probed.get("format"))
    streams = [_mapping(stream) for stream in _sequence(probed.get("streams"))]
    if not streams:
        return "it is no media"
    if expected.streams is not None and len(streams) != expected.streams:
        return f"it has {len(streams)} streams, not {expected.streams}"
    names = str(container.get("format_name", "")).split(",")
    if expected.format is not None and expected.format not in names:
        return f"its format is {_shown(names[0])}, not {expected.format}"
    for kind, wanted in (("video", expected.video), ("audio", expected.audio)):
        found = next(
            (str(stream.get("codec_name", "")) for stream in streams if stream.get("codec_type") == kind), None
        )
        if wanted is None:
            continue
        if (found is None) != (wanted is False):
            return f"it has {'no' if found is None else 'a stream of'} {kind}"
        if isinstance(wanted, str) and found != wanted:
            return f"its {kind} is {_shown(found or '')}, not {wanted}"
    film = next((stream for stream in streams if stream.get("codec_type") == "video"), {})
    for side, size in (("width", expected.width), ("height", expected.height)):
        if size is not None and film.get(side) != size:
            return f"its {side} is {_shown(str(film.get(side)))}, not {size}"
    if expected.duration_s is not None:
        whole_s, spans = _seconds(container.get("duration")), _spans(streams)
        # A container can say anything; what its streams last is summed up from their frames, where that is told.
        for length_s in (whole_s, *spans):
            # Compared so that a length that is no number fails, too.
            if length_s is None or not abs(length_s - expected.duration_s) <= expected.tolerance_s:
                lasts = "an unknown time" if length_s is None else f"{length_s:g} s"
                return f"it lasts {lasts}, not {expected.duration_s:g} s"
    return None


def _spans(streams: Sequence[Mapping[str, Any]]) -> list[float]:
    """From where the first stream begins to where the last one ends; empty if that is not told."""
    told = [(_seconds(stream.get("start_time")) or 0.0, _seconds(stream.get("duration"))) for stream in streams]
    known = [(start_s, start_s + length_s) for start_s, length_s in told if length_s is not None]
    return [max(end_s for _, end_s in known) - min(start_s for start_s, _ in known)] if known else []


def _seconds(value: object) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _sequence(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else []


def _shown(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)[:40]
