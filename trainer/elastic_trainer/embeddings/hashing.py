"""Hashes of ids: their bucket, their place in an index, and the first values of their rows.

All rest on `mix`, the finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom
Number Generators, OOPSLA 2014; its constants are David Stafford's Mix13), a bijection of 64 bits:

    z ^= z >> 30;  z *= 0xBF58476D1CE4E5B9;  z ^= z >> 27;  z *= 0x94D049BB133111EB;  z ^= z >> 31

With G = 0x9E3779B97F4A7C15, all modulo 2^64:

    bucket(id)            = mix(id + G) >> 54                              one of 1,024
    key(seed, table, id)  = mix(mix(mix(seed + G) + table) + id)   table: its name's xxh3_64
    value(key, column)    = (2 (mix(key + (column + 1) G) >> 11) / 2^53 - 1) bound

So a row begins as the numbers that SplitMix64 draws from the seed `key`, uniform in
[-bound, bound), whoever asks for it first and however many hold the table.
"""

from __future__ import annotations

import numpy as np
import xxhash
from numpy.typing import NDArray

BUCKETS = 1024
"""Fixed for all tables and worlds: a bucket is what moves."""

Ids = NDArray[np.int64]
Words = NDArray[np.uint64]

_G = np.uint64(0x9E3779B97F4A7C15)
_BUCKET_SHIFT = np.uint64(54)
_CHUNK = 1 << 16
"""Numbers that are drawn at once, so that they stay in a core's cache."""


def mix(words: Words) -> Words:
    """Return SplitMix64's finalizer of each word."""
    z = words ^ (words >> np.uint64(30))
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def hash_ids(ids: Ids) -> Words:
    """Return a hash of each id: its upper 10 bits are the bucket, the lower ones independent."""
    return mix(ids.view(np.uint64) + _G)


def buckets(ids: Ids) -> NDArray[np.int64]:
    """Return the bucket of each id."""
    return buckets_of(hash_ids(ids))


def buckets_of(words: Words) -> NDArray[np.int64]:
    """Return the buckets of ids with these hashes."""
    return (words >> _BUCKET_SHIFT).view(np.int64)


def first_values(
    ids: Ids, width: int, *, seed: int, table: str, bound: float
) -> NDArray[np.float64]:
    """Return the rows that these ids begin with, of `width` columns."""
    name = np.array([xxhash.xxh3_64_intdigest(table.encode())], dtype=np.uint64)
    start = mix(mix(np.array([seed % 2**64], dtype=np.uint64) + _G) + name)
    keys = mix(ids.view(np.uint64) + start)
    steps = np.arange(1, width + 1, dtype=np.uint64) * _G
    found = np.empty((len(ids), width))
    rows = max(1, _CHUNK // width)
    for begin in range(0, len(ids), rows):
        drawn = mix(keys[begin : begin + rows, None] + steps) >> np.uint64(11)
        found[begin : begin + rows] = drawn
    found *= 2.0**-52 * bound
    found -= bound
    return found
