"""Traces in this process, whose spans are kept here: what an enqueue keeps, and what a try's span says."""

from contextvars import copy_context
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rota.io import tracing

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
"""The example of W3C Trace Context."""


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """A program that has set up OpenTelemetry, for one test."""
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return kept


def begun(*, traceparent: str | None = PARENT, tries: int = 1) -> tracing.RunSpan:
    tracer = tracing.tracer()
    assert tracer is not None
    return tracer.begin("film", traceparent=traceparent, tries=tries, facts={"rota.epoch": 4})


def ended(spans: InMemorySpanExporter) -> Any:
    (span,) = spans.get_finished_spans()
    return span


def test_a_program_that_has_set_up_nothing_makes_no_spans() -> None:
    assert tracing.tracer() is None
    assert tracing.current() is None


def test_an_enqueue_keeps_the_span_that_it_stands_in(spans: InMemorySpanExporter) -> None:
    with trace.get_tracer("shop").start_as_current_span("request") as request:
        context = request.get_span_context()
        flags = f"{context.trace_flags:02x}"
        assert tracing.current() == f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags}"
    assert tracing.current() is None


def test_a_first_try_is_a_child_of_its_enqueue(spans: InMemorySpanExporter) -> None:
    begun().end("done", error=None)
    span = ended(spans)
    assert span.name == "film run" and span.parent is not None and span.links == ()
    assert f"{span.context.trace_id:032x}" == PARENT[3:35] and f"{span.parent.span_id:016x}" == PARENT[36:52]
    assert span.attributes["rota.outcome"] == "done" and span.attributes["rota.epoch"] == 4
    assert span.status.status_code.name == "UNSET"


def test_a_later_try_is_linked_too_and_a_failed_one_says_why(spans: InMemorySpanExporter) -> None:
    begun(tries=2).end("retry", error="ValueError: " + "x" * 600)
    span = ended(spans)
    assert [f"{link.context.span_id:016x}" for link in span.links] == [PARENT[36:52]]
    assert span.status.status_code.name == "ERROR" and len(span.status.description) == tracing.ERROR_MAX


@pytest.mark.parametrize("traceparent", [None, "", "no traceparent", "00-zz-zz-01"])
def test_without_a_usable_parent_a_try_begins_a_trace(spans: InMemorySpanExporter, traceparent: str | None) -> None:
    begun(traceparent=traceparent, tries=2).end("done", error=None)
    assert ended(spans).parent is None and ended(spans).links == ()


def test_what_runs_with_the_variables_stands_in_the_span(spans: InMemorySpanExporter) -> None:
    span, variables = begun(), copy_context()
    span.around(variables)
    assert variables.run(tracing.current) == span.traceparent
    assert tracing.current() is None, "and nothing else does"
    elsewhere = copy_context()
    tracing.stand_in(PARENT, elsewhere)
    assert elsewhere.run(tracing.current) == PARENT
    tracing.stand_in(None, elsewhere)
