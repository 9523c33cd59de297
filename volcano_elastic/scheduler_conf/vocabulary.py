"""The words Volcano's scheduler knows in its configuration, as of v1.15.

Volcano itself ignores unknown keys and arguments and only logs unknown plugins, so a misspelt word
does nothing and nobody is told.
"""

from __future__ import annotations

from collections.abc import Mapping

ACTIONS: Mapping[str, tuple[str, ...]] = {
    "enqueue": (),
    "allocate": ("predicateErrorCacheEnable",),
    "backfill": ("predicateErrorCacheEnable",),
    "preempt": (
        "predicateErrorCacheEnable",
        "enableTopologyAwarePreemption",
        "topologyAwarePreemptWorkerNum",
        "minCandidateNodesPercentage",
        "minCandidateNodesAbsolute",
        "maxCandidateNodesAbsolute",
    ),
    "reclaim": ("predicateErrorCacheEnable",),
    "gangpreempt": ("maxDomains", "allowWholeBundle"),
    "gangreclaim": ("maxDomains", "allowWholeBundle"),
    "shuffle": (),
}
"""By action, what its entry under `configurations` may hold."""

PLUGINS: Mapping[str, tuple[str, ...]] = {
    "binpack": ("binpack.*",),
    "capacity": (
        "capacity.DynamicResourceAllocationEnable",
        "capacity.DRAConsumableCapacityEnable",
        "ancestorReclaimLevel",
    ),
    "cdp": (),
    "conformance": (),
    "deviceshare": ("deviceshare.*",),
    "drf": (),
    "extender": ("extender.*",),
    "gang": (),
    "network-topology-aware": ("weight", "hypernode.*"),
    "nodegroup": ("strict", "enablePreferredOrder"),
    "nodeorder": (
        "nodeaffinity.weight",
        "podaffinity.weight",
        "leastrequested.weight",
        "mostrequested.weight",
        "balancedresource.weight",
        "tainttoleration.weight",
        "imagelocality.weight",
        "podtopologyspread.weight",
    ),
    "numa-aware": ("weight",),
    "overcommit": ("overcommit-factor",),
    "pdb": (),
    "predicates": (
        "predicate.NodeAffinityEnable",
        "predicate.NodePortsEnable",
        "predicate.TaintTolerationEnable",
        "predicate.PodAffinityEnable",
        "predicate.NodeVolumeLimitsEnable",
        "predicate.VolumeZoneEnable",
        "predicate.PodTopologySpreadEnable",
        "predicate.VolumeBindingEnable",
        "predicate.DynamicResourceAllocationEnable",
        "predicate.CacheEnable",
        "volumebinding.*",
        "dynamicresources.*",
    ),
    "priority": (),
    "proportion": (),
    "rescheduling": ("interval", "metricsPeriod", "strategies"),
    "resource-strategy-fit": ("resourceStrategyFitWeight", "resources", "sra*", "proportional*"),
    "resourcequota": (),
    "sla": ("sla-waiting-time",),
    "task-topology": ("task-topology.weight",),
    "tdm": ("tdm.*",),
    "usage": ("usage.weight", "cpu.weight", "memory.weight", "thresholds", "estimator"),
}
"""By plugin, what its `arguments` may hold; a trailing * stands for any ending."""

SWITCHES: frozenset[str] = frozenset(
    {
        "enableJobOrder",
        "enableHierarchy",
        "enableJobReady",
        "enableJobPipelined",
        "enableTaskOrder",
        "enablePreemptable",
        "enableReclaimable",
        "enablePreemptive",
        "enableQueueOrder",
        "enabledClusterOrder",
        "enablePredicate",
        "enableBestNode",
        "enableNodeOrder",
        "enableTargetJob",
        "enableReservedNodes",
        "enableJobEnqueued",
        "enabledVictim",
        "enableJobStarving",
        "enabledOverused",
        "enabledAllocatable",
        "enabledHyperNodeOrder",
        "enabledSubJobReady",
        "enabledSubJobPipelined",
        "enabledSubJobOrder",
        "enabledHyperNodeGradient",
    }
)
"""A plugin's functions are on unless switched off, but for enableHierarchy. The mixed spelling is
Volcano's."""

PREEMPT_FILTERS: frozenset[str] = frozenset(
    {"gang", "priority", "conformance", "drf", "cdp", "pdb", "tdm", "extender"}
)
RECLAIM_FILTERS: frozenset[str] = frozenset(
    {"gang", "conformance", "proportion", "capacity", "cdp", "pdb", "extender"}
)
"""Plugins that say who may be evicted; drf joins the reclaim filters under enableHierarchy."""
HARMLESS_FILTERS: frozenset[str] = frozenset({"conformance"})
"""They keep only the cluster's critical pods back, so they leave no set empty in practice."""
JOB_ORDERS: frozenset[str] = frozenset({"priority", "gang", "drf", "sla", "tdm"})
STARVING: frozenset[str] = frozenset({"gang", "priority", "tdm"})
"""Plugins that say which jobs may have others evicted."""
