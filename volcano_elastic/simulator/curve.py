"""Speeds of a job by its size: laws, and tables of measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from volcano_elastic.simulator.row import columns, rows

Curve = tuple[float, ...]
"""Work a second by size in workers; `curve[0]` is 0."""


class CurveError(ValueError):
    """A speed model or a table of speeds that cannot be read."""


def amdahl(serial: float, largest: int) -> Curve:
    """Speed relative to one worker, k / (1 + serial (k - 1)), up to size `largest`."""
    return tuple(k / (1 + serial * (k - 1)) for k in range(largest + 1))


def parse_model(text: str) -> float:
    """The serial part in `amdahl:0.036`.

    Raises:
        CurveError: anything else, or a part outside 0..1.
    """
    name, _, number = text.partition(":")
    try:
        serial = float(number)
    except ValueError:
        serial = -1
    if name != "amdahl" or not 0 <= serial <= 1:
        raise CurveError(
            "expected amdahl:S with a serial part S from 0 to 1, such as amdahl:0.036, found "
            f"{text!r}"
        )
    return serial


class CurveTable:
    """Measured curves, by app and, where the table has it, by global batch."""

    def __init__(self, steps: Mapping[tuple[str, str], Mapping[int, float]]) -> None:
        self._steps = steps
        self._curves: dict[tuple[str, str, int], Curve] = {}

    def curve(self, app: str, global_batch: str, largest: int) -> Curve | None:
        """Work is counted in steps. Between measured sizes speed is linear, from 0 at 0; beyond the
        last one it stays. None if the table has nothing for the app."""
        key = (app, global_batch) if (app, global_batch) in self._steps else (app, "")
        measured = self._steps.get(key)
        if measured is None:
            return None
        found = self._curves.get((*key, largest))
        if found is None:
            points = [(0, 0.0), *((k, 1 / measured[k]) for k in sorted(measured))]
            found = tuple(_between(points, k) for k in range(largest + 1))
            self._curves[*key, largest] = found
        return found


def read_table(lines: Sequence[str], name: str) -> CurveTable:
    """A table from CSV with the columns app, gpus and step_s (seconds a step), and perhaps
    global_batch and nodes; of several rows for one size that on the fewest nodes counts.

    Raises:
        CurveError, RowError: name the line.
    """
    names = columns(lines)
    if not {"app", "gpus", "step_s"} <= set(names):
        raise CurveError(
            f"{name}, line 1: expected the columns app, gpus, step_s, found "
            f"{', '.join(names) or 'nothing'}"
        )
    found: dict[tuple[str, str], dict[int, tuple[int, float]]] = {}
    for each in rows(lines, name):
        row = each.values
        try:
            size, step = int(row["gpus"]), float(row["step_s"])
            nodes = int(row.get("nodes") or 0)
            if size < 1 or not 0 < step < float("inf"):
                raise ValueError
        except ValueError:
            raise CurveError(
                f"{each.where}: expected gpus of at least 1 and step_s above 0, "
                f"found gpus {row['gpus']!r} and step_s {row['step_s']!r}"
            ) from None
        sizes = found.setdefault((row["app"], row.get("global_batch") or ""), {})
        if size not in sizes or nodes < sizes[size][0]:
            sizes[size] = (nodes, step)
    return CurveTable({k: {n: s for n, (_, s) in sizes.items()} for k, sizes in found.items()})


def efficient(curve: Curve, least: float) -> int:
    """The largest size at which speed / size is at least `least` times that of one worker.

    1 if there is none.
    """
    sizes = [k for k in range(1, len(curve)) if curve[k] >= least * k * curve[1]]
    return max(sizes, default=1)


def _between(points: list[tuple[int, float]], size: int) -> float:
    for (k, low), (after, high) in pairwise(points):
        if size <= after:
            return low + (high - low) * (size - k) / (after - k)
    return points[-1][1]
