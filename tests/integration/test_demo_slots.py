"""`rota demo slots` as a person without a terminal sees it, and as a program reads it."""

import io
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from rota.demo.balancers import find
from rota.demo.slots_look import Fleet
from rota.demo.slots_program import PREVIEW, Planned, Work, plan
from rota.demo.slots_view import LiveView
from rota.errors import MediaError
from rota.io.ffmpeg import find_tools
from rota.slots.messages import JobView, Overview, ServiceView, WaitgroupView
from tests.integration.programs import ROTA, nothing_runs, run


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Path]:
    """A folder with a clip and a tone."""
    place = tmp_path / "demo"
    place.mkdir()
    tools = find_tools(os.environ.get("ROTA_FFMPEG"))
    picture = ["-f", "lavfi", "-i", "testsrc2=size=640x360:rate=25:duration=6"]
    sound = ["-f", "lavfi", "-i", "aevalsrc=0.1*sin(2000*PI*t):sample_rate=48000:duration=4"]
    video = ["-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-c:a", "aac"]
    for name, argv in (("a [b] clip.mp4", [*picture, *sound, *video]), ("tone.wav", sound)):
        subprocess.run([tools.ffmpeg, "-v", "error", *argv, place / name], check=True, stdin=subprocess.DEVNULL)
    yield place
    nothing_runs(place)


def test_an_exec_server_is_killed_and_all_is_done(work: Path) -> None:
    done = run([*ROTA, "demo", "slots", "a [b] clip.mp4", "tone.wav", "--json"], folder=work, timeout_s=300)
    assert (done.status, done.err) == (0, "")
    told = json.loads(done.out)
    assert (told["ok"], told["jobs"], told["done"], told["errors"]) == (True, 18, 18, [])
    assert told["balancer"] == next((name for name in ("nginx", "haproxy") if find(name)), None)  # type: ignore[arg-type]
    assert told["killed"]["server"] in told["commands"]
    assert told["tried_again"] >= 1
    assert set(told["grants"]["kind"]) == {"preview", "conversion"}
    made = sorted(path.name for path in Path(told["results"]).iterdir())
    assert len(made) == 14 and "01 preview.jpg" in made and "02 1 240.aac" in made
    nothing_runs(work)


def test_what_is_no_media_is_said_so(work: Path) -> None:
    (work / "text.mp4").write_text("no media")
    done = run([*ROTA, "demo", "slots", "text.mp4"], folder=work)
    assert (done.status, "text.mp4" in done.err) == (1, True)
    with pytest.raises(MediaError):
        plan({}, work, conversions=3)


def test_the_picture_shows_slots_the_want_book_and_grants() -> None:
    made = Planned(PREVIEW, Work("a", "b", "thumbnail", {}), "a [b].mp4")
    fleet = Fleet({"exec 1": 1, "exec 2": 2, "exec 3": 3}, {"j1": made, "j2": made})
    fleet.seen["exec 1"] = Overview(
        "one", 2, {"media": WaitgroupView(1, 1, 0, 1)}, {"thumbnail": ServiceView("media", 7)},
        [
            JobView("j1.a", "c1", "thumbnail", "running", 100, for_s=1.5),
            JobView("j2.b", "c2", "thumbnail", "waiting", 100, ahead=0, for_s=2.5),
        ],
    )  # fmt: skip
    fleet.seen["exec 2"] = fleet.seen["exec 1"]
    fleet.dead.add("exec 2")
    fleet._note("exec 1", fleet.seen["exec 1"], {"j1": "worker 2"})
    console = Console(file=io.StringIO(), width=100, height=40, force_terminal=True, color_system=None)
    view = LiveView(console)
    view.show(fleet, [])
    view.say("Killed [exec] 2.")
    view.close()
    file = console.file
    assert isinstance(file, io.StringIO)
    shown = file.getvalue()
    for text in ("1 of 1", "preview a [b].mp4", "killed", "starts", "for worker 2", "Killed [exec] 2.", "2.5 s"):
        assert text in shown, shown
    assert [view.job_id for view in fleet.waiting()] == ["j2.b"]
