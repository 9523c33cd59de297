"""Waits for other ranks end with the round, whatever gloo makes of broken connections."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from elastic_trainer.ranks.waiting import wait_in_round
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tests.elastic_trainer.torch_process import TorchProcess


def test_what_was_waited_for_is_returned_or_raised() -> None:
    assert wait_in_round(lambda: 5, lambda: False, "it") == 5
    assert wait_in_round(lambda: 5, lambda: True, "it") == 5, "all came before they knew"
    with pytest.raises(ValueError, match="a peer was lost"):
        wait_in_round(lambda: fail("a peer was lost"), lambda: False, "it")


def fail(reason: str) -> None:
    raise ValueError(reason)


def test_a_wait_that_nothing_ends_is_left_with_its_round() -> None:
    endless = threading.Event()
    looks = iter([False, False, True])
    try:
        with pytest.raises(RuntimeError, match="the round ended in the midst of a word"):
            wait_in_round(endless.wait, lambda: next(looks), "a word")
    finally:
        endless.set()


SCRIPT = """
import os, socket, sys, threading
from elastic_trainer.link.message import RoundOver
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.loop.round_member import RoundMember

rank, port, wait = int(sys.argv[1]), sys.argv[2], sys.argv[3]
os.environ |= {
    "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port
}
ours, agents = socket.socketpair()
link, member = WorkerLink(ours, 1, lambda: None), RoundMember()
member.connect(link, lambda: None, again=False)
assert member.group.gather(rank) == [0, 1]
print("connected", flush=True)
if rank == 1:
    sys.stdin.read()  # comes to nothing further, and keeps its connections
    os._exit(0)
# The connections stay as they are: as gloo, which doesn't tell all waits that they have ended.
threading.Timer(0.2, link._on_round_over, [RoundOver(1)]).start()
try:
    waits = {
        "gather": lambda: member.group.gather(rank),
        "from rank": lambda: member.group.from_rank(0, bytes(300_000_000)),
        "barrier": lambda: member.group.barrier(),
    }
    waits[wait]()
except RuntimeError as error:
    print(error, flush=True)
    member.disconnect(link)
    print("left", flush=True)
os._exit(0)
"""


@pytest.mark.process
@pytest.mark.parametrize("wait", ["gather", "from rank", "barrier"])
def test_a_rank_whose_round_is_over_waits_for_no_word_of_others(wait: str) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))
    ranks = [TorchProcess(SCRIPT, rank, store.port, wait) for rank in range(2)]
    try:
        # Without a look at its round it would wait for gloo's 30 minutes.
        said = ranks[0].communicate(timeout=120)[0].splitlines()
        assert said[0] == "connected" and said[2:] == ["left"]
        assert said[1].startswith("the round ended in the midst of")
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
