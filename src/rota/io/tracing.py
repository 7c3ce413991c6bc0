"""Traces from an enqueue to its runs, by W3C trace context, where the program has set up OpenTelemetry; else nothing.

An enqueue keeps the `traceparent` of the span that it stands in. Each try of the job becomes a span of that trace: a
child of the enqueue's, and from the second try on with a link to it, so that the tries of one job are found side by
side. What a handler enqueues stands in its try's span again.

A program that never imported OpenTelemetry pays one look into a dict for it.
"""

import sys
from contextvars import Context as Variables
from types import ModuleType
from typing import Any, Final

TRACEPARENT: Final = "traceparent"
"""The name that W3C Trace Context gives the header, and propagators the key."""
ERROR_MAX: Final = 500
"""Characters of an error that a span keeps."""


def current() -> str | None:
    """The traceparent of the span that the caller stands in; None without one."""
    context = sys.modules.get("opentelemetry.context")
    if context is None or not context.get_current():
        return None
    carrier: dict[str, str] = {}
    _propagator().inject(carrier)
    return carrier.get(TRACEPARENT)


def stand_in(traceparent: str | None, variables: Variables) -> None:
    """Puts a span of another process around what runs with these variables, if this program traces at all."""
    context = sys.modules.get("opentelemetry.context")
    if context is not None and traceparent is not None:
        variables.run(context.attach, _propagator().extract({TRACEPARENT: traceparent}))


def tracer() -> "Tracer | None":
    """What makes the spans of runs; None if this program has not set up OpenTelemetry."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    return Tracer(trace)


class Tracer:
    """Makes a span for each try.

    Args:
        trace: the module `opentelemetry.trace`.
    """

    def __init__(self, trace: ModuleType) -> None:
        self._trace = trace
        self._tracer = trace.get_tracer("rota")

    def begin(self, kind: str, *, traceparent: str | None, tries: int, facts: dict[str, str | int]) -> "RunSpan":
        """Begins the span of a try.

        Args:
            kind: the job's.
            traceparent: what its enqueue kept.
            tries: which try it is.
            facts: attributes.

        Returns: the span; its caller ends it.
        """
        parent = _propagator().extract({} if traceparent is None else {TRACEPARENT: traceparent})
        enqueued = self._trace.get_current_span(parent).get_span_context()
        links = [self._trace.Link(enqueued)] if tries > 1 and enqueued.is_valid else []
        span = self._tracer.start_span(
            f"{kind} run", context=parent, kind=self._trace.SpanKind.CONSUMER, links=links,
            attributes={"messaging.system": "rota", "messaging.destination.name": kind, "rota.tries": tries, **facts},
        )  # fmt: skip
        return RunSpan(span, self._trace)


class RunSpan:
    """The span of one try."""

    def __init__(self, span: Any, trace: ModuleType) -> None:
        self._span = span
        self._trace = trace

    @property
    def traceparent(self) -> str:
        """Names this span to another process."""
        carrier: dict[str, str] = {}
        _propagator().inject(carrier, self._trace.set_span_in_context(self._span))
        return carrier.get(TRACEPARENT, "")

    def around(self, variables: Variables) -> None:
        """Makes it the current span of what runs with these variables."""
        context = sys.modules["opentelemetry.context"]
        variables.run(context.attach, self._trace.set_span_in_context(self._span))

    def end(self, outcome: str, *, error: str | None) -> None:
        """Ends the span.

        Args:
            outcome: how the try ended.
            error: what went wrong, if anything did.
        """
        self._span.set_attribute("rota.outcome", outcome)
        if error is not None:
            self._span.set_status(self._trace.StatusCode.ERROR, error[:ERROR_MAX])
        self._span.end()


def _propagator() -> Any:
    # Only a program that has imported OpenTelemetry comes here.
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    return TraceContextTextMapPropagator()
