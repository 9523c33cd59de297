"""A job's goodput in TensorBoard, from a coordinator that serves it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from elastic_trainer.coordinator.goodput import Use
from elastic_trainer.coordinator.status import status
from elastic_trainer.integrations.tensorboard import GoodputWriter, scalars
from elastic_trainer.metrics.table_load import TableLoad, encoded
from elastic_trainer.protocol.message import Tables
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.endpoint import free_endpoint
from tests.elastic_trainer.coordinator.test_coordinator_guard import TOKEN, served
from tests.elastic_trainer.coordinator.world import Job


class Recorder:
    """Takes scalars as torch's SummaryWriter does."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[float, int | None]] = {}

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> Any:
        self.found[tag] = scalar_value, global_step


@given(st.lists(st.integers(0, 10**15), min_size=len(Use), max_size=len(Use)))
def test_the_parts_of_all_time_add_up_to_all_of_it(spent: list[int]) -> None:
    uses = dict(zip((use.value for use in Use), spent, strict=True))
    found = scalars({"goodput": {"milliseconds": uses}, "world": 3, "speeds": {"2": 8.0}})
    parts = [found.get(f"goodput/{use}", 0.0) for use in uses]
    assert sum(parts) == pytest.approx(1.0 if any(spent) else 0.0)
    assert found["goodput/hours"] == pytest.approx(sum(spent) / 3_600_000)
    assert found["speed/nodes"] == 3.0 and "speed/samples_per_second" not in found


def test_the_speed_is_that_of_the_present_size() -> None:
    found = scalars({"world": 2, "steps_per_second": 4.0, "speeds": {"1": 4.5, "2": 8.0}})
    assert found["speed/samples_per_second"] == 8.0 and found["speed/steps_per_second"] == 4.0


def test_tables_are_those_of_all_workers() -> None:
    job = Job(min_nodes=1, max_nodes=2).running(0, 1)
    for agent, hot in (("a0", (0.5,)), ("a1", ())):
        load = TableLoad(rows=2, updated_per_second=10.0, hot_ids=(7,) * len(hot), hot_share=hot)
        job.say(agent, Tables((encoded({"items": load, "empty": TableLoad()}),)))
    found = scalars(status(job.state, "ns/job", job.now, 0.0))
    assert found["tables/items/rows"] == 4.0 and found["tables/items/holders"] == 2.0
    assert found["tables/items/updated_per_second"] == 20.0 and found["tables/items/skew"] == 1.0
    assert found["tables/items/hottest_share"] == 0.25
    assert found["tables/empty/hottest_share"] == 0.0


def written(board: GoodputWriter) -> bool:
    """Tries while the coordinator is only just starting."""
    for _ in range(200):
        if board.write(40):
            return True
        time.sleep(0.05)
    return False


async def test_a_coordinator_is_asked_with_the_jobs_token() -> None:
    recorder, other = Recorder(), Recorder()
    async with served() as (_, port):
        board = GoodputWriter(recorder, endpoint=f"127.0.0.1:{port}", token=TOKEN)
        assert await asyncio.to_thread(written, board)
        stranger = GoodputWriter(other, endpoint=f"127.0.0.1:{port}", token="another")
        assert not await asyncio.to_thread(stranger.write, 40)
    assert recorder.found["goodput/hours"] == (0.0, 40) and not other.found


def test_without_a_coordinator_nothing_is_written() -> None:
    recorder = Recorder()
    assert not GoodputWriter(recorder, endpoint=f"127.0.0.1:{free_endpoint()}").write(1)
    assert not recorder.found


@pytest.mark.parametrize("endpoint", ["", "host", "host:", "host:port"])
def test_what_is_no_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="expected HOST:PORT of the job's rendezvous"):
        GoodputWriter(Recorder(), endpoint=endpoint)


def test_tensorboards_own_writer_takes_them(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path))
    for tag, value in scalars({"world": 1}).items():
        writer.add_scalar(tag, value, 1)
    writer.close()
    assert list(tmp_path.iterdir())
