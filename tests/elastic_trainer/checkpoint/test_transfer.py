"""A hand-over of the state ends with its round, wherever it is."""

from __future__ import annotations

import signal
from datetime import timedelta

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tests.elastic_trainer.torch_process import TorchProcess

pytestmark = pytest.mark.process

SCRIPT = """
import sys, threading
import torch
from elastic_trainer.checkpoint.transfer import receive, send
from elastic_trainer.link.message import Place
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.loop.round_member import RoundMember

rank, port = (int(argument) for argument in sys.argv[1:])
member, link = RoundMember(), WorkerLink(None)
member._connect(link, Place(1, rank, 2, "127.0.0.1", port))
over, messages = threading.Event(), []


def moved(count):
    messages.append(count)
    if len(messages) == 3:
        print("under way", flush=True)  # what follows is the tensor


def end_round():
    sys.stdin.readline()
    over.set()
    member.break_collectives()


threading.Thread(target=end_round, daemon=True).start()
try:
    if rank == 0:
        state = {"model": torch.zeros(300_000_000, dtype=torch.uint8)}
        send(state, [1], moved, over.is_set)
    else:
        receive(0, moved, over.is_set)
except RuntimeError:
    member.disconnect(link)
    print("left", flush=True)
"""


SLOW = """
import sys, time
import torch
from elastic_trainer.checkpoint.transfer import receive, send
from elastic_trainer.link.message import Place
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.loop import round_member

round_member.CONNECT_SECONDS = 3.0
rank, port = (int(argument) for argument in sys.argv[1:])
member = round_member.RoundMember()
member._connect(WorkerLink(None), Place(1, rank, 2, "127.0.0.1", port))
print("connected", flush=True)
sys.stdin.readline()
if rank == 0:
    time.sleep(4.5)  # as long as it takes to gather a large state, or to give it to another first
    send({"model": torch.ones(5)}, [1])
else:
    print(receive(0)["model"].sum().item(), flush=True)
"""


def test_a_message_of_the_state_may_take_longer_than_ranks_have_to_connect() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))
    ranks = [TorchProcess(SLOW, rank, store.port) for rank in range(2)]
    try:
        for process in ranks:
            assert process.stdout.readline() == "connected\n"
        for process in ranks:
            process.stdin.write("go\n")
            process.stdin.flush()
        assert ranks[1].communicate(timeout=120)[0] == "5.0\n"
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("frozen", [0, 1], ids=["giver", "taker"])
def test_a_rank_leaves_its_round_in_the_midst_of_a_message_of_the_state(frozen: int) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))
    ranks = [TorchProcess(SCRIPT, rank, store.port) for rank in range(2)]
    try:
        assert ranks[frozen].stdout.readline() == "under way\n"
        ranks[frozen].send_signal(signal.SIGSTOP)
        # Without a deadline it would wait for gloo's 30 minutes.
        said, _ = ranks[1 - frozen].communicate("over\n", timeout=120)
        assert said in ("under way\nleft\n", "under way\n"), "the latter: it was quicker"
        assert ranks[1 - frozen].returncode == 0
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
