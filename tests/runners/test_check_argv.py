"""`rota runner check-argv`, for a person and for a pipeline."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from rota.cli.main import app
from tests.runners.test_argv_corpus import CORPUS

CORPUS_FILE = Path(__file__).parent / "argv-corpus.jsonl"


def check(*arguments: str, lines: str | bytes | None = None) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["runner", "check-argv", *arguments], input=lines)
    return done.exit_code, done.stdout, done.stderr


def test_lines_in_lines_out() -> None:
    status, out, _ = check(lines=CORPUS_FILE.read_bytes())
    answers = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert [(answer["id"], answer["verdict"]) for answer in answers] == [(line.id, line.expect) for line in CORPUS]
    assert all(("argv" in answer) == (answer["verdict"] == "allow") for answer in answers)
    assert all(answer["reason"].startswith("argv_not_allowed: ") for answer in answers if answer["verdict"] == "reject")
    assert check(str(CORPUS_FILE))[1] == out


def test_a_line_that_cannot_be_read_is_answered_and_told_of() -> None:
    lines = [
        '{"id": 7, "tool": "ffmpeg", "argv": ["-i", "\\ud800.mp4", "o.mp4"]}',
        "",
        "nope",
        '{"tool": "ffmpeg", "argv": [1]}',
        "[]",
    ]
    status, out, err = check(lines="\n".join(lines))
    answers = [json.loads(line) for line in out.splitlines()]
    assert [answer["verdict"] for answer in answers] == ["reject"] * 4
    assert answers[0]["id"] == 7
    assert "no Unicode" in answers[0]["reason"]
    assert "line 3" in answers[1]["reason"]
    assert status == 2
    assert "3 of the lines" in err


def test_lines_of_every_make_are_answered_by_number() -> None:
    good = b'{"id": "x", "tool": "ffmpeg", "argv": ["-i", "a.mp4", "o.mp4"], "files": ["a.mp4"]}'
    lines = [
        b"\xef\xbb\xbf" + good + b"\r",
        b'{"id": "y", "tool": "ffmpeg"}',
        b"\r",
        b"\0",
        b'{"id": {}, "tool": "ffmpeg", "argv": []}',
        b'"x"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"id": "long", "argv": ["' + b"a" * (17 * 1024 * 1024) + b'"]}',
        b'{"id": "z", "tool": "ls", "argv": ["-l"]}',
        b'{"id": "s", "tool": "ffmpeg", "argv": ["-filter_script", "g", "o.mp4"], "contents": {"g": "\\ud800"}}',
        b'{"id": "t", "tool": "ffprobe", "argv": ["a.mp4"], "files": [], "symlinks": {"a.mp4": "../a.mp4"}}',
        b'{"id": "n", "tool": "ffprobe", "argv": ["a.mp4"], "files": null, "contents": null, "symlinks": null, "x": 1}',
        # Composed and not: one name, as where it is staged.
        b'{"id": "u", "tool": "ffmpeg", "argv": ["-i", "e\\u0301.srt", "-attach", "\\u00e9.srt", "o.mkv"],'
        b' "files": ["e\\u0301.srt"]}',
        good,
    ]
    status, out, err = check(lines=b"\n".join(lines))
    answers = [json.loads(line) for line in out.splitlines()]
    assert status == 2
    assert "7 of the lines" in err
    assert [(answer["id"], answer["verdict"]) for answer in answers] == [
        ("x", "allow"),
        ("y", "reject"),
        *[(None, "reject")] * 6,
        ("z", "reject"),
        ("s", "reject"),
        ("t", "reject"),
        ("n", "allow"),
        ("u", "allow"),
        ("x", "allow"),
    ]
    assert [answer["reason"].partition(" cannot")[0] for answer in answers[1:8]] == [
        f"line {number}" for number in (2, 4, 5, 6, 7, 8, 9)
    ]
    assert "more than 16,777,216 bytes" in answers[7]["reason"]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for source in (tmp_path / "gone.jsonl", tmp_path):
        done = subprocess.run(
            [sys.executable, "-m", "rota.cli.main", "runner", "check-argv", source],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert "cannot be read" in done.stderr


def test_a_person_is_shown_the_command_that_would_run(tmp_path: Path) -> None:
    (tmp_path / "my clip.mp4").write_bytes(b"\0\0\0\x20ftypisom")
    (tmp_path / "list.mp4").write_text("#EXTM3U\n")
    status, out, _ = check("--folder", str(tmp_path), "ffmpeg", "--", "-i", "my clip.mp4", "-c", "copy", "out.mp4")
    assert status == 0
    assert out.startswith("ffmpeg -nostdin -protocol_whitelist file,pipe")
    assert "'./my clip.mp4'" in out
    status, out, err = check("--folder", str(tmp_path), "ffprobe", "--", "-show_format", "list.mp4")
    assert (status, out) == (1, "")
    assert "argv_not_allowed" in err
    assert "playlist" in err


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    """It would be judged as one without files, by names alone."""
    status, out, err = check("--folder", str(tmp_path / "gone"), "ffmpeg", "--", "-i", "a.mp4", "o.mp4")
    assert (status, out) == (2, "")
    assert "--folder" in err


def test_whoever_has_read_enough_ends_it_well() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "rota.cli.main", "runner", "check-argv"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as program:  # fmt: skip
        assert program.stdin is not None and program.stdout is not None and program.stderr is not None
        line = b'{"tool": "ffprobe", "argv": ["a.mp4"], "files": ["a.mp4"]}\n'
        program.stdin.write(line)
        program.stdin.flush()
        assert b"allow" in program.stdout.readline()
        program.stdout.close()
        program.stdin.write(line)
        program.stdin.close()
        assert (program.wait(60), program.stderr.read()) == (0, b"")


def test_another_tool_is_named_as_wrong() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rota.cli.main", "runner", "check-argv", "ffplay", "--", "in.mp4"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "'ffplay' is no tool" in done.stderr


def test_the_guide_shows_what_is_so(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs/guide/argv-gate.md").read_text()
    [command] = re.findall(r"```sh\nrota runner check-argv (.+)\n```", guide)
    shown = re.findall(r"```text\n(.+)\n```", guide)
    assert check("--folder", str(tmp_path), *shlex.split(command))[1].strip() == shown[0]
    refused = check("--folder", str(tmp_path), "ffmpeg", "--", "-i", "a.mp4", "-vf", "movie=/etc/passwd", "o.mp4")
    assert refused[2].strip() == shown[1]
    [line] = re.findall(r"```json\n(.+)\n```", guide)
    assert json.loads(check(lines=line)[1])["verdict"] == "allow"
