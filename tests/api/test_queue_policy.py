"""The QueuePolicy resource as values: defaults, refusals, and which of two wins."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from volcano_elastic.api.amount import Bytes
from volcano_elastic.api.queue_policy import (
    ForOtherQueues,
    InvalidPolicy,
    Mode,
    Order,
    QueuePolicy,
    Step,
    effective,
    parse,
)


def policy(name: str = "p", created: str = "2026-01-01T00:00:00Z", **spec: Any) -> dict[str, Any]:
    meta = {"name": name, "creationTimestamp": created}
    return {"metadata": meta, "spec": {"queue": "research", **spec}}


def test_every_default_is_the_designs() -> None:
    found = parse(policy())
    assert found.resource == "nvidia.com/gpu"
    assert (found.mode, found.surplus.order, found.surplus.step) == (
        Mode.ACTIVE,
        Order.EFFICIENCY,
        Step.NODE_ALIGNED,
    )
    assert (found.surplus.min_efficiency, found.surplus.max_per_job) == (0.5, None)
    assert (found.surplus.young_gpu_hours, found.surplus.young_weight) == (16, 8)
    assert found.grow.cooldown is None
    assert found.grow.stabilization == timedelta(seconds=1)
    assert (found.shrink.grace, found.shrink.protect) == (timedelta(seconds=30), timedelta(0))
    assert found.shrink.for_other_queues is ForOtherQueues.ANY
    assert (found.rebalance.gap, found.rebalance.cooldown) == (1.5, timedelta(seconds=60))
    assert (found.borrowing_limit, found.headroom.amount, found.headroom.percent) == (None,) * 3


def test_every_field_arrives() -> None:
    found = parse(
        policy(
            resource="cpu",
            mode="HoldAndDrain",
            surplus={
                "order": "Equal",
                "minEfficiency": 0.7,
                "step": "Any",
                "maxPerJob": 8,
                "young": {"gpuHours": 2, "weight": 3},
            },
            grow={"cooldownSeconds": 5, "stabilizationSeconds": 0.5, "maxStep": 2},
            shrink={"graceSeconds": 7, "protectSeconds": 30, "forOtherQueues": "Borrowed"},
            rebalance={"gap": 2, "cooldownSeconds": 11},
            borrowing={"limit": "1500m"},
            headroom={"percent": 12.5},
        )
    )
    assert (found.queue, found.resource, found.mode) == ("research", "cpu", Mode.HOLD_AND_DRAIN)
    assert (found.surplus.order, found.surplus.max_per_job) == (Order.EQUAL, 8)
    assert (found.surplus.young_gpu_hours, found.surplus.young_weight) == (2, 3)
    assert (found.grow.max_step, found.shrink.protect) == (2, timedelta(seconds=30))
    assert (found.borrowing_limit, found.headroom.percent) == (1500, 12.5)


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"queue": None}, "spec.queue"),
        ({"queue": ""}, "spec.queue"),
        ({"resource": ""}, "spec.resource"),
        ({"resource": "nvidia gpu"}, "spec.resource"),
        ({"resource": "/gpu"}, "spec.resource"),
        ({"resource": "a/"}, "spec.resource"),
        ({"resource": "gpu\n"}, "spec.resource"),
        ({"mode": "Sometimes"}, "spec.mode"),
        ({"surplus": 3}, "spec.surplus"),
        ({"surplus": {"minEfficiency": 1.1}}, "spec.surplus.minEfficiency"),
        ({"surplus": {"young": {"weight": 0.5}}}, "spec.surplus.young.weight"),
        ({"surplus": {"maxPerJob": -1}}, "spec.surplus.maxPerJob"),
        ({"grow": {"maxStep": 0}}, "spec.grow.maxStep"),
        ({"grow": {"cooldownSeconds": -1}}, "spec.grow.cooldownSeconds"),
        ({"shrink": {"graceSeconds": 1e30}}, "spec.shrink.graceSeconds"),
        ({"rebalance": {"gap": 0.5}}, "spec.rebalance.gap"),
        ({"borrowing": {"limit": "-1"}}, "spec.borrowing.limit"),
        ({"borrowing": {"limit": 1.5}}, "spec.borrowing.limit"),
        ({"headroom": {"amount": 1, "percent": 10}}, "spec.headroom"),
        ({"headroom": {"percent": 101}}, "spec.headroom.percent"),
        ({"brain": {"mostMemory": "much"}}, "spec.brain.mostMemory"),
    ],
)
def test_a_bad_value_is_refused_with_its_path(spec: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidPolicy) as refused:
        parse(policy(**spec))
    assert [problem.path for problem in refused.value.problems] == [path]


def test_of_two_policies_the_oldest_governs_the_queue() -> None:
    young = parse(policy("a", "2026-02-01T00:00:00Z"))
    old = parse(policy("b", "2026-01-01T00:00:00Z"))
    other = QueuePolicy("other")
    assert effective([young, other, old]) == {"research": old, "other": other}


def test_a_queue_bounds_the_memory_that_its_pods_are_given() -> None:
    assert parse(policy()).brain.most_memory is None
    assert parse(policy(brain={"mostMemory": "64Gi"})).brain.most_memory == Bytes.gib(64)
