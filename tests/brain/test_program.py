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
from tests.brain.runs import amounts, load, run
from tests.embedded_cluster.apiserver.process import ApiServerProcess
from tests.operator.process import eventually, install, job
from volcano_elastic.api import moment
from volcano_elastic.api.pytorchjob_shape import BRAIN_ANNOTATION, USER_ANNOTATION
from volcano_elastic.brain.history.database import History
from volcano_elastic.database.database import DatabaseError
from volcano_elastic.kube.client import Client
from volcano_elastic.kube.resource import EVENTS, PODS, PYTORCHJOBS

pytestmark = pytest.mark.process


@asynccontextmanager
async def brain(kubeconfig: Path, url: str, log: Path, *more: str) -> AsyncIterator[None]:
    with log.open("ab") as out:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", "from volcano_elastic.cli.main import main; main()", "brain"),
            *("--kubeconfig", str(kubeconfig), "--database", url, "--sample-seconds", "1"),
            *more,
            stdout=out,
            stderr=out,
        )
    try:
        yield
        assert process.returncode is None, log.read_text()
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 30) == 0, log.read_text()
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
            assert told[0].endswith("p95 of 4 runs by this user with this image, and 15 %")
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


async def test_loads_that_the_trainer_told_are_history_without_a_metrics_api(
    tmp_path: Path,
) -> None:
    url, log = f"sqlite:///{tmp_path / 'history.db'}", tmp_path / "log"
    with ApiServerProcess(tmp_path) as server:
        alive = f"http://127.0.0.1:{free_port()}/healthz"
        live = brain(server.kubeconfig(), url, log, "--liveness", alive)
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
            running = {"status": {"phase": "Running"}}
            await client.patch(PODS, "a-worker-0", "default", running, subresource="status")
            told = {"a-worker-0": {"cpu": "1500m", "memory": "3Gi"}}
            loads = {"time": moment.timestamp(datetime.now(UTC)), "pods": told}
            status = {"status": {"elastic": {"loads": loads}}}
            await client.patch(PYTORCHJOBS, "a", "default", status, subresource="status")

            async def measured() -> list[str]:
                history = History(url)
                try:
                    return [str(one.peak) for run in history.runs() for one in run.loads]
                except DatabaseError:
                    return []
                finally:
                    history.close()

            assert await eventually(measured, "the pod's load is recorded") == ["1500m CPU, 3Gi"]
            async with aiohttp.ClientSession() as session, session.get(alive) as answer:
                assert answer.status == 200
    assert "not measured" not in log.read_text()
