"""Logs: one line for each event, and no secret in any."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from rota.io import log
from rota.io.log import redact
from rota.settings import Settings


@pytest.fixture(autouse=True)
def unset() -> Iterator[None]:
    """Leaves the process as it was."""
    root = logging.getLogger()
    before = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = before
    structlog.reset_defaults()


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """What was logged, as JSON, by line."""
    out, err = capsys.readouterr()
    assert out == ""
    return [json.loads(line) for line in err.splitlines()]


# --- secrets ---


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://app:hunter2@db:5432/shop", "postgresql://app:…@db:5432/shop"),
        ("POSTGRES://app:hunter2@db/shop", "POSTGRES://app:…@db/shop"),
        ("redis://:hunter2@cache", "redis://:…@cache"),
        ("postgresql+asyncpg://app:hunter2@db", "postgresql+asyncpg://app:…@db"),
        ("at postgresql://app:hun@ter/2?x@db/shop, it says", "at postgresql://app:…@db/shop, it says"),
        ("two: a://u:hunter2@h b://u:hunter2@h", "two: a://u:…@h b://u:…@h"),
        ("'a://u:hunter2@h' and \"b://u:hunter2@h\"", "'a://u:…@h' and \"b://u:…@h\""),
        ("https://s3/file.mp4?X-Amz-Signature=hunter2&x=1 failed", "https://s3/file.mp4?… failed"),
        ("<https://s3/a?hunter2>", "<https://s3/a?…>"),
        ("postgresql://db/shop?user=app&password=hunter2", "postgresql://db/shop?…"),
        ("host=db password=hunter2 user=app", "host=db password=… user=app"),
        ("host=db sslpassword = 'hunter2 and more' user=app", "host=db sslpassword = … user=app"),
    ],
)
def test_secrets_are_taken_out_and_the_rest_stays(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize(
    "text",
    ["", "a plain line", "postgresql://app@db:5432/shop", "https://site/page#part", "who? me@home", "12:30 a:b@c"],
)
def test_what_has_no_secret_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


def test_a_long_line_is_redacted_in_no_time() -> None:
    # Quadratic time would show here as minutes.
    for text in ("a://" * 50_000, "a:" * 50_000 + "://", "x" * 500_000, "password " * 50_000, "a://b:?" * 50_000 + "@"):
        assert len(redact(text)) <= len(text)


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_no_field_and_no_traceback_holds_a_secret(log_format: Any, capsys: pytest.CaptureFixture[str]) -> None:
    log.setup(Settings(log_format=log_format))
    address = "postgresql://app:hunter2@db/shop"
    try:
        local = f"password {address}"
        raise ValueError(f"cannot reach {local[9:]}")
    except ValueError as error:
        log.get_logger("rota.test").warning(
            f"away: {address}", text=address, many=[address, {"deep": (address,)}], error=error, exc_info=error
        )
    said = capsys.readouterr().err
    assert "hunter2" not in said
    assert said.replace("\\u2026", "…").count("app:…@db/shop") == 6
    assert "ValueError: cannot reach" in said


# --- lines ---


def test_a_line_is_one_object_with_name_fields_level_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    log.setup(Settings(log_format="json"))
    log.get_logger("rota.test").warning("job stalled", kind="build", epoch=3, wait_s=0.5, last=None, done=False)
    (line,) = lines(capsys)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "job stalled", "logger_name": "rota.test", "level": "warning",
        "kind": "build", "epoch": 3, "wait_s": 0.5, "last": None, "done": False,
    }  # fmt: skip


def test_text_of_any_kind_stays_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    log.setup(Settings(log_format="json"))
    log.get_logger("rota.test").info("two\nlines", text="a\nb\u2028c\x1b[31m\0", more={"x\ny": {1, 2}})
    (line,) = lines(capsys)
    assert line["event"] == "two\nlines"
    assert line["text"] == "a\nb\u2028c\x1b[31m\0"
    assert line["more"] == {"x\ny": "{1, 2}"}


def test_a_traceback_is_a_field(capsys: pytest.CaptureFixture[str]) -> None:
    log.setup(Settings(log_format="json"))
    try:
        raise KeyError("k")
    except KeyError:
        log.get_logger("rota.test").exception("it failed")
    (line,) = lines(capsys)
    assert line["level"] == "error"
    assert line["exception"].splitlines()[-1] == "KeyError: 'k'"


def test_the_level_of_the_settings_holds(capsys: pytest.CaptureFixture[str]) -> None:
    log.setup(Settings(log_format="json", log_level="warning"))
    logger = log.get_logger("rota.test")
    logger.debug("a")
    logger.info("b")
    logger.warning("c")
    logger.error("d")
    assert [line["event"] for line in lines(capsys)] == ["c", "d"]


def test_a_logger_from_before_the_setup_follows_it(capsys: pytest.CaptureFixture[str]) -> None:
    logger = log.get_logger("rota.early")
    log.setup(Settings(log_format="json"))
    logger.info("later")
    assert [line["event"] for line in lines(capsys)] == ["later"]


def test_without_a_terminal_auto_is_json_and_text_is_text_without_colour(capsys: pytest.CaptureFixture[str]) -> None:
    log.setup(Settings())
    log.get_logger("rota.test").info("one")
    assert [line["event"] for line in lines(capsys)] == ["one"]
    log.setup(Settings(log_format="text"))
    log.get_logger("rota.test").info("two", kind="build")
    said = capsys.readouterr().err
    assert "two" in said and "kind=build" in said and "\x1b" not in said


def test_fields_that_were_bound_are_on_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    log.setup(Settings(log_format="json"))
    logger = log.get_logger("rota.test").bind(kind="build", epoch=3)
    logger.info("one", epoch=4)
    logger.critical("two")
    assert [(line["event"], line["kind"], line["epoch"]) for line in lines(capsys)] == [
        ("one", "build", 4), ("two", "build", 3),
    ]  # fmt: skip


def test_children_can_be_told_how_their_parent_logs() -> None:
    log.setup(Settings(log_format="json", log_level="warning"))
    assert log.log_settings() == ("json", "warning")


def test_without_a_setup_events_go_to_the_logging_of_the_program(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    logger = log.get_logger("rota.test").bind(epoch=3)
    logger.debug("not this")
    logger.info("lost postgresql://app:hunter2@db", at="https://s3/a?hunter2", text="100%")
    try:
        raise KeyError("k")
    except KeyError:
        logger.exception("failed")
    assert [(record.name, record.levelname, record.getMessage()) for record in caplog.records] == [
        ("rota.test", "INFO", "lost postgresql://app:…@db epoch=3 at='https://s3/a?…' text='100%'"),
        ("rota.test", "ERROR", "failed epoch=3"),
    ]
    assert caplog.records[1].exc_info is not None


def test_lines_of_other_libraries_have_the_same_form() -> None:
    program = (
        "import logging; from rota.io import log; from rota.settings import Settings\n"
        "log.setup(Settings(log_format='json'))\n"
        "logging.getLogger('asyncpg').warning('lost %s', 'a://u:hunter2@h')\n"
        "logging.getLogger('asyncpg').info('not this')\n"
        "try: 1 / 0\n"
        "except ZeroDivisionError: logging.getLogger('shop').exception('failed')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first, second = map(json.loads, done.stderr.splitlines())
    assert (first["event"], first["level"], first["logger_name"]) == ("lost a://u:…@h", "warning", "asyncpg")
    assert second["event"] == "failed" and second["exception"].endswith("ZeroDivisionError: division by zero")


def test_a_program_that_logs_in_its_own_way_goes_on_doing_so() -> None:
    own = logging.NullHandler()
    logging.getLogger().handlers[:] = [own]
    log.setup(Settings())
    assert logging.getLogger().handlers == [own]


def test_on_a_terminal_no_text_of_a_job_drives_it(capsys: pytest.CaptureFixture[str]) -> None:
    log.setup_as("text", "info")
    odd = "\x1b[31mred\x9b2J\u202eX\nnext\x07"
    logger = log.get_logger("shop\x1bcart")
    logger.info(odd, **{odd: odd})
    try:
        raise ValueError(odd)
    except ValueError:
        logger.exception("try failed")
    said = capsys.readouterr().err
    assert [char for char in said if not char.isprintable() and char != "\n"] == []
    assert "ValueError: \\x1b[31mred\\x9b2J\\x202eX\nnext\\x07" in said, "a traceback keeps its lines"


# --- what cannot be shown, and what is too much ---


class Unsayable:
    """Nobody gets a word out of it."""

    def __str__(self) -> str:
        raise LookupError("no name")


def test_what_cannot_be_shown_says_so_and_the_line_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    log.setup(Settings(log_format="json"))
    endless: list[Any] = []
    endless.append(endless)
    log.get_logger("rota.test").info(
        "odd", one=Unsayable(), many={"a": [1, Unsayable()], Unsayable(): 2}, big=10**5000, none=float("nan"),
        endless=endless, wide=1 << 70,
    )  # fmt: skip
    _out, err = capsys.readouterr()

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    line = json.loads(err, parse_constant=refuse)
    assert line["one"] == "<Unsayable that cannot be shown: LookupError>"
    assert line["many"] == "<dict that cannot be shown: LookupError>"
    assert line["big"] == "<int that cannot be shown: ValueError>"
    assert (line["none"], line["wide"]) == ("nan", str(1 << 70))
    assert "…" in err or "\\u2026" in err


def test_a_line_has_a_bounded_length(capsys: pytest.CaptureFixture[str]) -> None:
    log.setup(Settings(log_format="json"))
    try:
        raise ValueError("begin " + "word " * 1_000_000 + "end")
    except ValueError as error:
        log.get_logger("rota.test").warning(
            "failed", error=error, exc_info=error, many=["x" * 1000] * 100_000,
            deep={"a": [list(range(10_000))] * 1000},
        )  # fmt: skip
    (line,) = lines(capsys)
    assert line["error"].startswith("begin word") and line["error"].endswith("word end")
    assert "… of 5,000,009 characters …" in line["error"]
    assert line["exception"].startswith("Traceback") and line["exception"].endswith("word end")
    assert len(json.dumps(line)) < 6 * log.CHARS_MAX


def test_no_half_of_a_secret_stays_where_a_long_text_is_cut() -> None:
    for length in range(log.CHARS_MAX // 2 - 40, log.CHARS_MAX // 2 + 5):
        for far in (length, log.CHARS_MAX // 2 + length):
            secret = "postgresql://app:hunter2@db/shop?key=hunter2"
            text = "x" * (far - 1) + " " + secret + " " + "y" * log.CHARS_MAX * 2
            for said in (log.redact_whole(text), log.redact_whole(text[::-1].replace(secret[::-1], secret))):
                assert "hunter" not in said


def test_a_processor_of_the_programs_own_that_fails_is_no_fault_of_whoever_logs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: Any) -> Any:
        raise KeyError("request_id")

    structlog.configure(processors=[fail])
    log.get_logger("rota.test").warning("lease ran out", job_id="1")
    assert capsys.readouterr().err == "lease ran out (its line could not be made: KeyError)\n"
