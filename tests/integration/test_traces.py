"""Traces from an enqueue to its runs: in a coroutine, in a thread and in a child process, over retries, and without."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.integration.programs import clean_environment

PROGRAM = """
import asyncio
import json
import sys

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import rota
from rota.queue.job import JobFilter

spans = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("shop")
app = rota.App()
ENDED = JobFilter(states=(rota.State.DONE, rota.State.FAILED))


def here():
    context = trace.get_current_span().get_span_context()
    return [f"{context.trace_id:032x}", f"{context.span_id:016x}"]


@app.job(retry=rota.Fixed(0))
async def coroutine(ctx):
    if ctx.job.tries == 1:
        raise ValueError("once more")
    await ctx.enqueue(follow_up)
    return here()


@app.job()
def follow_up(ctx):
    return here()


@app.job(isolation="process")
def child(ctx):
    return here()


async def main():
    async with app:
        with tracer.start_as_current_span("request") as request:
            await app.enqueue(coroutine)
            await app.enqueue_many([app.new(child)])
        await app.enqueue("coroutine", max_tries=1, priority=-1)
        worker = app.worker()
        running = asyncio.ensure_future(worker.run())
        store = await app.store()
        async with asyncio.timeout(60):
            while len(ended := await store.page(ENDED, limit=9)) < 4:
                await asyncio.sleep(0.02)
        worker.stop()
        await running
        results = {}
        for row in ended:
            (whole,) = await store.show(row.id)
            results[whole.kind + (" failed" if whole.state == "failed" else "")] = json.loads(whole.result or "null")
    finished = [json.loads(span.to_json()) for span in spans.get_finished_spans()]
    print(json.dumps({"results": results, "spans": finished}))


if __name__ == "__main__":
    asyncio.run(main())
"""


def hexed(text: str) -> str:
    return text.removeprefix("0x")


def test_each_try_is_a_span_of_its_enqueues_trace(tmp_path: Path, migrated_dsn: str) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "shop.py"], cwd=tmp_path, env=clean_environment({"ROTA_DSN": migrated_dsn}),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    spans: list[dict[str, Any]] = said["spans"]
    (request,) = [span for span in spans if span["name"] == "request"]
    trace, top = hexed(request["context"]["trace_id"]), request["context"]["span_id"]

    runs = [span for span in spans if hexed(span["context"]["trace_id"]) == trace and span is not request]
    by_name = {(span["name"], span["attributes"]["rota.tries"]): span for span in runs}
    assert set(by_name) == {("coroutine run", 1), ("coroutine run", 2), ("child run", 1), ("follow_up run", 1)}
    first, second = by_name["coroutine run", 1], by_name["coroutine run", 2]
    assert first["parent_id"] == second["parent_id"] == by_name["child run", 1]["parent_id"] == top
    assert first["links"] == [] and [link["context"]["span_id"] for link in second["links"]] == [top]
    assert first["status"]["status_code"] == "ERROR" and "once more" in first["status"]["description"]
    assert second["attributes"]["rota.outcome"] == "done" and second["status"]["status_code"] == "UNSET"
    assert second["kind"] == "SpanKind.CONSUMER"

    def place(name: str, tries: int) -> list[str]:
        context = by_name[name, tries]["context"]
        return [hexed(context["trace_id"]), hexed(context["span_id"])]

    results = said["results"]
    assert results["coroutine"] == place("coroutine run", 2), "a coroutine stands in its try's span"
    assert results["follow_up"] == place("follow_up run", 1), "so does a thread"
    assert results["child"] == place("child run", 1), "so does a child process, where the program traces"
    assert by_name["follow_up run", 1]["parent_id"] == second["context"]["span_id"], "what it enqueued stands in it"

    (alone,) = [span for span in spans if hexed(span["context"]["trace_id"]) != trace]
    assert alone["name"] == "coroutine run" and alone["parent_id"] is None and "coroutine failed" in results


def test_a_program_that_does_not_trace_never_loads_opentelemetry() -> None:
    look = (
        "import asyncio, sys, rota\n"
        "app = rota.App(dsn='postgresql://127.0.0.1:1/none')\n"
        "app.job('a')(lambda ctx: 1)\n"
        "assert app.new('a').trace is None and app.worker() is not None\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", look], env=clean_environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
