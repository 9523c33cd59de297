"""ElasticLoop under real torchrun agents: processes live on while their world changes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from elastic_trainer.data.audit import verify
from elastic_trainer.data.dataset import ElasticDataset
from elastic_trainer.link.message import RoundOver, encode
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.loop.loop import ElasticLoop
from elastic_trainer.loop.round_member import ANSWER_SECONDS
from elastic_trainer.ranks.connection import Connections
from elastic_trainer.ranks.process_group import ProcessGroup

from tests.elastic_trainer.loop.devices import DEVICE, DEVICES, VARIABLE
from tests.elastic_trainer.torchrun_job import Job, children, gone

pytestmark = pytest.mark.process

SAMPLES, EPOCHS = 4096, 200

SCRIPT = f"""
import json, os, sys, time
from pathlib import Path
import torch
from torch.utils.data import TensorDataset
from elastic_trainer import ElasticDataset, ElasticLoop

folder = Path(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(0)
inputs = torch.randn({SAMPLES}, 8)
{DEVICE}
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 1))
net.to(device)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
data = ElasticDataset(
    TensorDataset(inputs, inputs.sum(1, keepdim=True)),
    batch_size=8, epochs={EPOCHS}, audit=folder / "audit",
)
begun = open(folder / f"begun-{{os.getpid()}}", "a", buffering=1)
loop = ElasticLoop(
    folder / "commits", model=net, optimizer=optimizer, data=data, every=50,
    begin=lambda loop: begun.write(f"{{loop.link.round}} {{loop._member.collectives()}}\\n"),
)
log = open(folder / f"steps-{{os.getpid()}}", "a", buffering=1)
for x, y in loop:
    with loop.step():
        x, y = x.to(device), y.to(device)
        (loop.weight * torch.nn.functional.mse_loss(loop.model(x), y)).backward()
        enough = torch.tensor(float((folder / "enough").exists()))
        torch.distributed.all_reduce(enough)  # so that all ranks end alike
    log.write(f"{{time.time()}} {{loop.steps}} {{loop.rank}} {{loop.world}} {{loop.link.round}}\\n")
    time.sleep(0.01)
    if enough:
        data.epochs = data.cursor.epoch + (data.cursor.position > 0)
if loop.rank == 0:
    (folder / "result.json").write_text(json.dumps(
        {{"steps": loop.steps, "sum": sum(p.double().sum().item() for p in net.parameters())}}
    ))
"""


@pytest.fixture(params=DEVICES)
def job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Job]:
    monkeypatch.setenv(VARIABLE, request.param)
    job = Job(tmp_path, SCRIPT)
    yield job
    job.close()


def pids(told: dict[str, Any]) -> dict[str, int]:
    return {index: found[0] for index, found in told["pids"].items()}


def test_processes_live_through_joins_losses_and_leaves(job: Job) -> None:
    job.start(0, 1)
    told = job.stepping(2)
    first = pids(told)
    assert told["progress"]["total"] == SAMPLES * EPOCHS > told["progress"]["samples"] > 0

    job.start(2)  # a newcomer: the others go on in their processes
    told = job.stepping(3, after_round=told["round"])
    assert pids(told).items() >= first.items()

    os.kill(pids(told)["1"], signal.SIGKILL)  # a worker: survivors go on, it comes back
    told = job.stepping(3, after_round=told["round"])
    assert pids(told)["0"] == first["0"]
    assert pids(told)["1"] != first["1"]

    before = told["round"]
    os.kill(pids(told)["2"], signal.SIGSTOP)  # it hangs: noticed, killed and replaced
    stopped = pids(told)["2"]
    told = job.stepping(3, after_round=before)
    assert gone(stopped)
    assert pids(told)["0"] == first["0"]

    job.agents[2].send_signal(signal.SIGTERM)  # it leaves at a step boundary
    told = job.stepping(2, after_round=told["round"])
    assert job.wait(2) in (0, 1)
    assert pids(told)["0"] == first["0"]

    (job.folder / "enough").touch()
    assert [job.wait(index) for index in (0, 1)] == [0, 0], job.logs()
    result = json.loads((job.folder / "result.json").read_text())
    assert result["steps"] > 0
    assert sound(job), job.logs()

    # Where somebody was live, a rank that has nothing to give or to get begins by one exchange.
    lines = [line.split() for one in job.folder.glob("begun-*") for line in one.open()]
    collectives: dict[int, list[int]] = {}
    for number, made in lines:
        collectives.setdefault(int(number), []).append(int(made))
    # By reason: a slow machine may lose a worker, and make a round, that the test didn't ask for.
    of = {one["reason"]: collectives[one["round"]] for one in told["rounds"] if one["world"] > 1}
    assert of["worker 2 left"] == [2, 2], "all have what is needed"
    assert min(of["worker 2 joined"]) == 2, "it gets all from one, and the other waits"
    # After a loss, the survivors may be a step apart: then one gives and the other gets.


def test_the_coordinator_and_rank_0_may_go(job: Job) -> None:
    job.start(0, 1, 2)
    told = job.stepping(3)
    first = pids(told)
    os.kill(children(job.agents[0].pid)["coordinator"], signal.SIGKILL)
    job.until("the coordinator is back", lambda told: told["world"] == 3)
    told = job.stepping(3)
    assert pids(told) == first
    os.kill(first["0"], signal.SIGKILL)
    told = job.stepping(3, after_round=told["round"])
    assert {i: pid for i, pid in pids(told).items() if i != "0"} == {
        i: pid for i, pid in first.items() if i != "0"
    }
    (job.folder / "enough").touch()
    assert [job.wait(index) for index in (0, 1, 2)] == [0, 0, 0], job.logs()
    assert sound(job), job.logs()


def test_a_dedicated_coordinator_is_killed_while_a_node_joins(job: Job) -> None:
    variables = {
        "VOLCANO_ELASTIC_COORDINATOR": "dedicated",
        "VOLCANO_ELASTIC_HEARTBEAT_TIMEOUT": "5",
    }
    command = [
        sys.executable,
        "-m",
        "elastic_trainer.coordinator",
        "--port",
        str(job.port),
        "--max",
        "4",
        "--parent",
        str(os.getpid()),
    ]
    environment = {**os.environ, **variables}

    def coordinator() -> subprocess.Popen[bytes]:
        return subprocess.Popen([*command, "--job", job.name], env=environment)

    running = coordinator()
    try:
        job.start(0, 1, environment=variables)
        told = job.stepping(2)
        first = pids(told)
        assert all("coordinator" not in children(agent.pid) for agent in job.agents.values())

        job.start(2, environment=variables)
        job.until("a third is there", lambda told: bool(told.get("waiting")) or told["world"] == 3)
        running.kill()
        running.wait(120)
        running = coordinator()
        told = job.stepping(3)
        assert pids(told).items() >= first.items()

        (job.folder / "enough").touch()
        assert [job.wait(index) for index in (0, 1, 2)] == [0, 0, 0], job.logs()
    finally:
        running.kill()
        running.wait(120)
    assert sound(job), job.logs()


def test_all_killed_at_once_go_on_from_the_commit(job: Job) -> None:
    job.start(0, 1)
    told = job.until("a commit", lambda told: told.get("committed_step", -1) >= 50)
    for pid in pids(told).values():
        os.kill(pid, signal.SIGKILL)
    told = job.stepping(2, after_round=told["round"])
    assert told["rounds"][-1]["first_step"] > 50
    (job.folder / "enough").touch()
    assert [job.wait(index) for index in (0, 1)] == [0, 0], job.logs()
    assert sound(job), job.logs()


def test_alone_it_is_a_plain_loop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def train(epochs: int) -> tuple[int, float]:
        torch.manual_seed(0)
        net = torch.nn.Linear(2, 1)
        inputs = torch.arange(20.0).reshape(10, 2)
        data = ElasticDataset(torch.utils.data.TensorDataset(inputs), batch_size=4, epochs=epochs)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
        loop = ElasticLoop(tmp_path, model=net, optimizer=optimizer, data=data)
        for (x,) in loop:
            with loop.step():
                (loop.weight * loop.model(x).square().mean()).backward()
        return loop.steps, net.weight.sum().item()

    steps, weight = train(2)
    assert steps == 6 and "training is complete" not in caplog.text
    assert train(2) == (6, weight)  # restored, nothing left to do
    assert "all 2 epochs were done at step 6, and no step is left" in caplog.text
    caplog.clear()
    assert train(3)[0] == 9 and "training is complete" not in caplog.text


def test_an_error_of_the_body_is_the_users(tmp_path: Path) -> None:
    net = torch.nn.Linear(2, 1)
    data = ElasticDataset(torch.utils.data.TensorDataset(torch.ones(4, 2)), batch_size=2, epochs=1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loop = ElasticLoop(tmp_path, model=net, optimizer=optimizer, data=data)
    for _ in loop:
        with pytest.raises(RuntimeError, match="mine"), loop.step():
            raise RuntimeError("mine")
        break
    with pytest.raises(RuntimeError, match=r"put it in `with loop\.step"):
        for _ in loop:
            pass


def test_a_batch_is_trained_on_once(tmp_path: Path) -> None:
    net = torch.nn.Linear(2, 1)
    data = ElasticDataset(torch.utils.data.TensorDataset(torch.ones(4, 2)), batch_size=2, epochs=1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loop = ElasticLoop(tmp_path, model=net, optimizer=optimizer, data=data)
    for (x,) in loop:
        with loop.step():
            loop.model(x).sum().backward()
        before = net.weight.clone()
        with pytest.raises(RuntimeError, match="trained on twice"), loop.step():
            loop.model(x).sum().backward()
        assert net.weight.equal(before)
        assert loop.steps == 1
        break


@pytest.mark.parametrize("leave", ["error", "break"])
def test_a_step_that_was_left_leaves_no_trace_when_training_goes_on(
    tmp_path: Path, leave: str
) -> None:
    def train(name: str, left: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))
        data = ElasticDataset(
            torch.utils.data.TensorDataset(torch.randn(24, 2)),
            global_batch=4,
            batch_size=2,
            epochs=1,
        )
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        loop = ElasticLoop(tmp_path / name, model=net, optimizer=optimizer, data=data)
        while loop.steps < 6:
            with suppress(KeyError):
                for (x,) in loop:
                    with loop.step():
                        (loop.weight * loop.model(x).square().mean()).backward()
                        if left and loop.steps == 2 and leave == "error":
                            left = False
                            raise KeyError
                    if left and loop.steps == 2 and not loop.stepped and leave == "break":
                        left = False
                        break
        assert not left
        return list(net.state_dict().values())

    for left, undisturbed in zip(train("left", True), train("undisturbed", False), strict=True):
        assert left.equal(undisturbed)


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[ElasticLoop]:
    net = torch.nn.Linear(2, 1)
    data = ElasticDataset(torch.utils.data.TensorDataset(torch.ones(4, 2)), batch_size=2, epochs=1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    yield ElasticLoop(tmp_path, model=net, optimizer=optimizer, data=data)
    if dist.is_initialized():
        dist.destroy_process_group()


def test_a_round_that_nobody_came_to_leaves_no_trace_in_the_next(loop: ElasticLoop) -> None:
    lonely = timedelta(seconds=0.1)
    with pytest.raises(RuntimeError):
        dist.init_process_group(
            "gloo", store=dist.HashStore(), rank=0, world_size=2, timeout=lonely
        )
    loop._disconnect()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert dist.group.WORLD is not None
    assert dist.group.WORLD.group_name == "0"  # as in a process for which it is the first


def test_a_round_that_is_over_before_it_begins_is_not_waited_for(
    loop: ElasticLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        loop.link = link = WorkerLink(ours, 1, broken=loop._member.break_collectives)
        for name, value in (("RANK", 1), ("WORLD_SIZE", 2), ("MASTER_PORT", 1)):
            monkeypatch.setenv(name, str(value))
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        link._hear(encode(RoundOver(1)))
        with pytest.raises(RuntimeError, match="was over before"):
            loop._connect()
        assert link.peer_lost(0)


def test_an_error_is_the_users_own_while_all_peers_are_connected(loop: ElasticLoop) -> None:
    """It isn't kept waiting for news of a lost peer, which no connection tells of."""
    asked: list[tuple[float, bool]] = []

    class Link(WorkerLink):
        def peer_lost(self, patience: float = 0.0, *, asks: bool = False) -> bool:
            asked.append((patience, asks))
            return False

    link, member = Link(None), loop._member
    member.group = ProcessGroup(0, 2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        member._connections = connections = Connections()
        peer = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
        with ours, socket.socketpair()[0]:
            assert not member.peer_lost(link)  # still connecting
            connections.seal({listener.getsockname()})
            assert not member.peer_lost(link)
            member.group = ProcessGroup(
                0, 5
            )  # more peers than connections: nothing is known of those
            assert not member.peer_lost(link)
            member.group = ProcessGroup(0, 2)
            peer.close()
            assert not member.peer_lost(link)
    waits = ANSWER_SECONDS, True
    assert asked == [waits, waits, waits]


def test_what_other_threads_open_while_a_round_connects_is_theirs() -> None:
    """A tracking server's connection, say; it is neither shut nor counted as a peer's."""
    with _service() as service, socket.create_server(("127.0.0.1", 0)) as peers:
        connections = Connections()
        with (
            socket.create_server(("127.0.0.1", 0)) as ours,
            socket.create_connection(service.getsockname()) as other,
            socket.create_connection(ours.getsockname()) as came,
            socket.create_connection(peers.getsockname()) as went,
        ):
            accepted = [one.accept()[0] for one in (service, ours, peers)]
            assert connections.listeners() == {ours.getsockname()}
            connections.seal({ours.getsockname(), peers.getsockname()})
            assert connections.intact(3)  # both ends of what came are in this process, and one
            assert not connections.intact(4)
            assert connections.shut()
            assert [_ended(one) for one in (other, came, went)] == [False, True, True]
            for one in accepted:
                one.close()


def test_a_round_that_breaks_while_it_connects_leaves_services_connected() -> None:
    with _service() as service, socket.create_server(("127.0.0.1", 0)) as peers:
        connections = Connections()
        with (
            socket.create_connection(service.getsockname()) as other,
            socket.create_connection(peers.getsockname()) as went,
        ):
            accepted = [one.accept()[0] for one in (service, peers)]
            assert connections.shut()
            assert [_ended(one) for one in (other, went)] == [False, True]
            for one in accepted:
                one.close()


def _service() -> socket.socket:
    """A listener on a port that the kernel wouldn't have chosen, as services are."""
    for port in range(20000, 30000):
        with suppress(OSError):
            return socket.create_server(("127.0.0.1", port))
    raise AssertionError("no port is free")


def _ended(end: socket.socket) -> bool:
    """Tell whether this process receives from the connection no more, of which nothing has come."""
    end.setblocking(False)
    try:
        return end.recv(1) == b""
    except BlockingIOError:
        return False


@pytest.mark.parametrize("world", [1, 2])
def test_peers_are_waited_for_shortly_and_steps_for_long(
    loop: ElasticLoop, monkeypatch: pytest.MonkeyPatch, world: int
) -> None:
    monkeypatch.setattr("elastic_trainer.loop.round_member.CONNECT_SECONDS", 0.5)
    monkeypatch.setattr("elastic_trainer.loop.round_member.ARRIVE_SECONDS", 0.5)
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        loop.link = WorkerLink(ours, 1, broken=loop._member.break_collectives)
        for name, value in (("RANK", 0), ("WORLD_SIZE", world), ("MASTER_PORT", store.port)):
            monkeypatch.setenv(name, str(value))
        monkeypatch.setenv("MASTER_ADDR", "localhost")
        if world == 2:  # the other one never comes
            with pytest.raises(RuntimeError):
                loop._connect()
            return
        loop._connect()
        assert dist.group.WORLD is not None
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        assert backend.options._timeout == dist.default_pg_timeout


def sound(job: Job) -> bool:
    """No sample lost or repeated relative to the final model, and no step's model unlike."""
    epochs = max(json.loads(line)["epoch"] for line in _took(job)) + 1
    report = verify(job.folder / "audit", SAMPLES, epochs)
    print(report)
    return report.ok


def _took(job: Job) -> list[str]:
    return [
        line
        for path in (job.folder / "audit").iterdir()
        for line in path.read_text().splitlines()
        if '"epoch"' in line
    ]
