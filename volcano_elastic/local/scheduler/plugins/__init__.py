"""Plugins: what each says about jobs, tasks, queues and nodes; none of them changes anything."""

from __future__ import annotations

from collections.abc import Mapping

from volcano_elastic.local.scheduler.plugins import binpack as _binpack
from volcano_elastic.local.scheduler.plugins import nodeorder as _nodeorder
from volcano_elastic.local.scheduler.plugins.capacity import capacity
from volcano_elastic.local.scheduler.plugins.cdp import cdp
from volcano_elastic.local.scheduler.plugins.conformance import conformance
from volcano_elastic.local.scheduler.plugins.drf import drf
from volcano_elastic.local.scheduler.plugins.gang import gang
from volcano_elastic.local.scheduler.plugins.overcommit import overcommit
from volcano_elastic.local.scheduler.plugins.predicates import predicates
from volcano_elastic.local.scheduler.plugins.priority import priority
from volcano_elastic.local.scheduler.plugins.proportion import proportion
from volcano_elastic.local.scheduler.session import Plugin

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
