"""The gate's tables against the ffmpeg that is here, and what judging costs beside starting it."""

import re
import statistics
import subprocess
import time
from pathlib import Path

import pytest

from rota.runners.argv import compile_argv
from rota.runners.argv.filters import _ALIASES, OPTIONS, ROLES
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


def test_judging_a_command_costs_less_than_a_tenth_of_starting_ffmpeg() -> None:
    """The middle of many, on both sides, in one run: a ratio, whatever the machine does beside."""
    ffmpeg = TOOLS[0].ffmpeg
    starts: list[float] = []
    judgements: list[float] = []
    for _ in range(9):
        before = time.perf_counter()
        subprocess.run([ffmpeg, "-version"], capture_output=True, check=True)
        starts.append(time.perf_counter() - before)
        before = time.perf_counter()
        for line in ALLOWED:
            compile_argv(line.tool, line.argv, line.session)
        judgements.append((time.perf_counter() - before) / len(ALLOWED))
    assert statistics.median(judgements) < statistics.median(starts) / 10
