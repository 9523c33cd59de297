"""Kubeflow's own SDK, unchanged, as the client: what it promises its users holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.stage import Stage
from embedded_cluster.conformance.client_program import ProgramError, run

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("session", ["elastic", "function"])
async def test_the_kubeflow_sdk_sees_a_job_through(
    stage: Stage, tmp_path: Path, session: str
) -> None:
    if stage.plane.kept:
        pytest.skip("an API server elsewhere can't reach this machine's containers for their logs")
    arguments = (session, str(stage.cluster.kubeconfig), str(tmp_path))
    try:
        await run("sdk", "kubeflow_sdk", *arguments)
    except ProgramError as error:
        pytest.fail(f"{error}\n{stage.story()}")
