"""What the lists of commands say on a terminal of 80 columns."""

from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from rota.cli.main import app


def groups(command: Any, *words: str) -> Iterator[tuple[str, ...]]:
    """The words that lead to a group, and to all groups below it."""
    below: dict[str, Any] | None = getattr(command, "commands", None)
    if below is not None:
        yield words
        for name, one in below.items():
            yield from groups(one, *words, name)


GROUPS = list(groups(get_command(app)))


def test_there_are_groups() -> None:
    assert {(), ("runner",), ("jobs",), ("demo",)} <= set(GROUPS)


@pytest.mark.parametrize("words", GROUPS, ids=lambda words: " ".join(words) or "rota")
def test_no_sentence_in_a_list_of_commands_is_cut(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*words, "--help"], prog_name="rota", terminal_width=80, env={"COLUMNS": "80"})
    _, found, listed = result.output.partition("Commands:" if "Commands:" in result.output else "Options:")
    assert found, result.output
    assert [line for line in listed.splitlines() if line.rstrip(" │").endswith(("...", "…"))] == []
