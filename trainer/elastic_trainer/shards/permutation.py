"""The order of an epoch: a permutation of range(n) that is computed, never stored."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

ROUNDS: Final = 8
LARGEST: Final = 2**62  # sums of two halves still fit into 64 bits

Indices = NDArray[np.int64]
_Words = NDArray[np.uint64]


def _mix(words: _Words, key: np.uint64) -> _Words:
    """splitmix64's finaliser over word + key; arithmetic is modulo 2**64 on purpose."""
    mixed = words + key
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


class Permutation:
    """A seeded permutation of range(samples) with random access in O(1) memory.

    A Feistel network over pairs (left, right) with left < a, right < b, where a*b is the smallest
    near-square that covers `samples`; a value that falls outside is sent through again until it
    falls inside (cycle walking), which stays a bijection. The surplus a*b - samples is below
    sqrt(samples), so hardly any value walks.

    Raises:
        ValueError: `samples` is below 1 or above 2**62.
    """

    def __init__(self, samples: int, *, seed: int, epoch: int) -> None:
        if not 1 <= samples <= LARGEST:
            raise ValueError(f"a permutation of {samples} samples: expected 1 to 2**62")
        self.samples = samples
        left = int(samples**0.5)
        while left * left < samples:
            left += 1
        self._left = np.uint64(left)
        self._right = np.uint64(-(-samples // left))
        digest = hashlib.blake2b(f"{seed}/{epoch}/{samples}".encode(), digest_size=8 * ROUNDS)
        self._keys = [np.uint64(key) for key in struct.unpack(f"<{ROUNDS}Q", digest.digest())]

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, position: int) -> int:
        if not 0 <= position < self.samples:
            raise IndexError(f"position {position} of a permutation of {self.samples} samples")
        return int(self.at([position])[0])

    def slice(self, start: int, stop: int) -> Indices:
        """The samples at positions start..stop-1; the cost grows with stop - start alone."""
        if not 0 <= start <= stop <= self.samples:
            raise IndexError(f"positions {start}:{stop} of a permutation of {self.samples} samples")
        return self._permuted(np.arange(start, stop, dtype=np.uint64))

    def at(self, positions: Iterable[int]) -> Indices:
        """The samples at these positions, each within range(samples)."""
        return self._permuted(np.fromiter(positions, dtype=np.uint64))

    def _permuted(self, positions: _Words) -> Indices:
        values = self._once(positions)
        outside = np.flatnonzero(values >= np.uint64(self.samples))
        while outside.size:
            values[outside] = self._once(values[outside])
            outside = outside[values[outside] >= np.uint64(self.samples)]
        return values.astype(np.int64)

    def _once(self, values: _Words) -> _Words:
        left, right = values // self._right, values % self._right
        for turn, key in enumerate(self._keys):
            if turn % 2:
                right = (right + _mix(left, key) % self._right) % self._right
            else:
                left = (left + _mix(right, key) % self._left) % self._left
        return left * self._right + right
