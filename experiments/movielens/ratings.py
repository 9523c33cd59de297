"""MovieLens' ratings as features, from the files that RecBole ships, or generated ones."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

LIKED = 4.0
"""Ratings from here on are the label 1."""
HELD_OUT = 5
"""One rating in so many is held out: the fixed split."""
OLDEST = 7
"""Decade of age, and all above."""
GENRES = 6
"""Most genres that are read of an item."""


@dataclass(frozen=True, slots=True)
class Features:
    """One row a rating: user, item, age by decade, gender, occupation, then up to GENRES genres,
    each as the index of a value; 0 is none."""

    values: Tensor
    labels: Tensor
    sizes: tuple[int, ...]
    """How many values each feature has, 0 included; the last is that of all genres."""


class Ratings(Dataset[tuple[Tensor, Tensor]]):
    """Map-style; whole batches are read at once."""

    def __init__(self, features: Features, rows: Tensor) -> None:
        self.values, self.labels = features.values[rows], features.labels[rows]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        chosen = torch.as_tensor(indices)
        return self.values[chosen], self.labels[chosen]


def read(folder: Path) -> Features:
    """The features of ml-100k.inter, ml-100k.user and ml-100k.item."""
    users = {row["user_id"]: row for row in _rows(folder / "ml-100k.user")}
    items = {row["item_id"]: row for row in _rows(folder / "ml-100k.item")}
    known: list[dict[str, int]] = [{} for _ in range(6)]

    def index(feature: int, value: str) -> int:
        return known[feature].setdefault(value, len(known[feature]) + 1)

    values, labels = [], []
    for row in _rows(folder / "ml-100k.inter"):
        user, item = users[row["user_id"]], items[row["item_id"]]
        genres = [index(5, genre) for genre in item["class"].split()[:GENRES]]
        values.append(
            [
                index(0, row["user_id"]),
                index(1, row["item_id"]),
                index(2, str(min(OLDEST, int(user["age"]) // 10))),
                index(3, user["gender"]),
                index(4, user["occupation"]),
                *genres,
                *[0] * (GENRES - len(genres)),
            ]
        )
        labels.append(float(row["rating"]) >= LIKED)
    sizes = [len(found) + 1 for found in known]
    return Features(
        torch.tensor(values), torch.tensor(labels, dtype=torch.get_default_dtype()), tuple(sizes)
    )


def split(features: Features) -> tuple[Ratings, Ratings]:
    """(train, held out): every time the same, a fifth of the ratings at random."""
    order = torch.randperm(len(features.labels), generator=torch.Generator().manual_seed(7))
    cut = len(order) // HELD_OUT
    return Ratings(features, order[cut:]), Ratings(features, order[:cut])


def _rows(path: Path) -> Iterator[dict[str, str]]:
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    names = [name.partition(":")[0] for name in head.split("\t")]
    return (dict(zip(names, line.split("\t"), strict=True)) for line in lines)


def generate(folder: Path, ratings: int, seed: int = 0) -> None:
    """Files of the same format: users and items with tastes, of which ratings follow."""
    folder.mkdir(parents=True)
    rng = random.Random(seed)
    users, items = max(10, ratings // 60), max(10, ratings // 40)
    genres = ["Action", "Comedy", "Drama", "Horror"]
    likes = [[rng.gauss(0, 1) for _ in genres] for _ in range(users)]
    classes = [rng.sample(range(len(genres)), rng.randint(1, 2)) for _ in range(items)]
    lines = ["user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token"]
    for user in range(users):
        job = rng.choice(["artist", "engineer", "none"])
        lines.append(f"{user}\t{rng.randint(8, 75)}\t{rng.choice('FM')}\t{job}\t00000")
    (folder / "ml-100k.user").write_text("\n".join(lines))
    lines = ["item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq"]
    for item, found in enumerate(classes):
        lines.append(f"{item}\tFilm {item}\t1995\t{' '.join(genres[i] for i in found)}")
    (folder / "ml-100k.item").write_text("\n".join(lines))
    lines = ["user_id:token\titem_id:token\trating:float\ttimestamp:float"]
    for moment in range(ratings):
        user, item = rng.randrange(users), rng.randrange(items)
        taste = sum(likes[user][i] for i in classes[item]) + rng.gauss(0, 0.5)
        lines.append(f"{user}\t{item}\t{max(1, min(5, round(3.5 + taste)))}\t{moment}")
    (folder / "ml-100k.inter").write_text("\n".join(lines))
