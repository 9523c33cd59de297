"""Wide & deep (Cheng et al. 2016): crossed features remember, embeddings and an MLP generalise."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

CROSSED = 2**14
"""Buckets that crossed features are hashed into."""


class WideAndDeep(nn.Module):
    """Logits of rows of `ratings.Features`.

    Wide: a weight for each value of each feature, and for each genre crossed with each of user,
    age, gender and occupation. Deep: an embedding of each feature, the mean of the genres'.
    """

    def __init__(self, sizes: Sequence[int], width: int = 16, hidden: Sequence[int] = (64, 32)):
        super().__init__()
        *single, genres = sizes
        self.starts = torch.tensor([0, *sizes[:-1]]).cumsum(0)
        self.linear = nn.Embedding(sum(sizes), 1)
        self.crossed = nn.Embedding(CROSSED, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.crossed.weight)
        self.embeddings = nn.ModuleList(nn.Embedding(size, width) for size in single)
        self.genres = nn.EmbeddingBag(genres, width, mode="mean", padding_idx=0)
        for table in (*self.embeddings, self.genres):
            nn.init.normal_(table.weight, std=0.05)
        layers: list[nn.Module] = []
        before = width * len(sizes)
        for after in hidden:
            layers += [nn.Linear(before, after), nn.ReLU()]
            before = after
        self.mlp = nn.Sequential(*layers, nn.Linear(before, 1))

    def forward(self, values: Tensor) -> Tensor:
        single, genres = values[:, : len(self.embeddings)], values[:, len(self.embeddings) :]
        everything = torch.cat([single + self.starts[:-1], genres + self.starts[-1]], dim=1)
        linear = (self.linear(everything).squeeze(2) * (values > 0)).sum(1)
        # Items have their genres anyway; 40503 is Knuth's multiplier for 16 bits.
        others = everything[:, [0, 2, 3, 4]].unsqueeze(1)
        buckets = (others * 40503 + genres.unsqueeze(2) * 257) % CROSSED
        crossed = (self.crossed(buckets).sum((2, 3)) * (genres > 0)).sum(1)
        looked_up = [table(single[:, i]) for i, table in enumerate(self.embeddings)]
        deep = self.mlp(torch.cat([*looked_up, self.genres(genres)], dim=1))
        logits: Tensor = linear + crossed + deep.squeeze(1)
        return logits


def auc(scores: Tensor, labels: Tensor) -> float:
    """The probability that a positive scores higher than a negative, ties by half: exactly, from
    the mean ranks of the positives (Mann & Whitney 1947)."""
    _, inverse, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    mean_ranks = counts.cumsum(0) - (counts.double() - 1) / 2
    positive = labels > 0
    n, m = int(positive.sum()), int((~positive).sum())
    return (float(mean_ranks[inverse][positive].sum()) - n * (n + 1) / 2) / (n * m)
