"""Kubeflow's own SDK, unchanged, as the client: what it promises its users holds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from e2e.control_plane import ROOT
from e2e.stage import Stage

pytestmark = pytest.mark.e2e
_PYTHON = ROOT / "build" / "sdk" / "bin" / "python"
_SECONDS = 240.0


@pytest.mark.parametrize("session", ["elastic", "function"])
async def test_the_kubeflow_sdk_sees_a_job_through(
    stage: Stage, tmp_path: Path, session: str
) -> None:
    if stage.plane.kept:
        pytest.skip("an API server elsewhere can't reach this machine's containers for their logs")
    if not _PYTHON.exists():
        pytest.fail(f"expected Kubeflow's SDK at {_PYTHON}, found none; run `make sdk`")
    process = await asyncio.create_subprocess_exec(
        *(str(_PYTHON), str(ROOT / "e2e" / "sdk" / "session.py")),
        *(session, str(stage.cluster.kubeconfig), str(tmp_path)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), _SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, f"{said.decode()}\n{stage.story()}"
