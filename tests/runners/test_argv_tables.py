"""The gate's tables against the ffmpeg that is here, and what judging costs beside starting it."""

import re
import resource
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rota.runners.argv import compile_argv
from rota.runners.argv.compiler import _ON_ANYWAY
from rota.runners.argv.filters import _ALIASES, OPTIONS, ROLES
from rota.runners.argv.options import RULES
from tests.runners.sessions import can, found_tools
from tests.runners.test_argv_corpus import ALLOWED

TOOLS = found_tools()
pytestmark = pytest.mark.skipif(not TOOLS, reason="no ffmpeg is here: pip install 'rota[media]'")

NO_FILES = {("drawtext", "fontsize"), ("ssim360", "heatmap_str"), ("showcqt", "fontcolor")}
"""Options of type string whose help speaks of files or fonts, and which name none."""

_FILE_WORDS = re.compile(r"file|path|url\b|director|folder|model|\bfont\b|command|plugin|librar", re.IGNORECASE)


@pytest.mark.parametrize("ffmpeg", [found.ffmpeg for found in TOOLS], ids=[found.name for found in TOOLS])
def test_each_text_option_that_speaks_of_files_has_its_role(ffmpeg: Path) -> None:
    """A filter that gets a new option in a new ffmpeg shows up here before it can be written into the tables."""
    text = subprocess.run([ffmpeg, "-hide_banner", "-h", "full"], capture_output=True, check=True).stdout.decode(
        errors="replace"
    )
    sections = dict(re.findall(r"^(\S[^\n]*) AVOptions:\n(.*?)\n\n", text, flags=re.MULTILINE | re.DOTALL))
    looked = 0
    for name in sorted(set(OPTIONS) & can(ffmpeg)):
        for option, what in re.findall(
            r"^ +-?(\S+) +<(?:string|binary|dictionary)> +\S+ ?(.*)$", sections.get(name, ""), re.MULTILINE
        ):
            looked += 1
            if option not in OPTIONS[name] or (name, option) in NO_FILES or not _FILE_WORDS.search(f"{option} {what}"):
                continue
            assert _ALIASES.get(name, {}).get(option, option) in ROLES.get(name, {}), f"{name}={option}: {what}"
    assert looked > 50


# Static builds start in milliseconds; Debian's takes ten times as long, for each of 140 options.
QUICK = [ffmpeg for _, ffmpeg, _ in TOOLS if ffmpeg.parent != Path("/usr/bin")] or [ffmpeg for _, ffmpeg, _ in TOOLS]


@pytest.mark.parametrize("ffmpeg", QUICK, ids=str)
def test_an_option_takes_a_value_where_the_gate_thinks_so(ffmpeg: Path) -> None:
    """Where they differ, a value of one is an output of the other, and nothing stands before it."""

    def said(*arguments: str) -> str:
        done = subprocess.run(
            [ffmpeg, "-hide_banner", *arguments], stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        return (done.stdout + done.stderr).decode(errors="replace")

    # Those of ffmpeg itself; options of codecs and formats always take a value.
    own = set(re.findall(r"^-([a-z]\w*)", said("-h", "full").partition("AVOptions:")[0], re.MULTILINE))
    looked = sorted(own & RULES.keys() - _ON_ANYWAY)
    with ThreadPoolExecutor(4) as pool:
        takes = list(pool.map(lambda name: "Missing argument" in said(f"-{name}"), looked))
    assert [name for name, value in zip(looked, takes, strict=True) if value != (RULES[name].value != "bool")] == []
    assert len(looked) > 80


def test_judging_a_command_costs_less_than_a_tenth_of_starting_ffmpeg() -> None:
    """CPU time on both sides, of this process and of its children, and the least of several: what others on the machine
    do is in neither."""
    ffmpeg = TOOLS[0].ffmpeg
    starts: list[float] = []
    judgements: list[float] = []
    for _ in range(7):
        before = _children_s()
        subprocess.run([ffmpeg, "-version"], capture_output=True, check=True)
        starts.append(_children_s() - before)
        begun = time.process_time()
        for line in ALLOWED:
            compile_argv(line.tool, line.argv, line.session)
        judgements.append((time.process_time() - begun) / len(ALLOWED))
    assert min(judgements) < min(starts) / 10


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
