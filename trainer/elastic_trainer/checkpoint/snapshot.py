"""A save to memory that training goes on beside, until the next step is applied."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

import torch

from elastic_trainer.store.blob import Blob
from elastic_trainer.store.copier import Copier
from elastic_trainer.store.slot import Label, Slot, Slots

SAMPLES = 64
"""Bytes of each tensor that are compared with its copy, about."""


class Snapshot:
    """State that a step's gradients change (parameters, and the optimizers' state for them) is
    copied while the next one's are computed; all else at once, such as buffers, which a forward
    changes.

    A script that changes weights by itself between two steps would tear the copy: it isn't
    labelled then, so nobody takes it for a state. Changes through `.data`, which torch doesn't
    count, are found by samples, on a CPU only: an average of weights that is put in their place for
    an evaluation, but not a single row. Where another thread closes it as the copy ends, torch may
    not have counted a first change yet that is just being made.

    Args:
        steady: by the address of memory that nobody changes before `precede`, the tensors there.

    Raises:
        SlotError: there is no room; the newest state is as it was.
    """

    def __init__(
        self,
        slots: Slots,
        label: Label,
        blob: Blob,
        steady: Mapping[int, Collection[torch.Tensor]],
        copier: Copier,
    ) -> None:
        self.label = label
        later, now = blob.parted(steady)
        self.slot: Slot
        self.slot, target = slots.open(label, blob.skeleton)
        copier.pin(str(self.slot.path), self.slot.memory)
        self._later, self._target = later, target
        self._samples = self._sample()
        """Samples of each tensor in memory of the CPU, and the place of their copies."""
        addresses = {tensor.data_ptr() for _, tensor in later.tensors}
        self._watched = [one for address in addresses for one in steady[address]]
        self._versions = self._seen()
        now.write(target, waits=False)
        self._judging = threading.Lock()
        self._whole: bool | None = None
        """None until it is known; it then stays so, whatever is changed."""
        self._labelled = False
        self._copy = copier.start(lambda: later.write(target, waits=False))

    def precede(self) -> None:
        """Have whatever changes the state from now on come after the copy."""
        with self._judging:
            if self._whole is None:
                unchanged = self._versions == self._seen()
                self._copy.precede()
                self._whole = unchanged and self._is_alike()

    def done(self) -> bool:
        return self._copy.done()

    def close(self) -> bool:
        """Wait for the copy, and label it; return whether it is whole. In any thread, as often as
        one asks."""
        self._copy.wait()
        with self._judging:
            if self._whole is None:
                self._whole = self._versions == self._seen() and self._is_alike()
            if self._whole and not self._labelled:
                self.slot.close(self.label)
                self._labelled = True
            return self._whole

    def seconds(self) -> float:
        """Return how long the copy took."""
        return self._copy.seconds()

    def _sample(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        samples = []
        for offset, tensor in self._later.tensors:
            if tensor.device.type == "cpu" and tensor.is_contiguous():
                piece = tensor.reshape(-1).view(torch.uint8)
                every = len(piece) // SAMPLES | 1  # odd: of each byte of numbers
                copied = self._target[offset : offset + len(piece)]
                samples.append((piece[::every].clone(), copied[::every]))
        return samples

    def _is_alike(self) -> bool:
        return all(torch.equal(*pair) for pair in self._samples)

    def _seen(self) -> list[int]:
        return [tensor._version for tensor in self._watched]
