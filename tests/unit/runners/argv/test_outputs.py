"""Outputs, options, encoders' parameters and ffprobe: what is judged beside paths."""

import pytest

from rota.errors import ArgvNotAllowed
from rota.runners.argv import Listing, compile_argv, files
from rota.runners.argv.codecs import ENCODER_OF_CODEC, ENCODERS
from rota.runners.argv.filters import _ALIASES, _PLACES, OPTIONS, ROLES
from rota.runners.argv.options import REFUSED, RULES

SESSION = Listing(
    ["in.mp4", "q.txt", "old.m3u8"],
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
    assert "no UTF-8 text" in refused("-hls_flags", "+append_list", "old.m3u8")
    assert "append_list" in refused("-hls_flags", "append_list", "o_%v.m3u8")
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
    for name in ("a.mp4|/b.mp4", "[f=dash]a", "[f=mp4:use_fifo=1]a", "[f=mp4]a\\\\|b", "[f=mp4'", "[f=tee]a"):
        refused("-f", "tee", name)
    for name in ("", "|", "a.mp4||b.mp4", "[", "[]", "[f", "[f=mp4", "[f=mp4]", "[f=mp4]'/b'", "[f='mp4:use_fifo'=1]a"):
        refused("-f", "tee", name)
    # Quotes and backslashes come off twice, and are written so that they do.
    assert compiled("-f", "tee", "[select=\\'v:0,a\\':f=mp4]it\\'s.mp4|'a|b.mkv'")[-1] == (
        "[f=mp4:select=v\\\\:0,a]./it\\'s.mp4|[f=matroska]./a\\|b.mkv"
    )
    again = compiled("-f", "tee", compiled("-f", "tee", "[select=\\'v:0,a\\':f=mp4]it\\'s.mp4")[-1])
    assert again[-1] == "[f=mp4:select=v\\\\:0,a]./it\\'s.mp4"


def test_key_info_names_a_key_of_the_session() -> None:
    assert "./ok.info" in compiled("-hls_key_info_file", "ok.info", "o.m3u8")


@pytest.mark.parametrize("between", ["\f", "\v", "\x1c", "\x85", "\u2028", "\r", "\0"])
def test_a_line_of_key_info_ends_where_ffmpeg_ends_it(between: str) -> None:
    """What ends a line for one reader only would make another line the file of the key."""
    for text in (f"u{between}q.txt\n/etc/shadow\n", f"u{between}/etc/shadow\nq.txt\n"):
        session = Listing(["in.mp4", "q.txt"], {"key.info": text})
        argv = ["-i", "in.mp4", "-hls_key_info_file", "key.info", "o.m3u8"]
        if between in "\r\0" or "q.txt\n/etc" in text:
            with pytest.raises(ArgvNotAllowed):
                compile_argv("ffmpeg", argv, session)
        else:
            assert "q.txt" in compile_argv("ffmpeg", argv, session).reads


def test_an_older_playlist_is_gone_on_with_if_it_names_what_is_beside_it() -> None:
    def judged(text: str) -> bool:
        session = Listing(["in.mp4"], {"h/o.m3u8": "#EXTM3U\n#EXTINF:2,\n" + text}, {"h/away": "/etc"})
        try:
            compile_argv("ffmpeg", ["-i", "in.mp4", "-hls_flags", "+append_list", "h/o.m3u8"], session)
        except ArgvNotAllowed:
            return False
        return True

    assert judged("s0.ts\n#EXTINF:2,\ns1.ts\n")
    assert judged("a/s0.ts\r\n")
    for text in ("../x.ts", "/etc/x.ts", "away/x.ts", "s0.ts\r../x.ts", "s0.ts\0/x.ts", "http://h/x.ts"):
        assert not judged(text + "\n"), text
    assert "append_list" in " ".join(compiled("-hls_flags", "append_list", "new.m3u8"))


@pytest.mark.parametrize(
    ("option", "value", "right"),
    [
        ("-x264-params", "keyint=60:no-cabac:aq_mode=2", True),
        ("-x264-params", "stats=log:pass=1", True),
        ("-x264-params", "qpfile=q.txt", True),
        ("-x264-params", "qpfile=gone.txt", False),
        ("-x264-params", "opencl-clbin=x", False),
        # For x264 a `cqm` that is no word of its own is a file.
        ("-x264-params", "cqm=jvt", True),
        ("-x264-params", "cqm=q.txt", True),
        ("-x264-params", "cqm=/etc/passwd", False),
        ("-x264-params", "cqm=../jvt", False),
        ("-x264-params", "no-cqm", False),
        ("-x264-params", "transfer=bt709:fullrange=off:log-level=error", True),
        ("-x264-params", "zones=0,100,crf=20,no-psy/101,200,q=30", True),
        ("-x264-params", "zones=0,100,stats=/tmp/x", False),
        ("-x264-params", "zones=0,100,cqm=/tmp/x", False),
        ("-x264-params", "zones=0", False),
        ("-x265-params", "zones=0,50,b=1.5", True),
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
        ("libvmaf=model='version=vmaf_v0.6.1\\:name=a|path=q.txt'", True),
        ("libvmaf=model='version=a|pa\\\\\\th=/etc/passwd'", False),
        ("libvmaf=model='version=a|path=../q.txt'", False),
        ("libvmaf=model='version=/etc/x'", False),
        ("libvmaf=model=version", False),
        ("libvmaf=feature='name=psnr|name=float_ssim'", True),
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


def test_commands_of_sendcmd_set_options_that_name_no_files() -> None:
    def graph(commands: str, contents: dict[str, str] | None = None) -> str:
        session = Listing(["in.mp4", "f.ttf"], contents or {})
        argv = ["-i", "in.mp4", "-vf", f"sendcmd={commands},hue", "o.mp4"]
        return compile_argv("ffmpeg", argv, session).argv[10]

    assert graph("c='1 hue s 0; 2-3 [enter] hue h 5'") == r"sendcmd=commands=1 hue s 0\;2-3 \[enter\] hue h 5,hue"
    text = "# first\n1 drawtext@t reinit fontfile=f.ttf:text='a b';\n2 Parsed_hue_1 b 1\n"
    # The file is put in the place of its name, and the font is named by what it resolves to.
    assert "fontfile=./f.ttf" in graph("f=c.txt", {"c.txt": text})
    assert "c.txt" not in graph("f=c.txt", {"c.txt": text})
    for commands in (
        "0 lut3d file /etc/passwd",
        "0 lut3d@a file x",
        "0 Parsed_arnndn_0 m x",
        "0 all file x",
        "0 nobody m x",
        "0 drawtext reinit textfile=/etc/passwd",
        "0 drawtext reinit /text=f.ttf",
        "0 drawtext reinit f.ttf",
        "0 hue reinit x=y",
        "0 hue s 0 textfile",
        "0 [never] hue s 0",
        "x hue s 0",
        "0 'hue s' 0",
    ):
        with pytest.raises(ArgvNotAllowed):
            graph(f"f=c.txt:c={commands}")
        with pytest.raises(ArgvNotAllowed):
            graph("f=c.txt", {"c.txt": commands})


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("h264_mp4toannexb", "h264_mp4toannexb"),
        ("setts=ts='if(eq(N,0),0,PTS)',null", r"setts=ts=if(eq(N\,0)\,0\,PTS),null"),
        (r"noise=drop=not(mod(n\,5))", r"noise=drop=not(mod(n\,5))"),
        ("setts=PTS+1", "setts=PTS+1"),
        ("h264_metadata=level=4.1:aud=insert", "h264_metadata=level=4.1:aud=insert"),
        (r"setts=pts=a\\:b", r"setts=pts=a\\:b"),
        ("evil", None),
        ("null,evil=x", None),
        ("h264_metadata=level=1:/aud=x", None),
        ("", None),
        (",", None),
        ("setts=ts=\x01", None),
    ],
)
def test_bitstream_filters_are_read_as_ffmpeg_reads_them(given: str, written: str | None) -> None:
    if written is None:
        refused("-c", "copy", "-bsf:v", given, "o.mp4")
    else:
        out = compiled("-c", "copy", "-bsf:v", given, "o.mp4")
        assert out[out.index("-bsf:v") + 1] == written


def test_a_codec_s_name_stands_for_the_encoder_that_opens_no_device() -> None:
    out = compiled("-c:v", "h264", "-acodec", "mp3", "o.mkv")
    assert (out[out.index("-c:v") + 1], out[out.index("-acodec") + 1]) == ("libx264", "libmp3lame")
    assert set(ENCODER_OF_CODEC.values()) <= ENCODERS
    assert list(compile_argv("ffmpeg", ["-c:v", "h264", "-i", "in.mp4", "o.mkv"], SESSION).argv[:3]) == [
        "-nostdin", "-c:v", "h264",
    ]  # fmt: skip


@pytest.mark.parametrize("value", ["0", "-0:s", "v", ":a", "0:a:m:language:eng?", "#0x100", "i:0x100", "[v]", "-1"])
def test_a_map_may_leave_out_the_number_of_the_file(value: str) -> None:
    assert compiled("-map", value, "o.mkv")[-7:-5] == ["-map", value]
    assert "no map" in refused("-map", "[" + value + "]]", "o.mkv")


def test_a_target_says_the_format_and_a_playlist_may_say_where_it_will_lie() -> None:
    assert compiled("-target", "pal-dvd", "o.bin")[-5:] == ["-protocol_whitelist", "file,pipe", "-f", "dvd", "./o.bin"]
    assert compiled("-target", "film-dv50", "o")[-2] == "dv"
    assert "output format is not allowed" in refused("-target", "pal-../x", "o.mpg")
    assert "no target" in refused("-target", "film-dvd-dvd", "o.mpg")
    assert "https://cdn.example.com/v/" in compiled("-hls_base_url", "https://cdn.example.com/v/", "o.m3u8")
    for prefix in ("file:///x/", "http://h/../x", "//h/", "http://h/\n#EXT", "ftp://h/"):
        refused("-hls_base_url", prefix, "o.m3u8")


def test_encrypted_segments_are_written_through_crypto_and_nothing_else_is() -> None:
    assert compiled("-hls_key_info_file", "ok.info", "o.m3u8")[-5:-3] == ["-protocol_whitelist", "crypto,file,pipe"]
    assert compiled("-hls_key_info_file", "ok.info", "o.mp4")[-5:-3] == ["-protocol_whitelist", "file,pipe"]


def test_switches_that_take_a_value_in_one_ffmpeg_and_none_in_another_are_left_out() -> None:
    assert "-autorotate" not in compile_argv("ffmpeg", ["-autorotate", "-i", "in.mp4", "o.mp4"], SESSION).argv
    assert "-noautorotate" in compile_argv("ffmpeg", ["-noautorotate", "-i", "in.mp4", "o.mp4"], SESSION).argv
    # With its value it would be an output's name to the gate.
    assert "no format" in refused("-fix_sub_duration_heartbeat", "0", "o.mp4")
    assert "1" in compiled("-copypriorss", "1", "o.mp4")


@pytest.mark.parametrize(
    "argv",
    [["-encoders"], ["-hide_banner", "-filters"], ["-h"], ["-hide_banner", "-h", "encoder=libx264"], ["-h", "full"]],
)
def test_what_a_program_can_do_may_be_asked(argv: list[str]) -> None:
    assert compile_argv("ffmpeg", argv, SESSION).argv == tuple(argv)


@pytest.mark.parametrize(
    "argv", [["-h", "protocol=http"], ["-sources", "alsa"], ["-h", "/etc/passwd"], ["-hide_banner"]]
)
def test_nothing_else_may_be_asked(argv: list[str]) -> None:
    with pytest.raises(ArgvNotAllowed):
        compile_argv("ffmpeg", argv, SESSION)


def test_patterns_are_held_against_so_many_names_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LOOKS_MAX", 1000)
    session = Listing(["in.mp4", *(f"{index}.png" for index in range(100))])
    for argv in (
        [item for index in range(10) for item in ("-passlogfile", f"p{index}")],
        ["-vf", ",".join(f"signature=filename=s{index}_%d" for index in range(10))],
        ["-passlogfile", "p", "o.mp4"] * 4 + ["-f", "tee", "|".join(f"[f=hls]{index}.m3u8" for index in range(6))],
    ):
        with pytest.raises(ArgvNotAllowed, match="too many patterns"):
            compile_argv("ffmpeg", ["-i", "in.mp4", *argv, "o.mp4"], session)
    assert compile_argv("ffmpeg", ["-i", "in.mp4", "-passlogfile", "p", "o_%d.mp4"], session)


def test_what_costs_too_much_to_judge_or_to_start_is_refused() -> None:
    many = Listing(
        [f"{index}.mp4" for index in range(9000)], {"l.txt": "\n".join(f"file {n}.mp4" for n in range(9000))}
    )
    with pytest.raises(ArgvNotAllowed, match="reads more than"):
        compile_argv("ffmpeg", ["-f", "concat", "-i", "l.txt"] * 3 + ["-f", "null", "-"], many)
    scripts = Listing(["in.mp4"], {"g.txt": ",".join(["null"] * 1999)})
    with pytest.raises(ArgvNotAllowed, match="texts that are named"):
        compile_argv("ffmpeg", ["-i", "in.mp4", *["-filter_script", "g.txt"] * 300, "o.mp4"], scripts)
    assert "longer than 1,048,576" in refused(*["-metadata", "a=" + "x" * 60_000] * 18, "o.mp4")
    assert "an argument has more than 131,071 bytes" in refused("-x264-params", "keyint=60:" * 14_000, "o.mp4")
    assert "arguments" in refused(*["-y"] * 5000, "o.mp4")
    # Digits without end, in a value whose shape could be read in many ways.
    assert "is no time" in refused("-t", "1" * 60_000 + "x", "o.mp4")
    # A pattern of many pieces beside a long name: without going back this ends at once.
    session = Listing(["in.mp4", "a" * 250])
    assert compile_argv("ffmpeg", ["-i", "in.mp4", "%da" * 80 + "b.png"], session)
