"""A rank leaves a round at once, whatever it waits for: elastic_trainer/loop/round_member.py."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

pytestmark = pytest.mark.process

SCRIPT = """
import sys, threading
from torch.distributed import distributed_c10d
from elastic_trainer.link.message import Place
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.loop.round_member import RoundMember

rank, port, leaver = (int(argument) for argument in sys.argv[1:])
member = RoundMember()
member._connect(WorkerLink(None), Place(1, rank, 2, "127.0.0.1", port))
group = member.group.current()
assert group.gather(rank) == [0, 1]
print("groups", len(distributed_c10d._world.pg_map), flush=True)
if rank != leaver:
    sys.stdin.read()  # comes to no further gather, and keeps its connections
    sys.exit()
threading.Timer(0.5, member.break_collectives).start()
try:
    group.gather(rank)
except RuntimeError:
    print("left", flush=True)
"""


@pytest.mark.parametrize("leaver", [0, 1])
def test_a_gather_of_control_messages_ends_with_the_round(leaver: int) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(rank), str(store.port), str(leaver)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        # A hung gather would last for gloo's 30 minutes.
        assert ranks[leaver].communicate(timeout=120)[0].splitlines() == ["groups 1", "left"]
        assert ranks[1 - leaver].communicate(timeout=60)[0].splitlines() == ["groups 1"]
    finally:
        for process in ranks:
            process.kill()
