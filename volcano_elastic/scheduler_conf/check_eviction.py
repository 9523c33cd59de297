"""Works out which pods a scheduler configuration lets be evicted.

Volcano asks the plugins tier by tier: the first tier whose filters leave a victim decides; a tier
that leaves none hands the *full* list to the next one; and inside a tier an intersection that has
become empty is filled again by the next filter.
"""

from __future__ import annotations

from collections.abc import Iterator

from volcano_elastic.scheduler_conf.configuration import Configuration, PluginOption
from volcano_elastic.scheduler_conf.finding import Finding, Path, Severity
from volcano_elastic.scheduler_conf.vocabulary import (
    HARMLESS_FILTERS,
    PREEMPT_FILTERS,
    RECLAIM_FILTERS,
    STARVING,
)

_ERROR, _WARNING = Severity.ERROR, Severity.WARNING
FIRST_TIER: Path = ("tiers", 0, "plugins")


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


def tier_walk(conf: Configuration) -> Iterator[Finding]:
    """Filters that undo one another."""
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


def victims(conf: Configuration) -> Iterator[Finding]:
    """Filters that are missing, or let the wrong pods go."""
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
            FIRST_TIER,
            "conformance is missing",
            "the cluster's own critical pods may be evicted",
            "name conformance in the first tier",
        )
    if cdp is None:
        yield Finding(
            "NoCooldownProtection",
            _WARNING,
            FIRST_TIER,
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
            FIRST_TIER,
            "gang doesn't take part in saying who starves"
            + (f"; {', '.join(deciding)} alone decides" if deciding else ""),
            "a job with any waiting pod counts as starving: pods are evicted for others' surplus, "
            "back and forth",
            "name gang in the first tier, without enableJobStarving: false",
        )
