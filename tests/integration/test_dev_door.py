"""`./dev` as somebody meets it who has just cloned: wrong words, other folders, no Python, nothing installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A checkout in a folder with a space in its name, without an environment."""
    folder = tmp_path / "my clone"
    folder.mkdir()
    for name in ("dev", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    return folder


def dev(clone: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Calls it from another folder, with no index that could be reached."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ROTA_", "PIP_"))}
    return subprocess.run(
        [clone / "dev", *words], cwd=clone.parent, capture_output=True, text=True, timeout=120, check=False,
        env={**kept, "PIP_INDEX_URL": "http://127.0.0.1:9", "PIP_RETRIES": "0", **environ},
    )  # fmt: skip


def test_without_a_word_it_says_which_there_are_and_a_wrong_one_is_named(clone: Path) -> None:
    plain, asked, wrong = dev(clone), dev(clone, "help"), dev(clone, "tset")
    assert (plain.returncode, plain.stdout) == (0, asked.stdout) and "test [ARGS…]" in plain.stdout
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("./dev: there is no command 'tset'\n")
    assert not (clone / ".venv").exists()


def test_a_python_that_is_named_and_no_good_is_not_passed_over_in_silence(clone: Path) -> None:
    for named in ("/bin/false", "/nowhere/python"):
        done = dev(clone, "check", ROTA_DEV_PYTHON=named)
        assert done.returncode == 1 and "or name it in ROTA_DEV_PYTHON" in done.stderr
    assert not (clone / ".venv").exists()


def test_an_environment_that_was_cut_short_in_the_making_is_made_anew(clone: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", clone / ".venv"], check=True)
    done = dev(clone, "check", ROTA_DEV_PYTHON=sys.executable)
    assert done.returncode == 1 and done.stderr.startswith("Making an environment in .venv …\n")
    assert "It needs a package index it can reach." in done.stderr
    subprocess.run([clone / ".venv/bin/python", "-m", "pip", "--version"], check=True, capture_output=True)
