"""Graphs that nobody would write: the gate never crashes, lets no path out, and reads them as ffmpeg does."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rota.errors import ArgvNotAllowed
from rota.runners.argv import Listing, compile_argv
from rota.runners.argv.graph import emit, parse, parse_options
from rota.runners.argv.tokens import Cursor, escape, take
from tests.runners.sessions import found_tools, run

SESSION = Listing(
    ["in.mp4", "logo.png", "fonts/Inter.ttf", "subs.srt", "t.txt", "link", "down"], {}, {"link": "/etc", "down": "../x"}
)
FAST = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

OUTSIDE = st.sampled_from(
    [
        "/etc/passwd",
        "../secret.mp4",
        "fonts/../../x",
        "http://127.0.0.1/x",
        "file:in.mp4",
        "concat:in.mp4|/etc/passwd",
        "subfile,,start,0,end,0,,:/etc/passwd",
        "link/passwd",
        "down",
        "~/.ssh/id_rsa",
        "c:\\x",
        "\\\\host\\share",
        "pipe:0",
        "data:,x",
        "in.mp4\n/etc/passwd",
        "tcp://h:1",
    ]
)
NAMING = st.sampled_from(
    [
        ("movie", "filename"),
        ("movie", None),
        ("amovie", "filename"),
        ("subtitles", None),
        ("subtitles", "f"),
        ("ass", "filename"),
        ("drawtext", "textfile"),
        ("drawtext", "fontfile"),
        ("drawtext", None),
        ("lut3d", "file"),
        ("lut3d", None),
        ("curves", "psfile"),
        ("removelogo", None),
        ("psnr", "stats_file"),
        ("psnr", "f"),
        ("ssim", None),
        ("metadata", "file"),
        ("vidstabdetect", "result"),
        ("vidstabtransform", None),
        ("arnndn", "m"),
        ("sendcmd", "f"),
        ("showcqt", "fontfile"),
        ("libvmaf", "log_path"),
        ("subtitles", "fontsdir"),
    ]
)


@st.composite
def disguised(draw: st.DrawFn, text: str, special: str) -> str:
    """A text as one level of ffmpeg's escaping may spell it: characters bare, escaped or quoted."""
    out: list[str] = []
    for index, character in enumerate(text):
        bare = character not in special + "\\'" and not (character.isspace() and index in {0, len(text) - 1})
        ways = ["\\" + character] + ([character] if bare else []) + ([f"'{character}'"] if character != "'" else [])
        out.append(draw(st.sampled_from(ways)))
    return "".join(out)


@st.composite
def hidden_paths(draw: st.DrawFn) -> str:
    """A graph with a filter that names something outside, spelt in one of the many ways there are."""
    name, key = draw(NAMING)
    path = draw(OUTSIDE)
    value = draw(disguised(path, ":=" if key is None else ":"))
    arguments = draw(disguised(value if key is None else f"{key}={value}", "[],;"))
    before = draw(st.sampled_from(["", "hflip,", "[in]scale=64:-2[s];[s]", "null;\n ", "sws_flags=bicubic;", "[0:v]"]))
    after = draw(st.sampled_from(["", "[x]", ",vflip", "[x];[in][x]overlay", " ", ";null"]))
    spelt = draw(disguised(name, "=,;["))
    return before + spelt + draw(st.sampled_from(["=", " = ", "@a="])) + arguments + after


@FAST
@given(hidden_paths(), st.sampled_from(["-vf", "-filter:v:0", "-filter_complex", "-lavfi", "-af", "lavfi", "script"]))
def test_no_spelling_gets_a_path_out(graph: str, option: str) -> None:
    session = SESSION
    if option == "lavfi":
        argv = ["-f", "lavfi", "-i", graph, "-f", "null", "-"]
    elif option == "script":
        session = Listing([*SESSION.files, "g.txt"], {"g.txt": graph}, SESSION.links)
        argv = ["-i", "in.mp4", "-filter_complex_script", "g.txt", "-f", "null", "-"]
    else:
        argv = ["-i", "in.mp4", option, graph, "-f", "null", "-"]
    with pytest.raises(ArgvNotAllowed):
        compile_argv("ffmpeg", argv, session)


PIECES = st.sampled_from(
    [
        "movie",
        "drawtext",
        "scale",
        "hflip",
        "[in]",
        "[x]",
        "=",
        ":",
        ",",
        ";",
        "'",
        "\\",
        "/etc/passwd",
        "filename",
        "text",
        "in.mp4",
        " ",
        "\n",
        "@",
        "sws_flags=",
        "w",
        "1",
        "%{",
        "|",
        "..",
        "/",
        "textfile",
        "fontfile",
        "é",
        "[",
        "]",
    ]
)
SOUP = st.lists(PIECES, max_size=14).map("".join) | st.text(max_size=30)


@FAST
@given(SOUP)
def test_a_graph_that_is_read_is_written_so_that_it_reads_the_same(text: str) -> None:
    try:
        graph = parse(text, argument="graph")
    except ArgvNotAllowed:
        return
    assert parse(emit(graph), argument="graph") == graph
    assert emit(parse(emit(graph), argument="graph")) == emit(graph)


@FAST
@given(st.lists(SOUP, max_size=6), st.sampled_from(["ffmpeg", "ffprobe"]))
def test_soup_is_refused_or_compiled_and_nothing_else(words: list[str], tool: str) -> None:
    for argv in (words, ["-i", "in.mp4", *words], ["-i", "in.mp4", "-vf", *words, "-f", "null", "-"]):
        try:
            compiled = compile_argv(tool, argv, SESSION)
        except ArgvNotAllowed:
            continue
        named = compiled.reads + compiled.writes
        assert not [path for path in named if path.startswith("/") or ".." in path.split("/")]


@FAST
@given(st.text(min_size=1, max_size=20), st.sampled_from([":", "[],;", ":=", " \t\r\n", "|"]))
def test_what_is_escaped_is_taken_back(text: str, special: str) -> None:
    cursor = Cursor(escape(text, special) + special[0])
    assert take(cursor, special) == text
    assert cursor.next == special[0]


@FAST
@given(st.data(), st.text(alphabet="aß:=[],;'\\ |%{}@/", min_size=1, max_size=12))
def test_both_levels_come_off_whatever_the_spelling(data: st.DataObject, text: str) -> None:
    value = data.draw(disguised(text, ":"))
    arguments = data.draw(disguised(f"text={value}", "[],;"))
    graph = parse(f"drawtext={arguments}[out]", argument="graph")
    [[only]] = graph.chains
    assert [(option.key, option.value) for option in only.options] == [("text", text)]


@pytest.mark.skipif(not found_tools(), reason="no ffmpeg is here")
def test_ffmpeg_reads_values_as_the_gate_does(tmp_path: Path) -> None:
    """ffmpeg's own parser is the judge: it is given odd spellings, and says what it read in a frame's metadata."""
    ffprobe = found_tools()[0].ffprobe
    show = ["-show_entries", "frame_tags=k", "-of", "default=nw=1:nk=1"]
    spellings = [
        "plain",
        r"a\:b",
        r"a\\:b",
        r"'a:b'",
        r"'a\:b'",
        r"it\\\'s",
        r"'it'\\\''s'",
        r"a\,b",
        r"'a,b'",
        r"a\[b\]",
        "  both  ",
        r"\ both\ ",
        "in'ner'",
        r"x\\\\y",
        r"'x\\y'",
        r"a=b",
        "a b",
        r"tail\\",
        "'open",
        r"\a\b",
        "a'b'c'd'",
        r"'\\\:'",
    ]
    for spelling in spellings:
        graph = f"color=s=16x16:d=0.04,metadata=mode=add:key=k:value={spelling}"
        try:
            [[_, only]] = parse(graph, argument="graph").chains
            ours = [option.value for option in only.options if option.key == "value"]
            compile_argv("ffprobe", ["-f", "lavfi", "-i", graph], SESSION)
            again = emit(parse(graph, argument="graph"))
        except ArgvNotAllowed:
            continue
        for text in (graph, again):
            shown = run(ffprobe, ["-v", "error", "-f", "lavfi", "-i", text, *show], tmp_path)
            assert [shown.stdout.decode().removesuffix("\n")] == ours, (spelling, shown.stderr)


def test_options_after_a_named_one_need_names() -> None:
    assert [option.key for option in parse_options("1:w=2:3")] == [None, "w", None]
    with pytest.raises(ArgvNotAllowed, match="has no name"):
        compile_argv("ffmpeg", ["-i", "in.mp4", "-vf", "scale=w=1:2", "o.mp4"], SESSION)


def test_an_empty_value_stays_one() -> None:
    for spelling, written in (
        ("curves=' '", r"curves=\'\'"),
        ("curves=a:' '", r"curves=a:\'\'"),
        ("curves=:a", r"curves=\'\':a"),
        ("curves=a:", "curves=a"),
        ("curves=", "curves"),
    ):
        assert emit(parse(spelling, argument="graph")) == written
        assert emit(parse(written, argument="graph")) == written
