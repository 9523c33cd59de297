"""Elastic training on scikit-learn's digits: alone, under torchrun, or as a PyTorchJob."""

import argparse
import json
import time
from importlib.util import find_spec

import numpy as np
import torch
from elastic_trainer import ElasticDataset, ElasticLoop

flags = argparse.ArgumentParser()
for flag, default in {"--epochs": 10, "--folder": "digits-commits", "--step-seconds": 0.0}.items():
    flags.add_argument(flag, type=type(default), default=default)
given = flags.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)
path = find_spec("sklearn").submodule_search_locations[0] + "/datasets/data/digits.csv.gz"
digits = torch.from_numpy(np.loadtxt(path, delimiter=","))[torch.randperm(1797)].float()
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
train = torch.utils.data.TensorDataset(digits[:1437, :64] / 16, digits[:1437, 64].long())
data = ElasticDataset(train, batch_size=16, epochs=given.epochs, audit=given.folder + "/audit")


def scale(loop: ElasticLoop) -> None:
    optimizer.param_groups[0]["lr"] = 0.02 * loop.world  # follows the global batch


loop = ElasticLoop(given.folder, model=net, optimizer=optimizer, data=data, begin=scale)
for images, labels in loop:
    with loop.step():
        loss = torch.nn.functional.cross_entropy(loop.model(images), labels)
        (loop.weight * loss).backward()
    loop.link.report(loss=loss.item())  # for the job's status
    time.sleep(given.step_seconds)
if loop.rank == 0:
    right = (net(digits[1437:, :64] / 16).argmax(1) == digits[1437:, 64]).float().mean().item()
    print(out := json.dumps({"accuracy": right, "steps": data.steps, "samples": data.consumed}))
    (loop.checkpointer.storage.folder / "result.json").write_text(out)
