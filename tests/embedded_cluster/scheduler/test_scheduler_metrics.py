"""What Prometheus asks the scheduler."""

from __future__ import annotations

import pytest

from embedded_cluster.scheduler.metrics import Metrics
from tests.embedded_cluster.scheduler.world import GPU, PROPORTION, cluster

# Of a running Volcano 1.15.1.
VOLCANO = {
    "volcano_e2e_scheduling_latency_milliseconds": set(),
    "volcano_action_scheduling_latency_milliseconds": {"action"},
    "volcano_pod_preemption_victims": set(),
    "volcano_total_preemption_attempts": set(),
    "volcano_unschedule_job_count": set(),
    "volcano_unschedule_task_count": {"job_id"},
    "volcano_queue_share": {"queue_name"},
    "volcano_queue_weight": {"queue_name"},
    "volcano_queue_overused": {"queue_name"},
    **{
        f"volcano_queue_{what}_{unit}": {"queue_name", *labels}
        for what in ("allocated", "request", "deserved", "capacity", "real_capacity")
        for unit, labels in (
            ("milli_cpu", ()),
            ("memory_bytes", ()),
            ("scalar_resources", ("resource",)),
        )
    },
}


@pytest.mark.parametrize("conf", [None, PROPORTION])
def test_names_and_labels_are_volcanos_own(conf: str | None) -> None:
    c = cluster(4, conf=conf)
    c.queue("qa", deserved={GPU: "2"}, capability={GPU: "4"})
    c.settle()
    c.gang("a", 1, 4, queue="qa")
    c.gang("b", 3, 2)
    metrics = Metrics()
    with metrics.whole(), metrics.action("allocate"):
        metrics.session(c.session())
    told = {
        family.name: {label for sample in family.samples for label in sample.labels} - {"le"}
        for family in metrics.registry.collect()
        if family.samples
    }
    expected = VOLCANO
    if conf is PROPORTION:
        expected = {name: labels for name, labels in VOLCANO.items() if "capacity" not in name}
    assert told == expected


def test_a_session_is_told_in_numbers() -> None:
    c = cluster(4)
    c.queue("qa", deserved={GPU: "2"}, capability={"cpu": "4"}, weight=3)
    c.settle()
    c.gang("a", 1, 4, queue="qa")
    c.gang("b", 3, 2)
    metrics = Metrics()
    session = c.session()
    metrics.session(session)

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"volcano_{name}", labels)

    qa = {"queue_name": "qa"}
    assert value("queue_allocated_scalar_resources", **qa, resource=GPU) == 4000
    assert value("queue_allocated_milli_cpu", **qa) == 4000
    assert value("queue_allocated_memory_bytes", **qa) == 4 << 30
    assert value("queue_deserved_scalar_resources", **qa, resource=GPU) == 2000
    assert value("queue_real_capacity_milli_cpu", **qa) == 4000
    assert (value("queue_share", **qa), value("queue_overused", **qa)) == (2, 1)
    assert value("queue_weight", **qa) == 3
    assert (value("unschedule_job_count"), value("unschedule_task_count", job_id="b")) == (1, 2)
    c.carry_out(session)
    c.settle()
    c.gang("d", 1, queue="qa")
    metrics.session(c.session())
    assert (value("pod_preemption_victims"), value("total_preemption_attempts")) == (1, 1)
