"""The contact page: nothing from outside gets into its markup, nothing is loaded from elsewhere, it shows what is."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from rota.demo.page import DemoPage, JobLine, MediaCard, clock, link, render, size
from rota.demo.results import LoudnessResult, ProbeResult, Skipped, StreamFacts

VOID = {"meta", "img", "rect", "circle"}
TAGS = VOID | set(
    [
        "html",
        "head",
        "title",
        "style",
        "body",
        "header",
        "main",
        "footer",
        "article",
        "section",
        "h1",
        "h2",
        "h3",
        "p",
        "ul",
        "li",
        "b",
        "span",
        "a",
        "div",
        "video",
        "audio",
        "svg",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
    ]
)
ATTRIBUTES = {
    *("lang", "charset", "http-equiv", "content", "name", "class", "href", "src", "alt", "loading", "title", "colspan"),
    *("controls", "preload", "playsinline", "aria-label", "aria-hidden"),
    *("viewbox", "preserveaspectratio", "x", "y", "width", "height", "rx", "cx", "cy", "r"),
}
NASTY = """" onclick=alert(1) x=' onload="alert(1)"></style><script>alert(1)</script><img src=x onerror=alert(1)>'&"""


class _Reader(HTMLParser):
    """Reads a page strictly: every tag known, closed in order; collects attributes and text."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.feed(document)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, f"<{tag}> got in"
        assert {name for name, _ in attrs} <= ATTRIBUTES, f"{attrs} got in"
        self.seen.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)

    def values(self, attribute: str) -> list[str]:
        return [value for _, name, value in self.attributes if name == attribute]


def a_probe(*, width: int | None = 1920, height: int | None = 1080) -> ProbeResult:
    return ProbeResult(
        container="mov",
        size_bytes=15_212_072,
        duration_s=12.0,
        audio_duration_s=12.0,
        reliable_length=True,
        streams=[
            StreamFacts(index=0, type="video", codec="h264", summary="h264 1920×1080 25 fps"),
            StreamFacts(index=1, type="audio", codec="aac", summary="aac 48 kHz stereo"),
        ][0 if width else 1 :],
        codecs=["h264", "aac"],
        width=width,
        height=height,
        fps=25.0 if width else None,
        video_index=0 if width else None,
        audio_index=1,
    )


def a_card(name: str = "clip.mp4", *, jobs: tuple[JobLine, ...] = (), probe: ProbeResult | None = None) -> MediaCard:
    return MediaCard(
        name=name,
        jobs=jobs,
        probe=probe or a_probe(),
        loudness=LoudnessResult(integrated_lufs=-16.3, range_lu=2.0, true_peak_dbtp=-3.3),
        sheet="00/sheet.jpg",
        waveform="00/wave.png",
        media="00/720p.mp4",
    )


def a_page(*cards: MediaCard, workers: tuple[str, ...] = ("one", "two"), notes: tuple[str, ...] = ()) -> str:
    return render(DemoPage(title="Rota demo", cards=cards, workers=workers, elapsed_s=20.0, notes=notes))


def test_text_from_outside_stays_text() -> None:
    job = JobLine(kind=NASTY, state=NASTY, tries=2, worker=NASTY, started_s=1, duration_s=2, note=NASTY)
    probe = a_probe()
    probe["container"] = NASTY
    probe["streams"][0]["codec"] = probe["streams"][1]["summary"] = NASTY
    card = MediaCard(
        name=NASTY,
        jobs=[job],
        probe=probe,
        loudness=Skipped(skipped=NASTY),
        sheet=NASTY,
        waveform=NASTY,
        media=NASTY,
        error=NASTY,
    )
    page = render(DemoPage(title=NASTY, cards=[card], workers=[NASTY], elapsed_s=20.0, notes=[NASTY]))

    reader = _Reader(page)  # refuses any tag that is not ours

    assert "script" not in reader.seen
    assert (
        "".join(reader.text).count(NASTY) >= 10
    )  # title twice, worker twice, note, name, error, chips, kind, job's note


def test_nothing_is_loaded_from_elsewhere() -> None:
    reader = _Reader(a_page(a_card()))

    assert reader.values("src") + reader.values("href") == [
        "./00/sheet.jpg",
        "./00/wave.png",
        "./00/720p.mp4",
        "./00/sheet.jpg",
    ]
    assert "url(" not in a_page(a_card())
    assert "@import" not in a_page(a_card())


def test_policy_allows_the_inline_style_by_its_hash_and_media_beside_the_page() -> None:
    page = a_page(a_card())
    policy = dict(directive.strip().split(" ", 1) for directive in _Reader(page).values("content")[0].split(";"))
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)

    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy == {
        "default-src": "'none'",
        "style-src": f"'sha256-{digest}'",
        "img-src": "'self' file:",
        "media-src": "'self' file:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert page.index("Content-Security-Policy") < page.index("<style>")


@pytest.mark.parametrize(
    ("path", "quoted"),
    [
        ("00/a b.mp4", "./00/a%20b.mp4"),
        ("what?.mp4#t=1&x=%41", "./what%3F.mp4%23t%3D1%26x%3D%2541"),
        ("javascript:alert(1)", "./javascript%3Aalert%281%29"),
        ("//host/x", "./host/x"),
        ("ü.jpg", "./%C3%BC.jpg"),
        (b"\xff.jpg".decode(errors="surrogateescape"), "./%FF.jpg"),
    ],
)
def test_link_stays_a_relative_path(path: str, quoted: str) -> None:
    assert link(path) == quoted


def test_names_that_are_no_utf8_can_be_written() -> None:
    page = a_page(a_card(b"caf\xe9.mp4".decode(errors="surrogateescape")))

    assert "caf\N{REPLACEMENT CHARACTER}.mp4".encode() in page.encode()


def test_one_card_for_each_file_in_the_given_order() -> None:
    page = a_page(a_card("b.mp4"), a_card("a.mp4"), a_card("c.mp4"))

    assert re.findall(r"<h2>(.*?)</h2>", page) == ["b.mp4", "a.mp4", "c.mp4"]
    assert _Reader(page).seen.count("article") == 3


def test_chips_tell_the_picture_as_shown_and_each_codec_once() -> None:
    chips = re.search(r'<ul class="chips">(.*?)</ul>', a_page(a_card()))

    assert chips is not None
    assert re.findall(r"<li>(.*?)</li>", chips[1]) == [
        "1920×1080",
        "25 fps",
        "12 s",
        "15 MB",
        "mov",
        "h264",
        "aac 48 kHz stereo",
    ]


def test_sound_alone_gets_an_audio_player() -> None:
    seen = _Reader(a_page(a_card(probe=a_probe(width=None, height=None)))).seen

    assert "audio" in seen
    assert "video" not in seen
    assert "video" in _Reader(a_page(a_card())).seen


def test_file_that_failed_shows_its_error_and_no_player() -> None:
    job = JobLine(kind="probe", state="failed", tries=3, note="moov atom not found")
    reader = _Reader(a_page(MediaCard(name="bad.mp4", jobs=[job], error="bad.mp4 is no media file.")))

    assert not {"video", "audio", "img"} & set(reader.seen)
    assert "bad.mp4 is no media file." in reader.text
    assert "moov atom not found" in reader.text
    assert "not done" in reader.text


def test_jobs_show_state_time_tries_and_worker() -> None:
    jobs = (
        JobLine(kind="probe", state="done", tries=1, worker="one", started_s=0.0, duration_s=0.05),
        JobLine(kind="transcode", state="done", tries=2, worker="two", started_s=5.0, duration_s=10.0),
        JobLine(kind="waveform", state="queued", tries=0),
        JobLine(kind="loudness", state="failed", tries=3, worker="gone", started_s=1.0, duration_s=1.0),
    )
    page = a_page(a_card(jobs=jobs))
    rows = [re.sub(r"<[^>]+>", " ", row).split() for row in re.findall(r"<tr>(?!<th)(.*?)</tr>", page)]

    assert rows == [
        ["✓", "probe", "50", "ms", "1", "one"],
        ["✓", "transcode", "10", "s", "2", "two"],
        ["…", "waveform", "–", "0", "–"],
        ["✕", "loudness", "1.0", "s", "3", "gone"],
    ]
    assert '<span class="again">2</span>' in page
    assert '<span class="again">1</span>' not in page
    assert "<b>6</b>tries" in page


def test_bar_lies_where_the_try_ran_and_inside_its_rail() -> None:
    jobs = (
        JobLine(kind="a", state="done", tries=1, worker="two", started_s=5.0, duration_s=10.0),
        JobLine(kind="b", state="done", tries=1, worker="one", started_s=19.999, duration_s=500.0),
    )
    bars = re.findall(r'<rect class="(w\d)" x="([\d.]+)" y="0" width="([\d.]+)"', a_page(a_card(jobs=jobs)))

    assert bars == [("w1", "50.0", "100.0"), ("w0", "0.0", "200.0")]


@pytest.mark.parametrize(
    ("lufs", "peak", "level", "mark"),
    [(-60.0, -90.0, "0.0", "0.0"), (-30.0, -6.0, "150.0", "270.0"), (5.0, 3.0, "300.0", "297.0")],
)
def test_meter_stays_inside_its_rail(lufs: float, peak: float, level: str, mark: str) -> None:
    card = MediaCard(
        name="x", jobs=(), loudness=LoudnessResult(integrated_lufs=lufs, range_lu=None, true_peak_dbtp=peak)
    )
    page = a_page(card)

    assert f'class="level" x="0" y="3" width="{level}"' in page
    assert f'class="peak" x="{mark}"' in page


def test_silence_and_missing_sound_are_said() -> None:
    silent = LoudnessResult(integrated_lufs=None, range_lu=None, true_peak_dbtp=None)

    assert "too quiet to measure" in a_page(MediaCard(name="x", jobs=(), loudness=silent))
    assert "no audio" in a_page(MediaCard(name="x", jobs=(), loudness=Skipped(skipped="no audio")))


def test_page_without_files_says_so() -> None:
    assert "There are no files." in _Reader(a_page()).text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.0394, "39 ms"),
        (0.9996, "1.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.6, "1:00"),
        (65, "1:05"),
        (3599.6, "1:00:00"),
        (3753, "1:02:33"),
    ],
)
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (9_960, "10 kB"),
        (999_600, "1.0 MB"),
        (15_212_072, "15 MB"),
        (1_200_000_000, "1.2 GB"),
        (5 * 10**15, "5000 TB"),
    ],
)
def test_size(size_bytes: int, text: str) -> None:
    assert size(size_bytes) == text
