"""ElasticTrainer: Hugging Face's Trainer on the global order, with commits. Extra: `[hf]`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback

from elastic_trainer.checkpoint.checkpointer import Checkpointer
from elastic_trainer.data.sampler import ElasticSampler

_IGNORED = -100
"""The label that no loss counts."""


class ElasticTrainer(Trainer):
    """In place of `transformers.Trainer`: every sample once per epoch, whatever the world does.

        trainer = ElasticTrainer(model=model, args=args, train_dataset=data, folder="commits")
        trainer.train()

    Restarted with another world, `train()` goes on after the newest commit: model, optimizer,
    scheduler and position come from `folder`, not from `resume_from_checkpoint`; Trainer's own
    checkpoints are still written if `save_strategy` says so.

    A batch is `per_device_train_batch_size` samples on each rank, an optimizer step
    `gradient_accumulation_steps` of them. With `global_batch`, a batch is that many on all ranks
    together instead. Shares that differ are weighted: by samples, or by tokens where the model
    normalises by `num_items_in_batch`.

    Args:
        folder: for commits, shared by all pods of the job.
        global_batch: samples of a batch on all ranks.
        every: steps (int) or time between commits; None: see Checkpointer.
        audit: as ElasticDataset's.
        args, others: as Trainer's.
    """

    def __init__(
        self,
        *positional: Any,
        folder: str | Path,
        global_batch: int | None = None,
        every: int | timedelta | None = None,
        audit: str | Path | None = None,
        **others: Any,
    ) -> None:
        super().__init__(*positional, **others)
        self._commits = folder
        self._every = every
        self._weights: deque[float] = deque()
        self._sampler = ElasticSampler(
            self.train_dataset,
            batch_size=None if global_batch else self.args.per_device_train_batch_size,
            global_batch=global_batch,
            seed=self.args.data_seed or self.args.seed,
            audit=audit,
        )
        self.add_callback(_Commits(self))

    def get_train_dataloader(self) -> DataLoader[Any]:
        # Not prepared by accelerate, which would share the batches out a second time.
        return _Loader(
            self.train_dataset,
            self,
            batch_sampler=self._sampler,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            prefetch_factor=self.args.dataloader_prefetch_factor,
        )

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
        **others: Any,
    ) -> Any:
        found = super().compute_loss(
            model, inputs, return_outputs, num_items_in_batch=num_items_in_batch, **others
        )
        if not model.training:
            return found
        weight = self._weights.popleft()
        if self._counts_items:
            return found
        return (weight * found[0], *found[1:]) if return_outputs else weight * found

    @property
    def _counts_items(self) -> bool:
        """Whether losses are divided by the items of all ranks, so that they need no weight."""
        return bool(
            self.args.average_tokens_across_devices
            and (self.model_accepts_loss_kwargs or self.compute_loss_func is not None)
        )


class _Loader(DataLoader[Any]):
    def __init__(self, dataset: Any, trainer: ElasticTrainer, **options: Any) -> None:
        super().__init__(dataset, **options)
        self.__dict__["trainer"] = trainer

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        trainer: ElasticTrainer = self.__dict__["trainer"]
        sampler = trainer._sampler
        for batch in sampler.follow(_Plain(self)):
            trainer._weights.append(sampler.weight)
            if not sampler.weight and trainer._counts_items and "labels" in batch:
                batch["labels"] = batch["labels"].fill_(_IGNORED)  # a sample of another rank
            yield batch


class _Plain:
    """The loader without what `_Loader` adds."""

    def __init__(self, loader: _Loader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return DataLoader.__iter__(self._loader)


class _Commits(TrainerCallback):
    """Restores at the beginning, commits after steps, and ends training with the last epoch."""

    def __init__(self, trainer: ElasticTrainer) -> None:
        self._trainer = trainer
        self._checkpointer: Checkpointer | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        sampler = self._trainer._sampler
        self._checkpointer = Checkpointer(
            self._trainer._commits,
            model=found["model"],
            optimizer=found["optimizer"],
            data=sampler,
            every=self._trainer._every,
            extra={"scheduler": found["lr_scheduler"], "trainer": _Steps(state)},
        )
        if args.max_steps <= 0:
            # At this world's steps; an epoch's last step may be short.
            left = int(args.num_train_epochs) * len(sampler) - self._done(sampler)
            state.max_steps = state.global_step + -(-left // args.gradient_accumulation_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        sampler = self._trainer._sampler
        assert self._checkpointer is not None
        self._checkpointer.step()
        state.epoch = sampler.consumed / sampler.samples
        if args.max_steps <= 0:
            control.should_training_stop = sampler.cursor.epoch >= args.num_train_epochs

    def on_train_end(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        assert self._checkpointer is not None
        self._checkpointer.finish()

    @staticmethod
    def _done(sampler: ElasticSampler) -> int:
        """Batches of this world's size that were done."""
        return sampler.cursor.epoch * len(sampler) + sampler.cursor.position // sampler.batch


class _Steps:
    """The number of optimizer steps, which differ from batches under gradient accumulation."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        return {"global_step": self._state.global_step}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self._state.global_step = saved["global_step"]
