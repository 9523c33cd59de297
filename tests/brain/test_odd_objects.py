"""Brain's pure parts go on whatever objects say and clocks do: no odd job costs others theirs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.brain.test_served_job import served
from tests.brain.world import NOW, amounts, run
from tests.examples import examples
from volcano_elastic.brain import observation, served_job
from volcano_elastic.brain.advice import advise, advise_running
from volcano_elastic.brain.history.run import PodLoad
from volcano_elastic.brain.past import Past

TEXTS: list[Any] = ["0", "-1", "1", "1m", "9E", "1e30", "NaN", "x", "", "1Ki", "100n", "1Gi"]
quantities = st.sampled_from([*TEXTS, None, 1.5, True, -3])
days = st.sampled_from([-40000, -400, -101, -1, 0, 0.01, 1, 101, 400, 40000])


@settings(max_examples=examples(200), deadline=None)
@given(quantities, quantities, quantities, quantities, st.lists(days, max_size=5))
def test_odd_amounts_and_clocks_that_jump_end_nothing(
    cpu: Any, memory: Any, limit: Any, size: Any, jumps: list[float]
) -> None:
    asked, told = {"cpu": cpu, "memory": memory}, {"cpu": limit, "memory": size}
    job = served()
    job["metadata"] |= {"creationTimestamp": "2026-01-01T12:00:00Z", "namespace": "x"}
    job["metadata"]["annotations"] = {
        "volcano-elastic.io/cpu-limit": str(limit),
        "volcano-elastic.io/checkpoint-size": str(size),
    }
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        replica["template"]["spec"]["containers"][0]["resources"] = {"requests": asked}
    load = asked | {"gpuMemory": size, "gpuPercent": limit}
    job["status"]["elastic"] |= {
        "checkpointSize": {"PS": size, "Worker": limit},
        "loads": {"time": "2026-01-01T12:00:00Z", "pods": {"a-worker-0": load}},
        "recommendation": {"roles": {"Worker": told}},
    }
    seen = observation.seen(job, None, NOW)
    observation.reported([job], NOW)
    observation.reported_gpus([job], NOW)
    container = {"name": "pytorch", "usage": asked}
    observation.usage([{"metadata": {"name": "p"}, "containers": [container]}])
    nodes = [{"status": {"allocatable": one}} for one in (asked, told)]
    node = observation.largest(nodes)
    observation.leanest(nodes)

    now, loads = NOW, [PodLoad.unused(role, 0, amounts(1, 1), NOW) for role in ("PS", "Worker")]
    for jump in jumps:
        now = NOW + timedelta(days=jump)
        loads = [one.with_sample(amounts(0.5, 0.5), now, amounts(1, 1)) for one in loads]
    measured = replace(seen, loads=tuple(loads))
    past = Past([replace(run(f"o{i}"), loads=measured.loads) for i in range(3)])
    wait = timedelta(minutes=3)
    found = [
        *advise(job, measured, past, node),
        *advise_running(job, measured, node, now),
    ]
    assert all(one.wanted.cpu and one.wanted.memory for one in found)
    served_job.planned(job, measured, None, node, now, wait)
    served_job.planned(job, measured, {}, node, now, wait)
    assert measured.after(measured).loads
