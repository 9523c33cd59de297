"""The asynchronous training: workers lease samples, gradients are applied as they come.

    python -m experiments.movielens.leased owner  RATINGS FOLDER --endpoint HOST:PORT
    python -m experiments.movielens.leased worker RATINGS FOLDER --endpoint HOST:PORT

A worker may be killed at any time: a gradient that didn't arrive is somebody else's lease again.
"""

from __future__ import annotations

import argparse
import contextlib
import threading
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

import numpy as np
import torch
from elastic_trainer import Lease, Ledger, ShardClient
from numpy.typing import NDArray
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from experiments.movielens.options import parse
from experiments.movielens.progress import Progress, ready
from experiments.movielens.ratings import Features, read, split
from experiments.movielens.wide_and_deep import WideAndDeep

SOCKET = "owner"
"""Pickles are read from it: whoever may write into the run's folder is trusted."""
TELL_EVERY = 20
"""Steps after which the coordinator hears what is in the model."""


class Owner:
    """The model, its optimizer, and the ledger of what is in it."""

    def __init__(self, given: argparse.Namespace, features: Features) -> None:
        train, held_out = split(features)
        torch.manual_seed(given.seed)
        self._folder: Path = given.folder
        self._rate: float = given.rate
        self._warm_up: int = given.warm_up
        self._net = WideAndDeep(features.sizes)
        self._optimizer = torch.optim.Adagrad(self._net.parameters(), lr=given.rate)
        self._ledger = Ledger(
            samples=len(train),
            epochs=given.epochs,
            size=given.batch,
            seed=given.seed,
            audit=given.folder / "audit",
        )
        self._shards = ShardClient(given.endpoint, ledger=self._ledger)
        self._progress = Progress(
            given.folder, model=self._net, held_out=held_out, every=given.every
        )
        self._one_at_a_time = threading.Lock()
        self._world = self._steps = 0
        self._complete = threading.Event()
        self._serving: list[threading.Thread] = []

    def run(self) -> None:
        """Until every sample of every epoch is in the model."""
        with self._shards, Listener(str(self._folder / SOCKET), "AF_UNIX") as listener:
            self._shards.tell()
            accept = threading.Thread(target=self._accept, args=(listener,), daemon=True)
            accept.start()
            self._complete.wait()
            state = {"model": self._net.state_dict(), "ledger": self._ledger.state_dict()}
            torch.save(state, self._folder / "model.pt")
            self._shards.commit(self._steps)
            for thread in self._serving:  # a thread in torch's code when Python ends aborts it
                thread.join()

    def _accept(self, listener: Listener) -> None:
        while True:
            thread = threading.Thread(target=self._serve, args=(listener.accept(),), daemon=True)
            thread.start()
            self._serving.append(thread)

    def _serve(self, worker: Connection) -> None:
        """Each message: a gradient, or None at first; each answer: the parameters."""
        with self._one_at_a_time:
            self._world += 1
        with worker, contextlib.suppress(EOFError, OSError):
            while True:
                message = worker.recv()
                with self._one_at_a_time:
                    if message is not None:
                        self._apply(*message)
                    parameters = parameters_to_vector(self._net.parameters()).detach()
                worker.send(parameters.numpy())
        with self._one_at_a_time:
            self._world -= 1

    def _apply(self, lease: Lease, gradients: NDArray[np.floating]) -> None:
        if not self._ledger.add(lease):
            return
        gradient = torch.from_numpy(gradients)
        start = 0
        for parameter in self._net.parameters():
            part = gradient[start : start + parameter.numel()]
            parameter.grad = part.view_as(parameter)
            start += parameter.numel()
        samples = len(self._ledger.consumed)
        for group in self._optimizer.param_groups:
            group["lr"] = rate_at(samples, self._rate, self._warm_up)
        self._optimizer.step()
        self._steps += 1
        self._progress.stepped(samples, self._world)
        if self._steps % TELL_EVERY == 0:
            self._shards.tell()
        if self._ledger.complete:
            self._complete.set()


def rate_at(samples: int, rate: float, warm_up: int) -> float:
    """Return the learning rate of the step that brings the model to so many samples.

    Args:
        rate: after the warm-up.
        warm_up: samples in whose course it rises to that, in proportion.
    """
    return rate * min(1.0, samples / max(1, warm_up))


def work(given: argparse.Namespace, features: Features) -> None:
    """Until there is nothing left to lease."""
    train, _ = split(features)
    net = WideAndDeep(features.sizes)
    sizes = {"samples": len(train), "epochs": given.epochs, "size": given.batch}
    with (
        ShardClient(given.endpoint, seed=given.seed, **sizes) as shards,
        Client(str(given.folder / SOCKET), "AF_UNIX") as owner,
    ):
        owner.send(None)
        ready(given.folder)
        while leases := shards.fetch(1):
            for lease in leases:
                vector_to_parameters(torch.from_numpy(owner.recv()), net.parameters())
                values, labels = train.__getitems__(shards.indices(lease))
                loss = binary_cross_entropy_with_logits(net(values), labels)
                gradient = torch.autograd.grad(loss, list(net.parameters()))
                owner.send((lease, parameters_to_vector(gradient).numpy()))


if __name__ == "__main__":
    given = parse("owner", "worker")
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64 if given.double else torch.float32)
    features = read(given.ratings)
    if given.role == "owner":
        Owner(given, features).run()
    else:
        work(given, features)
