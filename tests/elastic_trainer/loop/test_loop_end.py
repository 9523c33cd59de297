"""The end of an ElasticLoop, mostly under real agents: what was trained last is in the folder."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from elastic_trainer.data.dataset import ElasticDataset
from elastic_trainer.link.message import StopAt
from elastic_trainer.loop.loop import ElasticLoop
from elastic_trainer.ranks.process_group import ProcessGroup
from elastic_trainer.store.storage import Storage
from torch.utils.data import TensorDataset

from tests.elastic_trainer.torchrun_job import Job, children

STEPS, STOPPED = 8, 3

SCRIPT = f"""
import os, signal, sys, time
from pathlib import Path
import torch
from torch.utils.data import TensorDataset
from elastic_trainer import ElasticDataset, ElasticLoop

folder = Path(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
inputs = torch.randn({STEPS * 8}, 4)
data = ElasticDataset(
    TensorDataset(inputs, inputs.sum(1, keepdim=True)), global_batch=8, batch_size=4, epochs=1
)
loop = ElasticLoop(folder / "commits", model=net, optimizer=optimizer, data=data, every=1000)
first = not (folder / "lost").exists()
loses, stops = int(os.environ["LOSES"]), [int(rank) for rank in os.environ["STOPS"].split()]
within = int(os.environ["WITHIN"])
last = {STOPPED} if stops else {STEPS}
for x, y in loop:
    with loop.step():
        try:
            loss = loop.weight * torch.nn.functional.mse_loss(loop.model(x), y)
            if first and loop.rank == 0 and loop.steps == within:
                (folder / "within").touch()
            if first and loop.rank == 1 and loop.steps == within:
                while not (folder / "within").exists():
                    time.sleep(0.01)
                (folder / "lost").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            loss.backward()
        except RuntimeError:
            if within < 0:
                raise
            print("passed over an error", flush=True)
    if not first or loop.steps != last or not loop.stepped:
        continue
    if loop.rank in stops:
        loop.stop()
    if loses >= 0:
        (folder / f"applied-{{loop.rank}}").touch()
        while len(list(folder.glob("applied-*"))) < loop.world:
            time.sleep(0.01)
        if loop.rank == loses:
            (folder / "lost").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        while not loop.link.over:
            time.sleep(0.01)
torch.save(net.state_dict(), folder / f"weights-{{loop.rank}}")
(folder / f"ended-{{loop.rank}}").touch()
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path, SCRIPT, "2:2")
    yield job
    job.close()


def run(job: Job, *, loses: int = -1, stops: str = "", within: int = -1) -> list[int]:
    """The agents' exit codes.

    Args:
        loses: the rank that is killed once all have applied the last step; -1: none.
        stops: the ranks that say `loop.stop()` then.
        within: the number of steps after which rank 1 is killed between its forward and backward
            pass, and the body passes over errors; -1: never.
    """
    environment = {"LOSES": str(loses), "STOPS": stops, "WITHIN": str(within)}
    job.start(0, 1, environment=environment)
    return [job.wait(index) for index in (0, 1)]


def newest(job: Job) -> int:
    found = Storage(job.folder / "commits").newest()
    assert found is not None, job.logs()
    return found.step


def ended(job: Job) -> set[str]:
    return {path.name for path in job.folder.glob("ended-*")}


@pytest.mark.process
@pytest.mark.parametrize("rank", [0, 1])
def test_a_last_step_that_only_a_process_had_when_a_peer_was_lost_is_committed(
    job: Job, rank: int
) -> None:
    assert run(job, loses=rank) == [0, 0], job.logs()
    assert (job.folder / "lost").exists()
    assert ended(job) == {"ended-0", "ended-1"}
    assert newest(job) == STEPS


@pytest.mark.process
def test_a_loop_that_is_stopped_on_all_ranks_ends_with_a_commit(job: Job) -> None:
    assert run(job, stops="0 1") == [0, 0], job.logs()
    assert ended(job) == {"ended-0", "ended-1"}
    assert newest(job) == STOPPED


@pytest.mark.process
def test_a_stop_holds_for_who_takes_the_place_of_a_rank_that_was_lost_before_it(job: Job) -> None:
    assert run(job, stops="0", loses=1) == [0, 0], job.logs()
    assert ended(job) == {"ended-0", "ended-1"}
    assert newest(job) == STOPPED


@pytest.mark.process
def test_a_loop_that_one_rank_stops_alone_fails_on_the_others_in_words(job: Job) -> None:
    # All are started again, and come to their end since nobody stops then.
    assert run(job, stops="0") == [0, 0], job.logs()
    assert "its loop may have ended at another step, by stop() or break" in job.logs()
    assert newest(job) == STEPS


@pytest.mark.process
def test_a_body_that_passes_over_a_lost_peers_error_applies_no_half_step(job: Job) -> None:
    assert run(job, within=3) == [0, 0], job.logs()
    assert (job.folder / "lost").exists() and "passed over an error" in job.logs()
    assert newest(job) == STEPS
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    inputs = torch.randn(STEPS * 8, 4)
    targets = inputs.sum(1, keepdim=True)
    data = ElasticDataset(TensorDataset(inputs, targets), global_batch=8, batch_size=8, epochs=1)
    for x, y in data:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
    for rank in (0, 1):
        found = torch.load(job.folder / f"weights-{rank}")
        for name, value in net.state_dict().items():
            assert torch.allclose(found[name], value, atol=1e-6), name


class TestAlone:
    def make(self, folder: Path, begin: Callable[[ElasticLoop], None] | None = None) -> ElasticLoop:
        net = torch.nn.Linear(2, 1)
        samples = torch.utils.data.TensorDataset(torch.ones(40, 2))
        return ElasticLoop(
            folder,
            model=net,
            optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
            data=ElasticDataset(samples, global_batch=4, batch_size=2, epochs=1),
            begin=begin,
        )

    def train(self, loop: ElasticLoop, stop_at: int, *, batch: int = 2) -> None:
        """Stop in the given one of the step's two batches."""
        for number, (x,) in enumerate(loop):
            with loop.step():
                (loop.weight * loop.model(x).mean()).backward()
            if number == 2 * (stop_at - 1) + batch - 1:
                loop.stop()

    @pytest.mark.parametrize("batch", [1, 2])
    def test_a_stop_comes_after_a_whole_step_which_is_committed(
        self, tmp_path: Path, batch: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        loop = self.make(tmp_path)
        self.train(loop, 3, batch=batch)
        assert loop.steps == 3
        assert [commit.step for commit in Storage(tmp_path).commits()] == [3]
        assert "not committed" not in caplog.text
        self.train(self.make(tmp_path), 4)
        assert [commit.step for commit in Storage(tmp_path).commits()] == [7, 3]

    def test_a_loop_that_was_stopped_can_be_iterated_again(self, tmp_path: Path) -> None:
        loop = self.make(tmp_path)
        self.train(loop, 3)
        self.train(loop, 1000)
        assert loop.steps == 10

    def test_a_stop_in_begin_makes_no_step(self, tmp_path: Path) -> None:
        def limit(loop: ElasticLoop) -> None:
            if loop.steps >= 3:
                loop.stop()

        self.train(self.make(tmp_path), 3)
        again = self.make(tmp_path, limit)
        self.train(again, 1000)
        assert again.steps == 3

    def test_a_break_without_a_commit_is_warned_of(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        loop = self.make(tmp_path)
        for (x,) in loop:
            with loop.step():
                (loop.weight * loop.model(x).mean()).backward()
            if loop.steps == 2:
                break
        assert "left at step 2, which is not committed" in caplog.text
        assert "loop.stop()" in caplog.text
        assert Storage(tmp_path).commits() == []


AGAIN = """
import sys
from pathlib import Path
import torch
from torch.utils.data import TensorDataset
from elastic_trainer import ElasticDataset, ElasticLoop

net = torch.nn.Linear(2, 1)
data = ElasticDataset(TensorDataset(torch.ones(40, 2)), global_batch=4, batch_size=2, epochs=2)
loop = ElasticLoop(
    Path(sys.argv[1]) / "commits",
    model=net,
    optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
    data=data,
)
for epoch in (0, 1, 2):
    for (x,) in loop:
        with loop.step():
            (loop.weight * loop.model(x).mean()).backward()
        if epoch == 0 and data.cursor.epoch == 1:
            break
    print(f"epoch {epoch} ended at step {loop.steps}", flush=True)
data.epochs = 3
try:
    next(iter(loop))
except RuntimeError as error:
    print(error, flush=True)
"""


@pytest.mark.process
def test_a_loop_that_all_ranks_left_or_that_has_ended_may_be_entered_again(tmp_path: Path) -> None:
    job = Job(tmp_path, AGAIN, "2:2")
    try:
        job.start(0, 1, restarts=0)
        assert [job.wait(index) for index in (0, 1)] == [0, 0], job.logs()
    finally:
        job.close()
    for index in (0, 1):
        log = (tmp_path / f"agent-{index}.log").read_text()
        for line in (
            "epoch 0 ended at step 10\n",
            "epoch 1 ended at step 20\n",
            "epoch 2 ended at step 20\n",
            "training has ended at step 20, and the job's other nodes may have gone: expected",
        ):
            assert log.count(line) == 1, log


FROZEN = """
import os
import sys
from pathlib import Path
import torch
from torch.utils.data import TensorDataset
from elastic_trainer import ElasticDataset, ElasticLoop

net = torch.nn.Linear(2, 1)
net.bias.requires_grad = os.environ["VOLCANO_ELASTIC_POD_INDEX"] == "0"
loop = ElasticLoop(
    Path(sys.argv[1]) / "commits",
    model=net,
    optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
    data=ElasticDataset(TensorDataset(torch.ones(40, 2)), batch_size=2, epochs=1),
)
for (x,) in loop:
    with loop.step():
        (loop.weight * loop.model(x).mean()).backward()
"""


@pytest.mark.process
def test_ranks_that_train_other_parameters_are_refused_in_words(tmp_path: Path) -> None:
    job = Job(tmp_path, FROZEN, "2:2")
    try:
        job.start(0, 1)  # as who hears first of the other's end begins anew
        assert 0 not in [job.wait(index) for index in (0, 1)], job.logs()
    finally:
        job.close()
    for index in (0, 1):
        log = (tmp_path / f"agent-{index}.log").read_text()
        assert "rank 1 trains 1 parameters, rank 0 2" in log, log
        assert "bias" in log and "expected requires_grad as the script first set it" in log, log


def test_ranks_that_have_all_there_is_wait_for_no_word_at_a_fence(tmp_path: Path) -> None:
    net = torch.nn.Linear(2, 1)
    data = ElasticDataset(TensorDataset(torch.ones(8, 2)), batch_size=2, epochs=1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loop = ElasticLoop(tmp_path, model=net, optimizer=optimizer, data=data)
    loop._member.group = ProcessGroup(0, 2)  # the other never comes
    loop.link.told = told = StopAt(fence=1, step=0, leaving=False, commit=False)
    loop._hand_over()
    assert loop._handed_over and loop._agreed is told
    assert loop._commit_at_fence()
    loop._agreed = StopAt(fence=2, step=0, leaving=True, commit=True)
    committed: list[bool] = []
    loop.checkpointer.commit = lambda *, stored: committed.append(stored)  # type: ignore[method-assign]
    assert loop._commit_at_fence() and committed == [True]


def test_a_sharded_state_is_committed_to_storage_where_too_few_stay(tmp_path: Path) -> None:
    data = ElasticDataset(TensorDataset(torch.ones(8, 2)), batch_size=2, epochs=1)

    def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        net = torch.nn.Linear(2, 1)
        return net, torch.optim.SGD(net.parameters(), lr=0.1)

    loop = ElasticLoop(tmp_path, make=make, data=data)
    stored: list[bool] = []
    loop.checkpointer.commit = lambda **given: stored.append(given["stored"])  # type: ignore[method-assign]
    loop.checkpointer.stand = lambda: None  # type: ignore[method-assign]
    for commit in (False, True):
        loop._agreed = StopAt(fence=1, step=0, leaving=False, commit=commit, memory_stays=True)
        assert loop._commit_at_fence()
    assert stored == [False, True]


ALL_LEAVE = """
import os, sys, time
from pathlib import Path
import torch
from torch.utils.data import TensorDataset
from elastic_trainer import ElasticDataset, ElasticLoop
from elastic_trainer.checkpoint.checkpointer import Checkpointer
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.loop import loop as loop_module

folder = Path(sys.argv[1])


class Link(WorkerLink):
    def _on_stop_at(self, stop):
        (folder / f"told-{os.environ['RANK']}-{stop.fence}-{stop.commit}").touch()
        return super()._on_stop_at(stop)


class Loop(ElasticLoop):
    def _hand_over(self):
        (folder / f"stands-{self.rank}").touch()
        while self.rank == 1 and not (folder / "looks").exists():
            time.sleep(0.01)
        super()._hand_over()


class Committing(Checkpointer):
    def commit(self, **given):
        (folder / f"commits-{self.data.group.rank}").touch()
        super().commit(**given)


loop_module.WorkerLink, loop_module.Checkpointer = Link, Committing
net = torch.nn.Linear(2, 1)
loop = Loop(
    folder / "commits",
    model=net,
    optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
    data=ElasticDataset(TensorDataset(torch.ones(40, 2)), global_batch=4, epochs=10**6),
    every=10**9,
)
for (x,) in loop:
    with loop.step():
        (loop.weight * loop.model(x).mean()).backward()
    time.sleep(0.02)
"""


@pytest.mark.process
def test_all_leave_with_one_commit_though_a_new_coordinator_tells_them_of_it_again(
    tmp_path: Path,
) -> None:
    """Rank 0 hears of it from both coordinators, rank 1 looks once the second one has told it."""
    job = Job(tmp_path, ALL_LEAVE, "1:2")

    def exists(name: str) -> Callable[[object], bool]:
        return lambda _: any(tmp_path.glob(name))

    try:
        job.start(0, 1)
        job.stepping(2)
        job.agents[0].send_signal(signal.SIGTERM)
        job.until("both are at the fence", exists("stands-1"))
        job.agents[1].send_signal(signal.SIGTERM)
        job.until("all are told to leave", exists("told-1-*-True"))
        job.until("rank 0 commits", exists("commits-0"))
        told = set(tmp_path.glob("told-1-*-True"))
        os.kill(children(job.agents[0].pid)["coordinator"], signal.SIGKILL)
        job.until("told again", lambda _: set(tmp_path.glob("told-1-*-True")) > told)
        (tmp_path / "looks").touch()
        assert [job.wait(index) for index in (0, 1)] == [0, 0], job.logs()
    finally:
        job.close()
    assert newest(job) > 0


@pytest.mark.process
def test_the_last_step_is_in_storage_where_nodes_leave_one_after_the_other_and_too_few_stay(
    tmp_path: Path,
) -> None:
    """The second one waits for others with the only live state as it begins to leave, too."""
    (tmp_path / "looks").touch()
    job = Job(tmp_path, ALL_LEAVE, "2:4")
    try:
        job.start(0, 1)
        job.stepping(2)
        job.agents[1].send_signal(signal.SIGTERM)
        assert job.wait(1) == 0, job.logs()
        job.until("the other one waits", lambda told: told["phase"] == "forming")
        job.agents[0].send_signal(signal.SIGTERM)
        job.wait(0)
    finally:
        job.close()
    assert newest(job) > 0
