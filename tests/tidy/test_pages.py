"""The tables, names and commands of the pages are those of the code, and every Python block compiles."""

import ast
import inspect
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

import rota
from rota.cli import main
from rota.queue.job import NEXT_STATES
from rota.settings import CHECKS, Settings
from tests.pages import PAGES, ROOT, SOURCE, blocks_of, name_of

KNOWN_VARIABLES: Final = frozenset(
    {
        "ROTA_APP",
        "ROTA_DATABASE",
        "ROTA_CONFIG",
        "ROTA_DEV_VENV",
        "ROTA_DEV_PYTHON",
        "ROTA_DEV_REQUIRE",
        "ROTA_DEV_FLAT_JOBS",
        "ROTA_DEV_SEED",
        "ROTA_DEV_FFMPEG",
    }
)
"""Variables that are no settings."""


def test_the_readme_names_the_two_commands() -> None:
    (block,) = blocks_of(ROOT / "README.md", heading="## Two commands")
    commands = [line.partition("#")[0].strip() for line in block.text.splitlines()]
    assert commands == ["./dev demo", "./dev test"]
    usage = subprocess.run([ROOT / "dev", "help"], capture_output=True, text=True, check=True).stdout
    assert all(re.search(rf"^  {command.split()[1]} ", usage, flags=re.MULTILINE) for command in commands)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_speaks_of_names_that_exist(page: Path) -> None:
    app = rota.App()
    known: dict[str, Callable[[str], bool]] = {
        "rota": lambda name: hasattr(rota, name),
        "app": lambda name: hasattr(rota.App, name) or name in vars(app),
        "ctx": lambda name: hasattr(rota.Context, name),
        "worker": lambda name: hasattr(rota.Worker, name) or name in inspect.getsource(rota.Worker.__init__),
    }
    for block in blocks_of(page):
        if block.language != "python":
            continue
        where = f"{name_of(page)}:{block.line}"
        tree = compile(block.text, where, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in known:
                assert known[node.value.id](node.attr), f"{where} has {node.value.id}.{node.attr}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_variables_are_settings(page: Path) -> None:
    known = {"ROTA_" + name.upper() for name in CHECKS} | KNOWN_VARIABLES
    named = set(re.findall(r"\bROTA_[A-Z_]*[A-Z]\b", page.read_text()))
    assert not [name for name in named if name not in known and not name.startswith("ROTA_LIMIT_")]


def test_commands_exist() -> None:
    said = {
        " ".join(found.split())
        for page in PAGES
        for found in re.findall(
            r"\brota ((?:jobs|migrate|admin|passes) [a-z]+|(?:worker|dev|demo|doctor|top|pause|resume)\b)",
            page.read_text(),
        )
    }
    commands = {line for line in said if line.split()[-1] not in ("commands", "command", "with")}
    assert {"worker", "dev", "demo", "migrate up", "migrate status", "jobs list", "jobs show"} <= commands
    for command in sorted(commands):
        done = CliRunner().invoke(main.app, [*command.split(), "--help"])
        assert done.exit_code == 0, f"rota {command}\n{done.output}"


# Tables

OTHERWISE_SET: Final = {
    "limits": "ROTA_LIMIT_<KIND>",
    "fleet_limits": "ROTA_FLEET_LIMIT_<KIND>",
    "roles": "only in the file",
}
"""Settings without a variable of their own name."""


def test_the_table_of_settings_is_that_of_the_code() -> None:
    page = (ROOT / "docs/OPERATING.md").read_text()
    rows = re.findall(
        r"^\| `(\w+)` \| (`ROTA_\w+(?:<KIND>)?`|only in the file) \| ([^|]+) \| ([^|]+) \|", page, flags=re.MULTILINE
    )
    shown = {name: (variable.strip("`"), default.strip("` ").replace(",", "")) for name, variable, default, _ in rows}
    defaults = Settings()
    told = {}
    for entry in fields(Settings):
        value = getattr(defaults, entry.name)
        variable = OTHERWISE_SET.get(entry.name, f"ROTA_{entry.name.upper()}")
        if isinstance(value, tuple):
            value = ",".join(value)
        told[entry.name] = (variable, f"{value:g}" if isinstance(value, int | float) else str(value or "none"))
    assert shown == told
    for name, _, _, allowed in rows:
        check = CHECKS.get(name)
        bounds = re.match(r"([\d.,]+) to ([\d.,]+)", allowed)
        if check is None or bounds is None:
            continue
        low, high = (float(bound.replace(",", "")) for bound in bounds.groups())
        whole = "whole" in refusal_of(check, "x")
        step: float = 1 if whole else low / 100 or 0.01
        for inside in (low, high):
            check(int(inside) if whole else inside)
        assert refusal_of(check, str(low - step)), f"{name} allows less than {low:g}"
        assert refusal_of(check, str(high + 1)), f"{name} allows more than {high:g}"


def refusal_of(check: Callable[[object], object], value: object) -> str:
    """What a check says of a bad value; empty if it takes it."""
    try:
        check(value)
    except ValueError as error:
        return str(error)
    return ""


def test_the_table_of_events_is_that_of_the_code() -> None:
    page = (ROOT / "docs/OPERATING.md").read_text()
    section = page.partition("\n## Logs\n")[2].partition("\n## ")[0]
    shown = dict(re.findall(r"^\| `([^`]+)` \| (\w+) \|", section, flags=re.MULTILINE))
    assert shown == dict(logged())


def logged() -> Iterator[tuple[str, str]]:
    """Each event that the worker and its parent log, with its level."""
    for path in [*SOURCE.glob("queue/**/*.py"), SOURCE / "io" / "processes.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(ast.Name("log"), level), args=[ast.Constant(str(event))]):
                    yield event, "error" if level == "exception" else level
                case ast.AnnAssign(target=ast.Name(id="LOSS_WORDS"), value=ast.Dict(values=words)):
                    yield from ((ast.literal_eval(word), "warning") for word in words)
                case ast.AnnAssign(target=ast.Name(id="EVENT"), value=ast.Constant(str(event))):
                    yield event, "critical"  # the warden's last word, which has no log of its own


def test_the_drawing_of_states_is_the_table_of_states() -> None:
    page = (ROOT / "docs/guide/handlers.md").read_text()
    drawn = set(re.findall(r"^  (\w+) --> (\w+)", page, flags=re.MULTILINE))
    assert drawn == {(str(one), str(other)) for one, others in NEXT_STATES.items() for other in others}
