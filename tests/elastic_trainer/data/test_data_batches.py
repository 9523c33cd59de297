"""Steps of several batches, worker processes that prefetch, and samplers in data loaders."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from elastic_trainer.data.audit import verify
from elastic_trainer.data.cursor import Cursor
from elastic_trainer.data.dataset import ElasticDataset
from elastic_trainer.data.order import ElasticOrder
from elastic_trainer.data.sampler import ElasticSampler
from elastic_trainer.ranks.process_group import ProcessGroup
from elastic_trainer.shards.permutation import Permutation
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from tests.elastic_trainer import nursery
from tests.elastic_trainer.torchrun_job import PATIENCE, gone

SAMPLES = 37


class Numbers(Dataset[int]):
    def __init__(self, samples: int = SAMPLES) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> int:
        return index


class Processes(Dataset[int]):
    """Each sample is the process that read it."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        return os.getpid()


def dataset(rank: int = 0, world: int = 1, **given: Any) -> ElasticDataset:
    given = {"collate": list, "epochs": 2, **given}
    return ElasticDataset(Numbers(), group=ProcessGroup(rank, world), **given)


def order_of(epoch: int, samples: int = SAMPLES) -> list[int]:
    return Permutation(samples, seed=0, epoch=epoch).slice(0, samples).tolist()


# ---- a step in several batches


@given(
    samples=st.integers(1, 200),
    world=st.integers(1, 7),
    batch=st.integers(1, 60),
    size=st.none() | st.integers(1, 20),
)
def test_batches_of_a_step_are_the_step_and_weigh_as_much(
    samples: int, world: int, batch: int, size: int | None
) -> None:
    split = {"samples": samples, "batch": batch}
    shares = [Cursor().share(rank, world=world, **split) for rank in range(world)]
    parts = [part for share in shares for part in share.micro_batches(size)]
    taken = Cursor().taken(**split)
    assert [at for part in parts for at in range(part.start, part.stop)] == list(range(taken))
    assert all(size is None or part.samples <= size for part in parts)
    assert all(share.micro_batches(size) for share in shares)
    for part in parts:
        assert part.weight == pytest.approx(part.samples * world / taken)


def test_the_sequence_of_steps_is_the_same_in_every_world() -> None:
    def steps(world: int) -> list[set[int]]:
        ranks = [dataset(rank, world, global_batch=8, batch_size=3) for rank in range(world)]
        found: list[set[int]] = []
        for rank, data in enumerate(ranks):
            for batch in data:
                if len(found) <= data.steps:
                    assert rank == 0
                    found.append(set())
                if data.weight:
                    found[data.steps] |= set(batch)
                assert len(batch) <= 3
                if data.last:
                    data.applied()
        assert all(data.consumed == 2 * SAMPLES for data in ranks)
        return found

    alone = steps(1)
    assert [len(step) for step in alone] == [8, 8, 8, 8, 5] * 2
    assert steps(2) == steps(3) == steps(4) == steps(11) == alone


def test_half_a_step_can_not_be_applied() -> None:
    data = dataset(global_batch=8, batch_size=3)
    batches = iter(data)
    next(batches)
    assert not data.last
    with pytest.raises(RuntimeError, match=r"not all of its micro-batches.*where its `last` is"):
        data.applied()
    next(batches), next(batches)
    data.applied()
    assert data.consumed == 8


def test_gradients_are_synchronised_with_the_last_batch_alone() -> None:
    class Parallel:
        entered = 0

        def no_sync(self) -> Any:
            self.entered += 1
            return torch.no_grad()

    data, model = dataset(global_batch=8, batch_size=3), Parallel()
    for _ in data:
        with data.micro_batch(model):
            assert torch.is_grad_enabled() == data.last
        if data.last:
            data.applied()
    assert (model.entered, data.steps) == (2 * (4 * 2 + 1), 10)


def train(worlds: list[int], *, size: int | None) -> torch.Tensor:
    """Parameters after as many steps as `worlds`, each of that world's ranks in turn."""
    torch.manual_seed(0)
    inputs = torch.randn(SAMPLES, 3, dtype=torch.float64)
    targets = inputs.square().sum(1, keepdim=True)
    net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    net.double()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    state: dict[str, int] | None = None
    for world in worlds:
        optimizer.zero_grad()
        for rank in range(world):
            data = ElasticDataset(
                TensorDataset(inputs, targets),
                global_batch=10,
                batch_size=size,
                epochs=100,
                group=ProcessGroup(rank, world),
            )
            if state is not None:
                data.load_state_dict(state)
            for x, y in data:
                # What DistributedDataParallel does: the mean over the ranks of their gradients.
                (data.weight * torch.nn.functional.mse_loss(net(x), y) / world).backward()
                if data.last:
                    break
            data.applied()
        state = data.state_dict()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])


@pytest.mark.parametrize("worlds", [[2] * 20, [3] * 20, [4] * 20, [1, 4, 3, 2] * 5])
def test_training_is_that_of_one_process_whatever_the_world(worlds: list[int]) -> None:
    alone = train([1] * 20, size=None)
    torch.testing.assert_close(train(worlds, size=None), alone, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(train(worlds, size=2), alone, rtol=1e-9, atol=1e-12)


# ---- refusals


@pytest.mark.parametrize(
    ("saved", "given", "message"),
    [
        ({"global_batch": 8}, {"global_batch": 9}, "global_batch=8, this dataset has global_b"),
        ({"global_batch": 8}, {"batch_size": 8}, "global_batch=8, this dataset has global_batch=0"),
        ({"batch_size": 4}, {"batch_size": 4, "seed": 1}, "seed=0, this dataset has seed=1"),
    ],
)
def test_a_cursor_of_other_steps_is_refused(
    saved: dict[str, int], given: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        dataset(**given).load_state_dict(dataset(**saved).state_dict())


def test_another_local_batch_is_welcome() -> None:
    dataset(batch_size=5).load_state_dict(dataset(batch_size=4).state_dict())
    dataset(global_batch=9, batch_size=3).load_state_dict(dataset(global_batch=9).state_dict())


def test_a_data_set_that_grew_is_refused() -> None:
    saved = ElasticSampler(100, batch_size=4).state_dict()
    with pytest.raises(ValueError, match="samples=100, this dataset has samples=101"):
        ElasticSampler(101, batch_size=4).load_state_dict(saved)


def test_a_size_is_needed() -> None:
    with pytest.raises(ValueError, match="expected batch_size"):
        ElasticSampler(10)


class Running(Numbers):
    """Reads samples from an iterator that has run out at one of them."""

    def __init__(self, out: int) -> None:
        super().__init__()
        self.out = out

    def __getitem__(self, index: int) -> int:
        return next(iter([] if index == self.out else [index]))


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.process)])
@pytest.mark.parametrize("position", [0, 9, SAMPLES - 1])
def test_an_iterator_that_runs_out_in_a_sample_is_no_end_of_the_data(
    workers: int, position: int
) -> None:
    """A for loop would take its StopIteration for the end, and training for complete."""
    data = ElasticDataset(
        Running(order_of(0)[position]), batch_size=4, epochs=1, collate=list, num_workers=workers
    )
    with pytest.raises(RuntimeError, match=r"ended at sample \d+ of 37 of epoch 0: .* StopIterat"):
        consume(data, data)
    assert data.consumed == position // 4 * 4


def test_a_loader_that_ends_within_an_epoch_is_told() -> None:
    sampler = ElasticSampler(Numbers(), batch_size=4)
    batches = [order_of(0)[:4], order_of(0)[4:8]]
    with pytest.raises(RuntimeError, match="ended at sample 8 of 37 of epoch 0"):
        consume(sampler, sampler.follow(batches))


# ---- worker processes


@pytest.mark.process
def test_prefetched_batches_are_not_consumed_ones() -> None:
    data = dataset(batch_size=4, num_workers=2, prefetch_factor=3)
    taken = []
    for batch in data:
        taken += batch
        data.applied()
        if data.steps == 3:
            break
    saved = data.state_dict()
    assert data.consumed == 12
    for batch in data:  # anew, in the same processes
        taken += batch
        data.applied()
    assert taken == order_of(0) + order_of(1)

    again = dataset(batch_size=4)
    again.load_state_dict(saved)
    assert next(iter(again)) == order_of(0)[12:16]


@pytest.mark.process
def test_worker_processes_are_kept() -> None:
    data = ElasticDataset(Processes(), batch_size=4, epochs=1, num_workers=1, collate=list)
    (first,) = set(next(iter(data)))
    assert set(next(iter(data))) == {first} != {os.getpid()}


@pytest.mark.process
def test_data_that_nobody_has_any_more_is_not_left_to_the_garbage_collector() -> None:
    """It would close the queues first, and torch then waits five seconds for each process."""

    def begin() -> weakref.ref[ElasticDataset]:
        data = ElasticDataset(Processes(), batch_size=4, epochs=2, num_workers=1, collate=list)
        next(iter(data))
        return weakref.ref(data)

    gc.disable()
    try:
        assert begin()() is None
    finally:
        gc.enable()


FORSAKEN = """
import os, signal, sys
from torch.utils.data import Dataset
from torch.utils.data._utils import worker
from elastic_trainer import ElasticDataset

class Processes(Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return os.getpid()

worker.MP_STATUS_CHECK_INTERVAL = 10**6  # torch's own check would end it after five seconds
if __name__ == "__main__":
    data = ElasticDataset(
        Processes(), batch_size=4, epochs=1, num_workers=1, multiprocessing_context=sys.argv[1]
    )
    print(next(iter(data))[0].item(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.process
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_worker_processes_end_with_a_trainer_that_is_killed(method: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(FORSAKEN)
    reading, writing = os.pipe()
    with open(reading) as said, open(writing, "w") as log, open(tmp_path / "errors", "w") as errors:
        trainer = nursery.shared().start([str(script), method], os.environ, log, errors)
        log.close()
        try:
            orphan = int(said.readline())
            assert trainer.wait(PATIENCE) == -signal.SIGKILL
            deadline = time.monotonic() + PATIENCE
            while not gone(orphan) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert gone(orphan)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(trainer.pid, signal.SIGKILL)


def test_prefetching_leaves_torchs_generator_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    next(iter(dataset(batch_size=4)))
    assert torch.rand(1) == expected


# ---- samplers


def consume(order: ElasticOrder, batches: Any, steps: int | None = None) -> list[int]:
    taken: list[int] = []
    for batch in batches:
        if order.weight:
            taken += batch
        if order.last:
            order.applied()
            if steps is not None and order.steps >= steps:
                break
    return taken


@pytest.mark.process
@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_in_a_data_loader(workers: int, tmp_path: Path) -> None:
    def loader(sampler: ElasticSampler) -> DataLoader[int]:
        return DataLoader(Numbers(), batch_sampler=sampler, num_workers=workers, collate_fn=list)

    sizes: Any = {"global_batch": 8, "batch_size": 3, "audit": tmp_path}
    first = ElasticSampler(SAMPLES, **sizes)
    taken = consume(first, first.follow(loader(first)), steps=2)
    assert taken == order_of(0)[:16]

    # Another world goes on from there.
    ranks = [ElasticSampler(SAMPLES, **sizes, group=ProcessGroup(rank, 2)) for rank in range(2)]
    for sampler in ranks:
        sampler.load_state_dict(first.state_dict())
        sampler.begin(run=2, parent=1)
    found = [consume(sampler, sampler.follow(loader(sampler))) for sampler in ranks]
    assert sorted(found[0] + found[1]) == sorted(order_of(0)[16:])
    assert ranks[0].cursor == ranks[1].cursor == Cursor(1, 0, 5)

    # An iteration is an epoch.
    found = [consume(sampler, sampler.follow(loader(sampler))) for sampler in ranks]
    assert sorted(found[0] + found[1]) == list(range(SAMPLES))
    report = verify(tmp_path, SAMPLES, 2)
    assert report.ok, report


@given(world=st.integers(1, 5), batch=st.integers(1, 40), size=st.none() | st.integers(1, 9))
def test_its_length_is_an_epochs(world: int, batch: int, size: int | None) -> None:
    for rank in range(world):
        sampler = ElasticSampler(
            SAMPLES, global_batch=batch, batch_size=size, group=ProcessGroup(rank, world)
        )
        assert len(list(sampler)) == len(sampler)


@pytest.mark.process
def test_without_follow_a_step_is_a_step() -> None:
    sampler = ElasticSampler(SAMPLES, batch_size=4)
    taken = []
    for batch in DataLoader(Numbers(), batch_sampler=sampler, num_workers=2, collate_fn=list):
        taken += batch
        sampler.applied()
    assert (taken, sampler.cursor) == (order_of(0), Cursor(1, 0, 10))


def test_what_has_no_positions_is_refused_in_words() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            yield 1

    for unfit in (Stream(), DataLoader([1, 2]), 7):  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="expected a map-style one"):
            ElasticDataset(unfit, batch_size=1, epochs=1)  # type: ignore[arg-type]
