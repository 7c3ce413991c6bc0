"""Exec calls that a test answers: what a handler gets, and what the test learns of them."""

import io
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import rota
from rota.commands import Stdin
from rota.settings import Settings
from rota.testing import Answers, Memory, in_memory
from rota.testing.answers import NoAnswer


async def chunks() -> AsyncIterator[bytes]:
    yield b"by "
    yield b"chunks"


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def app(answers: Answers) -> rota.App:
    app = rota.App(settings=Settings())
    app.use_exec_servers(answers)
    return app


@pytest.mark.parametrize(
    ("stdin", "read"),
    [
        (None, b""), (b"bytes", b"bytes"), (io.BytesIO(b"a file"), b"a file"), ([b"a ", b"list"], b"a list"),
        (chunks(), b"by chunks"),
    ],
    ids=["none", "bytes", "file", "list", "async"],
)  # fmt: skip
async def test_what_a_command_would_have_read_is_kept(
    app: rota.App, answers: Answers, stdin: Stdin | None, read: bytes
) -> None:
    answers.answer("upper", output=lambda asked: asked.input.upper())
    completed = await app.run("upper", {"height": 720}, input=stdin)
    assert completed.output == read.upper()
    (asked,) = answers.asked
    assert (asked.service, asked.args, asked.input) == ("upper", {"height": 720}, read)
    assert (completed.receipt.bytes_in, completed.receipt.bytes_out, completed.receipt.exit) == (
        len(read),
        len(read),
        0,
    )


async def test_an_output_that_nobody_wants_is_not_there(app: rota.App, answers: Answers) -> None:
    answers.answer("store", output=b"stored")
    completed = await app.run("store", output=False)
    assert (completed.output, completed.receipt.bytes_out) == (b"", 6)
    async with app.exec("store", output=False) as run:
        pass
    assert run.receipt.ok


async def test_a_file_by_its_path_is_read(app: rota.App, answers: Answers, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"from a file")
    answers.answer("store")
    await app.run("store", input=tmp_path / "in")
    assert answers.asked[0].input == b"from a file"


async def test_answers_come_in_turn_and_the_last_stays(app: rota.App, answers: Answers) -> None:
    answers.answer("probe", output=b"1")
    answers.answer("probe", output=b"2")
    assert [(await app.run("probe")).output for _ in range(3)] == [b"1", b"2", b"2"]


async def test_a_bad_end_is_the_error_that_it_would_be(app: rota.App, answers: Answers) -> None:
    answers.answer("encode", exit=1, stderr_line="no such codec")
    with pytest.raises(rota.ExecFailed, match=r"ended with status 1\. It said: no such codec") as caught:
        await app.run("encode")
    assert caught.value.receipt.exit == 1
    answers.answer("slow", ended_by="timeout", duration_s=60)
    with pytest.raises(rota.ExecFailed, match=r"ended by timeout after 60\.0 s"):
        await app.run("slow")
    answers.answer("away", ended_by="stopped", retryable=True)
    with pytest.raises(rota.ExecStopped):
        await app.run("away")
    answers.answer("full", error=rota.NoSlot("full", after_s=60))
    with pytest.raises(rota.NoSlot):
        await app.run("full")
    answers.answer("loose", exit=3)
    completed = await app.run("loose", check=False)
    assert completed.receipt.exit == 3


async def test_a_stream_is_read_in_the_block(app: rota.App, answers: Answers) -> None:
    answers.answer("transcode", output=b"film")
    async with app.exec("transcode") as run:
        await run.started()
        assert await run.position() is None
        with pytest.raises(RuntimeError, match="has not ended"):
            _ = run.receipt
        assert [chunk async for chunk in run.stdout] == [b"film"]
    assert run.receipt.ok
    async with app.exec("transcode") as run:
        pass
    assert run.receipt.ended_by == "cancelled"
    async with app.exec("transcode") as run:
        run.cancel()
    assert run.receipt.ended_by == "cancelled"
    answers.answer("silent", exit=2)
    with pytest.raises(rota.ExecFailed):
        async with app.exec("silent"):
            pass


async def test_a_call_without_an_answer_fails_the_test_and_no_job(answers: Answers) -> None:
    app = rota.App(settings=Settings())

    @app.job(exec=["ocr"])
    def read(ctx: rota.Context) -> str:
        return ctx.run_sync("ocr").output.decode()

    with in_memory(app) as queue:
        await app.enqueue(read)
        with pytest.raises(NoAnswer, match=r"queue\.answer\('ocr'"):
            await queue.drain()
        queue.answer("ocr", output=b"text")
        assert await results(queue) == ["text"]
        assert [asked.service for asked in queue.asked] == ["ocr", "ocr"]


async def test_commands_reach_handlers_where_they_would_on_a_worker() -> None:
    app = rota.App(settings=Settings())
    app.job("child", isolation="process", exec="ocr")(child_handler)
    app.job("streams", isolation="process")(child_that_streams)

    @app.job
    async def waits(ctx: rota.Context) -> None:
        ctx.run_sync("ocr")

    with in_memory(app) as queue:
        queue.answer("ocr", output=b"text")
        assert (await queue.run_one("child")).result == "text"
        assert [asked.input for asked in queue.asked] == [b"page"]
        assert "a child process has none" in str((await queue.run_one("streams")).error)
        assert "for plain functions" in str((await queue.run_one(waits)).error)


def child_handler(ctx: rota.Context) -> str:
    return ctx.run_sync("ocr", input=[b"pa", b"ge"]).output.decode()


def child_that_streams(ctx: rota.Context) -> None:
    ctx.exec("ocr")


async def results(queue: Memory) -> list[object]:
    return [ran.result for ran in await queue.drain(for_s=60)]
