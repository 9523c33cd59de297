"""A worker of the synchronous training, started by torchrun: ElasticLoop, a constant global batch.

torchrun ... -m experiments.movielens.in_step RATINGS FOLDER [--seed N] [--epochs N]
"""

from __future__ import annotations

import argparse

import torch
from elastic_trainer import ElasticDataset, ElasticLoop
from torch.nn.functional import binary_cross_entropy_with_logits

from experiments.movielens.options import parse
from experiments.movielens.progress import Progress, ready
from experiments.movielens.ratings import read, split
from experiments.movielens.wide_and_deep import WideAndDeep


def train(given: argparse.Namespace) -> None:
    features = read(given.ratings)
    ratings, held_out = split(features)
    torch.manual_seed(given.seed)
    net = WideAndDeep(features.sizes)
    optimizer = torch.optim.Adagrad(net.parameters(), lr=given.rate)
    data = ElasticDataset(
        ratings,
        global_batch=given.batch,
        epochs=given.epochs,
        seed=given.seed,
        audit=given.folder / "audit",
        collate=lambda batch: batch,  # Ratings makes whole batches
    )
    loop = ElasticLoop(given.folder / "commits", model=net, optimizer=optimizer, data=data)
    progress = None
    ready(given.folder)
    for values, labels in loop:
        with loop.step():
            loss = binary_cross_entropy_with_logits(loop.model(values), labels)
            (loop.weight * loss).backward()
        if loop.stepped and loop.rank == 0:
            progress = progress or Progress(
                given.folder, model=net, held_out=held_out, every=given.every
            )
            progress.stepped(data.consumed, loop.world)


if __name__ == "__main__":
    given = parse()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64 if given.double else torch.float32)
    train(given)
