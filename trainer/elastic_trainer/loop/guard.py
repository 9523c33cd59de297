"""Refuses changes of the training's state beside the loop's `apply`, in words.

A step that a lost peer undoes is done again. So whatever changes weights, moments, a loss scale or
a schedule has one place, `apply`, which a step reaches once and with all its gradients reduced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from elastic_trainer.checkpoint.model_state import Stateful

_EXAMPLE = (
    "ElasticLoop(..., apply=apply, extra={...}), where apply() does all that a step changes: "
    "clipping, optimizer.step(), scaler.update(), an average of weights, schedulers"
)


class StepGuard:
    """Watches this process's optimizers, gradient scalers and schedulers while a loop iterates.

    Args:
        custom: whether the loop was given an `apply`.
    """

    def __init__(self, *, custom: bool) -> None:
        self.in_body = False
        """Between the beginning and the end of a `with loop.step():`."""
        self.applying = False
        """`apply` runs, and may step what is the loop's."""
        self._custom = custom
        self._model: torch.nn.Module | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._extra: Mapping[str, Stateful] = {}
        self._schedulers: list[tuple[str, LRScheduler]] = []
        self._stepping: torch.optim.Optimizer | None = None
        """The outermost one that steps, such as a look-ahead around another."""

    def put_down(self) -> None:
        """Let go of a training whose model will be made anew."""
        self._model = self._optimizer = None
        self._extra, self._schedulers = {}, []

    def take_up(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        extra: Mapping[str, Stateful],
    ) -> None:
        """Watch this training from now on.

        Args:
            model: whose parameters no optimizer may step but in `apply`.
            optimizer: the loop's.
            extra: the loop's: other optimizers, scalers and schedulers.

        Raises:
            ValueError: there is a GradScaler in `extra`, and no `apply` that would use it.
        """
        self._model, self._optimizer, self._extra = model, optimizer, extra
        self._schedulers = [
            (name, part) for name, part in extra.items() if isinstance(part, LRScheduler)
        ]
        scalers = [n for n, p in extra.items() if isinstance(p, GradScaler) and p.is_enabled()]
        if scalers and not self._custom:
            raise ValueError(
                f"extra has a GradScaler, {scalers[0]!r}, and optimizer.step() would apply its "
                f"scaled gradients: use {_EXAMPLE}"
            )

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Refuses from its beginning to its end; raises RuntimeError where it does."""
        self._stepping = None
        before = register_optimizer_step_pre_hook(self._refuse_step)
        after = register_optimizer_step_post_hook(self._stepped)
        original = GradScaler.scale

        def scale(scaler: GradScaler, outputs: Any) -> Any:
            self._refuse_scale(scaler)
            return original(scaler, outputs)

        GradScaler.scale = scale  # type: ignore[assignment,method-assign]
        try:
            yield
        finally:
            before.remove()
            after.remove()
            GradScaler.scale = original  # type: ignore[method-assign]

    def schedule(self) -> list[int]:
        """Return how often each scheduler in `extra` was stepped."""
        return [part.last_epoch for _, part in self._schedulers]

    def moved(self, schedule: list[int]) -> str:
        """The name of a scheduler that was stepped since; empty for none."""
        for (name, part), before in zip(self._schedulers, schedule, strict=True):
            if part.last_epoch != before:
                return name
        return ""

    def refuse_moved(self, schedule: list[int]) -> None:
        """Raises RuntimeError if a scheduler was stepped for a batch that applied no step."""
        if name := self.moved(schedule):
            raise RuntimeError(
                f"the scheduler {name!r} was stepped for a batch that applied no step, as steps of "
                f"several batches have, and steps that a lost peer undid: use {_EXAMPLE}"
            )

    def _refuse_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self.applying:
            self._refuse_unsaved(optimizer)
            return
        if not (self.in_body or self._is_ours(optimizer)):
            return
        if optimizer is self._optimizer and not self._custom:
            raise RuntimeError(
                "optimizer.step() was called beside ElasticLoop, which calls it at the end of "
                "`with loop.step():`; take it out, and zero_grad() too. For more than a step of "
                f"the optimizer, use {_EXAMPLE}"
            )
        raise RuntimeError(
            f"{type(optimizer).__name__}.step() was called beside ElasticLoop's apply: a step that "
            "a lost peer undoes would be made twice, by some ranks and not by others. Use "
            f"{_EXAMPLE}; other optimizers are among its extra"
        )

    def _refuse_unsaved(self, optimizer: torch.optim.Optimizer) -> None:
        if self._stepping is not None:
            return
        saved = (self._optimizer, *self._extra.values())
        if not any(optimizer is one or _wraps(one, optimizer) for one in saved):
            raise RuntimeError(
                f"apply steps an optimizer ({type(optimizer).__name__}), which is neither "
                "ElasticLoop's own nor among its extra: its gradients would never be zeroed, and "
                "its moments be lost at each restart. Expected extra={'second': optimizer, ...}"
            )
        self._stepping = optimizer

    def _stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if optimizer is self._stepping:
            self._stepping = None

    def _is_ours(self, optimizer: torch.optim.Optimizer) -> bool:
        if optimizer is self._optimizer or any(optimizer is one for one in self._extra.values()):
            return True
        model = self._model
        ours = set() if model is None else {id(parameter) for parameter in model.parameters()}
        return any(id(one) in ours for group in optimizer.param_groups for one in group["params"])

    def _refuse_scale(self, scaler: GradScaler) -> None:
        if not self.in_body or not scaler.is_enabled():
            return
        if not self._custom:
            raise RuntimeError(
                "the loss was scaled by a GradScaler, and optimizer.step() would apply its scaled "
                f"gradients: use {_EXAMPLE}, with scaler.unscale_(optimizer), "
                "scaler.step(optimizer) and scaler.update() in it and the scaler among extra"
            )
        if not any(scaler is one for one in self._extra.values()):
            raise RuntimeError(
                "the loss was scaled by a GradScaler that is not among ElasticLoop's extra: a "
                "worker that joins would scale by another factor. Expected extra={'scaler': "
                "scaler, ...}"
            )


def _wraps(part: object, optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the part is another library's wrapping of the optimizer, and saves it."""
    if isinstance(part, LRScheduler):
        return False
    groups = getattr(part, "param_groups", None)
    return getattr(part, "optimizer", None) is optimizer or groups is optimizer.param_groups
