"""Generated impressions of the shape of Criteo's (Kaggle's display advertising challenge).

13 counts with long tails, of which many are missing, and 26 kinds of ids of very different numbers
of values, whose frequencies fall with their rank. A quarter of all impressions is clicked: by a
weight of each value and products of hidden factors, as factorization machines suppose.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

COUNTS = 13
SIZES = (
    *(1_460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5_683, 8_351_593, 3_194),
    *(27, 14_992, 5_461_306, 10, 5_652, 2_173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572),
)
"""Values of each kind of id in Criteo's seven days."""
FEATURES = COUNTS + len(SIZES)
FACTORS = 4
_WEIGHTS = torch.tensor([0.6] * COUNTS + [2.4 / (1 + math.log10(size)) for size in SIZES]) / 1.6
"""Kinds of few values, of which each is often seen, say the most."""
_PART = 1 << 16
"""Impressions that are drawn at once."""


def mix(words: Tensor) -> Tensor:
    """Return SplitMix64's finalizer of each number of 64 bits."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words = (words ^ (words >> shift & (1 << 64 - shift) - 1)) * (factor - (1 << 64))
    return words ^ (words >> 31 & (1 << 33) - 1)


def generate(samples: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return ids (samples, FEATURES), hashes of 64 bits, and 1.0 where one was clicked, else 0.0.
    The truth is the same for all seeds."""
    draw = torch.Generator().manual_seed(seed)
    ids, clicked = zip(
        *(_part(min(_PART, samples - begin), draw) for begin in range(0, samples, _PART)),
        strict=True,
    )
    return torch.cat(ids), torch.cat(clicked)


def _part(samples: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    spread = torch.linspace(0.5, 2.5, COUNTS)
    counts = torch.exp(torch.randn(samples, COUNTS, generator=draw) * spread + 1).floor()
    binned = (torch.log2(counts + 1) * 2).long()
    binned[torch.rand(samples, COUNTS, generator=draw) < 0.2] = -1
    uniform = torch.rand(samples, len(SIZES), generator=draw, dtype=torch.float64)
    ranks = (torch.tensor(SIZES, dtype=torch.float64) ** uniform).long()  # 1 / rank
    values = torch.cat([binned, ranks], dim=1)
    ids = mix(values + (torch.arange(1, FEATURES + 1) << 40))
    truth = _numbers(ids, 1 + FACTORS)
    factors = truth[:, :, 1:]
    pairs = (factors.sum(1).square() - factors.square().sum(1)).sum(1) / 2
    logits = (truth[:, :, 0] * _WEIGHTS).sum(1) + 0.03 * pairs - 0.2
    clicked = torch.rand(samples, generator=draw) < torch.sigmoid(logits)
    return ids, clicked.float()


def _numbers(ids: Tensor, columns: int) -> Tensor:
    """Return numbers from -1 to 1 that belong to each id."""
    steps = torch.arange(1, columns + 1) * -0x61C8864680B583EB
    return (mix(ids[:, :, None] + steps) >> 11).float() / 2**52
