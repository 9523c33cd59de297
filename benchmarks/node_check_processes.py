"""Checks nodes that are processes: `python -m benchmarks.node_check_processes [--json]`.

Each node is torchrun on loopback, with an address of its own; some are told to fail in the check
(a crash, a wrong product, a hang, in turn) and some to be slow, drawn by a seed. All come before
the check begins. Shown are sound nodes called faulty, broken ones that were not, the same
for slow ones, the rounds, and the time that the check took. `first step` is how much later than
without a check the job made its first step; processes that share few cores wait for one another.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elastic_trainer.identity import NODE_VARIABLE
from elastic_trainer.node_check.measurement import FAULT_VARIABLE

from tests.elastic_trainer.torchrun_job import STEPPING, Job

BROKEN = ("crash", "wrong", "hang")


def first_step(count: int, faults: Mapping[int, str], *, checked: bool) -> dict[str, Any]:
    """Return what /status tells once a job of so many nodes steps, with `seconds` until then from
    when all had come.

    Raises:
        AssertionError: it doesn't step in time.
    """
    with tempfile.TemporaryDirectory() as folder:
        # As no round can be formed at first, nodes that come late are checked with the others.
        job = Job(Path(folder), STEPPING, nodes=f"{count + 1}:{count + 1}")
        job.patience = 500.0
        try:
            for index in range(count):
                job.start(
                    index,
                    options=("--rdzv-conf", "node_check=1") if checked else (),
                    environment={
                        NODE_VARIABLE: f"node-{index}",
                        FAULT_VARIABLE: faults.get(index, ""),
                    },
                )
            job.until("all have come", lambda told: _come(told, checked) == count)
            began = time.monotonic()
            change = urllib.request.Request(
                f"http://127.0.0.1:{job.port + 1}/range",
                data=json.dumps({"min": 1, "max": count}).encode(),
                method="PUT",
            )
            urllib.request.urlopen(change, timeout=60).close()
            broken = sum(kind in BROKEN for kind in faults.values()) if checked else 0
            told = job.stepping(count - broken)
            return {**told, "seconds": time.monotonic() - began}
        finally:
            job.close()


def _come(told: Mapping[str, Any], checked: bool) -> int:
    check = told.get("check") or {"nodes": []}
    return len(check["nodes"]) if checked else len(told.get("waiting", ()))


def measure(count: int, broken: int, slow: int, seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    chosen = draw.sample(range(count), broken + slow)
    faults = {node: BROKEN[i % len(BROKEN)] for i, node in enumerate(chosen[:broken])}
    faults |= dict.fromkeys(chosen[broken:], "slow")
    told = first_step(count, faults, checked=True)
    faulty = {n["worker"] for n in told["check"]["nodes"] if n["verdict"] == "faulty"}
    named = {n["worker"] for n in told["check"]["nodes"] if n["straggler"]} - faulty
    return {
        "nodes": count,
        "broken": broken,
        "slow": slow,
        "false": len(faulty - set(chosen[:broken])),
        "missed": len(set(chosen[:broken]) - faulty),
        "false_slow": len(named - set(chosen[broken:])),
        "missed_slow": len(set(chosen[broken:]) - named),
        "rounds": told["check"]["rounds"],
        "check_seconds": told["check"]["seconds"],
        "first_step": told["seconds"] - first_step(count, {}, checked=False)["seconds"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.node_check_processes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--broken", type=float, default=25, help="percent, rounded down")
    parser.add_argument("--slow", type=int, default=0, help="nodes of each size, but for 2")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON array instead of the table")
    given = parser.parse_args()
    rows = [
        measure(count, int(given.broken / 100 * count), given.slow if count > 2 else 0, given.seed)
        for count in given.nodes
    ]
    if given.json:
        print(json.dumps(rows, indent=2))
        return 0
    print("nodes broken  slow   false missed   false missed   rounds   check   first step")
    for row in rows:
        print(
            f"{row['nodes']:5d} {row['broken']:6d} {row['slow']:5d}   {row['false']:5d} "
            f"{row['missed']:6d}   {row['false_slow']:5d} {row['missed_slow']:6d}   "
            f"{row['rounds']:6d} {row['check_seconds']:6.1f} s   {row['first_step']:+8.1f} s"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
