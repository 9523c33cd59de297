"""The operator as it runs in production: two replicas, probes, metrics, logs, a schema gone bad."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.embedded_cluster.apiserver.process import TOKEN, ApiServerProcess
from tests.operator.process import (
    ROOT,
    FakeNodes,
    Object,
    OperatorProcess,
    install,
    job,
)
from tests.patience import eventually
from volcano_elastic.kube.client import Client
from volcano_elastic.kube.resource import CRDS, EVENTS, LEASES, PODS, PYTORCHJOBS, QUEUEPOLICIES

pytestmark = pytest.mark.process

DURATION, DEADLINE = 4.0, 2.0


class Scene:
    def __init__(self, server: ApiServerProcess, client: Client, folder: Path) -> None:
        self.server, self.client, self._folder = server, client, folder
        self.operators: dict[str, OperatorProcess] = {}

    async def start(self, name: str, *arguments: str) -> OperatorProcess:
        log = self._folder / f"{name}.log"
        operator = OperatorProcess(self.server.kubeconfig(), *arguments, log=log)
        self.operators[name] = operator
        await operator.start()
        return operator

    async def replica(self, name: str, duration: float = DURATION) -> OperatorProcess:
        return await self.start(
            name,
            *("--leader-elect", "--leader-elect-identity", name),
            *("--leader-elect-lease-duration", f"{duration:g}"),
            *("--leader-elect-renew-deadline", f"{DEADLINE:g}"),
            *("--leader-elect-retry-period", "0.3"),
        )

    async def holder(self) -> str:
        found = (await self.client.list(LEASES, "default"))["items"]
        return str(found[0]["spec"]["holderIdentity"]) if found else ""

    async def held_by(self, name: str) -> None:
        async def holds() -> bool:
            return await self.holder() == name

        await eventually(holds, f"{name} holds the lease")

    async def has_pods(self, name: str, count: int) -> None:
        async def holds() -> bool:
            pods = (await self.client.list(PODS, "default"))["items"]
            return sum(pod["metadata"]["name"].startswith(f"{name}-") for pod in pods) == count

        await eventually(holds, f"{name} has {count} pods")


@asynccontextmanager
async def scene(folder: Path, *, nodes: int = 2) -> AsyncIterator[Scene]:
    async with AsyncExitStack() as stack:
        server = stack.enter_context(ApiServerProcess(folder))
        client = await stack.enter_async_context(server.client())
        await install(client, nodes=nodes)
        one = Scene(server, client, folder)
        try:
            async with FakeNodes(client, nodes=nodes).running():
                yield one
        finally:
            for operator in one.operators.values():
                if operator.process is not None and operator.process.returncode is None:
                    await operator.stop(signal.SIGKILL)


async def writes(operator: OperatorProcess) -> float:
    """Requests that changed anything but the lease."""
    samples = await operator.samples()
    return sum(
        value
        # Labels in the order of their names: code, group, resource, subresource, verb.
        for (name, *labels), value in samples.items()
        if name == "volcano_elastic_api_requests_total"
        and labels[2] != "leases"
        and labels[4] not in ("get", "list", "watch")
    )


async def test_the_standby_takes_over_from_a_killed_leader_once_its_lease_is_over(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path) as s:
        a = await s.replica("a")
        await s.held_by("a")
        b = await s.replica("b")
        assert (await a.samples())["volcano_elastic_leader",] == 1
        assert (await b.samples())["volcano_elastic_leader",] == 0
        # Warm: ready, and with every object in hand.
        assert await b.get("/readyz") == (200, "ok")
        assert (await b.samples())["volcano_elastic_informer_objects", "nodes"] == 2
        await s.client.create(PYTORCHJOBS, job("one", 1, 2))
        await s.has_pods("one", 2)
        assert a.process is not None
        a.process.kill()
        await a.process.wait()
        left = (await s.client.get(LEASES, "volcano-elastic", "default"))["spec"]
        await s.client.create(PYTORCHJOBS, job("two", 1, 2))
        await s.held_by("b")
        await s.has_pods("two", 2)
        lease = (await s.client.get(LEASES, "volcano-elastic", "default"))["spec"]
        assert (left["holderIdentity"], lease["leaseTransitions"]) == ("a", 1)
        renewed, acquired = map(datetime.fromisoformat, (left["renewTime"], lease["acquireTime"]))
        assert acquired - renewed >= timedelta(seconds=DURATION), "two led at once"
        assert await writes(b) > 0


async def test_an_orderly_stop_hands_over_at_once(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        a = await s.replica("a", duration=60)
        await s.held_by("a")
        await s.replica("b", duration=60)
        assert await a.stop() == 0
        # Long before the lease's duration is over.
        async with asyncio.timeout(120):
            await s.held_by("b")
        await s.client.create(PYTORCHJOBS, job("one", 1, 2))
        await s.has_pods("one", 2)


async def test_a_leader_that_slept_through_its_lease_writes_nothing_when_it_wakes(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path, nodes=4) as s:
        a = await s.replica("a")
        await s.held_by("a")
        b = await s.replica("b")
        before = await writes(a)
        assert a.process is not None
        a.process.send_signal(signal.SIGSTOP)
        # Its cue to write, waiting in its socket when it wakes.
        await s.client.create(PYTORCHJOBS, job("one", 1, 2))
        await s.held_by("b")
        await s.has_pods("one", 2)
        await s.client.create(PYTORCHJOBS, job("two", 1, 2))
        a.process.send_signal(signal.SIGCONT)
        await s.has_pods("two", 2)

        async def stands_by() -> bool:
            return (await a.samples())["volcano_elastic_leader",] == 0

        await eventually(stands_by, "a knows that it does not lead")
        await asyncio.sleep(1)
        assert await writes(a) == before
        assert (await b.samples())["volcano_elastic_leader",] == 1
        # And it follows again when its turn comes.
        assert await b.stop() == 0
        await s.held_by("a")
        await s.client.delete(PYTORCHJOBS, "one", "default")
        await s.client.create(PYTORCHJOBS, job("three", 1, 2))
        await s.has_pods("three", 2)


async def test_while_the_api_server_is_away_nobody_leads_and_afterwards_one_does(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path) as s:
        replicas = [await s.replica("a"), await s.replica("b")]

        async def leaders() -> float:
            found = [(await r.samples())["volcano_elastic_leader",] for r in replicas]
            return sum(found)

        async def one() -> bool:
            return await leaders() == 1

        async def none() -> bool:
            return await leaders() == 0

        await eventually(one, "one leads")
        s.server.process.send_signal(signal.SIGSTOP)
        try:
            await eventually(none, "nobody leads")
        finally:
            s.server.process.send_signal(signal.SIGCONT)
        await eventually(one, "one leads again")
        await s.client.create(PYTORCHJOBS, job("one", 1, 2))
        await s.has_pods("one", 2)


async def test_probes_tell_readiness_and_every_metric_explains_itself(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        server = stack.enter_context(ApiServerProcess(tmp_path))
        client = await stack.enter_async_context(server.client())
        operator = OperatorProcess(server.kubeconfig(), log=tmp_path / "operator.log")
        await operator.start(wait=False)
        stack.push_async_callback(operator.stop)
        await operator.healthy()
        code, text = await operator.get("/readyz")
        assert code == 503 and text.startswith("waiting for ") and "pytorchjobs" in text
        await install(client)
        await operator.ready()
        assert await operator.get("/readyz") == (200, "ok")
        await stack.enter_async_context(FakeNodes(client).running())
        await client.create(PYTORCHJOBS, job("one", 2, 4))

        async def grown() -> bool:
            samples = await operator.samples()
            return samples.get(("volcano_elastic_workers", "default", "ready")) == 4

        await eventually(grown, "four workers are ready")
        samples = await operator.samples()
        sizes = {
            size: samples["volcano_elastic_workers", "default", size]
            for size in ("min", "max", "desired")
        }
        assert sizes == {"min": 2, "max": 4, "desired": 4}
        assert samples["volcano_elastic_jobs", "default", "Running"] == 1
        assert samples["volcano_elastic_work_queue_depth",] == 0
        assert samples["volcano_elastic_informer_objects", "pods"] == 4
        assert samples["volcano_elastic_informer_lists_total", "pods"] == 1
        assert samples["volcano_elastic_informer_lag_seconds", "pods"] > 0
        assert samples["volcano_elastic_decisions_total", "GrewIntoIdle"] == 1
        assert samples["volcano_elastic_leader",] == 1
        created = samples["volcano_elastic_api_requests_total", "201", "", "pods", "", "create"]
        assert created == 4
        assert samples["volcano_elastic_reconcile_seconds_count", "done"] > 0
        assert samples["volcano_elastic_work_queue_wait_seconds_count",] > 0
        _, text = await operator.get("/metrics")
        for family in text_string_to_metric_families(text):
            assert family.documentation, family.name
            assert len(family.documentation) > 10, family.name


async def test_an_operator_that_the_api_server_does_not_know_is_not_ready_and_says_why(
    tmp_path: Path,
) -> None:
    with ApiServerProcess(tmp_path) as server:
        stranger = tmp_path / "stranger"
        stranger.write_text(server.kubeconfig().read_text().replace(TOKEN, "a-wrong-token"))
        operator = OperatorProcess(stranger, log=tmp_path / "operator.log")
        await operator.start(wait=False)
        try:
            await operator.healthy()

            async def said() -> str:
                code, text = await operator.get("/readyz")
                assert code == 503
                return text if "Unauthorized" in text else ""

            text = await eventually(said, "/readyz says why")
            assert "pytorchjobs" in text and "401" in text
            log = operator.log
            assert log is not None

            async def logged() -> bool:
                return "watching pods: 401 Unauthorized" in log.read_text()

            await eventually(logged, "its log says so of each kind")
        finally:
            await operator.stop()


async def test_logs_for_machines_are_objects_and_hold_no_credential(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        server = stack.enter_context(ApiServerProcess(tmp_path))
        client = await stack.enter_async_context(server.client())
        log = tmp_path / "operator.log"
        operator = OperatorProcess(
            server.kubeconfig(), "--log-format", "json", "--verbose", log=log
        )
        await operator.start(wait=False)
        stack.push_async_callback(operator.stop)
        await operator.healthy()
        await install(client)
        await operator.ready()
        server.stop(signal.SIGKILL)

        async def complained() -> bool:
            return "watching pods" in log.read_text()

        await eventually(complained, "it says that its watches are cut")
        text = log.read_text()
        assert TOKEN not in text
        lines = [json.loads(line) for line in text.splitlines()]
        assert all({"time", "level", "logger", "message"} <= set(line) for line in lines)
        assert {"info", "warning"} <= {line["level"] for line in lines}


def without_our_fields(crd: Object) -> Object:
    """Return it as Kubeflow's own would be."""
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    del schema["status"]["properties"]["elastic"]
    elastic = schema["spec"]["properties"]["elasticPolicy"]["properties"]
    for name in ("min", "max", "cooldownSeconds", "nodeUnit", "scaler"):
        del elastic[name]
    return crd


async def test_with_kubeflows_crd_over_ours_nothing_is_written_until_it_is_repaired(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path) as s:
        kind = {"apiVersion": QUEUEPOLICIES.api_version, "kind": QUEUEPOLICIES.kind}
        policy = kind | {"metadata": {"name": "p"}, "spec": {"queue": "default"}}
        await s.client.create(QUEUEPOLICIES, policy)

        async def stale() -> str | None:
            """Its message while it is true, empty while it is not, None before it is said."""
            status = (await s.client.get(QUEUEPOLICIES, "p")).get("status") or {}
            found = [c for c in status.get("conditions") or () if c["type"] == "Stale"]
            return found[0]["message"] if found else None

        async def fresh() -> bool:
            return await stale() == ""

        operator = await s.start("operator")
        await eventually(fresh, "the queue is planned")
        crd = yaml.safe_load((ROOT / "crds" / "kubeflow.org_pytorchjobs.yaml").read_text())
        present = await s.client.get(CRDS, crd["metadata"]["name"])
        await s.client.replace(CRDS, without_our_fields(present))

        async def said() -> Object | None:
            events = (await s.client.list(EVENTS, "default"))["items"]
            return next((e for e in events if e["reason"] == "SchemaIncomplete"), None)

        event = await eventually(said, "an event says that fields are missing")
        assert event["type"] == "Warning"
        assert event["involvedObject"]["name"] == crd["metadata"]["name"]
        assert "status.elastic.desired" in event["message"]
        message = await eventually(stale, "the queue's policy says that nothing is planned")
        assert "the served schema lacks" in message and "kubectl apply" in message
        before = -1.0

        async def rests() -> bool:
            nonlocal before
            last, before = before, await writes(operator)
            return last == before

        await eventually(rests, "all is written that tells of it")
        bare = job("one", 1, 2)
        bare["spec"]["elasticPolicy"] = {"minReplicas": 1, "maxReplicas": 2}
        await s.client.create(PYTORCHJOBS, bare)
        await asyncio.sleep(3)
        assert (await s.client.list(PODS, "default"))["items"] == []
        assert await writes(operator) == before
        assert (await operator.samples())["volcano_elastic_schema_complete",] == 0
        # Traffic and restarts would not repair it.
        assert await operator.get("/readyz") == (200, "ok")
        assert await operator.get("/healthz") == (200, "ok")
        await s.client.patch(CRDS, crd["metadata"]["name"], None, {"spec": crd["spec"]})
        await s.has_pods("one", 2)
        await eventually(fresh, "the queue is planned again")
        assert (await operator.samples())["volcano_elastic_schema_complete",] == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--metrics-address", "nowhere"), "expected none or HOST:PORT"),
        (("--pytorch-init-container-max-tries", "-1"), "a whole number of at least 1, found '-1'"),
        (("--leader-elect-renew-deadline", "20"), "renew deadline < lease duration"),
        (("--trace-endpoint", "collector:4318"), "a URL such as http://collector:4318/v1/traces"),
        (("--metrics-address", "203.0.113.1:0"), "--metrics-address 203.0.113.1:0: "),
    ],
)
async def test_arguments_that_cannot_be_are_refused_with_the_reason(
    tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    named = [{"name": "x", "cluster": {"server": "http://127.0.0.1:1"}, "user": {}}]
    context = {"name": "x", "context": {"cluster": "x", "user": "x"}}
    config = {"current-context": "x", "contexts": [context], "clusters": named, "users": named}
    kubeconfig.write_text(yaml.safe_dump(config))
    operator = OperatorProcess(kubeconfig, *arguments, log=tmp_path / "log")
    await operator.start(wait=False)
    assert operator.process is not None
    assert await asyncio.wait_for(operator.process.wait(), 120) == 2
    assert says in (tmp_path / "log").read_text()
