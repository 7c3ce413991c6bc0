"""Paths in a session with links, and commands that would write what they read."""

import pytest

from rota.errors import ArgvNotAllowed
from rota.runners.argv import Entry, Listing, compile_argv
from rota.runners.argv.files import Touched

SESSION = Listing(
    ["in.mp4", "in/a.mp4", "dir/a.mp4", "frames/f_1.png"],
    {},
    {"to_file": "in/a.mp4", "to_folder": "in", "up": "../x", "away": "/etc", "dir/back": "../in/a.mp4", "loop": "loop"},
)


def refusal(*argv: str, session: Listing = SESSION) -> str:
    with pytest.raises(ArgvNotAllowed) as refused:
        compile_argv("ffmpeg", argv, session)
    return str(refused.value)


@pytest.mark.parametrize(
    ("given", "real"),
    [("to_file", "in/a.mp4"), ("to_folder/a.mp4", "in/a.mp4"), ("dir/back", "in/a.mp4"), ("./in.mp4", "in.mp4")],
)
def test_a_link_inside_is_followed_and_named_by_what_it_leads_to(given: str, real: str) -> None:
    assert Touched(SESSION).resolve("-i", given)[0] == real


@pytest.mark.parametrize("given", ["up", "away", "away/passwd", "to_folder/../../x", "loop"])
def test_a_link_outside_is_refused(given: str) -> None:
    with pytest.raises(ArgvNotAllowed):
        Touched(SESSION).resolve("-i", given)


class Fifo(Listing):
    """A session with a pipe in it."""

    def entry(self, path: str) -> Entry | None:
        return Entry(kind="other") if path == "pipe.mp4" else super().entry(path)


def test_what_is_no_file_is_not_opened() -> None:
    assert "neither a file nor a folder" in refusal("-i", "pipe.mp4", "-f", "null", "-", session=Fifo(["pipe.mp4"]))
    assert "is a folder" in refusal("-i", "in", "-f", "null", "-")
    assert "is a folder" in refusal("-i", "in.mp4", "-f", "mp4", "in")


@pytest.mark.parametrize(
    "argv",
    [
        ["-y", "-i", "in.mp4", "-c", "copy", "./in.mp4"],
        ["-y", "-i", "in.mp4", "-c", "copy", "IN.MP4"],  # one file on macOS and Windows
        ["-y", "-i", "to_file", "-c", "copy", "in/a.mp4"],
        ["-y", "-i", "in/a.mp4", "-c", "copy", "to_folder/a.mp4"],
        ["-dump_attachment:t:0", "later.ts", "-i", "in.mkv", "-i", "later.ts", "-f", "null", "-"],
        ["-y", "-i", "frames/f_1.png", "frames/f_%d.png"],
        ["-y", "-i", "in.mp4", "-progress", "in.mp4", "-f", "null", "-"],
        ["-y", "-i", "in.mp4", "-c:v", "libx264", "-x264-params", "stats=in.mp4", "-f", "null", "-"],
        ["-y", "-i", "in.mp4", "-vf", "metadata=print:file=in.mp4", "-f", "null", "-"],
    ],
)
def test_what_a_command_reads_it_does_not_write(argv: list[str]) -> None:
    assert "reads this file and would write it" in refusal(*argv)


def test_a_numbered_name_is_refused_if_one_of_its_names_leads_away() -> None:
    session = Listing(["in.mp4"], {}, {"out_7.png": "/etc/x"})
    assert "link that leads outside" in refusal("-i", "in.mp4", "out_%d.png", session=session)
    session = Listing(["in.mp4"], {}, {"ffmpeg2pass-0.log": "/etc/x"})
    assert "link that leads outside" in refusal("-i", "in.mp4", "-pass", "1", "-f", "null", "-", session=session)
    session = Listing(["in.mp4"], {}, {"sig0.xml": "/etc/x"})
    graph = "signature=filename=sig%d.xml"
    assert "link that leads outside" in refusal("-i", "in.mp4", "-vf", graph, "-f", "null", "-", session=session)
    session = Listing(["in.mp4"], {}, {"x265_analysis.dat.temp": "/etc/x"})
    given = ("-x265-params", "pass=1:multi-pass-opt-analysis=1")
    assert "link that leads outside" in refusal("-i", "in.mp4", *given, "o.mkv", session=session)


def test_a_compiled_command_says_what_it_touches() -> None:
    compiled = compile_argv(
        "ffmpeg", ["-i", "to_file", "-vf", "vidstabdetect=result=t.trf", "-f", "null", "-", "out/x.mp4"], SESSION
    )
    assert compiled.reads == ("in/a.mp4",)
    assert set(compiled.writes) == {"t.trf", "out/x.mp4"}
