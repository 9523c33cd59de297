"""The final model made again, in one process, from the record of what each rank took."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from elastic_trainer.data.audit import _batches, _history, _runs, first_numbers
from elastic_trainer.embeddings.split_tables import SplitTables
from numpy.typing import NDArray
from torch.nn.functional import mse_loss

Steps = Mapping[int, Mapping[int, NDArray[Any]]]


def history(
    audit: Path, shards: Mapping[str, int] | None = None
) -> tuple[dict[int, dict[int, NDArray[Any]]], dict[int, int]]:
    """Return the final model's steps (samples by rank), and each run's last step that counts."""
    runs = _runs(audit)
    until = _history(runs)
    steps: dict[int, dict[int, NDArray[Any]]] = {}
    for number, last in until.items():
        run = runs[number]
        for file in run.files:
            rank = int(file.stem.rpartition("-")[2])
            for step, _, indices in _batches(file, run.applied, first_numbers(shards or {})):
                if run.start.start_step < step <= last:
                    assert rank not in steps.setdefault(step, {}), (number, rank, step)
                    steps[step][rank] = indices
    return steps, until


def deviation(
    model: str, seed: int, steps: Steps, folder: Path, device: str = "cpu"
) -> tuple[float, int]:
    """Greatest difference of a parameter, or of a table's row, between any rank's final model and
    the replay; and the number of steps that the final model's batch norm has counted.

    Running means are left out: each rank has those of its own batches, and DistributedDataParallel
    takes rank 0's, whoever that is just then.
    """
    names: dict[str, Any] = {}
    exec(model, names)
    net, optimizer = names["net"], names["optimizer"]
    net.to(device)  # where dropout draws other numbers
    inputs, targets = names["inputs"].to(device), names["targets"].to(device)
    tables = SplitTables([names["items"]]) if "items" in names else None
    for step in sorted(steps):
        ranks = steps[step]
        taken = sum(len(indices) for indices in ranks.values())
        optimizer.zero_grad()
        for rank, indices in ranks.items():
            if len(indices):
                torch.manual_seed(hash((seed, step - 1, rank)))
                rows = torch.from_numpy(indices).to(device)
                rows = rows.repeat(2) if len(rows) == 1 else rows  # as the script does
                share = len(indices) / taken
                (share * mse_loss(net(inputs[rows]), targets[rows])).backward()
        optimizer.step()
        if tables is not None:
            tables.step()
    worst, counted = 0.0, set()
    rows: dict[int, torch.Tensor] = {}
    for path in folder.glob("final-*.pt"):
        final = torch.load(path, map_location=device)
        counted.add(int(final["1.num_batches_tracked"]))
        for name, parameter in net.named_parameters():
            worst = max(worst, (final[name] - parameter).abs().max().item())
        if tables is not None:
            rows |= zip(final["rows"][0].tolist(), final["rows"][1], strict=True)
    if tables is not None:
        expected = names["items"].table.entries()
        assert sorted(rows) == sorted(expected.ids.tolist()), "rows are lost, or there are more"
        for number, weights in zip(expected.ids.tolist(), expected.weights, strict=True):
            worst = max(worst, (rows[number] - weights).abs().max().item())
    (batches,) = counted
    return worst, batches
