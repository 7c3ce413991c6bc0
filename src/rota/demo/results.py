"""What the demo's jobs answer: plain data, as it is stored with the job and shown on the page."""

from typing import TypedDict, final


@final
class StreamFacts(TypedDict):
    """One stream: its place in the file, `video`, `audio` or another type, its codec, and one line for people."""

    index: int
    type: str
    codec: str
    summary: str


@final
class ProbeResult(TypedDict):
    """What a file is.

    `width` and `height` are the picture as shown, in square pixels and after rotation; they and `fps` are None without
    video. Cover art is not video. `audio_duration_s` is None if the file does not state it. `reliable_length` is False
    if the durations are only ffprobe's estimate.
    """

    container: str
    size_bytes: int
    duration_s: float | None
    audio_duration_s: float | None
    reliable_length: bool
    streams: list[StreamFacts]
    codecs: list[str]
    width: int | None
    height: int | None
    fps: float | None
    video_index: int | None
    audio_index: int | None


@final
class Skipped(TypedDict):
    """The file has nothing to do this to; `skipped` says what is missing. No file was written."""

    skipped: str


@final
class SheetResult(TypedDict):
    """A contact sheet: the size of the JPEG in pixels and bytes, and the instants shown, in seconds."""

    width: int
    height: int
    size_bytes: int
    at_s: list[float]


@final
class LoudnessResult(TypedDict):
    """EBU R128: integrated loudness (LUFS), range (LU), true peak (dBTP). None: too short or too quiet to tell."""

    integrated_lufs: float | None
    range_lu: float | None
    true_peak_dbtp: float | None


@final
class TranscodeResult(TypedDict):
    """A transcode as it lies on disk. `width`, `height` and the encoder of a stream that is not there are None."""

    width: int | None
    height: int | None
    video_encoder: str | None
    audio_encoder: str | None
    duration_s: float | None
    size_bytes: int


@final
class WaveformResult(TypedDict):
    """A waveform picture: the size of the PNG in pixels and bytes."""

    width: int
    height: int
    size_bytes: int
