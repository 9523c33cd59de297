"""A state comes along a chain as it was given; a hand-over ends with its round, wherever it is."""

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
from elastic_trainer.checkpoint.chain import arrange_chain
from elastic_trainer.checkpoint.transfer import give, take
from elastic_trainer.link.message import Place
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.loop.round_member import RoundMember

rank, port, nodes = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
relay = arrange_chain(0, [1, 2], nodes)[rank]
member, link = RoundMember(), WorkerLink(None)
member._connect(link, Place(1, rank, 3, "127.0.0.1", port), None)
over, messages = threading.Event(), []


def moved(count):
    messages.append(count)
    if len(messages) == (3 if relay.shares else 4):
        print("under way", flush=True)  # what follows is the tensor's pieces


def end_round():
    sys.stdin.readline()
    over.set()
    member.break_collectives()


threading.Thread(target=end_round, daemon=True).start()
try:
    if rank == 0:
        state = {"model": torch.zeros(300_000_000, dtype=torch.uint8)}
        give(state, relay, moved, over.is_set)
    else:
        take(relay, moved, over.is_set)
except RuntimeError:
    member.disconnect(link)
    print("left", flush=True)
"""


SLOW = """
import sys, time
import torch
from elastic_trainer.checkpoint.chain import Relay
from elastic_trainer.checkpoint.transfer import give, take
from elastic_trainer.link.message import Place
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.loop import round_member

round_member.CONNECT_SECONDS = 3.0
rank, port = (int(argument) for argument in sys.argv[1:])
member = round_member.RoundMember()
member._connect(WorkerLink(None), Place(1, rank, 2, "127.0.0.1", port), None)
print("connected", flush=True)
sys.stdin.readline()
if rank == 0:
    time.sleep(4.5)  # as long as it takes to gather a large state
    give({"model": torch.ones(5)}, Relay(None, 1))
else:
    print(take(Relay(0))["model"].sum().item(), flush=True)
"""


CHAIN = """
import sys
from datetime import timedelta
import torch
import torch.distributed as dist
from elastic_trainer.checkpoint import transfer
from elastic_trainer.checkpoint.chain import arrange_chain

rank, port, large = (int(argument) for argument in sys.argv[1:])
store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=120))
dist.init_process_group("gloo", store=store, rank=rank, world_size=6)
relay = arrange_chain(1, [0, 2, 3, 4, 5], ["a", "b", "b", "c", "c", "c"])[rank]
generator = torch.Generator().manual_seed(7)
tied = torch.rand(3, 4, generator=generator)
state = {
    "small": [torch.full((n,), n, dtype=torch.int16) for n in range(40)],
    # A prime's period: no two pieces are alike, and random bytes for all of it would take seconds.
    "large": torch.randint(0, 255, (999_983,), generator=generator, dtype=torch.uint8)
    .repeat(large // 999_983 + 1)[:large]
    .clone(),
    "tied": (tied, tied.view(12)),
    "gaps": torch.rand(700 if large else 7, 1000, generator=generator)[:, ::2],
    "channels_last": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "step": 12,
}
state["channels_last"].fill_(2)
if rank == 5:
    transfer._map_shared = lambda *place: None  # as where its source is in another container
moved = []
if relay.source is None:
    transfer.give(state, relay, moved.append)
    found = state
else:
    found = transfer.take(relay, moved.append)
for key in ("large", "gaps", "channels_last"):
    assert torch.equal(found[key], state[key]), key
assert all(map(torch.equal, found["small"], state["small"])) and found["step"] == 12
assert found["channels_last"].is_contiguous(memory_format=torch.channels_last)
assert found["tied"][0].data_ptr() == found["tied"][1].data_ptr()
dist.barrier()
if relay.source is not None:
    found["large"].fill_(rank)  # nobody else's
dist.barrier()
assert relay.source is None or found["large"].eq(rank).all()
print("as it was given", sum(moved) // large if large else len(moved), flush=True)
"""


@pytest.mark.parametrize("large", [0, 1, 150_000_001], ids=["one message", "small", "large"])
def test_a_state_comes_along_a_chain_as_it_was_given(large: int) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))
    ranks = [TorchProcess(CHAIN, rank, store.port, large) for rank in range(6)]
    try:
        copies = []
        for process in ranks:
            out, errors = process.communicate(timeout=240)
            assert process.returncode == 0, errors
            assert out.startswith("as it was given"), errors
            copies.append(int(out.split()[-1]))
        if not large:
            assert copies == [2, 1, 2, 3, 1, 1]  # one each way, and one to each of a node's ranks
        if large > 1:
            # Rank 1 gives it to 2, 2 to 0, and 0 to 3, which shares its memory with 4, and, as 5
            # can't map it, sends 5 another.
            assert copies == [2, 1, 2, 2, 0, 1]
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


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


@pytest.mark.parametrize("nodes", ["abc", "abb"], ids=["three nodes", "two share memory"])
@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_ranks_leave_their_round_in_the_midst_of_a_state(frozen: int, nodes: str) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))
    ranks = [TorchProcess(SCRIPT, rank, store.port, nodes) for rank in range(3)]
    try:
        assert ranks[frozen].stdout.readline() == "under way\n"
        ranks[frozen].send_signal(signal.SIGSTOP)
        for rank in {0, 1, 2} - {frozen}:
            # Without a deadline it would wait for gloo's 30 minutes.
            said, errors = ranks[rank].communicate("over\n", timeout=120)
            assert said, errors
            assert set(said.split("\n")) <= {"under way", "left", ""}, (
                "without left: it was quicker"
            )
            assert ranks[rank].returncode == 0, errors
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
