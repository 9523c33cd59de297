"""Optimizers whose update is part of the table's: each changes the rows that a step touched.

They do what torch's own do with an EmbeddingBag's sparse gradient (SGD, Adagrad, and SparseAdam
for Adam); RowwiseAdagrad is fbgemm's EXACT_ROWWISE_ADAGRAD, with one accumulator a row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class RowOptimizer(ABC):
    """Args:
    lr: learning rate; ElasticEmbedding.lr is what counts once there is one.
    """

    lr: float = 0.01

    def __post_init__(self) -> None:
        if not self.lr >= 0:
            raise ValueError(f"lr is {self.lr}: expected 0 or more")

    @property
    def initial(self) -> float:
        """Return the state that a row begins with."""
        return 0.0

    @abstractmethod
    def state_width(self, width: int) -> int:
        """Return how many numbers of state a row of `width` numbers has."""

    @abstractmethod
    def update(
        self,
        weights: torch.Tensor,
        state: torch.Tensor,
        gradients: torch.Tensor,
        *,
        step: int,
        lr: float,
    ) -> None:
        """Change weights and state, a row each for a row of gradients, in place.

        Args:
            step: the table's updates so far, this one included.
        """


@dataclass(frozen=True)
class SGD(RowOptimizer):
    def state_width(self, width: int) -> int:
        return 0

    def update(
        self,
        weights: torch.Tensor,
        state: torch.Tensor,
        gradients: torch.Tensor,
        *,
        step: int,
        lr: float,
    ) -> None:
        weights.add_(gradients, alpha=-lr)


@dataclass(frozen=True)
class Adagrad(RowOptimizer):
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10

    @property
    def initial(self) -> float:
        return self.initial_accumulator_value

    def state_width(self, width: int) -> int:
        return width

    def update(
        self,
        weights: torch.Tensor,
        state: torch.Tensor,
        gradients: torch.Tensor,
        *,
        step: int,
        lr: float,
    ) -> None:
        state.addcmul_(gradients, gradients)
        weights.addcdiv_(gradients, state.sqrt().add_(self.eps), value=-lr)


@dataclass(frozen=True)
class RowwiseAdagrad(RowOptimizer):
    eps: float = 1e-8

    def state_width(self, width: int) -> int:
        return 1

    def update(
        self,
        weights: torch.Tensor,
        state: torch.Tensor,
        gradients: torch.Tensor,
        *,
        step: int,
        lr: float,
    ) -> None:
        state.add_(gradients.square().mean(1, keepdim=True))
        weights.addcdiv_(gradients, state.sqrt().add_(self.eps), value=-lr)


@dataclass(frozen=True)
class Adam(RowOptimizer):
    """Lazy: rows that a step doesn't touch keep their moments, as torch.optim.SparseAdam's do."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def state_width(self, width: int) -> int:
        return 2 * width

    def update(
        self,
        weights: torch.Tensor,
        state: torch.Tensor,
        gradients: torch.Tensor,
        *,
        step: int,
        lr: float,
    ) -> None:
        width = weights.shape[1]
        first, second = state[:, :width], state[:, width:]
        beta1, beta2 = self.betas
        first.lerp_(gradients, 1 - beta1)
        second.lerp_(gradients.square(), 1 - beta2)
        rate = lr * (1 - beta2**step) ** 0.5 / (1 - beta1**step)
        weights.addcdiv_(first, second.sqrt().add_(self.eps), value=-rate)
