"""What is published: a wheel with the program alone, an sdist with all that belongs to it, and both work elsewhere."""

import configparser
import email
import email.message
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import rota
from rota.io.ffmpeg import find_tools
from tests.integration.programs import Done, nothing_runs, run

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
QUIET = {"PYTHONWARNINGS": "ignore", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
"""For tools that are not ours."""


def source_files(*suffixes: str) -> set[str]:
    """The files of the program as the checkout has them."""
    return {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*") if path.suffix in suffixes}


@dataclass(frozen=True, slots=True)
class Built:
    """Both packages."""

    wheel: Path
    sdist: Path

    @property
    def in_wheel(self) -> set[str]:
        with zipfile.ZipFile(self.wheel) as archive:
            return set(archive.namelist())

    def of_info(self, name: str) -> str:
        """A file about the wheel itself."""
        with zipfile.ZipFile(self.wheel) as archive:
            return archive.read(f"rota-{rota.__version__}.dist-info/{name}").decode()

    @property
    def metadata(self) -> email.message.Message:
        return email.message_from_string(self.of_info("METADATA"))

    @property
    def in_sdist(self) -> dict[str, tarfile.TarInfo]:
        with tarfile.open(self.sdist) as archive:
            return {member.name.partition("/")[2]: member for member in archive.getmembers()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The sdist of this checkout, and the wheel that is built from that sdist."""
    folder = tmp_path_factory.mktemp("built")
    done = run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT], folder=folder, environ=QUIET
    )
    assert done.status == 0, done.out + done.err
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return Built(wheel, sdist)


def test_the_wheel_has_the_whole_program_and_nothing_else(built: Built) -> None:
    info = f"rota-{rota.__version__}.dist-info/"
    program = {name for name in built.in_wheel if not name.startswith(info)}
    assert program == source_files(".py", ".sql", ".typed")
    assert "rota/py.typed" in program
    assert {name for name in program if name.endswith(".sql")} > {
        "rota/io/migrations/0001_jobs.sql", "rota/queue/io/sql/claim.sql",
    }  # fmt: skip
    assert {name.removeprefix(info) for name in built.in_wheel - program} == {
        "METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE",
    }  # fmt: skip
    assert built.wheel.name == f"rota-{rota.__version__}-py3-none-any.whl"


def test_the_wheel_says_what_it_is_and_what_it_needs(built: Built) -> None:
    told = built.metadata
    assert (told["Name"], told["Version"], told["License-Expression"]) == ("rota", rota.__version__, "Apache-2.0")
    assert told["Requires-Python"] == ">=3.11"
    assert set(told.get_all("Provides-Extra", [])) == {"embedded", "media", "otel", "all", "dev"}
    assert told.get_payload().startswith("# Rota\n")
    assert "Apache License" in built.of_info("licenses/LICENSE")
    always = {re.split(r"[><=!~;\[ ]", need)[0] for need in told.get_all("Requires-Dist", []) if "extra ==" not in need}
    assert always >= {"asyncpg", "msgspec", "rich", "structlog", "typer"}
    assert not always & {"sqlalchemy", "django", "psycopg", "pytest", "pydantic"}, "these are the caller's own"
    entry = configparser.ConfigParser()
    entry.read_string(built.of_info("entry_points.txt"))
    assert dict(entry["console_scripts"]) == {"rota": "rota.cli.main:main"}


def test_the_sdist_has_all_that_is_needed_to_change_and_test_it(built: Built) -> None:
    names = built.in_sdist
    assert {f"src/{name}" for name in source_files(".py", ".sql", ".typed")} <= set(names)
    for name in (
        "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "dev", "docs/ARCHITECTURE.md", "bench/__main__.py",
        "tests/conftest.py", "tests/integration/test_package.py",
    ):  # fmt: skip
        assert name in names, name
    assert names["dev"].mode & stat.S_IXUSR
    top = {name.partition("/")[0] for name in names}
    assert top <= {
        "", "src", "tests", "docs", "bench", "dev", "README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml",
        "PKG-INFO", ".gitignore", ".ci",
    }  # fmt: skip
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]


# --- elsewhere ---


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """An environment that has the wheel and what it needs, and nothing of this checkout."""

    folder: Path

    def __call__(self, program: str, *args: str | Path, timeout_s: float = 120.0) -> Done:
        """Runs a program of it, in a folder beside it, with nothing else on PATH."""
        work = self.folder / "work"
        work.mkdir(exist_ok=True)
        argv = [self.folder / "venv/bin" / program, *args]
        return run(argv, folder=work, environ={"PATH": "/usr/bin:/bin"}, timeout_s=timeout_s)


def needed_by(wheel: Built, extras: frozenset[str]) -> set[str]:
    """The names of all that the wheel needs with these extras, directly or not, on this machine."""
    asked: dict[str, frozenset[str]] = {}
    open_ = [("rota", extras)]
    while open_:
        name, of_it = open_.pop()
        texts = wheel.metadata.get_all("Requires-Dist") if name == "rota" else metadata.requires(name)
        for need in map(Requirement, texts or ()):
            wanted = need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in of_it | {""})
            key = canonicalize_name(need.name)
            if wanted and not (key in asked and need.extras <= asked[key]):
                asked[key] = asked.get(key, frozenset()) | need.extras
                open_.append((key, asked[key]))
    return set(asked) - {"rota"}


def link(source: Path, target: Path) -> None:
    """One file at two places, without a copy of its bytes where the file system can do that."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@pytest.fixture(scope="module")
def elsewhere(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    """Made once, of the wheel and of what it declares, as this interpreter has that.

    pip, which may not look anywhere else, refuses the wheel if that is not all, or of other versions.
    """
    folder = tmp_path_factory.mktemp("elsewhere")
    venv.create(folder / "venv", with_pip=False)
    (packages,) = folder.glob("venv/lib/*/site-packages")
    for name in needed_by(built, frozenset({"all"})):
        for file in metadata.files(name) or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                link(Path(str(file.locate())), packages / file)
    pip = [sys.executable, "-m", "pip", "--python", folder / "venv/bin/python"]
    done = run([*pip, "install", "--quiet", "--no-index", f"{built.wheel}[all]"], folder=folder, environ=QUIET)
    assert done.status == 0, done.out + done.err
    yield Elsewhere(folder)
    nothing_runs(folder)
    shutil.rmtree(folder)


IMPORT_ALL = """
import importlib
import pkgutil
import rota

names = [found.name for found in pkgutil.walk_packages(rota.__path__, "rota.")]
# Whoever asks pytest for fixtures has pytest.
skipped = {"rota.io.embedded_launch", "rota.demo.worker", "rota.testing.fixtures"}
for name in names:
    # Whoever imports rota.contrib.django has Django.
    if name not in skipped and not name.startswith("rota.contrib.django"):
        importlib.import_module(name)
print(len(names), rota.__file__)
"""


def test_every_module_can_be_imported_without_what_is_for_development(elsewhere: Elsewhere) -> None:
    done = elsewhere("python", "-I", "-c", IMPORT_ALL)
    assert (done.status, done.err) == (0, "")
    count, file = done.out.split()
    assert int(count) > 40 and Path(file).is_relative_to(elsewhere.folder)
    absent = elsewhere("python", "-I", "-c", "import sqlalchemy")
    assert "No module named 'sqlalchemy'" in absent.err, "else the test above would say little"


def test_the_command_is_installed(elsewhere: Elsewhere) -> None:
    done = elsewhere("rota", "--version")
    assert (done.status, done.out, done.err) == (0, f"rota {rota.__version__}\n", "")


def test_the_demo_runs_with_what_the_wheel_brings(elsewhere: Elsewhere) -> None:
    tools = find_tools(os.environ.get("ROTA_FFMPEG"))
    tone = elsewhere.folder / "tone.wav"
    sound = ["-f", "lavfi", "-i", "aevalsrc=0.1*sin(2000*PI*t):sample_rate=48000:duration=2"]
    subprocess.run([tools.ffmpeg, "-v", "error", *sound, tone], check=True, stdin=subprocess.DEVNULL)
    done = elsewhere("rota", "demo", "--no-kill", tone)
    assert (done.status, done.err) == (0, "")
    assert "\n5 of 5 jobs done in " in done.out
    assert (elsewhere.folder / "work/rota-demo/results/index.html").is_file()
    nothing_runs(elsewhere.folder)
    look = done.out.partition("Look further:\n")[2].splitlines()[0]
    assert look.split()[0].endswith("/bin/rota") and " jobs list --dsn embedded:" in look
