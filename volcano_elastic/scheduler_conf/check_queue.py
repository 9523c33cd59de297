"""Pitfalls beside the scheduler's configuration: in Queues, and in how the scheduler is started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from volcano_elastic.api import quantity, shape
from volcano_elastic.api.cluster_shape import QUEUE
from volcano_elastic.scheduler_conf.configuration import INVALID, scheduler_conf, words
from volcano_elastic.scheduler_conf.finding import Finding, Severity

_ERROR, _WARNING = Severity.ERROR, Severity.WARNING


def check_queue(
    queue: Mapping[str, Any], plugins: set[str], hierarchy: bool, parents: Mapping[str, object]
) -> Iterator[Finding]:
    """Args:
    plugins: that the scheduler runs, as far as its configuration is known.
    hierarchy: whether any of them has enableHierarchy.
    parents: of all Queues that are there, by name.
    """
    broken = list(shape.problems(QUEUE, queue, ""))
    for problem in broken:
        path = problem.path.removeprefix(".")
        yield Finding(
            "InvalidQueue",
            _ERROR,
            tuple(part.partition("[")[0] for part in path.split(".")[:2]),
            f"{path}: {problem.message}",
            "the API server refuses it",
            "write what is expected",
        )
    if broken:
        return
    spec, name = queue.get("spec") or {}, str(queue["metadata"]["name"])
    deserved, parent = spec.get("deserved") or {}, spec.get("parent")
    plain = sorted(deserved.keys() & {"cpu", "memory", "ephemeral-storage", "pods"})
    if "proportion" in plugins and deserved:
        yield Finding(
            "DeservedUnderProportion",
            _WARNING,
            ("spec", "deserved"),
            "deserved is set, and the scheduler runs proportion",
            "proportion reckons what is deserved from weights, and doesn't read this",
            "set weight, or change the scheduler to capacity",
        )
    elif deserved and len(plain) == len(deserved):
        yield Finding(
            "DeservedWithoutDevices",
            _WARNING,
            ("spec", "deserved"),
            f"deserved lists {', '.join(plain)} and no GPUs",
            "a pod that shares no resource with its queue's deserved is a victim at once",
            "list nvidia.com/gpu",
        )
    elif plain:
        yield Finding(
            "DeservedListsMore",
            _WARNING,
            ("spec", "deserved", plain[0]),
            f"deserved lists {', '.join(plain)} beside GPUs",
            "under capacity, whoever exceeds any of them loses GPU pods, although it holds no more "
            "GPUs than it deserves",
            "list GPUs only",
        )
    if parent not in (None, "", "root"):
        ring = _ring(name, parents)
        if ring:
            yield Finding(
                "ParentRing",
                _ERROR,
                ("spec", "parent"),
                f"the parents run in a ring: {' → '.join(ring)}",
                "with enableHierarchy the scheduler crashes (1.15.1 does), and nothing starts",
                "set another parent in one of them",
            )
        elif parent not in parents:
            yield Finding(
                "ParentMissing",
                _WARNING,
                ("spec", "parent"),
                f"the parent {parent!r} is not among these objects",
                "if the cluster hasn't got it either, Volcano's queue status update crashes, and "
                "with enableHierarchy the scheduler starts nothing, in any queue",
                f"create the Queue {parent!r} first",
            )
        if "capacity" in plugins and not hierarchy:
            yield Finding(
                "HierarchyOff",
                _WARNING,
                ("spec", "parent"),
                f"it has the parent {parent!r}, and capacity runs without enableHierarchy",
                "the parent's limits don't count",
                "set enableHierarchy: true on capacity",
            )
    # Volcano makes its root so itself, and no job is in it.
    if spec.get("reclaimable") is False and name != "root":
        yield Finding(
            "NotReclaimable",
            _WARNING,
            ("spec", "reclaimable"),
            "reclaimable is false",
            "what this queue borrows, Volcano never takes back for others",
            "remove it, or set a QueuePolicy's borrowing.limit",
        )
    guarantee = (spec.get("guarantee") or {}).get("resource") or {}
    for low, high, below, above in (
        ("guarantee.resource", "deserved", guarantee, deserved),
        ("deserved", "capability", deserved, spec.get("capability") or {}),
        ("guarantee.resource", "capability", guarantee, spec.get("capability") or {}),
    ):
        for name in sorted(below.keys() & above.keys()):
            if _amount(below[name]) > _amount(above[name]):
                yield Finding(
                    "LimitsContradict",
                    _ERROR,
                    ("spec", *low.split("."), name),
                    f"{low} of {name} is {below[name]}, above its {high}, {above[name]}",
                    "Volcano's webhook refuses it; without the webhook the larger one wins in "
                    "some places and the smaller one in others",
                    "keep guarantee ≤ deserved ≤ capability",
                )


def _ring(name: str, parents: Mapping[str, object]) -> list[str]:
    """From the queue by its parents back to it; empty if they end elsewhere."""
    found, at = [name], parents.get(name)
    while isinstance(at, str) and at in parents and at not in found:
        found.append(at)
        at = parents[at]
    return [*found, name] if at == name else []


def _amount(value: Any) -> int:
    try:
        return quantity.milli(value)
    except quantity.QuantityError:
        return 0


def check_deployment(deployment: Mapping[str, Any]) -> Iterator[Finding]:
    """Return the findings about the scheduler's Deployment; any other container has none."""
    for n, given in enumerate(words(deployment)):
        if scheduler_conf(given) and "--disable-default-scheduler-config" not in " ".join(given):
            yield Finding(
                "SilentDefault",
                _WARNING,
                ("spec", "template", "spec", "containers", n),
                "the scheduler runs without --disable-default-scheduler-config",
                INVALID,
                "add --disable-default-scheduler-config to its arguments (Volcano ≥ 1.14)",
            )
