"""What a command loads, and what it leaves to others."""

import subprocess
import sys

import pytest

from rota.cli.main import COMMANDS

HEAVY = {
    "aiohttp", "cryptography", "jinja2", "jwt", "obstore", "prometheus_client", "sqlalchemy", "starlette", "uvicorn",
    "websockets",
}  # fmt: skip
"""Libraries that serve HTTP, speak to gateways or stores, or sign: most programs that add jobs need none of them."""
LOADED = """
import sys
{statement}
print(*sys.modules)
"""
ROTA = """
import contextlib, io
sys.argv = ["rota", {words}]
from rota.cli.main import main
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main()
"""


def loaded(statement: str) -> set[str]:
    """The modules that a fresh interpreter has after this."""
    code = LOADED.format(statement=statement)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def rota(*words: str) -> set[str]:
    return loaded(ROTA.format(words=", ".join(map(repr, words))))


def test_a_program_that_adds_jobs_loads_no_server_and_no_client_of_one() -> None:
    modules = loaded("import rota; rota.App(settings=rota.Settings(dsn='postgresql://localhost/none'))")
    assert "asyncpg" in modules
    assert modules & (HEAVY | {"rich", "structlog", "typer"}) == set()


def test_the_list_of_commands_loads_none_of_them() -> None:
    modules = rota("--help")
    assert "rota.cli.main" in modules
    assert modules & HEAVY == set()
    assert modules & {f"rota.cli.{entry.module}" for entry in COMMANDS.values()} == set()


@pytest.mark.parametrize("words", [("jobs", "list"), ("worker",), ("passes", "list"), ("pause",), ("migrate",)])
def test_a_command_does_not_load_what_others_need(words: tuple[str, ...]) -> None:
    modules = rota(*words, "--help")
    assert f"rota.cli.{words[0]}" in modules
    assert modules & HEAVY == set()


def test_a_command_of_another_module_in_a_group_is_loaded_alone() -> None:
    modules = rota("runner", "check-argv", "--help")
    assert "rota.cli.check_argv" in modules
    assert "rota.cli.devices" not in modules
