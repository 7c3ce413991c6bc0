"""Outputs, options, encoders' parameters and ffprobe: what is judged beside paths."""

import pytest

from rota.errors import ArgvNotAllowed
from rota.runners.argv import Listing, compile_argv
from rota.runners.argv.filters import _ALIASES, _PLACES, OPTIONS, ROLES
from rota.runners.argv.options import REFUSED, RULES

SESSION = Listing(
    ["in.mp4", "q.txt"],
    {"ok.info": "key\nq.txt\n", "cmd.txt": "# note\n0.5 [enter] volume volume 0.5, volume eval once;\n1-2 eq gamma 2;"},
)


def compiled(*argv: str) -> list[str]:
    return list(compile_argv("ffmpeg", ["-i", "in.mp4", *argv], SESSION).argv)


def refused(*argv: str) -> str:
    with pytest.raises(ArgvNotAllowed) as error:
        compiled(*argv)
    return str(error.value)


@pytest.mark.parametrize(
    ("argv", "muxer"),
    [
        (["o.m4a"], "ipod"),
        (["o_%d.webp"], "image2"),
        (["o.webp"], "webp"),
        (["o.JPG"], "image2"),
        (["-f", "mp4", "o"], "mp4"),
        (["o.m3u8"], "hls"),
        (["-f", "null", "x"], "null"),
    ],
)
def test_the_muxer_is_pinned(argv: list[str], muxer: str) -> None:
    out = compiled(*argv)
    assert out[-3:-1] == ["-f", muxer]


def test_outputs_that_are_not_allowed() -> None:
    assert "give one with -f" in refused("o.xyz")
    assert "output format is not allowed" in refused("-f", "fifo", "o.mp4")
    assert "output format is not allowed" in refused("-f", "sdl", "o")
    assert "no part of an op's result" in refused("-f", "wav", "-")
    assert "standard output" in refused("-f", "mp4", "-")
    assert "%03d" in refused("o_%s%n.png")
    assert "last part" in refused("%d/o.png")
    assert "not below the output's folder" in refused("-hls_fmp4_init_filename", "../i.mp4", "h/o.m3u8")
    assert "not allowed inside" in refused("-f", "segment", "-segment_format", "hls", "o_%d.ts")
    assert "append_list" in refused("-hls_flags", "+append_list", "o.m3u8")
    assert "stream_groups" in refused("-var_stream_map", "v:0,name:../../x", "v%v/o.m3u8")
    assert "option of a muxer" in refused(
        "-segment_format_options", "protocol_whitelist=http", "-f", "segment", "o_%d.ts"
    )


def test_a_tee_writes_each_of_its_outputs_in_the_session() -> None:
    assert compiled("-map", "0", "-f", "tee", "[onfail=ignore]a.mp4|[f=mpegts:select=v]b")[-1] == (
        "[f=mp4:onfail=ignore]./a.mp4|[f=mpegts:select=v]./b"
    )
    assert compiled("-f", "tee", "[f=hls:hls_flags=single_file:hls_segment_filename=h/%d.ts]h/a.m3u8|s_%d.ts")[-1] == (
        "[f=hls:hls_flags=single_file:hls_segment_filename=./h/%d.ts]./h/a.m3u8|[f=mpegts]./s_%d.ts"
    )
    assert compiled("-f", "tee", "[f=segment:segment_time=2]s_%d.mkv")[-1] == (
        "[f=segment:segment_time=2:segment_format=matroska]./s_%d.mkv"
    )
    assert "append_list" in refused("-f", "tee", "[f=hls:hls_flags=append_list]a.m3u8")
    for name in ("[f=segment:segment_time=2]../s_%d.ts", "[f=segment]s_%d", "[f=hls:hls_segment_filename=/x.ts]a.m3u8"):
        refused("-f", "tee", name)
    for name in ("a.mp4|/b.mp4", "[f=dash]a", "[f=mp4:use_fifo=1]a", "[f=mp4]a\\|b", "[f=mp4'", "[f=tee]a"):
        refused("-f", "tee", name)


def test_key_info_names_a_key_of_the_session() -> None:
    assert "./ok.info" in compiled("-hls_key_info_file", "ok.info", "o.m3u8")


@pytest.mark.parametrize(
    ("option", "value", "right"),
    [
        ("-x264-params", "keyint=60:no-cabac:aq_mode=2", True),
        ("-x264-params", "stats=log:pass=1", True),
        ("-x264-params", "qpfile=q.txt", True),
        ("-x264-params", "qpfile=gone.txt", False),
        ("-x264-params", "opencl-clbin=x", False),
        ("-x264-params", "stats='/tmp/x'", False),
        ("-x264-params", "st\\ats=/tmp/x", False),
        ("-x264opts", "dump_yuv=/tmp/x", False),
        ("-x265-params", "csv=t.csv:log-level=error", True),
        ("-x265-params", "scaling-list=default", True),
        ("-x265-params", "lambda-file=/etc/passwd", False),
        ("-x265-params", "analysis_save=../x", False),
        ("-svtav1-params", "tune=0:film-grain=8", True),
        ("-svtav1-params", "stats=/tmp/x", False),
        ("-aom-params", "enable-cdef=0", True),
        ("-aom-params", "film-grain-table=/x", False),
    ],
)
def test_parameters_of_encoders(option: str, value: str, right: bool) -> None:
    """S71: harmless keys stay, those that name files are paths of the session."""
    if right:
        assert option in compiled(option, value, "o.mkv")
    else:
        refused(option, value, "o.mkv")


@pytest.mark.parametrize(
    ("graph", "right"),
    [
        ("sendcmd=f=cmd.txt,eq", True),
        ("asendcmd=c='1 volume volume 0.5',volume", True),
        ("sendcmd=c='1 drawtext reinit textfile=x'", False),
        ("sendcmd=c='1 [enter] lut3d file x'", False),
        ("sendcmd=c='1 [x drawtext] a b'", False),
        ("sendcmd=c='1 drawtext x 1#\\n2 a b c'", False),
        ("drawtext=font='Arial\\:style=Bold':text=a", True),
        ("drawtext=font='Sans\\:file=/x':text=a", False),
        ("drawtext=/text=q.txt", False),
        ("frei0r=x", False),
        ("libvmaf=model=path=x", False),
        ("libplacebo", False),
        ("dnn_detect", False),
        ("subtitles@a=q.txt:q.txt:q.txt:1:2:3:4:5:6", False),
        ("curves=vintage:plot=p.txt", True),
        ("metadata=print:file=-", True),
    ],
)
def test_graphs(graph: str, right: bool) -> None:
    if right:
        compiled("-vf", graph, "o.mp4")
    else:
        refused("-vf", graph, "o.mp4")


def test_what_would_go_to_standard_output_goes_to_the_log() -> None:
    assert "metadata=mode=print" in compiled("-vf", "metadata=print:file=-", "o.mp4")


def test_an_old_option_is_written_as_ffmpeg_9_knows_it() -> None:
    out = compiled("-vsync", "0", "a.mp4", "b.mp4")
    assert "-vsync" not in out
    assert out.count("-fps_mode") == 2
    assert out[out.index("-fps_mode") + 1] == "passthrough"
    assert "-hwaccel" not in compile_argv("ffmpeg", ["-hwaccel", "auto", "-i", "in.mp4", "o.mp4"], SESSION).argv
    assert "-codec" in compiled("-codec:", "copy", "o.mp4")


@pytest.mark.parametrize(
    "argv",
    [
        ["-hwaccel", "vaapi", "-i", "in.mp4", "o.mp4"],
        ["-i", "in.mp4", "-ss"],
        ["-i"],
        ["-t", "1"],
        [],
        ["o.mp4"],
        ["-i", "in.mp4", "o.mp4", "-t", "1"],
        ["-movflags", "+faststart", "-i", "in.mp4", "o.mp4"],
        ["-i", "in.mp4", "-c:v", "h264_vaapi", "o.mp4"],
        ["-c:v", "librsvg", "-i", "in.mp4", "o.mp4"],
        ["-i", "in.mp4", "-nonsense", "1", "o.mp4"],
        ["-i", "in.mp4", "-ss", "a/b", "o.mp4"],
        ["-i", "in.mp4", "-bsf:v", "nonsense", "o.mp4"],
        ["-i", "in.mp4", "-ss:v:\n", "1", "o.mp4"],
        ["-i", "in.mp4", "-vf", "x" * 200_000, "o.mp4"],
        ["-version", "-i", "x"],
        ["-i", "in.mp4"] * 3000,
        ["-i", "in.mp4", *["o.mp4"] * 300],
    ],
)
def test_command_lines_that_mean_nothing_here(argv: list[str]) -> None:
    with pytest.raises(ArgvNotAllowed):
        compile_argv("ffmpeg", argv, SESSION)


@pytest.mark.parametrize(
    ("argv", "right"),
    [
        (["in.mp4"], True),
        (["-version"], True),
        (["-i", "in.mp4", "-of", "csv=p=0"], True),
        (["in.mp4", "q.txt"], False),
        (["-show_format"], False),
        (["in.mp4", "-of", "nonsense"], False),
        (["in.mp4", "-report"], False),
        (["-show_entries", "a/b", "in.mp4"], False),
        (["in.mp4", "-o"], False),
        (["-c:v", "h264", "in.mp4"], True),
        (["-safe", "0", "in.mp4"], True),
        (["-movflags", "x", "in.mp4"], False),
        (["-hwaccel", "auto", "in.mp4"], True),
    ],
)
def test_ffprobe(argv: list[str], right: bool) -> None:
    if right:
        compile_argv("ffprobe", argv, SESSION)
    else:
        with pytest.raises(ArgvNotAllowed):
            compile_argv("ffprobe", argv, SESSION)


def test_there_are_two_tools() -> None:
    with pytest.raises(ArgvNotAllowed, match="no such tool"):
        compile_argv("ffplay", ["in.mp4"], SESSION)


def test_a_signature_is_not_repeated_in_a_reason() -> None:
    assert "s3cr3t" not in refused("-i", "https://h/x.mp4?X-Signature=s3cr3t", "o.mp4")


def test_what_is_refused_by_name_is_in_no_table() -> None:
    assert not set(REFUSED) & set(RULES)


def test_each_file_of_a_filter_has_its_place_and_name() -> None:
    assert set(ROLES) <= set(OPTIONS)
    assert set(_PLACES) == set(ROLES)
    for name, roles in ROLES.items():
        assert set(roles) <= OPTIONS[name], name
        assert set(_ALIASES.get(name, {})) <= OPTIONS[name], name
        assert set(_PLACES[name].split()) <= OPTIONS[name], name
