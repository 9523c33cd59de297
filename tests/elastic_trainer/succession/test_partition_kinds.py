"""One of three agents is cut off, by a firewall that drops or one that refuses: real processes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import get_args

import pytest

from tests.elastic_trainer.fault_job import FaultyJob, shared_nursery
from tests.elastic_trainer.fault_network import Kind

pytestmark = pytest.mark.process

ALONE_SECONDS = 3.0
"""In which a side that takes the others for ended would begin alone, and commit."""


@pytest.mark.parametrize("kind", get_args(Kind))
def test_who_is_cut_off_takes_nobody_for_ended(tmp_path: Path, kind: Kind) -> None:
    job = FaultyJob(tmp_path, shared_nursery(), "1:3", parts_by=kind)
    try:
        job.start(0, 1, 2)
        told = job.stepping(3)
        job.network.part([0])
        two = job.stepping(2, after_round=told["round"])
        assert two["host"] in (1, 2) and two["ranks"].keys() == {"1", "2"}
        time.sleep(ALONE_SECONDS)
        later = job.stepping(2)
        assert later["term"] == two["term"] and later["pids"] == two["pids"]
        assert all(agent.poll() is None for agent in job.agents.values()), job.logs()
        assert "taken over by" not in job.logs()
        job.network.join([0])
        three = job.stepping(3, after_round=two["round"])
        assert three["term"] >= two["term"]
        (tmp_path / "enough").write_text("0")
    finally:
        job.close()
