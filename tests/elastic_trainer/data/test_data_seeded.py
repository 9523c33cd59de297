"""Random numbers that belong to a sample; prefetched batches that are kept, or dropped."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from elastic_trainer.data.audit import verify
from elastic_trainer.data.cursor import Cursor
from elastic_trainer.data.dataset import ElasticDataset
from elastic_trainer.data.sampler import ElasticSampler
from elastic_trainer.data.seeded import SeededDataset, seed_generators
from elastic_trainer.ranks.process_group import ProcessGroup
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, Subset

pytestmark = pytest.mark.process

SAMPLES = 24


class Augmented(Dataset[Any]):
    """Each sample is its index and what it drew."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        drawn = (torch.rand(1).item(), np.random.rand(), random.random())
        return index, *drawn


class Counted(Dataset[int]):
    """Counts the samples that any process reads."""

    def __init__(self) -> None:
        self.read = torch.zeros(1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> int:
        self.read += 1
        return index


def mixed(samples: list[Any]) -> list[float]:
    """A collate function that draws, as mix-up does."""
    return [torch.rand(1).item(), np.random.rand(), random.random()]


@pytest.mark.parametrize("skipped", [0, 2])
@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_batch_draws_is_its_own_in_any_process_and_after_any_restart(
    workers: int, skipped: int
) -> None:
    def drawn(workers: int, skipped: int, state: Any = None) -> list[Any]:
        data = ElasticDataset(
            Augmented(),
            batch_size=4,
            epochs=2,
            collate=mixed,
            num_workers=workers,
            group=ProcessGroup(),
        )
        if state is not None:
            data.load_state_dict(state)
        torch.manual_seed(workers + skipped)
        found = []
        for batch in data:
            found.append(batch)
            data.applied()
            if len(found) == skipped:
                return drawn(workers, 0, data.state_dict())
        return found

    undisturbed = drawn(0, 0)
    assert len({tuple(one) for one in undisturbed}) == len(undisturbed)
    assert drawn(workers, skipped) == undisturbed[skipped:]


def drawn_by(worlds: list[int], *, workers: int = 0, seed: int = 3) -> dict[Any, Any]:
    """Return what each sample of each epoch drew, in a training of these worlds, two steps each."""
    found: dict[Any, Any] = {}
    state = None
    for number, world in enumerate(worlds):
        for rank in range(world):
            data = ElasticDataset(
                Augmented(),
                global_batch=6,
                batch_size=2,
                epochs=2,
                seed=seed,
                collate=list,
                num_workers=workers,
                group=ProcessGroup(rank, world),
            )
            if state is not None:
                data.load_state_dict(state)
            torch.manual_seed(rank)
            for batch in data:
                epoch = data.cursor.epoch
                if data.weight:
                    found.update({(epoch, index): drawn for index, *drawn in batch})
                if data.last:
                    data.applied()
                    if data.steps == 2 * (number + 1):
                        break
        state = data.state_dict()
    return found


def test_an_elastic_run_draws_what_the_undisturbed_run_draws() -> None:
    alone = drawn_by([1, 1, 1, 1])
    assert len(alone) == 2 * SAMPLES
    assert drawn_by([2, 1, 3, 4]) == alone
    assert drawn_by([3, 3], workers=2) == {key: alone[key] for key in alone if key[0] == 0}
    assert len({tuple(drawn) for drawn in alone.values()}) == 2 * SAMPLES  # epochs differ too
    assert drawn_by([1], seed=4) != {key: alone[key] for key in drawn_by([1])}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_samplers_loader_draws_the_same(workers: int) -> None:
    expected = drawn_by([1, 1, 1, 1])
    sampler = ElasticSampler(SAMPLES, batch_size=5, seed=3)
    found = {}
    loader = DataLoader(
        SeededDataset(Augmented(), seed=3),
        batch_sampler=sampler,
        num_workers=workers,
        collate_fn=list,
        persistent_workers=workers > 0,
    )
    for epoch in range(2):
        for batch in sampler.follow(loader):
            found.update({(epoch, index): drawn for index, *drawn in batch})
            sampler.applied()
    assert found == expected


def test_a_subset_is_seeded_by_sample() -> None:
    def drawn(size: int) -> list[Any]:
        data = ElasticDataset(
            Subset(Augmented(), range(12)), batch_size=size, epochs=1, collate=list
        )
        return [sample for batch in data for sample in batch]

    assert drawn(3) == drawn(4)


def test_the_training_processs_own_generators_stay_as_they_are() -> None:
    def numbers() -> tuple[float, float, float]:
        return torch.rand(1).item(), float(np.random.rand()), random.random()

    seed_generators(0, 0, 0)
    expected = numbers()
    seed_generators(0, 0, 0)
    next(iter(ElasticDataset(Augmented(), batch_size=4, epochs=1, collate=list)))
    assert numbers() == expected


# ---- the same number of batches on all ranks


@given(
    samples=st.integers(1, 200),
    world=st.integers(1, 7),
    batch=st.integers(1, 60),
    size=st.none() | st.integers(1, 20),
)
def test_all_ranks_make_as_many_forward_passes(
    samples: int, world: int, batch: int, size: int | None
) -> None:
    shares = [
        Cursor().share(rank, samples=samples, batch=batch, world=world) for rank in range(world)
    ]
    assert len({len(share.micro_batches(size)) for share in shares}) == 1


def test_an_empty_part_is_a_sample_again_without_weight(tmp_path: Path) -> None:
    # 17 samples on 2 ranks in batches of 8: rank 0 needs two passes for its nine.
    passes = []
    for rank in range(2):
        data = ElasticDataset(
            range(17),  # type: ignore[arg-type]
            global_batch=17,
            batch_size=8,
            epochs=1,
            collate=list,
            audit=tmp_path,
            group=ProcessGroup(rank, 2),
        )
        data.begin(run=1)
        found = [(len(batch), data.weight) for batch in data]
        assert sum(weight for _, weight in found) == pytest.approx((9, 8)[rank] * 2 / 17)
        assert all(size > 0 for size, _ in found)
        passes.append(len(found))
        data.applied()
    assert passes == [2, 2]
    assert verify(tmp_path, 17, 1).ok
    third = ElasticDataset(
        range(3),  # type: ignore[arg-type]
        global_batch=3,
        batch_size=1,
        epochs=1,
        collate=list,
        group=ProcessGroup(1, 2),
    )
    assert [(len(batch), third.weight) for batch in third] == [(1, 0.0), (1, 2 / 3)]


# ---- what was prefetched


def counted(source: Counted, rank: int, world: int, **given: Any) -> ElasticDataset:
    options: dict[str, Any] = {"global_batch": 8, "num_workers": 1, "prefetch_factor": 6}
    return ElasticDataset(source, epochs=1, group=ProcessGroup(rank, world), **options, **given)


def begin(data: ElasticDataset, steps: int) -> list[list[int]]:
    """Applies some steps and takes the first batch of one that isn't applied."""
    taken = []
    for batch in data:
        taken.append(batch.tolist())
        if len(taken) > steps:
            break
        data.applied()
    return taken


def rest(data: ElasticDataset) -> list[list[int]]:
    taken = []
    for batch in data:
        taken.append(batch.tolist())
        data.applied()
    return taken


def test_prefetched_batches_that_are_still_right_are_kept(tmp_path: Path) -> None:
    source = Counted()
    data = counted(source, 0, 1, audit=tmp_path)
    data.begin(run=1)
    taken = begin(data, 2)
    data.regroup(ProcessGroup(0, 1))  # a lost peer was replaced
    data.begin(run=2, parent=1)
    again = rest(data)
    assert again[0] == taken[2]
    assert sorted(one for batch in taken[:2] + again for one in batch) == list(range(400))
    assert int(source.read[0]) == 400  # each was read once
    report = verify(tmp_path, 400, 1)
    assert report.ok, report


def test_a_batch_that_was_changed_in_place_is_read_again() -> None:
    data = counted(Counted(), 0, 1)
    batch = next(iter(data))
    before = batch.tolist()
    batch += 1
    assert next(iter(data)).tolist() == before


def test_a_batch_that_was_given_a_gradient_comes_without_it() -> None:
    data = ElasticDataset(
        torch.utils.data.TensorDataset(torch.ones(8, 2)),
        batch_size=4,
        epochs=1,
        num_workers=1,
        group=ProcessGroup(),
    )
    (batch,) = next(iter(data))
    batch.requires_grad_().sum().backward()
    (again,) = next(iter(data))
    assert again.grad is None and not again.requires_grad


class Gated(Counted):
    """The second batch's reading waits at a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.open = torch.zeros(1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def __getitem__(self, index: int) -> int:
        while self.read[0] >= 8 and not self.open[0]:
            time.sleep(0.001)
        return super().__getitem__(index)


def test_prefetching_for_another_world_is_dropped_unread() -> None:
    source = Gated()
    data = counted(source, 0, 1)
    begin(data, 0)  # the loader process has seven batches to read, and stands in the second
    data.regroup(ProcessGroup(1, 2))

    def open_when_dropped(newest: int) -> None:
        while int(data._samples.iteration[0]) == newest:
            time.sleep(0.001)
        source.open += 1

    opener = threading.Thread(target=open_when_dropped, args=[int(data._samples.iteration[0])])
    opener.start()
    taken = rest(data)
    opener.join()
    assert len(taken) == 50 and all(len(batch) == 4 for batch in taken)
    assert int(source.read[0]) == 8 + 8 + 50 * 4  # five batches were never read


def test_loader_processes_pass_over_what_nobody_waits_for() -> None:
    source = Counted()
    samples = SeededDataset(source)
    loader = DataLoader(samples, batch_size=4, num_workers=1)
    assert len(list(loader)) == 100
    from elastic_trainer.data.seeded import CollateUnlessStale, IndexBatch

    samples.iteration += 2
    old, new = IndexBatch([1, 2], iteration=1), IndexBatch([3], iteration=2)
    before = int(source.read[0])
    loader = DataLoader(
        samples, batch_sampler=[old, new], num_workers=1, collate_fn=CollateUnlessStale(list)
    )
    assert list(loader) == [None, [3]]
    assert int(source.read[0]) == before + 1


def test_batches_out_of_order_are_refused() -> None:
    with pytest.raises(TypeError, match="no in_order: batches come in the order of the steps"):
        counted(Counted(), 0, 1, in_order=False)


def test_what_was_prefetched_of_an_epoch_that_was_called_off_is_not_handed_out() -> None:
    data = counted(Counted(), 0, 1)
    data.epochs = 3
    for _ in data:
        data.applied()
        if data.cursor == Cursor(1, 0, 50):
            data.epochs = 1
    assert data.steps == 50
