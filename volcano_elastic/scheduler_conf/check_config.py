"""Finds Volcano's pitfalls in a scheduler configuration, with their repairs.

Pure: text in, findings out. The facts are from Volcano's source (v1.15) and from what a real
Volcano 1.15.1 did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from volcano_elastic.scheduler_conf.check_eviction import FIRST_TIER, tier_walk, victims
from volcano_elastic.scheduler_conf.check_queue import check_deployment, check_queue
from volcano_elastic.scheduler_conf.configuration import (
    INVALID,
    Configuration,
    parse,
    sources,
)
from volcano_elastic.scheduler_conf.finding import Finding, Path, Severity
from volcano_elastic.scheduler_conf.vocabulary import JOB_ORDERS

Version = tuple[int, int]
_ERROR, _WARNING, _INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
_ACTIONS: Path = ("actions",)
_RANK = {severity: rank for rank, severity in enumerate(Severity)}


def check(text: str, file: str, version: Version | None = None) -> list[Finding]:
    """Every finding in a file's text, gravest first, then by line.

    Args:
        file: what to call it.
        version: Volcano's, e.g. (1, 12), to be told what that release lacks.

    Raises:
        UnreadableConfiguration: it isn't YAML, or holds nothing that can be checked.
    """
    found: list[Finding] = []
    listed = sources(text, file)
    parsed = [
        (source, parse(source.document)) for source in listed if source.kind == "Configuration"
    ]
    for source, (configuration, problems) in parsed:
        found += source.located([*problems, *check_configuration(configuration, version)])
    plugins = {option.name for _, (configuration, _) in parsed for option in configuration.plugins}
    hierarchy = any(
        option.on("enableHierarchy") for _, (read, _) in parsed for option in read.plugins
    )
    queues = [source for source in listed if source.kind == "Queue"]
    parents = dict(_parent(source.document) for source in queues)
    for source in queues:
        judged = check_queue(source.document, plugins, hierarchy, parents)
        found += source.located(judged)
    for source in listed:
        if source.kind == "Deployment":
            found += source.located(check_deployment(source.document))
    return sorted(found, key=lambda f: (_RANK[f.severity], f.source, f.line or 0, f.code))


def _parent(queue: Mapping[str, Any]) -> tuple[str, object]:
    """The queue's name and its parent's, as far as it tells them."""
    meta, spec = queue.get("metadata"), queue.get("spec")
    name = meta.get("name") if isinstance(meta, Mapping) else None
    return str(name), spec.get("parent") if isinstance(spec, Mapping) else None


def check_configuration(
    configuration: Configuration, version: Version | None = None
) -> list[Finding]:
    """Return the findings about a configuration that Volcano can read."""
    found = [finding for rule in _RULES for finding in rule(configuration)]
    return found + ([] if version is None else list(_release(configuration, version)))


# Actions


def _actions(conf: Configuration) -> Iterator[Finding]:
    names = [action.name for action in conf.actions]
    for name, severity, finding, consequence in (
        ("allocate", _ERROR, "there is no allocate action", "no gang is ever placed"),
        (
            "enqueue",
            _WARNING,
            "there is no enqueue action",
            "allocate lets every PodGroup in without asking the queues' limits first, so a gang "
            "that its queue can't hold goes on to have others evicted",
        ),
        (
            "backfill",
            _INFO,
            "there is no backfill action",
            "pods that request nothing are never placed",
        ),
        (
            "preempt",
            _ERROR,
            "there is no preempt action",
            "where the operator is not the first to act, a gang that finds its queue full of "
            "surplus pods waits until their jobs end",
        ),
        (
            "reclaim",
            _ERROR,
            "there is no reclaim action",
            "where the operator is not the first to act, a queue doesn't get back what others "
            "borrowed from it",
        ),
    ):
        if name not in names:
            code = f"No{name.capitalize()}"
            yield Finding(code, severity, _ACTIONS, finding, consequence, f"add {name} to actions")
    if {"preempt", "reclaim"} <= set(names) and names.index("reclaim") < names.index("preempt"):
        yield Finding(
            "ReclaimBeforePreempt",
            _WARNING,
            _ACTIONS,
            "reclaim comes before preempt",
            "a gang takes other queues' pods although its own queue holds surplus",
            "put preempt before reclaim",
        )
    if "shuffle" in names:
        yield Finding(
            "ShuffleEvicts",
            _WARNING,
            _ACTIONS,
            "the shuffle action is on",
            "pods that the tdm and rescheduling plugins pick are evicted, minimums and pods in "
            "their cooldown included",
            "remove shuffle",
        )
    for name in ("gangpreempt", "gangreclaim"):
        action = conf.action(name)
        if action is None:
            continue
        yield Finding(
            "GangActionSkipsCooldown",
            _WARNING,
            _ACTIONS,
            f"the action {name} is on",
            "it asks neither cdp nor pdb, so cooldowns and PodDisruptionBudgets don't count",
            f"use {name.removeprefix('gang')} instead",
        )
        if action.arguments.get("allowWholeBundle", True) is not False:
            yield Finding(
                "WholeBundles",
                _ERROR,
                _ACTIONS,
                f"{name} may take whole bundles, which is its default",
                "it may break a running gang instead of taking surplus",
                f"add to configurations: {{name: {name}, arguments: {{allowWholeBundle: false}}}}",
            )


# Order and room


def _orders(conf: Configuration) -> Iterator[Finding]:
    gang = conf.plugin("gang")
    if gang is None:
        yield Finding(
            "NoGang",
            _ERROR,
            FIRST_TIER,
            "gang is missing",
            "jobs are placed pod by pod, so two of them can each hold half of what they need for "
            "ever",
            "name gang first",
        )
    else:
        for switch in ("enableJobReady", "enableJobPipelined"):
            if not gang.on(switch):
                yield Finding(
                    "GangSwitchedOff",
                    _ERROR,
                    (*gang.path, switch),
                    f"{switch} is off on gang",
                    "a gang is bound, or has others evicted, before its minimum fits",
                    f"remove {switch}: false",
                )
    order = [o.name for o in conf.plugins if o.name in JOB_ORDERS and o.on("enableJobOrder")]
    if gang is not None and order[:1] != ["gang"]:
        before = ", ".join(order[: order.index("gang")] if "gang" in order else order) or "none"
        yield Finding(
            "MinimumsNotFirst",
            _ERROR,
            gang.path,
            f"gang is not the first to order jobs (before it: {before})",
            "surplus pods of a job that the others prefer, e.g. of high priority, are placed "
            "before the minimum of a job that waits to start",
            "name gang first of all, without enableJobOrder: false",
        )
    if "drf" not in order:
        yield Finding(
            "OldestTakesAll",
            _WARNING,
            ("tiers",),
            "drf doesn't order jobs",
            "among jobs with waiting surplus the oldest gets every free place, instead of each in "
            "turn",
            "name drf in the second tier with enablePreemptable: false",
        )
    if conf.plugin("predicates") is None:
        yield Finding(
            "NoPredicates",
            _ERROR,
            ("tiers",),
            "predicates is missing",
            "pods are bound to nodes whose taints, labels or ports don't allow them",
            "name predicates in the second tier",
        )


def _room(conf: Configuration) -> Iterator[Finding]:
    capacity, proportion = conf.plugin("capacity"), conf.plugin("proportion")
    overcommit, drf = conf.plugin("overcommit"), conf.plugin("drf")
    if overcommit is not None and overcommit.on("enableJobEnqueued"):
        yield Finding(
            "OvercommitBlocksNewcomers",
            _ERROR,
            overcommit.path,
            "overcommit is on",
            "it counts surplus as used for good: in a full cluster a newcomer's PodGroup stays "
            "Pending, and preempt and reclaim pass over Pending PodGroups",
            "remove overcommit; capacity and proportion know surplus when they admit",
        )
    if capacity is not None and proportion is not None:
        yield Finding(
            "CapacityAndProportion",
            _ERROR,
            proportion.path,
            "capacity and proportion are both on",
            "they reckon what a queue deserves in two ways, and both must agree",
            "keep capacity (amounts) or proportion (weights)",
        )
    if capacity is None and proportion is None:
        yield Finding(
            "NoQueueLimits",
            _ERROR,
            FIRST_TIER,
            "neither capacity nor proportion is named",
            "queues are only names: capability, guarantee, deserved and weight don't count",
            "name capacity (amounts) or proportion (weights) in the first tier, before cdp",
        )
    for option in (capacity, proportion):
        for switch in ("enableReclaimable", "enablePreemptive", "enableJobEnqueued"):
            if option is not None and not option.on(switch):
                yield Finding(
                    "QueueLimitsSwitchedOff",
                    _WARNING,
                    (*option.path, switch),
                    f"{switch} is off on {option.name}",
                    "one of the questions about a queue's share isn't asked, so queues get more "
                    "than theirs or lose what they deserve",
                    f"remove {switch}: false",
                )
    hierarchical = [o for o in (drf,) if o is not None and o.on("enableHierarchy")]
    for tier in conf.tiers:
        if proportion in tier and any(option in tier for option in hierarchical):
            yield Finding(
                "HierarchyWithProportion",
                _ERROR,
                hierarchical[0].path,
                "drf with enableHierarchy and proportion are in one tier",
                f"Volcano refuses the file. {INVALID}",
                "remove enableHierarchy from drf",
            )


def _twice(conf: Configuration) -> Iterator[Finding]:
    seen: set[str] = set()
    for option in conf.plugins:
        if option.name in seen:
            yield Finding(
                "PluginTwice",
                _WARNING,
                option.path,
                f"{option.name} is named twice",
                "it is built twice and asked twice; its second answer can undo a filter between",
                "name it once",
            )
        seen.add(option.name)


def _release(conf: Configuration, version: Version) -> Iterator[Finding]:
    running = f"Volcano {version[0]}.{version[1]}"
    if version < (1, 12) and conf.plugin("cdp") is not None:
        yield Finding(
            "OldRelease",
            _WARNING,
            (),
            f"{running}: cdp guards against preempt only",
            "reclaim evicts pods in their cooldown",
            "use 1.12 or later",
        )
    if version < (1, 14):
        yield Finding(
            "OldRelease",
            _WARNING,
            (),
            f"{running} commits reclaims piecemeal, and has no --disable-default-scheduler-config",
            "pods are evicted for a gang that then doesn't fit; " + INVALID,
            "use 1.15, whose evictions are transactional",
        )
    for name in ("gangpreempt", "gangreclaim"):
        if version < (1, 15) and conf.action(name) is not None:
            yield Finding(
                "OldRelease",
                _ERROR,
                _ACTIONS,
                f"{running} has no action {name}",
                INVALID,
                "use 1.15 or later, or remove the action",
            )


_RULES: tuple[Callable[[Configuration], Iterable[Finding]], ...] = (
    _actions,
    tier_walk,
    victims,
    _orders,
    _room,
    _twice,
)
