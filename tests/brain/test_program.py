"""Brain as a process, beside a real API server: it records jobs and advises them, and nobody's job
notices when it can't."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from embedded_cluster.readiness import free_port
from tests.brain.world import amounts, load, run
from tests.embedded_cluster.apiserver.process import ApiServerProcess
from tests.operator.process import install, job
from tests.patience import eventually
from volcano_elastic.api import moment
from volcano_elastic.api.pytorchjob_shape import BRAIN_ANNOTATION, USER_ANNOTATION
from volcano_elastic.brain.history.database import History
from volcano_elastic.database.database import DatabaseError
from volcano_elastic.kube.client import Client
from volcano_elastic.kube.resource import (
    EVENTS,
    PODS,
    PYTORCHJOBS,
    RESOURCEQUOTAS,
    SCALEPLANS,
)

pytestmark = pytest.mark.process


async def begin(kubeconfig: Path, url: str, log: Path, *more: str) -> asyncio.subprocess.Process:
    """Return Brain as a process; whoever begins it ends it."""
    with log.open("ab") as out:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", "from volcano_elastic.cli.main import main; main()", "brain"),
            *("--kubeconfig", str(kubeconfig), "--database", url, "--sample-seconds", "1"),
            *more,
            stdout=out,
            stderr=out,
        )


@asynccontextmanager
async def brain(kubeconfig: Path, url: str, log: Path, *more: str) -> AsyncIterator[None]:
    process = await begin(kubeconfig, url, log, *more)
    try:
        yield
        assert process.returncode is None, log.read_text()
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 120) == 0, log.read_text()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def annotated(name: str, **annotations: str) -> dict[str, Any]:
    made = job(name, 1, 1)
    made["metadata"]["annotations"] = annotations
    container = made["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container["resources"]["requests"] = {"cpu": "8", "memory": "16Gi"}
    return made


def outcomes(url: str) -> Callable[[], Awaitable[dict[str, str]]]:
    async def asked() -> dict[str, str]:
        history = History(url)
        try:
            return {one.name: one.outcome for one in history.runs()}
        except DatabaseError:
            return {}
        finally:
            history.close()

    return asked


async def events(client: Client, name: str) -> list[str]:
    found = (await client.list(EVENTS, "default"))["items"]
    return [e["message"] for e in found if e["involvedObject"]["name"] == name]


async def test_jobs_are_recorded_and_new_ones_are_told_what_others_used(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'history.db'}"
    history = History(url)
    history.migrate()
    for i in range(4):
        history.write(run(f"u{i}", image="train:1", loads=(load(0, amounts(2, 4)),)))
    history.close()
    with ApiServerProcess(tmp_path) as server:
        async with server.client() as client, brain(server.kubeconfig(), url, tmp_path / "log"):
            await install(client)
            await client.create(PYTORCHJOBS, annotated("new", **{USER_ANNOTATION: "ann"}))
            await client.create(
                PYTORCHJOBS,
                annotated("quiet", **{USER_ANNOTATION: "ann", BRAIN_ANNOTATION: "Off"}),
            )
            told = await eventually(lambda: events(client, "new"), "the job is advised")
            assert len(told) == 1
            assert told[0].startswith("Worker pods ask for 8 CPU, 16Gi; ")
            assert "p95 of 4 runs by this user with this image, and 15 %; " in told[0]
            ended = {"type": "Succeeded", "status": "True", "reason": "x", "message": "x"}
            ended |= {"lastTransitionTime": "2026-01-01T12:00:00Z"}
            await client.patch(
                PYTORCHJOBS,
                "new",
                "default",
                {"status": {"conditions": [ended]}},
                subresource="status",
            )

            async def recorded() -> bool:
                found = await outcomes(url)()
                return found.get("new") == "Succeeded" and "quiet" in found

            await eventually(recorded, "the job's end is recorded")
            await client.delete(PYTORCHJOBS, "quiet", "default")

            async def deleted() -> bool:
                return (await outcomes(url)())["quiet"] == "Deleted"

            await eventually(deleted, "the other's deletion too")
            assert await events(client, "quiet") == []
            found = await client.get(PYTORCHJOBS, "new", "default")
            assert "finalizers" not in found["metadata"], "people's jobs are not written to"


async def test_a_lost_database_costs_advice_and_is_used_again_once_it_is_back(
    tmp_path: Path,
) -> None:
    folder, log = tmp_path / "later", tmp_path / "log"
    url = f"sqlite:///{folder / 'history.db'}"
    with ApiServerProcess(tmp_path) as server:
        async with server.client() as client, brain(server.kubeconfig(), url, log):
            await install(client)
            await client.create(PYTORCHJOBS, annotated("new"))

            async def said() -> bool:
                return "no history, so no advice" in log.read_text()

            await eventually(said, "it says so")
            folder.mkdir()

            async def recorded() -> bool:
                return "new" in await outcomes(url)()

            await eventually(recorded, "the job is recorded")
            (folder / "history.db").unlink()
            change = {"metadata": {"labels": {"changed": "after-that"}}}
            await client.patch(PYTORCHJOBS, "new", "default", change)
            await eventually(recorded, "it is again, though the file was removed")


async def test_loads_that_the_trainer_told_are_history_without_a_metrics_api(
    tmp_path: Path,
) -> None:
    url, log = f"sqlite:///{tmp_path / 'history.db'}", tmp_path / "log"
    with ApiServerProcess(tmp_path) as server:
        alive = f"http://127.0.0.1:{free_port()}/healthz"
        metrics = f"127.0.0.1:{free_port()}"
        told_where = ("--liveness", alive, "--metrics-address", metrics)
        live = brain(server.kubeconfig(), url, log, *told_where)
        async with server.client() as client, live:
            await install(client)
            made = await client.create(PYTORCHJOBS, annotated("a"))
            meta = made["metadata"]
            owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "controller": True}
            labels = {
                "training.kubeflow.org/job-name": "a",
                "training.kubeflow.org/replica-type": "worker",
                "training.kubeflow.org/replica-index": "0",
            }
            pod = {
                "metadata": {
                    "name": "a-worker-0",
                    "namespace": "default",
                    "labels": labels,
                    "ownerReferences": [owner | {"name": "a", "uid": meta["uid"]}],
                },
                "spec": {"containers": [{"name": "pytorch", "image": "train:1"}]},
            }
            await client.create(PODS, pod)
            told = {"a-worker-0": {"cpu": "1500m", "memory": "3Gi"}}
            loads = {"time": moment.timestamp(datetime.now(UTC)), "pods": told}
            status = {"status": {"elastic": {"loads": loads, "speeds": {"1": 5.0}}}}
            await client.patch(PYTORCHJOBS, "a", "default", status, subresource="status")

            async def known() -> bool:
                history = History(url)
                try:
                    return any(run.speeds for run in history.runs())
                except DatabaseError:
                    return False
                finally:
                    history.close()

            await eventually(known, "Brain has seen the status")
            running = {"status": {"phase": "Running"}}
            await client.patch(PODS, "a-worker-0", "default", running, subresource="status")

            async def measured() -> list[str]:
                history = History(url)
                try:
                    return [str(one.peak) for run in history.runs() for one in run.loads]
                except DatabaseError:
                    return []
                finally:
                    history.close()

            assert await eventually(measured, "the pod's load is recorded") == ["1500m CPU, 3Gi"]
            async with aiohttp.ClientSession() as session:
                async with session.get(alive) as answer:
                    assert answer.status == 200
                async with session.get(f"http://{metrics}/metrics") as answer:
                    lines = (await answer.text()).splitlines()
            for name in ("leader", "jobs", "measured_pods", "history_up"):
                assert f"volcano_elastic_brain_{name} 1.0" in lines
    assert "not measured" not in log.read_text()


async def served(client: Client, name: str, used: str) -> None:
    """Creates a running job in mode Live with a parameter server, whose status says what its pods
    use; they ask for 1Gi of memory."""
    made = annotated(name, **{BRAIN_ANNOTATION: "Live"})
    made["spec"]["elasticPolicy"] |= {"max": 4}
    container = {"name": "pytorch", "image": "train:1"}
    container |= {"resources": {"requests": {"cpu": "2", "memory": "1Gi"}}}  # type: ignore[dict-item]
    spec = {"containers": [container]}
    replicas = {role: {"template": {"spec": spec}} for role in ("Worker", "PS")}
    made["spec"]["pytorchReplicaSpecs"] = replicas
    job_ = await client.create(PYTORCHJOBS, made)
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "controller": True}
    owner |= {"name": name, "uid": job_["metadata"]["uid"]}
    pods = {}
    for role in ("worker", "ps"):
        labels = {
            "training.kubeflow.org/job-name": name,
            "training.kubeflow.org/replica-type": role,
            "training.kubeflow.org/replica-index": "0",
        }
        meta = {"name": f"{name}-{role}-0", "namespace": "default", "labels": labels}
        await client.create(PODS, {"metadata": meta | {"ownerReferences": [owner]}, "spec": spec})
        pods[f"{name}-{role}-0"] = {"cpu": "500m", "memory": used}
    loads = {"time": moment.timestamp(datetime.now(UTC)), "pods": pods}
    status = {"status": {"elastic": {"desired": 1, "loads": loads}}}
    await client.patch(PYTORCHJOBS, name, "default", status, subresource="status")


async def plans(client: Client) -> dict[str, str]:
    """Return by name the memory that auto plans have parameter servers ask for."""
    found = (await client.list(SCALEPLANS, "default", label_selector="scale-type=auto"))["items"]
    specs = {p["metadata"]["name"]: p["spec"]["replicaResourceSpecs"] for p in found}
    return {name: spec["PS"]["resource"]["memory"] for name, spec in specs.items()}


async def test_a_job_with_parameter_servers_has_a_plan_while_it_is_in_mode_live(
    tmp_path: Path,
) -> None:
    url, log = f"sqlite:///{tmp_path / 'history.db'}", tmp_path / "log"
    with ApiServerProcess(tmp_path) as server:
        running = brain(server.kubeconfig(), url, log, "--live-after-seconds", "1")
        async with server.client() as client, running:
            await install(client)
            await served(client, "a", "950Mi")

            async def relieved() -> bool:
                # Foreseen at first, then of a pod that held nine tenths of it in three samples.
                return (await plans(client)).get("a-brain") == "2Gi"

            await eventually(relieved, "a plan that grows")
            found = await client.get(SCALEPLANS, "a-brain", "default")
            assert (
                found["spec"]["ownerJob"] == found["metadata"]["ownerReferences"][0]["name"] == "a"
            )
            change = {"metadata": {"annotations": {BRAIN_ANNOTATION: "Off"}}}
            await client.patch(PYTORCHJOBS, "a", "default", change)

            async def gone() -> bool:
                return not await plans(client)

            await eventually(gone, "the plan goes with the mode")


async def test_a_new_kind_of_job_begins_with_twice_its_memory_where_nothing_bounds_it(
    tmp_path: Path,
) -> None:
    url, log = f"sqlite:///{tmp_path / 'history.db'}", tmp_path / "log"
    with ApiServerProcess(tmp_path) as server:
        async with server.client() as client, brain(server.kubeconfig(), url, log):
            await install(client)

            async def wanted(name: str) -> Any:
                made = annotated(name, **{BRAIN_ANNOTATION: "Live"})
                spec = made["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
                # Nodes here have 8 CPUs and 16 GiB.
                spec["containers"][0]["resources"]["requests"] = {"cpu": "4", "memory": "3Gi"}
                await client.create(PYTORCHJOBS, made)

                async def told() -> Any:
                    found = await client.get(PYTORCHJOBS, name, "default")
                    return (found.get("status") or {}).get("elastic", {}).get("recommendation")

                return (await eventually(told, f"{name} is told"))["roles"]

            assert (await wanted("free"))["Worker"]["memory"] == "6Gi"
            hard = {"hard": {"requests.memory": "64Gi"}}
            quota = {"metadata": {"name": "q", "namespace": "default"}, "spec": hard}
            await client.create(RESOURCEQUOTAS, quota)
            assert await wanted("bounded") == {}


async def test_a_second_brain_answers_its_probe_while_the_first_leads(tmp_path: Path) -> None:
    url, log, second = f"sqlite:///{tmp_path / 'history.db'}", tmp_path / "log", tmp_path / "second"
    alive = f"http://127.0.0.1:{free_port()}/healthz"
    metrics = f"127.0.0.1:{free_port()}"
    with ApiServerProcess(tmp_path) as server:
        async with server.client() as client, brain(server.kubeconfig(), url, log):
            await install(client)

            async def leads() -> bool:
                return "leads now" in log.read_text()

            await eventually(leads, "the first leads")
            more = ("--liveness", alive, "--metrics-address", metrics)
            async with (
                brain(server.kubeconfig(), url, second, *more),
                aiohttp.ClientSession() as session,
            ):

                async def answers() -> str:
                    try:
                        async with session.get(alive) as answer:
                            return await answer.text()
                    except aiohttp.ClientError:
                        return ""

                said = await eventually(answers, "it answers")
                assert said == "another replica leads"
                async with session.get(f"http://{metrics}/metrics") as answer:
                    assert "volcano_elastic_brain_leader 0.0" in await answer.text()
