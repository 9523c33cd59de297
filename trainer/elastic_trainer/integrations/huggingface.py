"""ElasticTrainer: Hugging Face's Trainer on the global order, with commits. Extra: `[hf]`."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback

from elastic_trainer.checkpoint.checkpointer import Checkpointer
from elastic_trainer.data.sampler import ElasticSampler
from elastic_trainer.data.seeded import SeededDataset

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

    Where training is counted in epochs (`max_steps` is not set), they may be fractions, and
    schedules follow the samples, so that a change of the world doesn't shift them. Random numbers
    of the data belong to each sample, see SeededDataset, in place of what Trainer's own
    `worker_init_fn` does.

    The numbers that Trainer logs are in the job's status, too.

    Args:
        folder: for commits, shared by all pods of the job.
        global_batch: samples of a batch on all ranks.
        every: steps (int) or time between commits; None: see Checkpointer.
        audit: as ElasticDataset's.
        args, others: as Trainer's.

    Raises:
        ValueError: `dataloader_drop_last` or `dataloader_in_order=False`, which would lose samples
            or their order.
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
        _refuse(self.args)
        self._commits = folder
        self._every = every
        self._weights: deque[float] = deque()
        self._sampler = ElasticSampler(
            self.train_dataset,
            batch_size=None if global_batch else self.args.per_device_train_batch_size,
            global_batch=global_batch,
            seed=self.args.seed if self.args.data_seed is None else self.args.data_seed,
            audit=audit,
        )
        self.add_callback(_Commits(self))

    @property
    def samples_in_all(self) -> int:
        """Samples of the whole training; the last epoch may be part of one."""
        return math.ceil(float(self.args.num_train_epochs) * self._sampler.samples)

    def get_train_dataloader(self) -> DataLoader[Any]:
        # Not prepared by accelerate, which would share the batches out a second time.
        data, collator = self.train_dataset, self.data_collator
        if hasattr(data, "column_names") and hasattr(data, "remove_columns"):
            data = self._remove_unused_columns(data, description="training")
        else:
            collator = self._get_collator_with_removed_columns(collator, description="training")
        return _Loader(
            SeededDataset(data, self._sampler.seed),
            self,
            batch_sampler=self._sampler,
            collate_fn=collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            persistent_workers=self.args.dataloader_persistent_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
            multiprocessing_context=getattr(self.args, "dataloader_multiprocessing_context", None),
        )

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Make Trainer's own scheduler; where training is counted in epochs its schedule counts
        samples: a step of another world takes it forward by as many steps as its samples are
        worth."""
        made = self.lr_scheduler is None
        scheduler = super().create_scheduler(num_training_steps, optimizer)
        if made and self.args.max_steps <= 0 and isinstance(scheduler, LambdaLR):
            scheduler.lr_lambdas = [
                self._by_samples(one, num_training_steps) for one in scheduler.lr_lambdas
            ]
        return scheduler

    def _by_samples(self, factor: Callable[..., float], steps: int) -> Callable[[int], float]:
        # A function, whose state a LambdaLR doesn't save: the sampler's position is all of it.
        def of_progress(_: int) -> float:
            return factor(min(1.0, self._sampler.reached / self.samples_in_all) * steps)

        return of_progress

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
        """Return whether losses are divided by the items of all ranks, so that they need no
        weight."""
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
        if trainer.args.max_steps <= 0 and sampler.consumed >= trainer.samples_in_all:
            return  # restarted when all was done
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
            extra=self._extra(state, found["lr_scheduler"]),
        )
        if args.max_steps <= 0:
            # At this world's steps; an epoch's last step may be short.
            state.max_steps = state.global_step + steps_left(
                sampler, self._trainer.samples_in_all, args.gradient_accumulation_steps
            )

    def _extra(self, state: Any, scheduler: Any) -> dict[str, Any]:
        extra = {"scheduler": scheduler, "trainer": _Steps(state)}
        scaler = getattr(self._trainer.accelerator, "scaler", None)
        return extra if scaler is None else {**extra, "scaler": scaler}

    def on_step_end(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        sampler = self._trainer._sampler
        assert self._checkpointer is not None
        self._checkpointer.step()
        state.epoch = sampler.consumed / sampler.samples
        if args.max_steps <= 0:
            # Trainer's own, which counts other steps than these, says so at its max_steps only.
            ended = sampler.consumed >= self._trainer.samples_in_all
            wanted = control.should_training_stop and state.global_step < state.max_steps
            control.should_training_stop = ended or wanted

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if self._checkpointer is not None and state.is_world_process_zero:
            self._checkpointer.link.report_log(logs or {})

    def on_train_end(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        assert self._checkpointer is not None
        self._checkpointer.finish()


def steps_left(sampler: ElasticSampler, samples: int, accumulate: int) -> int:
    """Return how many optimizer steps of `accumulate` batches, none of two epochs, are left of a
    training of so many samples."""
    steps, at = 0, sampler.consumed
    while at < samples:
        end = min(samples, (at // sampler.samples + 1) * sampler.samples)
        steps += -(-(end - at) // (sampler.batch * accumulate))
        at = end
    return steps


def _refuse(args: Any) -> None:
    if args.dataloader_drop_last:
        raise ValueError(
            "dataloader_drop_last is set: every sample counts here, and an uneven end of an epoch "
            "is weighted"
        )
    if not getattr(args, "dataloader_in_order", True):
        raise ValueError(
            "dataloader_in_order is False: batches come in the order of the steps that they are for"
        )


class _Steps:
    """The number of optimizer steps, which differ from batches under gradient accumulation."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        return {"global_step": self._state.global_step}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self._state.global_step = saved["global_step"]
