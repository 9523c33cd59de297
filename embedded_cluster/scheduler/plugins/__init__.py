"""Plugins: what each says about jobs, tasks, queues and nodes; none of them changes anything."""

from __future__ import annotations

from collections.abc import Mapping

from embedded_cluster.scheduler.plugins import binpack as _binpack
from embedded_cluster.scheduler.plugins import nodeorder as _nodeorder
from embedded_cluster.scheduler.plugins.capacity import capacity
from embedded_cluster.scheduler.plugins.cdp import cdp
from embedded_cluster.scheduler.plugins.conformance import conformance
from embedded_cluster.scheduler.plugins.drf import drf
from embedded_cluster.scheduler.plugins.gang import gang
from embedded_cluster.scheduler.plugins.overcommit import overcommit
from embedded_cluster.scheduler.plugins.predicates import predicates
from embedded_cluster.scheduler.plugins.priority import priority
from embedded_cluster.scheduler.plugins.proportion import proportion
from embedded_cluster.scheduler.session import Plugin

PLUGINS: Mapping[str, Plugin] = {
    "gang": gang,
    "priority": priority,
    "conformance": conformance,
    "predicates": predicates,
    "nodeorder": _nodeorder.nodeorder,
    "binpack": _binpack.binpack,
    "capacity": capacity,
    "proportion": proportion,
    "drf": drf,
    "cdp": cdp,
    "overcommit": overcommit,
}

ARGUMENTS: Mapping[str, tuple[str, ...]] = dict.fromkeys(PLUGINS, ()) | {
    "nodeorder": _nodeorder.ARGUMENTS,
    "binpack": _binpack.ARGUMENTS,
    "overcommit": ("overcommit-factor",),
}
"""By plugin, what its `arguments` may hold; a trailing * stands for any ending."""
