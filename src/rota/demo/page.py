"""The contact page of the demo: from results to one `index.html`. Pure: values in, text out.

The page stands alone in the folder of results: one inline style sheet, no script, links relative to itself. All that
comes from files, jobs and people is escaped, and the Content-Security-Policy in the page lets a browser load nothing
but pictures and media from beside it.
"""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from urllib.parse import quote

from rota.demo.page_style import STYLE
from rota.demo.results import LoudnessResult, ProbeResult, Skipped

METER_FLOOR_LUFS = -60.0  # the left end of the loudness meter; quieter is as good as silent
METER_MARKS_LUFS = (-23.0, -14.0)  # what broadcasters (EBU R128) and streaming services aim at
MARKS = {"done": "✓", "failed": "✕", "cancelled": "–", "expired": "✕"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLine:
    """One job as the page shows it.

    `state` is the job's state (`done`, `failed`, …). `started_s` is when its last try began, in seconds since the demo
    began, `duration_s` how long it took in seconds; both None if it never ran. `worker` is one of `DemoPage.workers`,
    `note` a line such as `no audio` or an error.
    """

    kind: str
    state: str
    tries: int
    worker: str | None = None
    started_s: float | None = None
    duration_s: float | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaCard:
    """One media file and what became of it.

    `sheet`, `waveform` and `media` are paths relative to the page, with `/`, not yet quoted; None if there is no such
    file. `probe` and `loudness` are the jobs' results. `error` is shown in place of what could not be made.
    """

    name: str
    jobs: Sequence[JobLine]
    probe: ProbeResult | None = None
    loudness: LoudnessResult | Skipped | None = None
    sheet: str | None = None
    waveform: str | None = None
    media: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPage:
    """The whole page. `elapsed_s` is the demo's wall time; `notes` are sentences shown at the top."""

    title: str
    cards: Sequence[MediaCard]
    workers: Sequence[str]
    elapsed_s: float
    notes: Sequence[str] = ()


def render(results: DemoPage) -> str:
    """Write the contact page.

    Args:
        results: What is shown.

    Returns:
        The HTML document; write it as UTF-8 into the folder that the cards' paths are relative to.
    """
    style_hash = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    # `file:` because 'self' does not cover a page opened from disk in every browser; from a server it matches nothing.
    policy = (
        f"default-src 'none'; style-src 'sha256-{style_hash}'; img-src 'self' file:; media-src 'self' file:; "
        "base-uri 'none'; form-action 'none'"
    )
    cards = "".join(_card(card, results) for card in results.cards) or "<p>There are no files.</p>"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="referrer" content="no-referrer">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(results.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"{_page_header(results)}\n<main>{cards}</main>\n"
        "<footer>On the loudness meters, from −60 LUFS to 0, the thin marks are the aims of broadcast (−23) and of "
        "streaming (−14), the wide one is the true peak. This page loads nothing but the files beside it.</footer>\n"
        "</body>\n</html>\n"
    )


def clock(seconds: float) -> str:
    """Write a length of time: `40 ms`, `1.4 s`, `12 s`, `1:05`, `1:02:33`."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    if minutes == 0:
        return f"{rest} s"
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def size(size_bytes: int) -> str:
    """Write a size in bytes in decimal units: `812 B`, `15 MB`, `1.2 GB`."""
    amount, unit = float(size_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if amount < 999.5:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:.1f} {unit}" if unit != "B" and amount < 9.95 else f"{amount:.0f} {unit}"


def link(path: str) -> str:
    """Quote a relative path for an attribute: it cannot become a scheme (`javascript:`) or another host (`//host`)."""
    return "./" + quote(path.lstrip("/"), safe="/", errors="surrogateescape")


def _page_header(results: DemoPage) -> str:
    jobs = [job for card in results.cards for job in card.jobs]
    totals = [
        _counted(len(results.cards), "file"),
        _counted(len(jobs), "job"),
        _counted(sum(job.tries for job in jobs), "try", "tries"),
        _counted(len(results.workers), "worker"),
        f"<b>{clock(results.elapsed_s)}</b>in all",
    ]
    if left_over := sum(job.state != "done" for job in jobs):
        totals.append(f"<b>{left_over}</b>not done")
    workers = [f"<li>{_dot(worker, results)}{_text(worker)}</li>" for worker in results.workers]
    notes = "".join(f'<p class="note">{_text(note)}</p>' for note in results.notes)
    return (
        f'<header class="page"><h1>{_text(results.title)}</h1>'
        f'<ul class="totals">{"".join(f"<li>{total}</li>" for total in totals)}</ul>'
        f'<ul class="workers">{"".join(workers)}</ul>{notes}</header>'
    )


def _card(card: MediaCard, results: DemoPage) -> str:
    error = f'<p class="error">{_text(card.error)}</p>' if card.error else ""
    left = _picture(card) + _waveform(card) + _loudness(card.loudness)
    right = _player(card) + _jobs(card.jobs, results)
    columns = f'<div class="stack{"" if card.sheet else " only"}">{left}</div>' if left else ""
    return (
        f'<article class="card"><h2>{_text(card.name)}</h2>{_chips(card.probe)}{error}'
        f'<div class="halves{"" if left else " alone"}">{columns}<div class="stack">{right}</div></div></article>\n'
    )


def _chips(probe: ProbeResult | None) -> str:
    if probe is None:
        return ""
    facts = [
        f"{probe['width']}×{probe['height']}" if probe["width"] and probe["height"] else "sound alone",
        f"{probe['fps']:g} fps" if probe["fps"] else "",
        clock(probe["duration_s"]) if probe["duration_s"] else "",
        size(probe["size_bytes"]),
        probe["container"],
        *(stream["codec"] for stream in probe["streams"] if stream["index"] == probe["video_index"]),
        *(stream["summary"] for stream in probe["streams"] if stream["type"] == "audio"),
    ]
    return f'<ul class="chips">{"".join(f"<li>{_text(fact)}</li>" for fact in facts if fact)}</ul>'


def _picture(card: MediaCard) -> str:
    if card.sheet is None:
        return ""
    href = _text(link(card.sheet))
    return (
        f'<a class="picture" href="{href}"><img src="{href}" alt="Pictures from {_text(card.name)}" loading="lazy"></a>'
    )


def _waveform(card: MediaCard) -> str:
    if card.waveform is None:
        return ""
    source = _text(link(card.waveform))
    return f'<div class="wave"><img src="{source}" alt="Waveform of {_text(card.name)}" loading="lazy"></div>'


def _player(card: MediaCard) -> str:
    if card.media is None:
        return ""
    tag = "video" if card.probe is None or card.probe["width"] else "audio"
    inline = " playsinline" if tag == "video" else ""
    name = _text(f"Transcode of {card.name}")
    return f'<{tag} controls preload="metadata"{inline} src="{_text(link(card.media))}" aria-label="{name}"></{tag}>'


def _loudness(loudness: LoudnessResult | Skipped | None) -> str:
    if loudness is None:
        return ""
    if "skipped" in loudness:
        return f'<section><h3>Loudness</h3><p class="figures">{_text(loudness["skipped"])}</p></section>'
    lufs, peak = loudness["integrated_lufs"], loudness["true_peak_dbtp"]
    if lufs is None:
        return '<section><h3>Loudness</h3><p class="figures">too quiet to measure</p></section>'
    figures = [f"<span><b>{_signed(lufs)}</b> LUFS</span>"]
    if loudness["range_lu"] is not None:
        figures.append(f"<span>range <b>{loudness['range_lu']:.1f}</b> LU</span>")
    if peak is not None:
        figures.append(f"<span>true peak <b>{_signed(peak)}</b> dBTP</span>")
    shapes = [
        '<rect class="rail" x="0" y="3" width="300" height="8" rx="4"/>',
        f'<rect class="level" x="0" y="3" width="{_meter_x(lufs):.1f}" height="8" rx="4"/>',
        *(f'<rect class="mark" x="{_meter_x(mark):.1f}" y="0" width="1" height="14"/>' for mark in METER_MARKS_LUFS),
    ]
    if peak is not None:
        shapes.append(f'<rect class="peak" x="{min(_meter_x(peak), 297):.1f}" y="0" width="3" height="14" rx="1"/>')
    return (
        f'<section><h3>Loudness</h3><p class="figures">{"".join(figures)}</p>'
        '<svg class="meter" viewBox="0 0 300 14" preserveAspectRatio="none" aria-hidden="true">'
        f"{''.join(shapes)}</svg></section>"
    )


def _jobs(jobs: Sequence[JobLine], results: DemoPage) -> str:
    if not jobs:
        return ""
    rows = "".join(_job(job, results) for job in jobs)
    return (
        '<section><h3>Jobs</h3><table><thead><tr><th>Kind</th><th class="line">When</th><th class="number">Time</th>'
        f'<th class="number">Tries</th><th>Worker</th></tr></thead><tbody>{rows}</tbody></table></section>'
    )


def _job(job: JobLine, results: DemoPage) -> str:
    look = "done" if job.state == "done" else "open" if job.state in ("queued", "leased") else "failed"
    note = f'<tr class="why"><td colspan="5">{_text(job.note)}</td></tr>' if job.note else ""
    tries = f'<span class="again">{job.tries}</span>' if job.tries > 1 else str(job.tries)
    worker = f"{_dot(job.worker, results)}{_text(job.worker)}" if job.worker else "–"
    mark = MARKS.get(job.state, "…")
    return (
        f'<tr><td><span class="state {look}" title="{_text(job.state)}">{mark}</span>{_text(job.kind)}</td>'
        f'<td class="line">{_bar(job, results)}</td>'
        f'<td class="number">{clock(job.duration_s) if job.duration_s is not None else "–"}</td>'
        f'<td class="number">{tries}</td><td>{worker}</td></tr>{note}'
    )


def _bar(job: JobLine, results: DemoPage) -> str:
    """When the last try ran, on a rail as long as the demo."""
    if job.started_s is None or job.duration_s is None or results.elapsed_s <= 0:
        return ""
    width = min(200.0, max(2.0, 200 * job.duration_s / results.elapsed_s))
    x = max(0.0, min(200 - width, 200 * job.started_s / results.elapsed_s))
    return (
        '<svg viewBox="0 0 200 8" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="rail" x="0" y="0" width="200" height="8" rx="2"/>'
        f'<rect class="{_colour(job.worker, results)}" x="{x:.1f}" y="0" width="{width:.1f}" height="8" rx="1"/></svg>'
    )


def _dot(worker: str, results: DemoPage) -> str:
    circle = f'<circle class="{_colour(worker, results)}" cx="4.5" cy="4.5" r="4.5"/>'
    return f'<svg class="dot" viewBox="0 0 9 9" aria-hidden="true">{circle}</svg>'


def _colour(worker: str | None, results: DemoPage) -> str:
    return next((f"w{place % 4}" for place, name in enumerate(results.workers) if name == worker), "w3")


def _meter_x(level: float) -> float:
    return 300 * max(0.0, min(1.0, 1 - level / METER_FLOOR_LUFS))


def _signed(level: float) -> str:
    return f"{level:.1f}".replace("-", "−")


def _counted(count: int, one: str, many: str | None = None) -> str:
    return f"<b>{count}</b>{one if count == 1 else many or one + 's'}"


def _text(text: str) -> str:
    # Names of files may hold bytes that are no UTF-8; a page must.
    return escape(text.encode(errors="surrogateescape").decode(errors="replace"), quote=True)
