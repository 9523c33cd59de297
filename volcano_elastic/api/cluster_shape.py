"""The shapes of the fields that are read from objects of other projects: for files that no API
server has checked."""

from __future__ import annotations

from volcano_elastic.api.shape import Amount, Fields, Flag, Integer, Items, Named, Shape, Text

_OPEN = Fields({}, open=True)
_AMOUNTS = Named(Amount())

METADATA = Fields(
    {
        "name": Text(),
        "namespace": Text(),
        "labels": Named(Text()),
        "annotations": Named(Text()),
        "creationTimestamp": Text(),
    },
    open=True,
    required=("name",),
)
_OBJECT: dict[str, Shape] = {"apiVersion": Text(), "kind": Text(), "metadata": METADATA}

QUEUE = Fields(
    {
        **_OBJECT,
        "spec": Fields(
            {
                "weight": Integer(1, 65535),
                "capability": _AMOUNTS,
                "deserved": _AMOUNTS,
                "guarantee": Fields({"resource": _AMOUNTS}),
                "parent": Text(),
                "priority": Integer(least=0),
                "reclaimable": Flag(),
                "type": Text(),
                "affinity": _OPEN,
                "extendClusters": Items(_OPEN),
                "dequeueStrategy": Text(("fifo", "traverse")),
            }
        ),
        "status": Fields({"state": Text(("Open", "Closed", "Closing", "Unknown"))}, open=True),
    },
    required=("metadata",),
)

_TAINT = Fields(
    {
        "key": Text(),
        "value": Text(),
        "effect": Text(("NoSchedule", "PreferNoSchedule", "NoExecute")),
        "timeAdded": Text(),
    },
    required=("key", "effect"),
)
NODE = Fields(
    {
        **_OBJECT,
        "spec": Fields(
            {
                "unschedulable": Flag(),
                "taints": Items(_TAINT),
                "podCIDR": Text(),
                "podCIDRs": Items(Text()),
                "providerID": Text(),
                "externalID": Text(),
                "configSource": _OPEN,
                "podPreemptionPolicy": _OPEN,
            }
        ),
        "status": Fields(
            {
                "allocatable": _AMOUNTS,
                "capacity": _AMOUNTS,
                "conditions": Items(
                    Fields(
                        {"type": Text(), "status": Text(("True", "False", "Unknown"))},
                        open=True,
                        required=("type", "status"),
                    )
                ),
            },
            open=True,
        ),
    }
)

PRIORITY_CLASS = Fields(
    {
        **_OBJECT,
        # More is Kubernetes' own.
        "value": Integer(most=1_000_000_000),
        "globalDefault": Flag(),
        "preemptionPolicy": Text(("Never", "PreemptLowerPriority")),
        "description": Text(),
    },
    required=("value",),
)

LIST = Fields({"metadata": _OPEN, "items": Items(_OPEN)}, open=True)
CONFIG_MAP = Fields({"metadata": METADATA, "data": Named(Text())}, open=True)
_CONTAINER = Fields({"command": Items(Text()), "args": Items(Text())}, open=True)
_PODS = Fields({"spec": Fields({"containers": Items(_CONTAINER)}, open=True)}, open=True)
DEPLOYMENT = Fields(
    {"metadata": METADATA, "spec": Fields({"template": _PODS}, open=True)}, open=True
)
