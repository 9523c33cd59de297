"""Histograms with decay: how much was used, for how long, and how long ago.

Buckets grow by 5 %, and a sample of a day later weighs twice as much: Google's Autopilot (Rzadca et
al., EuroSys 2020, section 3.2) and Kubernetes' VerticalPodAutoscaler, whose buckets and half-life
these are (`pkg/recommender/util/histogram_options.go` and `decaying_histogram.go` there).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from volcano_elastic.api.amount import Bytes, Cpu, Percent

Amount = TypeVar("Amount", Cpu, Bytes, Percent)

HALF_LIFE = timedelta(hours=24)
_RATIO = 1.05
_EPSILON = 1e-4
"""A bucket with less weight than this share of all is none."""
_FIRST = {Cpu: 10, Bytes: 10**7, Percent: 1}
"""End of the first bucket: 0.01 CPU, 10 MB, 1 %."""
_MOST_DAYS = 100.0
"""Weights are told anew before they grow beyond a float."""


@dataclass(frozen=True, slots=True)
class Histogram(Generic[Amount]):
    """Weights by bucket, as if all samples were taken at `since`."""

    unit: type[Amount]
    since: datetime
    weights: Mapping[int, float] = field(default_factory=dict)

    def with_sample(self, used: Amount, at: datetime, weight: float = 1.0) -> Histogram[Amount]:
        """Return the histogram with one sample more. Weight is usually the time that it lasted."""
        days = (at - self.since) / HALF_LIFE
        if days > _MOST_DAYS:
            return self._from(at).with_sample(used, at, weight)
        bucket = self._bucket(used)
        more = self.weights.get(bucket, 0.0) + weight * 2.0**days
        return Histogram(self.unit, self.since, {**self.weights, bucket: more})

    def with_all_of(self, other: Histogram[Amount]) -> Histogram[Amount]:
        """Return both together."""
        if other.since > self.since:
            return other.with_all_of(self)
        moved = other._from(self.since)
        buckets = self.weights.keys() | moved.weights.keys()
        both = {b: self.weights.get(b, 0.0) + moved.weights.get(b, 0.0) for b in sorted(buckets)}
        return Histogram(self.unit, self.since, both)

    def percentile(self, share: float) -> Amount | None:
        """Return the end of the bucket below which that share of the weight is; None: no sample."""
        whole = sum(self.weights.values())
        counted = {b: w for b, w in self.weights.items() if w > whole * _EPSILON}
        wanted, passed, last = sum(counted.values()) * share, 0.0, None
        for bucket in sorted(counted):
            passed, last = passed + counted[bucket], bucket
            if passed >= wanted:
                break
        return None if last is None else self.unit(self._end(last))

    def _from(self, since: datetime) -> Histogram[Amount]:
        factor = 2.0 ** ((self.since - since) / HALF_LIFE)
        kept = {b: w * factor for b, w in self.weights.items()}
        return Histogram(self.unit, since, {b: w for b, w in kept.items() if w > 0})

    def _bucket(self, used: Amount) -> int:
        ratio = 1 + used.count * (_RATIO - 1) / _FIRST[self.unit]
        found = max(0, math.ceil(math.log(ratio, _RATIO)) - 1)
        # A logarithm errs by an ulp either way.
        while self._end(found) < used.count:
            found += 1
        return found

    def _end(self, bucket: int) -> int:
        """Return where it ends: the first bucket's end times 1 + 1.05 + 1.05² and so on."""
        first = _FIRST[self.unit]
        return math.ceil(first * (_RATIO ** (bucket + 1) - 1) / (_RATIO - 1))
