"""The limit of open files, in processes that begin with a low one."""

import subprocess
import sys

PROGRAM = """
import resource
from rota.io.open_files import limit, raise_limit
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
before = limit()
raise_limit()
print(before, resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard), limit() in (hard, None))
"""


def test_a_low_limit_is_raised_to_what_the_system_allows() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["64", "True", "True"]
