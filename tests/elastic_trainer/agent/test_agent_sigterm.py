"""An agent told to end, ends: at whatever moment it is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.elastic_trainer import nursery as nurseries
from tests.elastic_trainer.fault_job import FaultyJob
from tests.elastic_trainer.nursery import Nursery
from tests.elastic_trainer.torchrun_job import PATIENCE

pytestmark = pytest.mark.process


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    # As a program that starts agents may have: none of its handlers may be theirs.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pytest makes errors of them, for forks too
        nursery = Nursery((), within=nurseries.shared())
    try:
        yield nursery
    finally:
        nursery.close()
        signal.signal(signal.SIGTERM, before)


def test_sigterm_at_any_moment_after_the_start_ends_an_agent(
    nursery: Nursery, tmp_path: Path
) -> None:
    job = FaultyJob(tmp_path, nursery, "1:2")
    try:
        # The first moments are where a fork's child has not yet run.
        for moment in (*[0.0] * 20, *(n / 1000 for n in (1, 2, 3, 5, 8, 12, 20, 30, 45))):
            _start_and_end(job, moment)
        for moment in (0.06, 0.08, 0.1, 0.12, 0.14, 0.17, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5):
            _start_and_end(job, moment)
    finally:
        job.close()


def _start_and_end(job: FaultyJob, moment: float) -> None:
    job.start(0)
    agent = job.agents[0]
    time.sleep(moment)
    os.kill(agent.pid, signal.SIGTERM)
    try:
        code = agent.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        pytest.fail(f"SIGTERM {moment} s after its start did not end the agent\n{job.logs()}")
    assert code in (0, -signal.SIGTERM), job.logs()
