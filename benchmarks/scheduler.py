"""Measures how long the embedded scheduler takes to place many gangs on an empty cluster.

    python -m benchmarks.scheduler [--json] [--pods N --gangs N --nodes N --shapes N]

One session by manifests/volcano-scheduler.conf lets every gang in and places it. `read` is from
API objects to a snapshot, `session` from there to bindings, `full` a session in which everything is
bound and nothing is to be done. Seconds of CPU (the wall's where nothing else runs).

Args:
    --shapes: how many different requests the gangs have; nodes are ranked once for each.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from embedded_cluster.scheduler.configuration import DEFAULT, load
from embedded_cluster.scheduler.cycle import effects_of, session_of
from embedded_cluster.scheduler.effect import Bind
from embedded_cluster.scheduler.observe import Observed, snapshot_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
STAMP = "2026-01-01T00:00:00Z"
GPU = "nvidia.com/gpu"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Row:
    pods: int
    gangs: int
    nodes: int
    shapes: int
    bound: int
    read_seconds: float
    session_seconds: float
    full_seconds: float


def measure(pods: int, gangs: int, nodes: int, shapes: int) -> Row:
    conf = load(DEFAULT)
    objects = cluster(pods, gangs, nodes, shapes)
    snapshot, read = timed(lambda: snapshot_of(Observed(**objects), {"volcano"}))
    effects, session = timed(lambda: effects_of(session_of(snapshot, conf, NOW)))
    bound = {effect.pod.uid: effect.node for effect in effects if isinstance(effect, Bind)}
    full = snapshot_of(Observed(**objects, bound=bound), {"volcano"})
    _, idle = timed(lambda: effects_of(session_of(full, conf, NOW)))
    return Row(pods, gangs, nodes, shapes, len(bound), read, session, idle)


def cluster(pods: int, gangs: int, nodes: int, shapes: int) -> dict[str, Any]:
    """Objects; the nodes' GPUs are just enough."""
    size, gpus = pods // gangs, -(-pods // nodes)
    allocatable = {"cpu": "512", "memory": "4Ti", "pods": "500", GPU: str(gpus)}
    made: dict[str, Any] = {
        "nodes": [
            {"metadata": {"name": f"n{i}"}, "status": {"allocatable": allocatable}}
            for i in range(nodes)
        ],
        "queues": [
            {"metadata": {"name": name}, "status": {"state": "Open", "allocated": {}}}
            for name in ("root", "default")
        ],
        "podgroups": [],
        "pods": [],
    }
    for i in range(gangs):
        requests = {GPU: "1", "cpu": f"{1000 + i % shapes}m", "memory": "1Gi"}
        least = {GPU: str(size), "cpu": str(size)}
        metadata = {"namespace": "ns", "creationTimestamp": STAMP}
        made["podgroups"].append(
            {
                "metadata": {"name": f"g{i}", **metadata},
                "spec": {"minMember": size, "minResources": least, "queue": "default"},
            }
        )
        for j in range(size):
            annotations = {
                "scheduling.k8s.io/group-name": f"g{i}",
                "volcano.sh/task-spec": "worker",
            }
            name = f"g{i}-worker-{j}"
            made["pods"].append(
                {
                    "metadata": {"name": name, "uid": name, "annotations": annotations, **metadata},
                    "spec": {
                        "schedulerName": "volcano",
                        "containers": [{"name": "c", "resources": {"requests": requests}}],
                    },
                    "status": {"phase": "Pending"},
                }
            )
    return made


def timed(work: Callable[[], _T]) -> tuple[_T, float]:
    started = time.process_time()
    result = work()
    return result, time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--gangs", type=int, default=1_000)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--shapes", type=int, nargs="*", default=[1, 10, 100])
    options = parser.parse_args()
    rows = [measure(options.pods, options.gangs, options.nodes, n) for n in options.shapes]
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    for row in rows:
        print(
            f"{row.pods} pods of {row.gangs} gangs ({row.shapes} shapes) on {row.nodes} nodes: "
            f"{row.bound} bound; read {row.read_seconds:.2f} s, "
            f"session {row.session_seconds:.2f} s, full {row.full_seconds:.2f} s"
        )


if __name__ == "__main__":
    main()
