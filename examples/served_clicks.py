"""DeepFM whose rows are on the job's parameter servers, in step with ElasticLoop.

    volcano-elastic local run examples/clicks.yaml

Without `tables` it is the script of docs/click-models.md's second diff.
"""

from __future__ import annotations

import argparse

import clicks
import torch
from criteo import generate
from elastic_trainer import ElasticDataset, ElasticEmbedding, ElasticLoop, ServedTables
from elastic_trainer.embeddings.row_optimizer import Adagrad
from torch.nn.functional import binary_cross_entropy_with_logits


def table(name: str, width: int) -> ElasticEmbedding:
    rate = Adagrad(lr=0.02)
    return ElasticEmbedding(name, width, optimizer=rate, mode="sequence", bound=clicks.BOUND)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True, help="of the commits, shared by all workers")
    parser.add_argument("--samples", type=int, default=30_000)
    given = parser.parse_args()
    torch.manual_seed(0)
    ids, clicked = generate(given.samples)
    shown, later = slice(given.samples * 9 // 10), slice(given.samples * 9 // 10, None)

    clicks.table = table
    net = clicks.DeepFM()
    tables = ServedTables([net.rows])  # at the job's servers
    data = ElasticDataset(
        torch.utils.data.TensorDataset(ids[shown], clicked[shown]), global_batch=512, epochs=1
    )
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.02)
    loop = ElasticLoop(given.folder, model=net, optimizer=optimizer, data=data)
    for x, y in loop:
        with loop.step():
            (loop.weight * binary_cross_entropy_with_logits(loop.model(x), y)).backward()
        if loop.stepped and data.consumed == len(ids[shown]) and loop.rank == 0:
            with torch.no_grad():
                print(f"AUC {clicks.auc(net(ids[later]), clicked[later]):.4f}", flush=True)
            held = {at: one["buckets"] for at, one in tables.observe().get("servers", {}).items()}
            print(f"{loop.world} workers; buckets by server: {held}", flush=True)


if __name__ == "__main__":
    main()
