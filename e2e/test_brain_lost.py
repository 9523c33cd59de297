"""Jobs train on as if nothing had happened while Brain is killed, its database's server restarted,
and its database lost."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from e2e.stage import Stage, running
from e2e.test_loads import Job, control_group
from embedded_cluster.conformance.control_plane import ControlPlane
from tests.brain import postgres
from tests.brain.test_program import begin
from volcano_elastic.api.pytorchjob_shape import BRAIN_ANNOTATION
from volcano_elastic.brain.history.database import History
from volcano_elastic.database.database import DatabaseError
from volcano_elastic.kube.resource import PODS, PYTORCHJOBS

pytestmark = pytest.mark.e2e


@pytest.fixture
async def one_node(fresh_control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Stage]:
    async with running(fresh_control_plane, tmp_path, nodes=1, gpus_per_node=2) as stage:
        yield stage


@pytest.fixture
def database() -> Iterator[postgres.Server]:
    try:
        with postgres.server() as server:
            yield server
    except postgres.NotInstalled as error:
        pytest.skip(str(error))


async def _recorded(stage: Stage, url: str, log: Path) -> None:
    def loads() -> list[str]:
        history = History(url)
        try:
            return [str(load.peak.memory) for run in history.runs() for load in run.loads]
        except DatabaseError:
            return []
        finally:
            history.close()

    async def is_there() -> bool:
        return "260Mi" in await asyncio.to_thread(loads)

    try:
        await stage.until_asked(is_there, "Brain has the job in its history")
    except pytest.fail.Exception as error:
        pytest.fail(f"{error}\n{log.read_text()}")


def _lose(url: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("DROP SCHEMA public CASCADE"))
        connection.execute(sa.text("CREATE SCHEMA public"))
    engine.dispose()


async def test_a_job_does_not_notice_what_becomes_of_brain_and_its_database(
    database: postgres.Server, one_node: Stage, tmp_path: Path
) -> None:
    stage, log = one_node, tmp_path / "brain.log"
    brains: list[asyncio.subprocess.Process] = []
    try:
        control_group(stage.out / "group")
        job = Job("kept", 2, 2, epochs=10, step_seconds=0.6)
        client = stage.recorder.jobs.client
        brains.append(await begin(stage.plane.kubeconfig, database.url, log))
        await stage.submit(job)
        live = {"metadata": {"annotations": {BRAIN_ANNOTATION: "Recommend"}}}
        await client.patch(PYTORCHJOBS, job.name, "default", live)
        await stage.until(lambda: stage.world(job) == 2, "the job trains")
        await _recorded(stage, database.url, log)
        before = {p["metadata"]["uid"] for p in (await client.list(PODS, "default"))["items"]}

        await asyncio.to_thread(database.stop)
        await stage.steps_on(job)
        await asyncio.to_thread(database.start)
        await _recorded(stage, database.url, log)

        os.kill(brains[-1].pid, signal.SIGKILL)
        await brains[-1].wait()
        await stage.steps_on(job)
        await asyncio.to_thread(_lose, database.url)
        brains.append(await begin(stage.plane.kubeconfig, database.url, log))
        await _recorded(stage, database.url, log)

        await asyncio.to_thread(_lose, database.url)
        await _recorded(stage, database.url, log)
        await stage.steps_on(job)
        pods = (await client.list(PODS, "default"))["items"]
        assert {p["metadata"]["uid"] for p in pods} == before, "no pod was made anew"
        assert set(stage.worlds(job)) == {2}, "no round was made for it"
        await stage.judge_finished(job)
        assert brains[-1].returncode is None, log.read_text()
    finally:
        for one in brains:
            if one.returncode is None:
                one.kill()
                await one.wait()
