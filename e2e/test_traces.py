"""A resize as a trace in OpenTelemetry's own format, received where a collector would be."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from e2e.stage import running
from embedded_cluster.conformance.control_plane import ControlPlane
from embedded_cluster.readiness import HOST
from volcano_elastic.demo.training import DemoJob

pytestmark = [pytest.mark.e2e, pytest.mark.any_plane]


@asynccontextmanager
async def collector(spans: list[Span]) -> AsyncIterator[str]:
    """Yield the URL of what keeps the spans that it is sent."""

    async def take(request: web.Request) -> web.Response:
        assert request.content_type == "application/x-protobuf"
        told = trace_service_pb2.ExportTraceServiceRequest.FromString(await request.read())
        for resource in told.resource_spans:
            for scope in resource.scope_spans:
                spans.extend(scope.spans)
        return web.Response(
            body=trace_service_pb2.ExportTraceServiceResponse().SerializeToString(),
            content_type="application/x-protobuf",
        )

    app = web.Application()
    app.router.add_post("/v1/traces", take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, HOST, 0)
    await site.start()
    try:
        yield f"http://{HOST}:{runner.addresses[0][1]}/v1/traces"
    finally:
        await runner.cleanup()


def attributes(span: Span) -> dict[str, str | int | float]:
    return {
        one.key: getattr(one.value, one.value.WhichOneof("value") or "string_value")
        for one in span.attributes
    }


async def test_growth_and_shrink_are_traces_from_the_plan_to_the_first_step(
    fresh_control_plane: ControlPlane, tmp_path: Path
) -> None:
    spans: list[Span] = []
    old = DemoJob("old", min=1, max=3, epochs=400, step_seconds=0.1)
    new = DemoJob("new", min=2, max=2, epochs=1, step_seconds=0.04)

    def trace(size: int) -> list[Span]:
        """The spans of the last complete resize of `old` to this size, the outermost first."""
        for span in reversed(spans):
            known = attributes(span)
            if not span.parent_span_id and known["volcano_elastic.job"] == old.name:
                ended_well = known["volcano_elastic.outcome"] == "complete"
                if ended_well and known["volcano_elastic.size.new"] == size:
                    rest = [s for s in spans if s.trace_id == span.trace_id and s is not span]
                    return [span, *rest]
        return []

    def first_step_of(world: int) -> int:
        """Nanoseconds, as the coordinator tells it."""
        found = [one for one in stage.training(old)["rounds"] if one["world"] == world]
        return int(found[-1]["first_step_time"] * 1e9)

    async with (
        collector(spans) as url,
        running(
            fresh_control_plane, tmp_path, operator_arguments=["--trace-endpoint", url]
        ) as stage,
    ):
        await stage.submit(old)
        await stage.until(lambda: trace(3), "growth to 3 is told")
        grown, *parts = trace(3)
        assert abs(grown.end_time_unix_nano - first_step_of(3)) < 1e7
        came = [attributes(s)["k8s.pod.name"] for s in parts if s.name == "pod comes"]
        assert came and set(came) <= {f"old-worker-{index}" for index in range(3)}
        assert {"plan", "write size", "schedule", "start", "rendezvous", "first step"} <= {
            span.name for span in parts
        }
        assert all(
            grown.start_time_unix_nano <= span.end_time_unix_nano <= grown.end_time_unix_nano
            for span in parts
        )

        await stage.submit(new)
        await stage.until(lambda: trace(2), "the shrink is told")
        shrunk, *parts = trace(2)
        assert attributes(shrunk)["volcano_elastic.reason"] == "ShrunkForMinimum"
        (left,) = [span for span in parts if span.name == "pod leaves"]
        assert attributes(left) == {"k8s.pod.name": "old-worker-2"}
        pause = attributes(shrunk)["volcano_elastic.pause_seconds"]
        (stood,) = [span for span in parts if span.name == "no step"]
        assert isinstance(pause, float)
        assert abs((stood.end_time_unix_nano - stood.start_time_unix_nano) / 1e9 - pause) < 0.01
