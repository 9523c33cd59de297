"""ElasticSampler: this rank's batches of the global order, for a data loader of one's own."""

from __future__ import annotations

from collections.abc import Sized
from pathlib import Path
from typing import TYPE_CHECKING

from torch.utils.data import DataLoader, Sampler

from elastic_trainer.data.cursor import Cursor
from elastic_trainer.data.order import Batches, ElasticOrder
from elastic_trainer.ranks.process_group import ProcessGroup

if TYPE_CHECKING:
    from elastic_trainer.data.coordinate import Mesh


class ElasticSampler(ElasticOrder, Sampler[list[int]]):
    """A batch sampler whose order doesn't depend on the world, and whose position can be saved.

        sampler = ElasticSampler(dataset, batch_size=32)
        loader = DataLoader(dataset, batch_sampler=sampler, num_workers=4)
        for epoch in range(sampler.cursor.epoch, epochs):
            for images, labels in sampler.follow(loader):
                (sampler.weight * loss(model(images), labels)).backward()
                ...
                checkpointer.step()

    An iteration is what is left of an epoch. The position is that of the steps applied
    (`Checkpointer.step()`, or `applied()` after each optimizer step), however far workers prefetch.
    `follow` tells each batch's `weight`, see ElasticDataset, and whether it is its step's `last`.

    In torchdata's StatefulDataLoader, the loader's own state holds the position of the batches that
    it returned; it can be loaded under any world. Call `applied()` there too.

    Args:
        data: the dataset, or how many samples it has.
        batch_size, global_batch, seed, audit, group, mesh: as ElasticDataset's.

    Raises:
        ValueError: an empty dataset, a size below 1, or neither size.
        TypeError: data without a length, a sampler or loader of data, or a size that is no number.
    """

    def __init__(
        self,
        data: Sized | int,
        *,
        batch_size: int | None = None,
        global_batch: int | None = None,
        seed: int = 0,
        audit: str | Path | None = None,
        group: ProcessGroup | None = None,
        mesh: Mesh | None = None,
    ) -> None:
        if not isinstance(data, int | Sized) or isinstance(data, Sampler | DataLoader):
            raise TypeError(
                f"data is a {type(data).__name__}: expected a dataset with __len__, or how many "
                "samples it has"
            )
        super().__init__(
            data if isinstance(data, int) else len(data),
            batch_size=batch_size,
            global_batch=global_batch,
            seed=seed,
            audit=audit,
            group=group,
            mesh=mesh,
        )

    def __iter__(self) -> Batches:
        self._begin_alone()
        end = self.cursor.epoch + 1
        return Batches(self, lambda: end)

    def __len__(self) -> int:
        """Batches of a whole epoch at the present world, whatever of it is done."""
        full, rest = divmod(self.samples, self.batch)
        whole, end = Cursor(), Cursor(position=full * self.batch)
        count = full and full * len(self.micro_batches(whole))
        return count + (len(self.micro_batches(end)) if rest else 0)
