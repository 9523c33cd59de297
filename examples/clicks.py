"""Click models in plain torch: DeepFM and wide & deep on impressions of Criteo's shape.

    python examples/clicks.py [--model deepfm|wide-and-deep] [--samples N]

One process, tables of a size that is chosen beforehand. docs/click-models.md makes it elastic.
"""

from __future__ import annotations

import argparse

import torch
from criteo import FEATURES, generate
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

ROWS, WIDTH, BOUND = 100_000, 8, 0.01


def mlp(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 1))


class Hashed(nn.Embedding):
    """A row for each id modulo the number of rows: ids that meet share one."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids % self.num_embeddings)


def table(name: str, width: int) -> nn.Module:
    found = Hashed(ROWS, width, sparse=True)
    nn.init.uniform_(found.weight, -BOUND, BOUND)
    return found


class DeepFM(nn.Module):
    """Guo et al. 2017: a weight for each id, inner products of all pairs, and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = table("deepfm", 1 + WIDTH)
        self.deep = mlp(FEATURES * WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        linear, factors = self.rows(ids).split([1, WIDTH], dim=2)
        pairs = (factors.sum(1).square() - factors.square().sum(1)).sum(1) / 2
        return linear.sum((1, 2)) + pairs + self.deep(factors.flatten(1)).squeeze(1)


class WideAndDeep(nn.Module):
    """Cheng et al. 2016: weights of ids and of crossed ones, and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.rows = table("wide", 1), table("deep", WIDTH)
        self.deep = mlp(FEATURES * WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        few, others = ids[:, 13:18], ids[:, 18:23]
        crossed = few * 0x2545F4914F6CDD1D ^ others  # any number of 64 bits is an id
        wide = self.wide(torch.cat([ids, crossed], dim=1)).sum((1, 2))
        return wide + self.deep(self.rows(ids).flatten(1)).squeeze(1)


MODELS = {"deepfm": DeepFM, "wide-and-deep": WideAndDeep}


def auc(scores: Tensor, labels: Tensor) -> float:
    """Return how often a click scores higher than none; of equal scores, half."""
    _, inverse, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0) - (counts.double() - 1) / 2)[inverse]
    clicks = labels > 0
    n, m = int(clicks.sum()), int((~clicks).sum())
    return (float(ranks[clicks].sum()) - n * (n + 1) / 2) / (n * m)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, default="deepfm")
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=512)
    given = parser.parse_args()
    torch.manual_seed(0)
    ids, clicked = generate(given.samples)
    shown, later = slice(given.samples * 9 // 10), slice(given.samples * 9 // 10, None)
    data = torch.utils.data.TensorDataset(ids[shown], clicked[shown])

    net = MODELS[given.model]()
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.02)
    for x, y in torch.utils.data.DataLoader(data, batch_size=given.batch, shuffle=True):
        binary_cross_entropy_with_logits(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    with torch.no_grad():
        print(f"AUC {auc(net(ids[later]), clicked[later]):.4f}")


if __name__ == "__main__":
    main()
