"""The house rules that a machine can check."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

import rota

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "rota"
MODULES = sorted(SOURCE.rglob("*.py"))
STATEMENTS = sorted(SOURCE.rglob("io/sql/*.sql"))
AWAIT_ALLOWED = ("io", "cli", "app.py", "dashboard", "contrib", "testing", "objects", "webhooks", "demo")
EFFECTS = {"asyncio", "asyncpg", "socket", "subprocess", "threading", "time"}
SHELLS = {"app.py", "declarations.py", "__init__.py", "cli", "contrib", "demo", "io", "testing"}
"""Files and folders of `rota` that have effects, or put together what has."""
PURE = [path for path in MODULES if not SHELLS & {*path.relative_to(SOURCE).parts[:-1], str(path.relative_to(SOURCE))}]
TEXTS = sorted(
    path
    for pattern in (
        "src/**/*.py",
        "src/**/*.sql",
        "tests/**/*.py",
        "bench/**/*.py",
        "docs/**/*.md",
        "*.md",
        "dev",
        ".ci/run",
    )
    for path in ROOT.glob(pattern)
)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_await_stands_only_where_effects_may(path: Path) -> None:
    parts = path.relative_to(SOURCE).parts
    if any(part in AWAIT_ALLOWED for part in parts):
        return
    found = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Await | ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith)
    ]
    assert not found, f"{name_of(path)} awaits in lines {found}: effects belong under io/"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_each_module_says_what_it_is(path: Path) -> None:
    tree = ast.parse(path.read_text())
    if not tree.body:
        return
    assert ast.get_docstring(tree), f"{name_of(path)} has no module docstring"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_only_settings_reads_the_environment(path: Path) -> None:
    text = path.read_text()
    reads = re.findall(r"os\.environ(?!\})\b(?:\.get|\[)|os\.getenv", text)
    assert path.name == "settings.py" or not reads, f"{name_of(path)} reads the environment: {reads}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_statement_stands_in_python_beside_its_file(path: Path) -> None:
    """SQL that works on Rota's tables is in .sql files; the few session and catalogue statements are not."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert not re.search(
                r"\b(FROM|INTO|UPDATE)\s+\S*(open_jobs|ended_jobs|forever_keys|waiting)\b", node.value
            ), f"{name_of(path)}:{node.lineno} has a statement"


@pytest.mark.parametrize("path", STATEMENTS, ids=name_of)
def test_each_statement_has_its_header(path: Path) -> None:
    head = path.read_text()
    for word in ("-- Parameters", "-- Rows", "-- Locks", "-- Index"):
        assert word in head, f"{name_of(path)} has no line '{word}'"
    used = {int(number) for number in re.findall(r"\$(\d+)", re.sub(r"^--.*$", "", head, flags=re.MULTILINE))}
    told = {
        int(number) for number in re.findall(r"\$(\d+)", "\n".join(re.findall(r"^--.*$", head, flags=re.MULTILINE)))
    }
    assert used == told == set(range(1, len(used) + 1)), f"{name_of(path)} uses {used} and tells {told}"


def test_each_statement_is_used_by_the_store() -> None:
    code = "".join(path.read_text() for path in MODULES)
    unused = [path.name for path in STATEMENTS if f'"{path.name}"' not in code]
    assert not unused


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_nothing_is_left_for_later(path: Path) -> None:
    if path == Path(__file__):
        return
    text = path.read_text()
    for word in ("TO" + "DO", "FIX" + "ME", "XX" + "X", "NotImplemented" + "Error"):
        assert not re.search(rf"\b{word}\b", text), f"{name_of(path)} has {word}"


def test_no_module_has_a_name_that_says_nothing() -> None:
    bad = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager"}
    assert not [name_of(path) for path in MODULES if path.stem in bad]


def test_public_names_are_those_that_are_listed() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    imported = {
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert imported == set(rota.__all__)


def test_the_version_stands_in_the_changelog() -> None:
    assert f"[{rota.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_each_dependency_is_imported_somewhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    code = "".join(path.read_text() for path in MODULES)
    for requirement in project["dependencies"]:
        name = re.split(r"[><=;\[ ]", requirement)[0].replace("-", "_")
        if name == "httptools":  # uvicorn loads it, by its name in a setting
            continue
        name = {"pyjwt": "jwt"}.get(name, name)
        assert re.search(rf"^\s*(import|from) {name}\b", code, flags=re.MULTILINE), f"{name} is not used"


@pytest.mark.parametrize("path", PURE, ids=name_of)
def test_a_pure_module_imports_no_effects(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    found = [name for name in imported if name.split(".")[0] in EFFECTS or re.match(r"rota\.(\w+\.)?io(\.|$)", name)]
    assert not found, f"{name_of(path)} imports {found}"


def test_the_table_of_modules_is_that_of_the_tree() -> None:
    page = (ROOT / "docs" / "STYLE.md").read_text()
    told: dict[str, list[str]] = {}
    part = ""
    for named, modules in re.findall(r"^\| (?:`([\w/]+/)`)? ?\| [\w' ]*\| (`.*`) \|$", page, flags=re.MULTILINE):
        part = named or part
        told.setdefault(part, []).extend(re.findall(r"`([\w*]+)`", modules))
    assert len(told) == 9
    for part, names in told.items():
        there = {path.stem for path in (SOURCE / part).glob("*.py")} - {"__init__"}
        families = tuple(name.removesuffix("*") for name in names if name.endswith("*"))
        one_by_one = [name for name in names if not name.endswith("*")]
        assert len(one_by_one) == len(set(one_by_one)), f"{part} names a module twice"
        assert {name for name in there if not name.startswith(families or ("*",))} == set(one_by_one), part
        assert all(any(name.startswith(family) for name in there) for family in families), part


@pytest.mark.parametrize("path", sorted((SOURCE / "cli").glob("*.py")), ids=name_of)
def test_json_of_the_command_line_has_names_like_those_of_python(path: Path) -> None:
    """Those of the wire are in camelCase."""
    keys = [
        key.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    ]
    assert not [key for key in keys if re.fullmatch(r"[a-z0-9]+([A-Z][a-z0-9]*)+", key)]


def test_each_folder_of_tests_is_in_the_table_of_them() -> None:
    page = (ROOT / "docs" / "HACKING.md").read_text()
    told = set(re.findall(r"^\| `(\w+)/` \|", page, flags=re.MULTILINE))
    assert told == {path.parent.name for path in (ROOT / "tests").glob("*/*.py")}
