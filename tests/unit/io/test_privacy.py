"""What other processes of the same user may see of one that keeps itself private."""

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, os, subprocess, sys
from rota.io.privacy import PR_SET_DUMPABLE, keep_private
if os.geteuid() == 0:  # nothing is kept from root
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # as after a start as this user
if sys.argv[1] == "private":
    keep_private()
found = subprocess.run(["/bin/cat", f"/proc/{os.getpid()}/environ"], cwd="/", capture_output=True)
print(found.returncode, b"TOKEN=s3cret" in found.stdout)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other ways to look into a process")
@pytest.mark.parametrize(("how", "seen"), [("private", "1 False"), ("open", "0 True")])
def test_a_command_of_the_same_user_cannot_read_the_environment(how: str, seen: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], env={"TOKEN": "s3cret"}, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == seen, done.stderr
