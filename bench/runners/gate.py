"""What the gate for ffmpeg's command lines costs, beside what it costs to start ffmpeg at all.

Both are CPU time: of this process, and of the child as the system counts it. So others on the machine matter little.
"""

import resource
import subprocess
import time
from typing import Final

from bench.machine import Bystanders
from bench.report import NotMeasured, Sample
from rota.errors import MediaError
from rota.io.ffmpeg import find_tools
from rota.runners.argv import Listing, compile_argv

FILES: Final = Listing(["in.mp4", "b.mp4", "logo.png", "voice.wav", "fonts/Inter.ttf"])
LINES: Final = (
    "-ss 1.5 -i in.mp4 -t 10 -c copy cut.mp4",
    "-i in.mp4 -c:v libx264 -preset veryfast -crf 20 -pix_fmt yuv420p -c:a aac -b:a 128k -movflags +faststart out.mp4",
    "-i in.mp4 -i b.mp4 -filter_complex [0:v][1:v]xfade=transition=fade:duration=1:offset=4,format=yuv420p[v];"
    "[0:a][1:a]acrossfade=d=1[a] -map [v] -map [a] -c:v libx264 -c:a aac faded.mp4",
    "-i in.mp4 -i logo.png -filter_complex [1]scale=160:-1[l];[0][l]overlay=W-w-16:16:enable='between(t,1,5)' m.mp4",
    "-i in.mp4 -vf drawtext=fontfile=fonts/Inter.ttf:text=Hello:x=(w-tw)/2:y=h-th-20:fontsize=48 titled.mp4",
    "-i voice.wav -af loudnorm=I=-16:TP=-1.5:LRA=11:print_format=json -f null -",
    "-i in.mp4 -vf select='gt(scene,0.3)',scale=320:-1,tile=4x4 -frames:v 1 sheet.png",
    "-i in.mp4 -map 0 -c copy -f segment -segment_time 6 -reset_timestamps 1 part%03d.mp4",
)
"""What people really do, from one option to a graph of two films."""
STARTS: Final = 9


def measure(bystanders: Bystanders, times: int) -> list[Sample]:
    """Milliseconds of CPU: one command judged, and `ffmpeg -version`; the least of several each.

    Raises: NotMeasured where there is no ffmpeg.
    """
    try:
        ffmpeg = find_tools().ffmpeg
    except MediaError as error:
        raise NotMeasured(str(error)) from None
    since = bystanders.reading()
    lines = [line.split(" ") for line in LINES]
    judged, starts = [], []
    for _ in range(max(2, times // len(lines))):
        begun = time.process_time()
        for line in lines:
            compile_argv("ffmpeg", line, FILES)
        judged.append((time.process_time() - begun) / len(lines))
    for _ in range(STARTS):
        before = _children_s()
        subprocess.run([ffmpeg, "-version"], check=True, capture_output=True)
        starts.append(_children_s() - before)
    share = bystanders.share(since)
    return [Sample("gate.rota", 1000 * min(judged), share), Sample("gate.ffmpeg", 1000 * min(starts), share)]


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
