"""How checks look, and what the status says of them."""

import json
from collections.abc import Callable

import pytest
import typer
from rich.console import Console

from rota.cli import doctor as module
from rota.io import terminal
from rota.queue.health import Check, Health, Level

FULL = Check(
    "vacuum", Level.WARNING, "session 77 holds a snapshot for 7 min", "End it: SELECT pg_terminate_backend(77)"
)
FINE = Check("clock", Level.OK, "within 2 ms")

Shown = Callable[..., list[str]]


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shown:
    """Runs the command over these checks, on a terminal of this width, and gives its lines and its status."""

    async def nothing(*_: object) -> Health:
        return Health(180_000, "18.0")

    def run(*checks: Check, width: int = 80, as_json: bool = False) -> list[str]:
        monkeypatch.setattr(module.App, "database", nothing)
        monkeypatch.setattr(module, "read_health", nothing)
        monkeypatch.setattr(module, "read_fleet", nothing)
        monkeypatch.setattr(module, "examine", lambda _: list(checks))
        monkeypatch.setattr(module, "examine_fleet", lambda _: [])
        monkeypatch.setattr(module, "read_runners", nothing)
        monkeypatch.setattr(module, "examine_runners", lambda _: [])
        monkeypatch.setattr(terminal, "out", Console(width=width, highlight=False, markup=False, color_system=None))
        status = 0
        try:
            module.doctor(dsn="postgresql://db/shop", as_json=as_json)
        except typer.Exit as end:
            status = end.exit_code
        return [*(line.rstrip() for line in capsys.readouterr().out.splitlines()), str(status)]

    return run


def test_the_status_is_1_only_where_something_has_to_be_done(doctor: Shown) -> None:
    assert doctor(FINE) == ["ok       clock          within 2 ms", "0"]
    assert doctor(FINE, Check("pooler", Level.NOTE, "set", "unset it"))[-1] == "0"
    assert doctor(FINE, FULL)[-1] == "1"
    assert doctor(Check("schema", Level.PROBLEM, "lacks 0002", "Run: rota migrate up"))[-1] == "1"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_what_is_long_goes_on_below_its_own_text(doctor: Shown, width: int) -> None:
    long = Check("vacuum", Level.PROBLEM, "words " * 30, "advice " * 30)
    *lines, _ = doctor(long, width=width)
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("problem  vacuum         words")
    assert all(line.startswith(" " * module.INDENT) for line in lines[1:])
    assert [line for line in lines if "→ advice" in line]


def test_it_is_json_too(doctor: Shown) -> None:
    *lines, status = doctor(FULL, as_json=True)
    said = json.loads("\n".join(lines))
    assert said == {
        "ok": False,
        "checks": [{"about": "vacuum", "level": "warning", "words": FULL.words, "advice": FULL.advice}],
    }
    assert status == "1"
