"""The walls around ffmpeg, each alone: secrets beside the session and a listener on loopback stay untouched."""

import asyncio
import os
import select
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rota.runners.io.walls import LAUNCHER, find_walls
from rota.runners.isolation import Isolation, Limits, Wall
from tests.postgres_servers import unavailable

PYTHON = os.path.realpath(sys.executable)
ROOMY = Limits(cpu_s=60, file_bytes=1 << 30, memory_bytes=8 << 30)

# What a program that has been taken over would try; it stands for ffmpeg.
PROBE = """use Socket;
sub try_it { my ($name, $done) = @_; print "$name ", ($done ? "yes" : "no"), "\\n"; }
try_it("secret", open(my $a, "<", $ARGV[0]));
try_it("escape", open(my $b, ">", "$ARGV[0].new"));
try_it("own", open(my $c, ">", "./own"));
try_it("passwd", open(my $d, "<", "/etc/passwd"));
my $socket = socket(my $s, PF_INET, SOCK_STREAM, 0);
try_it("tcp", $socket && connect($s, sockaddr_in($ARGV[1], inet_aton("127.0.0.1"))));
my $udp = socket(my $u, PF_INET, SOCK_DGRAM, 0);
try_it("udp", $udp && defined(send($u, "x", 0, sockaddr_in($ARGV[1], inet_aton("127.0.0.1")))));
try_it("exec", system("/bin/true") == 0);
print "env ", join(",", sort keys %ENV), "\\n";
"""


def tried(isolation: Isolation, folder: Path, secret: Path, port: int) -> dict[str, str]:
    """What the probe could do behind these walls."""
    # Perl itself is the program, as ffmpeg would be; its script lies in the session.
    (folder / "script").write_text(PROBE)
    command = isolation.command("/usr/bin/perl", ["./script", str(secret), str(port)], folder=str(folder), limits=ROOMY)
    done = subprocess.run(
        command, cwd=folder, env={"SECRET": "x"}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = (line.partition(" ") for line in done.stdout.splitlines())
    return {name: found for name, _, found in lines}


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("not yours")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "session"
    path.mkdir()
    return path


INSIDE = (Wall.BUBBLEWRAP, Wall.SECCOMP)
EXPECTED = {
    None: {"secret": "yes", "tcp": "yes", "udp": "yes", "exec": "yes"},
    Wall.BUBBLEWRAP: {"secret": "no", "escape": "no", "passwd": "no", "tcp": "no"},
    Wall.LANDLOCK: {"secret": "no", "escape": "no", "passwd": "no", "tcp": "no", "exec": "no"},
    Wall.SECCOMP: {"tcp": "no", "udp": "no", "exec": "no"},
    INSIDE: {"secret": "no", "escape": "no", "passwd": "no", "tcp": "no", "udp": "no", "exec": "no"},
    Wall.NETWORK_NAMESPACE: {"tcp": "no", "udp": "no"},
}


@pytest.mark.parametrize("wall", list(EXPECTED), ids=str)
def test_each_wall_alone(wall: Wall | tuple[Wall, ...] | None, folder: Path, secret: Path) -> None:
    walls = () if wall is None else wall if isinstance(wall, tuple) else (wall,)
    found = find_walls("/usr/bin/perl", bubblewrap=None if Wall.BUBBLEWRAP in walls else "/absent")
    if not set(walls) <= set(found.walls):
        unavailable("walls", f"{wall} does not stand on this machine")
    isolation = Isolation(PYTHON, LAUNCHER, walls, found.bubblewrap)
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket(type=socket.SOCK_DGRAM) as hearing:
        hearing.bind(listening.getsockname())
        seen = tried(isolation, folder, secret, listening.getsockname()[1])
        # What was sent on loopback is there when the sender has ended.
        arrived = select.select([listening, hearing], [], [], 0)[0]
    # Landlock knows nothing of UDP: that is why it does not stand alone.
    assert arrived == {None: [listening, hearing], Wall.LANDLOCK: [hearing]}.get(wall, [])
    assert {name: seen[name] for name in EXPECTED[wall]} == EXPECTED[wall]
    assert seen["own"] == "yes" and (folder / "own").exists()
    assert secret.read_text() == "not yours"
    assert set(seen["env"].split(",")) <= {"LC_ALL", "PWD"}


def test_all_smaller_walls_together(folder: Path, secret: Path) -> None:
    isolation = find_walls("/usr/bin/perl", bubblewrap="/absent")
    if Wall.LANDLOCK not in isolation.walls:
        unavailable("walls", "there is no Landlock on this machine")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        seen = tried(isolation, folder, secret, listening.getsockname()[1])
    assert {name for name, found in seen.items() if found == "yes"} == {"own"}


def test_a_wall_that_cannot_be_put_up_ends_the_command(folder: Path, tmp_path: Path) -> None:
    nothing = tmp_path / "launcher.py"
    source = Path(LAUNCHER).read_text()
    nothing.write_text(source.replace("return max(0, int(_libc", "return 0 and max(0, int(_libc"))
    isolation = Isolation(PYTHON, str(nothing), (Wall.LANDLOCK,))
    command = isolation.command("/bin/true", [], folder=str(folder), limits=ROOMY)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 125 and "Landlock" in done.stderr


def test_limits_hold(folder: Path) -> None:
    isolation = find_walls("/usr/bin/perl")
    limits = Limits(cpu_s=1, file_bytes=1000, memory_bytes=8 << 30)
    for script, number in (("while (1) {}", "9 24"), ('open(F, ">", "x"); $| = 1; print F "x" x 2000; close F;', "25")):
        command = isolation.command("/usr/bin/perl", ["-e", script], folder=str(folder), limits=limits)
        done = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=60)
        assert str(abs(done.returncode) % 128) in number.split(), (script, done)
    assert (folder / "x").stat().st_size == 1000


async def test_walls_are_found_without_a_program_of_ours(tmp_path: Path) -> None:
    found = await asyncio.to_thread(find_walls, tmp_path / "absent")
    assert found.walls == ()
