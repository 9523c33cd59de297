"""Sends traces to an OpenTelemetry collector, by OTLP over HTTP."""

from __future__ import annotations

import os
from importlib.metadata import version

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Status, StatusCode, set_span_in_context

from volcano_elastic.operator.resize_trace import Span

_TIMEOUT_SECONDS = 5.0
_MICROSECOND = 1000
"""Nanoseconds."""


def otlp(endpoint: str) -> SpanExporter:
    """Return what sends to `endpoint`, such as http://collector:4318/v1/traces. Headers, client
    certificates and compression are those of OpenTelemetry's own variables (OTEL_EXPORTER_OTLP_…).
    """
    return OTLPSpanExporter(endpoint=endpoint, timeout=_TIMEOUT_SECONDS)


class TraceExporter:
    """Hands traces to an exporter, which sends them from a thread of its own: what can't be sent
    is lost, and told by OpenTelemetry's own log."""

    def __init__(self, exporter: SpanExporter) -> None:
        known = {
            "service.name": os.environ.get("OTEL_SERVICE_NAME", "volcano-elastic"),
            "service.version": version("volcano-elastic"),
        }
        if pod := os.environ.get("POD_NAME"):
            known["service.instance.id"] = pod
        self._provider = TracerProvider(resource=Resource.create(known), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("volcano_elastic.operator")

    def export(self, trace: Span) -> None:
        """Queue a trace; returns at once."""
        self._add(trace, None)

    def close(self) -> None:
        """Send what is queued; takes a few seconds where the collector gives no answer."""
        self._provider.shutdown()

    def _add(self, span: Span, parent: object) -> None:
        context = None if parent is None else set_span_in_context(parent)  # type: ignore[arg-type]
        made = self._tracer.start_span(
            span.name,
            context=context,
            attributes=dict(span.attributes),
            start_time=_nanoseconds(span.start.timestamp()),
        )
        for part in span.parts:
            self._add(part, made)
        if span.failure:
            made.set_status(Status(StatusCode.ERROR, span.failure))
        made.end(end_time=_nanoseconds(span.end.timestamp()))


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1_000_000) * _MICROSECOND
