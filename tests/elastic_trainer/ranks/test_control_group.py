"""Control messages outlast the data group's time-out."""

from __future__ import annotations

from datetime import timedelta

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tests.elastic_trainer.torch_process import TorchProcess

pytestmark = pytest.mark.process

SCRIPT = """
import sys, time
from datetime import timedelta
import torch.distributed as dist
from elastic_trainer.ranks.process_group import ProcessGroup, control_group

rank, port, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
store.set(f"rank {rank} is here", "")
store.wait(["rank 0 is here", "rank 1 is here"])  # connecting has the group's time-out
# Both have imported torch by now, whoever's processor was busy.
store.set(f"here/{rank}", "")
store.wait(["here/0", "here/1"], timedelta(seconds=60))
dist.init_process_group(
    "gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=seconds)
)
group = ProcessGroup.current()
assert group.gather(rank) == [0, 1]
if rank == 1 and seconds < 60:
    time.sleep(seconds + 2)  # a restore that takes longer than a collective may
assert group.from_rank(1, rank) == 1
group.barrier()
print("own" if control_group() is not dist.group.WORLD else "shared", flush=True)
dist.barrier(group=control_group())
dist.destroy_process_group()
"""


@pytest.mark.process
@pytest.mark.parametrize(("seconds", "group"), [(5.0, "own"), (1800.0, "shared")])
def test_a_wait_longer_than_the_data_groups_timeout_ends_nothing(
    seconds: float, group: str
) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))
    ranks = [TorchProcess(SCRIPT, rank, store.port, seconds) for rank in range(2)]
    try:
        for process in ranks:
            out, errors = process.communicate(timeout=120)
            assert (process.returncode, out.strip()) == (0, group), errors
    finally:
        for process in ranks:
            process.kill()


TAKERS = """
import sys, time
from datetime import timedelta
import torch
import torch.distributed as dist
from elastic_trainer.checkpoint.chain import Relay
from elastic_trainer.checkpoint.transfer import give, take
from elastic_trainer.ranks.process_group import ProcessGroup

rank, port = int(sys.argv[1]), int(sys.argv[2])
store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
store.set(f"rank {rank} is here", "")
store.wait(["rank 0 is here", "rank 1 is here"])  # connecting has the group's time-out
# Both have imported torch by now, whoever's processor was busy.
store.set(f"here/{rank}", "")
store.wait(["here/0", "here/1"], timedelta(seconds=60))
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=5))
group = ProcessGroup.current()
group.gather(rank)  # as before each restore
if rank == 0:
    time.sleep(7)  # it gathers the state
    give({"step": torch.ones(3)}, Relay(None, 1))
else:
    assert take(Relay(0))["step"].tolist() == [1, 1, 1]
group.barrier()
"""


def test_a_taker_waits_for_its_turn_longer_than_the_data_groups_timeout() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))
    ranks = [TorchProcess(TAKERS, rank, store.port) for rank in range(2)]
    try:
        for process in ranks:
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors
    finally:
        for process in ranks:
            process.kill()
            process.wait()
