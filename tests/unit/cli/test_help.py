"""What the lists of commands say on a terminal, also on a narrow one."""

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


def commands(command: Any, *words: str) -> Iterator[tuple[str, Any]]:
    """The words that lead to a command that does something, and the command."""
    below: dict[str, Any] | None = getattr(command, "commands", None)
    if below is None:
        yield " ".join(words), command
    for name, one in (below or {}).items():
        yield from commands(one, *words, name)


GROUPS = list(groups(get_command(app)))
COMMANDS = dict(commands(get_command(app)))
WITHOUT_JSON = {
    "worker", "dev", "execserver", "gateway", "runner run",  # they run until a signal stops them, and log
    "exec",  # its output is the command's
    "runner check-argv",  # it speaks JSON lines
    "demo media", "demo runners",  # for the eye
}  # fmt: skip


def test_there_are_groups() -> None:
    assert {(), ("runner",), ("jobs",), ("demo",)} <= set(GROUPS)


@pytest.mark.parametrize("width", [40, 60, 80])
@pytest.mark.parametrize("words", GROUPS, ids=lambda words: " ".join(words) or "rota")
def test_no_sentence_in_a_list_of_commands_is_cut(words: tuple[str, ...], width: int) -> None:
    env = {"COLUMNS": str(width)}
    result = CliRunner().invoke(app, [*words, "--help"], prog_name="rota", terminal_width=width, env=env)
    _, found, listed = result.output.partition("Commands:" if "Commands:" in result.output else "Options:")
    assert found, result.output
    assert [line for line in listed.splitlines() if line.rstrip(" │").endswith(("...", "…"))] == []


def test_each_command_that_tells_something_tells_it_as_json_too() -> None:
    told = {words for words, one in COMMANDS.items() if any("--json" in option.opts for option in one.params)}
    assert told == set(COMMANDS) - WITHOUT_JSON


@pytest.mark.parametrize("words", COMMANDS)
def test_each_option_with_a_value_says_in_a_word_what_it_is(words: str) -> None:
    for option in COMMANDS[words].params:
        if not (option.hidden or getattr(option, "is_flag", False)):
            assert option.metavar, option.name
