"""The learning rate that follows the global batch, where that follows the world."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from elastic_trainer.data.elastic_data import ElasticData

RULES: Mapping[str, Callable[[float], float]] = {"linear": float, "sqrt": lambda ratio: ratio**0.5}
"""Factor by the batch's ratio to the base. Linear: Goyal et al. 2017, for SGD. Square root: Malladi
et al. 2022, for Adam and its kin."""


@dataclass(frozen=True, slots=True)
class Ramp:
    """A factor on its way from `start` to `target`, since step `since`. Pure."""

    start: float
    target: float
    since: int

    def factor(self, step: int, warm_up: int) -> float:
        """For the step after `step` steps; the target is reached `warm_up` steps after `since`."""
        if step >= self.since + warm_up:
            return self.target
        return self.start + (self.target - self.start) * (step - self.since + 1) / (warm_up + 1)

    def toward(self, target: float, step: int, warm_up: int) -> Ramp:
        """From where it is now; unchanged if that is where it is going."""
        if target == self.target:
            return self
        return Ramp(self.factor(max(step - 1, self.since), warm_up), target, step)


class ScaledLearningRate:
    """Multiplies the learning rate by a function of the global batch, during each optimizer step.

        scaled = ScaledLearningRate(optimizer, data, base_batch=256, warm_up=100)
        loop = ElasticLoop(..., extra={"learning rate": scaled})

    With `schedule` also by a function of the samples trained on, from 0.0 to 1.0 of them all: a
    schedule that counts samples, not steps, so that it is where it should be in every world.

        cosine = lambda done: (1 + math.cos(math.pi * done)) / 2
        ScaledLearningRate(optimizer, data, schedule=cosine)

    Between steps the optimizer holds the unscaled rate: that is what schedulers change and commits
    hold. For a constant local batch: with `global_batch` the factor never changes.
    Give it to Checkpointer or ElasticLoop as `extra`, so that a warm-up goes on where it was.

    Args:
        optimizer: every parameter group is scaled.
        data: the ElasticDataset or ElasticSampler trained on.
        base_batch: samples of the step that the optimizer's learning rate is meant for; None: it
            is for any.
        rule: "linear", "sqrt", or a function of (global batch / base_batch).
        warm_up: steps over which the factor moves to its new value after a change of the world.
        schedule: factor by the part of the samples that was trained on before the step.
        total: samples of the whole training; None: of all the data's epochs.

    Raises:
        ValueError: an unknown rule, a number out of range, neither base_batch nor schedule, or a
            schedule without a total.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        data: ElasticData,
        *,
        base_batch: int | None = None,
        rule: str | Callable[[float], float] = "linear",
        warm_up: int = 0,
        schedule: Callable[[float], float] | None = None,
        total: int | None = None,
    ) -> None:
        if base_batch is None and schedule is None:
            raise ValueError("expected base_batch, schedule or both")
        if schedule is not None and total is None and not data.total:
            raise ValueError(
                f"this {type(data).__name__} knows no total of samples: expected `total`"
            )
        if (base_batch is not None and base_batch < 1) or warm_up < 0:
            raise ValueError(
                f"expected base_batch >= 1 and warm_up >= 0, found {base_batch} and {warm_up}"
            )
        if isinstance(rule, str) and rule not in RULES:
            raise ValueError(f"rule is {rule!r}: expected {', '.join(RULES)} or a function")
        self._rule = RULES[rule] if isinstance(rule, str) else rule
        self._data = data
        self._base_batch = base_batch
        self._warm_up = warm_up
        self._schedule = schedule
        self._total = total
        self._ramp: Ramp | None = None
        self._unscaled: list[Any] = []
        optimizer.register_step_pre_hook(self._scale)
        optimizer.register_step_post_hook(self._restore)

    @property
    def factor(self) -> float:
        """For the step in progress."""
        return self._batch_factor * (1.0 if self._schedule is None else self._schedule(self.done))

    @property
    def done(self) -> float:
        """The part of all samples that was trained on, from 0.0 to 1.0."""
        total = self._total or self._data.total
        return min(1.0, self._data.consumed / total) if total else 0.0

    @property
    def _batch_factor(self) -> float:
        if self._base_batch is None:
            return 1.0
        step = self._data.steps
        target = self._rule(self._data.batch / self._base_batch)
        if self._ramp is None:
            self._ramp = Ramp(target, target, step)  # training begins at its first world's rate
        self._ramp = self._ramp.toward(target, step, self._warm_up)
        return self._ramp.factor(step, self._warm_up)

    def state_dict(self) -> dict[str, Any]:
        ramp = self._ramp
        return {} if ramp is None else {"ramp": [ramp.start, ramp.target, ramp.since]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._ramp = Ramp(*state["ramp"]) if state else None

    def _scale(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._restore(optimizer)  # a step that failed has left it scaled
        factor = self.factor
        self._unscaled = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * factor

    def _restore(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group, rate in zip(optimizer.param_groups, self._unscaled, strict=False):
            group["lr"] = rate
        self._unscaled = []
