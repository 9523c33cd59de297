"""Which of Volcano's pitfalls a scheduler configuration falls into, and how to get out of them.

Pure: text in, findings out. The facts are from Volcano's source (v1.15) and from what a real
Volcano 1.15.1 did. Volcano asks the plugins tier by tier: the first tier whose filters leave a
victim decides; a tier that leaves none hands the *full* list to the next one; and inside a tier an
intersection that has become empty is filled again by the next filter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from volcano_elastic.api import quantity
from volcano_elastic.queue_policy.finding import Finding, Path, Severity
from volcano_elastic.queue_policy.scheduler_configuration import (
    INVALID,
    Configuration,
    PluginOption,
    parse,
    sources,
)
from volcano_elastic.queue_policy.volcano_vocabulary import (
    HARMLESS_FILTERS,
    JOB_ORDERS,
    PREEMPT_FILTERS,
    RECLAIM_FILTERS,
    STARVING,
)

Version = tuple[int, int]
_ERROR, _WARNING, _INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
_FIRST_TIER: Path = ("tiers", 0, "plugins")
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
    names = {str((source.document.get("metadata") or {}).get("name")) for source in queues}
    for source in queues:
        judged = _queue(source.document, plugins, hierarchy, names)
        found += source.located(judged)
    for source in listed:
        if source.kind == "Deployment":
            found += source.located(_deployment(source.document))
    return sorted(found, key=lambda f: (_RANK[f.severity], f.source, f.line or 0, f.code))


def check_configuration(
    configuration: Configuration, version: Version | None = None
) -> list[Finding]:
    """What is wrong with a configuration that Volcano can read."""
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


# Who may be evicted


def _filters(conf: Configuration, action: str) -> list[list[PluginOption]]:
    """By tier, the plugins that say who may be evicted by an action."""
    names, switch = (
        (PREEMPT_FILTERS, "enablePreemptable")
        if action == "preempt"
        else (RECLAIM_FILTERS, "enableReclaimable")
    )

    def filters(option: PluginOption) -> bool:
        if option.name == "drf" and action == "reclaim":
            return option.on(switch) and option.on("enableHierarchy")
        if option.name == "extender":
            verb = "preemptable" if action == "preempt" else "reclaimable"
            return option.on(switch) and bool(option.arguments.get(f"extender.{verb}Verb"))
        return option.name in names and option.on(switch)

    return [[option for option in tier if filters(option)] for tier in conf.tiers]


def _tier_walk(conf: Configuration) -> Iterator[Finding]:
    for action in ("preempt", "reclaim"):
        if conf.action(action) is None:
            continue
        switch = "enablePreemptable" if action == "preempt" else "enableReclaimable"
        tiers = [tier for tier in _filters(conf, action) if tier]
        for later in tiers[1:]:
            yield from _falls_through(action, switch, tiers[0], later)
        for tier in tiers:
            real = [option for option in tier if option.name not in HARMLESS_FILTERS]
            if len(real) > 2:
                listed = ", ".join(option.name for option in real)
                yield Finding(
                    "ThreeFilters",
                    _WARNING,
                    real[-1].path,
                    f"{len(real)} plugins of one tier filter {action}'s victims: {listed}",
                    "when two of them leave nobody, the next one fills the list again, and pods "
                    "that two of them refused are evicted",
                    f"keep two: set {switch}: false on the others ({_spare(action)})",
                )
            after = [option.name for option in tier]
            if "cdp" in after and after[-1] != "cdp":
                cdp = next(option for option in tier if option.name == "cdp")
                last = after[-1]
                yield Finding(
                    "CdpNotLast",
                    _ERROR,
                    cdp.path,
                    f"in its tier, {last} filters {action}'s victims after cdp",
                    f"when every candidate is cooling down, {last} fills the list again and they "
                    "are evicted nevertheless",
                    "name cdp last of its tier",
                )


def _falls_through(
    action: str, switch: str, first: list[PluginOption], later: list[PluginOption]
) -> Iterator[Finding]:
    for option in later:
        if option.name in ("capacity", "proportion"):
            code = "DeservedAskedTooLate"
            consequence = (
                "what a queue deserves is asked only when the tier above leaves nobody, and then "
                "without gang: gangs lose their minimums, and queues pods they deserve"
            )
            repair = f"move {option.name} into the first tier"
        elif any(above.name == "cdp" for above in first):
            code = "CooldownLost"
            consequence = (
                f"when every candidate is cooling down, cdp leaves nobody, and {option.name} "
                "chooses from all of them: the cooldown fails just when it counts"
            )
            repair = f"set {switch}: false on {option.name}"
        else:
            code = "TierFallsThrough"
            consequence = (
                f"whenever the tier above leaves no victim, {option.name} alone chooses from "
                "the full list, pods included that the tier above protects"
            )
            repair = f"set {switch}: false on {option.name}, or move it into the first tier"
        above = ", ".join(o.name for o in first)
        finding = f"{option.name} filters {action}'s victims below another tier ({above})"
        yield Finding(code, _ERROR, option.path, finding, consequence, repair)


def _spare(action: str) -> str:
    return "gang and cdp suffice" if action == "preempt" else "capacity or proportion, and cdp"


def _victims(conf: Configuration) -> Iterator[Finding]:
    gang, priority, cdp = conf.plugin("gang"), conf.plugin("priority"), conf.plugin("cdp")
    preempts = conf.action("preempt") is not None
    if priority is not None and preempts and priority.on("enablePreemptable"):
        yield Finding(
            "EqualPrioritiesKeepSurplus",
            _ERROR,
            (*priority.path, "enablePreemptable"),
            "priority filters preempt's victims",
            "only jobs of strictly lower priority give pods up: among equals, a gang waits for "
            "the surplus of others until their jobs end",
            "set enablePreemptable: false on priority; then a gang of low priority may take the "
            "surplus (never the minimum) of a job of high priority",
        )
    if gang is not None and preempts and not gang.on("enablePreemptable"):
        yield Finding(
            "MinimumsPreemptable",
            _ERROR,
            (*gang.path, "enablePreemptable"),
            "gang doesn't filter preempt's victims (as in Volcano's shipped configurations)",
            "pods of a running gang's minimum are preempted, and the gang breaks; only pods "
            'annotated volcano.sh/preemptable: "false" are safe, as this operator\'s are',
            "remove enablePreemptable: false from gang",
        )
    if conf.plugin("conformance") is None:
        yield Finding(
            "NoConformance",
            _WARNING,
            _FIRST_TIER,
            "conformance is missing",
            "the cluster's own critical pods may be evicted",
            "name conformance in the first tier",
        )
    if cdp is None:
        yield Finding(
            "NoCooldownProtection",
            _WARNING,
            _FIRST_TIER,
            "cdp is missing",
            "volcano.sh/cooldown-time, and with it a QueuePolicy's shrink.protectSeconds, does "
            "not keep Volcano from evicting young pods",
            "name cdp last in the first tier",
        )
    elif off := [s for s in ("enablePreemptable", "enableReclaimable") if not cdp.on(s)]:
        yield Finding(
            "NoCooldownProtection",
            _WARNING,
            (*cdp.path, off[0]),
            f"{off[0]} is off on cdp",
            "a QueuePolicy's shrink.protectSeconds does not keep Volcano from evicting young pods",
            f"remove {off[0]}: false from cdp",
        )
    order = [o.name for o in conf.plugins if o.name in STARVING and o.on("enableJobStarving")]
    tiers = [[o.name for o in tier if o.name in order] for tier in conf.tiers]
    deciding = next((tier for tier in tiers if tier), [])
    if (preempts or conf.action("reclaim") is not None) and "gang" not in deciding:
        yield Finding(
            "SurplusEvicts",
            _ERROR,
            _FIRST_TIER,
            "gang doesn't take part in saying who starves"
            + (f"; {', '.join(deciding)} alone decides" if deciding else ""),
            "a job with any waiting pod counts as starving: pods are evicted for others' surplus, "
            "back and forth",
            "name gang in the first tier, without enableJobStarving: false",
        )


# Order and room


def _orders(conf: Configuration) -> Iterator[Finding]:
    gang = conf.plugin("gang")
    if gang is None:
        yield Finding(
            "NoGang",
            _ERROR,
            _FIRST_TIER,
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
            _FIRST_TIER,
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
    _tier_walk,
    _victims,
    _orders,
    _room,
    _twice,
)


# Queues and the scheduler's Deployment


def _queue(
    queue: Mapping[str, Any], plugins: set[str], hierarchy: bool, names: set[str]
) -> Iterator[Finding]:
    spec = queue.get("spec") or {}
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
        if str(parent) not in names:
            yield Finding(
                "ParentMissing",
                _WARNING,
                ("spec", "parent"),
                f"the parent {parent!r} is not among these objects",
                "if the cluster hasn't got it either, Volcano's queue status update crashes",
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
    if spec.get("reclaimable") is False:
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


def _amount(value: Any) -> int:
    try:
        return quantity.milli(value)
    except quantity.QuantityError:
        return 0


def _deployment(deployment: Mapping[str, Any]) -> Iterator[Finding]:
    spec = (((deployment.get("spec") or {}).get("template") or {}).get("spec")) or {}
    for n, container in enumerate(spec.get("containers") or ()):
        words = [*(container.get("command") or ()), *(container.get("args") or ())]
        text = " ".join(map(str, words))
        if "--scheduler-conf" in text and "--disable-default-scheduler-config" not in text:
            yield Finding(
                "SilentDefault",
                _WARNING,
                ("spec", "template", "spec", "containers", n),
                "the scheduler runs without --disable-default-scheduler-config",
                INVALID,
                "add --disable-default-scheduler-config to its arguments (Volcano ≥ 1.14)",
            )
