"""ElasticCallback: Lightning's Trainer on the global order, with commits. Extra: `[lightning]`."""

from __future__ import annotations

import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning

from elastic_trainer.checkpoint.checkpointer import Checkpointer
from elastic_trainer.data.sampler import ElasticSampler


class ElasticCallback(lightning.Callback):
    """Every sample once per epoch, whatever the world does; commits, and goes on from them.

        sampler = ElasticSampler(dataset, batch_size=32)
        trainer = lightning.Trainer(
            callbacks=[ElasticCallback("commits", sampler)],
            max_epochs=3, use_distributed_sampler=False, enable_checkpointing=False,
        )
        trainer.fit(module, DataLoader(dataset, batch_sampler=sampler))

    An epoch's last step is committed after the epoch's validation and schedules: a restart within
    those makes that step again. `SeededDataset(dataset)` in the loader gives random numbers to each
    sample.

    In `training_step`, multiply the mean loss by `sampler.weight`. Restarted with another world,
    `fit` goes on after the newest commit in the folder.

    A step is one batch: the sampler has a `batch_size` or a `global_batch`, and the Trainer no
    `accumulate_grad_batches`. Automatic optimization with one optimizer.

    What modules log is in the job's status, too, each `log_every_n_steps` and after validation.

    Args:
        folder: for commits, shared by all pods of the job.
        sampler: the batch sampler of the training data.
        every: steps (int) or time between commits; None: see Checkpointer.

    Raises:
        ValueError: by `fit`, for what is said above.
    """

    def __init__(
        self,
        folder: str | Path,
        sampler: ElasticSampler,
        *,
        every: int | timedelta | None = None,
    ) -> None:
        self._folder = folder
        self._sampler = sampler
        self._every = every
        self._checkpointer: Checkpointer | None = None
        self._epoch_ends = False
        """The epoch's last step was made, and is not applied yet."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        # Before the data loader is iterated, and with the optimizer made.
        self._refuse(trainer)
        schedulers = {
            f"scheduler {number}": config.scheduler
            for number, config in enumerate(trainer.lr_scheduler_configs)
        }
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None:
            schedulers["scaler"] = scaler
        self._checkpointer = Checkpointer(
            self._folder,
            model=pl_module,
            optimizer=trainer.optimizers[0],
            data=self._sampler,
            every=self._every,
            extra=schedulers,
        )
        progress = trainer.fit_loop.epoch_progress.current
        progress.ready = progress.started = self._sampler.cursor.epoch
        progress.processed = progress.completed = self._sampler.cursor.epoch
        loop = trainer.fit_loop.epoch_loop
        steps = loop.automatic_optimization.optim_progress.optimizer.step.total
        steps.ready = steps.completed = self._sampler.steps  # trainer.global_step
        loop._batches_that_stepped = self._sampler.steps

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        assert self._checkpointer is not None
        if self._checkpointer.link.agent:
            # torchrun ends workers by it once their round is over. Lightning's handler would take
            # part in a collective then, which nobody else does any more.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        sampler = self._sampler
        # Lightning is a batch ahead, so nobody can follow: this is the batch after the cursor.
        sampler.weight = sampler.micro_batches(sampler.cursor)[0].weight
        if batch_idx == 0 and sampler.cursor.position:
            # What is left of an epoch ends like a whole one, also to the learning rate's schedule.
            left = -(-(sampler.samples - sampler.cursor.position) // sampler.batch)
            progress = trainer.fit_loop.epoch_loop.batch_progress.current
            progress.ready += len(sampler) - left
            progress.started = progress.processed = progress.completed = progress.ready - 1

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # An epoch's last step is committed once all is done that follows the epoch, else a restart
        # would pass over validation, on_train_epoch_end and the schedules that need their results.
        sampler = self._sampler
        self._epoch_ends = sampler.after(sampler.cursor).epoch > sampler.cursor.epoch
        if (batch_idx + 1) % trainer.log_every_n_steps == 0:
            self._report(trainer)
        if not self._epoch_ends:
            self._step()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._report(trainer)

    def _report(self, trainer: Any) -> None:
        if self._checkpointer is not None and trainer.is_global_zero:
            self._checkpointer.link.report_log(trainer.callback_metrics)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._end_epoch()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._end_epoch()

    def _end_epoch(self) -> None:
        if self._epoch_ends:
            self._epoch_ends = False
            self._step()

    def _step(self) -> None:
        assert self._checkpointer is not None
        self._checkpointer.step()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        assert self._checkpointer is not None
        self._checkpointer.finish()

    def _refuse(self, trainer: Any) -> None:
        if trainer.accumulate_grad_batches != 1:
            raise ValueError(
                f"accumulate_grad_batches is {trainer.accumulate_grad_batches}: expected 1; give "
                "the sampler a larger batch instead"
            )
        if None not in (self._sampler.batch_size, self._sampler.global_batch):
            raise ValueError(
                "the sampler has both batch_size and global_batch: expected one of them, as a step "
                "is one batch here"
            )
        if len(trainer.optimizers) != 1:
            raise ValueError(f"{len(trainer.optimizers)} optimizers: expected 1")
        if trainer.max_epochs < 1:
            raise ValueError(f"max_epochs is {trainer.max_epochs}: expected how many to train")
