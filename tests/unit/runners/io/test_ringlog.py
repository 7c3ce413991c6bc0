"""The ring log: bounded, and without secrets."""

import json
from pathlib import Path

from rota.runners.io import ringlog
from rota.runners.io.ringlog import RingLog


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_events_are_lines_without_queries_and_odd_characters(tmp_path: Path) -> None:
    ring = RingLog(tmp_path / "log")
    ring.write("op ended", op="stage", duration_s=0.5, why="GET https://store/x?X-Signature=canary failed\n\x1b[2J")
    ring.close()
    text = (tmp_path / "log" / ringlog.FILE_NAME).read_text()
    (line,) = lines(tmp_path / "log" / ringlog.FILE_NAME)
    assert (line["event"], line["op"], line["duration_s"]) == ("op ended", "stage", 0.5)
    assert "canary" not in text
    assert "\x1b" not in text


def test_it_keeps_the_newest_and_no_more_than_its_size(tmp_path: Path) -> None:
    ring = RingLog(tmp_path, file_bytes_max=2000)
    for number in range(500):
        ring.write("op ended", number=number)
    ring.close()
    files = sorted(tmp_path.iterdir())
    assert len(files) == 1 + ringlog.OLDER_COUNT
    assert sum(file.stat().st_size for file in files) <= 2000 * len(files)
    assert lines(tmp_path / ringlog.FILE_NAME)[-1]["number"] == 499


def test_a_folder_that_takes_nothing_stops_no_work(tmp_path: Path) -> None:
    ring = RingLog(tmp_path / "log")
    (tmp_path / "log").rmdir()
    ring.write("op ended")
    ring.close()
    ring.close()
    RingLog(None).write("nowhere")
