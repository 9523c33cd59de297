"""A rank leaves a round at once, whatever it waits for: elastic_trainer/loop/round_member.py."""

from __future__ import annotations

import os
import resource
import socket
from contextlib import ExitStack
from datetime import timedelta

import pytest
from elastic_trainer.ranks.connection import SPARE_DESCRIPTORS, Connections
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tests.elastic_trainer.torch_process import TorchProcess

pytestmark = pytest.mark.process

SCRIPT = """
import sys, threading
from torch.distributed import distributed_c10d
from elastic_trainer.link.message import Place
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.loop.round_member import RoundMember

rank, port, leaver = (int(argument) for argument in sys.argv[1:])
member = RoundMember()
member._connect(WorkerLink(None), Place(1, rank, 2, "127.0.0.1", port), None)
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
    ranks = [TorchProcess(SCRIPT, rank, store.port, leaver) for rank in range(2)]
    try:
        # A hung gather would last for gloo's 30 minutes.
        assert ranks[leaver].communicate(timeout=60)[0].splitlines() == ["groups 1", "left"]
        assert ranks[1 - leaver].communicate(timeout=60)[0].splitlines() == ["groups 1"]
    finally:
        for process in ranks:
            process.kill()


MAKES = """
import sys, threading, time
import torch.distributed as dist
from elastic_trainer.link.message import Place
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.loop.round_member import RoundMember

rank, port = (int(argument) for argument in sys.argv[1:3])
member = RoundMember()
place = Place(1, rank, 2, "127.0.0.1", port)
member._connect(WorkerLink(None), place, None)
if rank == 1:
    # Says where it listens, and never connects, as if it was lost in between. Of two ranks the one
    # with the higher port is to connect.
    found = []
    while not found:
        keys = member._store.list_keys()
        found = [key for key in keys if key.endswith("/0/0") and not key.endswith("0//cpu//0/0")]
    said = bytearray(member._store.get(found[0]))
    port = 8 + int.from_bytes(said[:8], sys.byteorder) + 8 + 2
    said[port : port + 2] = b"\\xff\\xff"
    member._store.set(found[0][:-1] + "1", bytes(said))
    print("lost", flush=True)
    sys.stdin.read()
    sys.exit()

def end():
    sys.stdin.readline()
    time.sleep(0.5)  # until it waits for the other one
    member.break_collectives()

threading.Thread(target=end, daemon=True).start()
try:
    if sys.argv[3] == "new":
        dist.new_group()
    else:
        dist.split_group(split_ranks=[[0, 1]])  # as a mesh's is made on GPUs
    dist.barrier()
except RuntimeError:
    print("left", flush=True)
"""


@pytest.mark.parametrize("how", ["new", "split"])
def test_a_rank_does_not_wait_for_one_that_is_lost_while_a_group_is_made(how: str) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))
    ranks = [TorchProcess(MAKES, rank, store.port, how) for rank in range(2)]
    try:
        assert ranks[1].stdout.readline().strip() == "lost"
        # It would wait for gloo's 30 minutes.
        assert ranks[0].communicate("\n", timeout=60)[0].splitlines() == ["left"]
    finally:
        for process in ranks:
            process.kill()


SENDS = """
import os, signal, sys, threading, time
import torch, torch.distributed as dist
from elastic_trainer.link.message import Place
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.loop.round_member import RoundMember

rank, port = (int(argument) for argument in sys.argv[1:])
member = RoundMember()
member._connect(WorkerLink(None), Place(1, rank, 2, "127.0.0.1", port), None)
numbers = torch.zeros(1 << 26, dtype=torch.uint8)
if rank == 1:
    work = dist.broadcast(numbers, 0, async_op=True)
    time.sleep(0.5)  # until it waits for them
    print("waits", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)

def end():
    print("can't leave", flush=True)
    os._exit(0)

def lose_peer():
    print("sends", flush=True)
    sys.stdin.readline()
    member.break_collectives()

member._stuck = end
sys.stdin.readline()
threading.Timer(0.5, lose_peer).start()  # by then the kernel takes no more
dist.broadcast(numbers, 0)
"""


def test_a_rank_that_sends_to_a_killed_peer_says_that_it_can_not_leave() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))
    sender, receiver = [TorchProcess(SENDS, rank, store.port) for rank in range(2)]
    try:
        assert receiver.stdout.readline() == "waits\n"
        for line in ("sends\n", "can't leave\n"):
            sender.stdin.write("\n")
            sender.stdin.flush()
            assert sender.stdout.readline() == line
            receiver.kill()
    finally:
        sender.kill()
        receiver.kill()


COMES = """
import sys, time
from elastic_trainer.link.message import Place
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.loop import round_member

rank, port = (int(argument) for argument in sys.argv[1:])
usual, await_all = round_member.CONNECT_SECONDS, round_member.await_all

def arrive(*arguments):
    await_all(*arguments)
    round_member.CONNECT_SECONDS = usual

round_member.await_all = arrive
if rank == 1:
    sys.stdin.readline()
    time.sleep(4.0)  # it has more to do before its loop
else:
    round_member.CONNECT_SECONDS = 2.0
    print("waits", flush=True)
member = round_member.RoundMember()
print(member._connect(WorkerLink(None), Place(1, rank, 2, "127.0.0.1", port), rank), flush=True)
"""


def test_a_script_that_has_more_to_do_before_its_loop_is_waited_for() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))
    waiting, late = [TorchProcess(COMES, rank, store.port) for rank in range(2)]
    try:
        assert waiting.stdout.readline() == "waits\n"
        assert late.communicate("\n", timeout=60)[0] == "[0, 1]\n"
        assert waiting.communicate(timeout=60)[0] == "[0, 1]\n"
    finally:
        waiting.kill()
        late.kill()


LARGE = """
import os, sys, threading, traceback
import torch, torch.distributed as dist
from elastic_trainer.link.message import Place
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.loop.round_member import RoundMember
from elastic_trainer.ranks.neighbours import FULL_MESH_VARIABLE, neighbours
from elastic_trainer.ranks.process_group import ProcessGroup

WORLD, LATE, port = 6, 5, int(sys.argv[1])
os.environ[FULL_MESH_VARIABLE] = "5"

def be(rank):
    member = RoundMember()
    place = Place(1, rank, WORLD, "127.0.0.1", port)
    assert member._connect(WorkerLink(None), place, rank) == list(range(WORLD))
    await_sealed(member._store)
    member.group = ProcessGroup.current()
    known = len(member._connections._numbers)
    assert known == len({*neighbours(rank, WORLD), 0 if rank else 3} - {rank}), known
    numbers = torch.zeros(WORLD, dtype=torch.int64)
    dist.all_to_all_single(numbers, torch.full((WORLD,), rank))
    assert numbers.tolist() == list(range(WORLD))
    assert not member.forsaken and not member.failed, "what was connected since is known, too"
    assert len(member._connections._came(socket_numbers())) >= WORLD - 1
    if rank == LATE:
        sys.stdin.read()
        return "late"
    threading.Timer(0.5, member.break_collectives).start()
    try:
        dist.all_to_all_single(numbers, numbers.clone())
    except RuntimeError:
        return "left" if member.forsaken else "left, and knows of no broken connection"

def await_sealed(store):
    # Else a quick rank's first connection may be there before a slow one has counted its own.
    if store.add("sealed", 1) == WORLD:
        store.set("all sealed", "")
    store.wait(["all sealed"])

def socket_numbers():
    from elastic_trainer.ranks.connection import _sockets
    return _sockets()

children = []
for rank in range(WORLD):
    child = os.fork()
    if not child:
        status = 1
        try:
            os.write(1, f"{rank} {be(rank)}\\n".encode())
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    children.append(child)
for child in children:
    os.waitpid(child, 0)
"""


def test_ranks_of_a_large_world_leave_a_collective_of_those_they_met_late() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))
    ranks = TorchProcess(LARGE, store.port)
    try:
        lines = [ranks.stdout.readline().strip() for _ in range(5)]
        if "" in lines:  # the end of its output
            pytest.fail("".join(ranks.communicate(timeout=60)))
        assert sorted(lines) == [f"{rank} left" for rank in range(5)]
        assert ranks.communicate(timeout=60)[0].splitlines() == ["5 late"]
    finally:
        ranks.kill()


COMES_LATE = """
import os, sys, time
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.loop import round_member
from elastic_trainer.ranks.neighbours import FULL_MESH_VARIABLE

WORLD, port = 3, int(sys.argv[1])
os.environ[FULL_MESH_VARIABLE] = "2"
round_member.PEER_SECONDS = 1.0
children = []
for rank in range(WORLD):
    child = os.fork()
    if not child:
        if rank == WORLD - 1:
            time.sleep(3.0)
        place = round_member.Place(1, rank, WORLD, "127.0.0.1", port)
        said = round_member.RoundMember()._connect(WorkerLink(None), place, rank)
        os.write(1, f"{said}\\n".encode())
        os._exit(0)
    children.append(child)
for child in children:
    os.waitpid(child, 0)
"""


def test_ranks_of_a_large_world_wait_for_one_that_comes_late_as_those_of_a_small_one() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))
    ranks = TorchProcess(COMES_LATE, store.port)
    try:
        assert ranks.communicate(timeout=60)[0] == "[0, 1, 2]\n" * 3
    finally:
        ranks.kill()


BREAKS = """
import itertools, os, random, sys, threading, time
from datetime import timedelta
import torch
from torch.distributed import HashStore, PrefixStore, ProcessGroupGloo
from elastic_trainer.ranks.connection import Connections

chance = random.Random(int(sys.argv[1]))
store = HashStore()

def reduce_for_ever(rank, groups, connected):
    prefix = PrefixStore(str(number), store)
    groups[rank] = group = ProcessGroupGloo(prefix, rank, 3, timedelta(minutes=30))
    connected.wait()
    try:
        while True:
            group.allreduce([torch.ones(500)]).wait()
    except RuntimeError:
        pass

for number in range(40):
    connections = Connections()
    groups, connected = {}, threading.Barrier(4)
    ranks = [
        threading.Thread(target=reduce_for_ever, args=(rank, groups, connected), daemon=True)
        for rank in range(3)
    ]
    for rank in ranks:
        rank.start()
    connected.wait()
    connections.seal(connections.listeners())
    time.sleep(chance.uniform(0, 0.01))
    connections.shut()
    for rank in ranks:
        rank.join(100)
    left = sum(not rank.is_alive() for rank in ranks)
    if left < 3:
        break
    connections.forget()
print(f"round {number}: {left} of 3 ranks left", flush=True)
os._exit(0)
"""


def test_ranks_that_send_and_receive_while_their_round_is_broken_leave_it() -> None:
    """gloo would forget one that waits for a message to be sent: a matter of chance, one of ten
    rounds or so."""
    process = TorchProcess(BREAKS, 7)
    try:
        assert process.communicate(timeout=400)[0] == "round 39: 3 of 3 ranks left\n"
    finally:
        process.kill()


def connection() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname(), timeout=120)
        peer, _ = server.accept()
        peer.settimeout(120)
        return ours, peer


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Addresses to which this process connects, in order."""
    call, called = socket.create_connection, []

    def counted(address: tuple[str, int], timeout: float) -> socket.socket:
        called.append(address)
        return call(address, timeout)

    monkeypatch.setattr(socket, "create_connection", counted)
    monkeypatch.setattr("elastic_trainer.ranks.connection.CALL_SECONDS", 0.05)
    return called


def test_a_listener_at_which_nobody_answers_is_called_no_more(
    calls: list[tuple[str, int]],
) -> None:
    """A script's own, say, where each call would last until its time is over."""
    connections = Connections(world=100)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        connections.end_waits_for_peers(1, waits=lambda: True)
    assert 1 < len(calls) < 10, "the few that the kernel takes, and one more"


def test_the_newest_listener_is_called_first_and_only_until_the_wait_has_ended(
    calls: list[tuple[str, int]],
) -> None:
    connections = Connections(world=10)
    with ExitStack() as stack:
        servers = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=100))
            for _ in range(12)  # their inodes' numbers may have one digit more
        ]
        connections.end_waits_for_peers(5, waits=lambda: len(calls) < 3)
        # Not the last one where the thread has moved to another CPU, which counts up its own.
        newest = max(servers, key=lambda server: os.fstat(server.fileno()).st_ino)
        assert calls == [newest.getsockname()] * 3


def test_descriptors_are_left_for_what_else_is_opened(calls: list[tuple[str, int]]) -> None:
    """gloo keeps one of each call, and ends the process where it can't accept the next one."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    connections = Connections(world=100)
    with socket.create_server(("127.0.0.1", 0), backlog=100):
        opened = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (opened + SPARE_DESCRIPTORS + 7, before[1]))
        try:
            connections.end_waits_for_peers(1, waits=lambda: True)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert 4 < len(calls) < 10


def test_a_broken_connection_takes_what_is_sent_until_its_rank_is_out_of_the_round() -> None:
    connections = Connections()
    ours, peer = connection()
    with ours, peer:
        connections.seal([ours.getpeername()])
        connections.shut()
        assert ours.recv(1) == b"", "who waits for a message is told"
        ours.sendall(b"sent")
        ours.close()  # as gloo does then
        assert peer.recv(10) == b"sent"
        peer.sendall(b"taken")
        peer.setblocking(False)
        with pytest.raises(BlockingIOError):
            peer.recv(1)  # the peer has not been told by us
        connections.forget()
        peer.settimeout(120)
        with pytest.raises(ConnectionResetError):  # as "taken" was not read
            peer.recv(1)
