"""Every field of a PyTorchJob's spec that is read here; the CRD declares the same ones.

Kubeflow's schema has neither enumerations nor ranges. Those here refuse what could never run.
"""

from __future__ import annotations

from volcano_elastic.api.shape import Amount, Fields, Flag, Integer, Items, Named, Text

CONTROLLER = "kubeflow.org/training-operator"
MANAGERS = (CONTROLLER, "kueue.x-k8s.io/multikueue")
CLEAN_POD_POLICIES = ("All", "Running", "None")
RDZV_BACKENDS = ("volcano-elastic", "c10d", "etcd", "etcd-v2")

# Our own, on jobs.
ANNOTATION_PREFIX = "volcano-elastic.io/"
SHARED_MEMORY_ANNOTATION = ANNOTATION_PREFIX + "shared-memory"
MOST_MEMORY_ANNOTATION = ANNOTATION_PREFIX + "most-memory"
CPU_LIMIT_ANNOTATION = ANNOTATION_PREFIX + "cpu-limit"
USER_ANNOTATION = ANNOTATION_PREFIX + "user"
DATA_SET_ANNOTATION = ANNOTATION_PREFIX + "data-set"
BRAIN_ANNOTATION = ANNOTATION_PREFIX + "brain"
"""A quantity; on pod templates too."""
ADOPT_ANNOTATION = ANNOTATION_PREFIX + "adopt"
"""`true`: whoever wrote the job before us is gone."""

INJECT_ANNOTATION = ANNOTATION_PREFIX + "inject-trainer"
"""`true`, or the image to take the trainer from: pods whose image lacks it get it."""

_OPEN = Fields({}, open=True)
_SIZE = Integer(least=1)

_RESOURCES = Fields({"limits": Named(Amount()), "requests": Named(Amount())}, open=True)
_CONTAINER = Fields(
    {
        "name": Text(),
        "image": Text(),
        "restartPolicy": Text(),
        "env": Items(_OPEN),
        "ports": Items(
            Fields(
                {"name": Text(), "containerPort": Integer(1, 65535)},
                open=True,
                required=("containerPort",),
            )
        ),
        "volumeMounts": Items(Fields({"mountPath": Text()}, open=True)),
        "resources": _RESOURCES,
    },
    open=True,
    required=("name",),
)
_REQUIREMENTS = Items(
    Fields(
        {"key": Text(), "operator": Text(), "values": Items(Text())},
        open=True,
        required=("key", "operator"),
    )
)
_NODE_SELECTOR = Fields(
    {
        "nodeSelectorTerms": Items(
            Fields({"matchExpressions": _REQUIREMENTS, "matchFields": _REQUIREMENTS}, open=True)
        )
    },
    open=True,
)
_NODE_AFFINITY = Fields(
    {"requiredDuringSchedulingIgnoredDuringExecution": _NODE_SELECTOR}, open=True
)
_TOLERATION = Fields(
    {"key": Text(), "operator": Text(), "value": Text(), "effect": Text()}, open=True
)
_TEMPLATE = Fields(
    {
        "metadata": Fields({"labels": Named(Text()), "annotations": Named(Text())}, open=True),
        "spec": Fields(
            {
                "containers": Items(_CONTAINER),
                "initContainers": Items(_CONTAINER),
                "overhead": Named(Amount()),
                "resources": _RESOURCES,
                "schedulerName": Text(),
                "nodeSelector": Named(Text()),
                "affinity": Fields({"nodeAffinity": _NODE_AFFINITY}, open=True),
                "tolerations": Items(_TOLERATION),
                "terminationGracePeriodSeconds": Integer(least=0),
                "resourceClaims": Items(_OPEN),
                "volumes": Items(_OPEN),
            },
            open=True,
        ),
    },
    open=True,
)
REPLICA = Fields(
    {
        "replicas": Integer(),
        # Another word would be refused in every pod.
        "restartPolicy": Text(("Always", "OnFailure", "Never", "ExitCode")),
        "template": _TEMPLATE,
    }
)
ELASTIC_POLICY = Fields(
    {
        "minReplicas": _SIZE,
        "maxReplicas": _SIZE,
        "min": _SIZE,
        "max": _SIZE,
        "nodeUnit": _SIZE,
        "cooldownSeconds": Integer(least=0),
        "scaler": Text(("volcano", "hpa", "none")),
        "coordinator": Text(("worker0", "dedicated")),
        "rdzvBackend": Text(),
        "rdzvPort": Integer(1, 65535),
        "rdzvHost": Text(),
        "rdzvId": Text(),
        "rdzvConf": Items(Fields({"key": Text(), "value": Text()})),
        "standalone": Flag(),
        "nProcPerNode": Integer(least=1),
        "maxRestarts": Integer(least=0),
        "metrics": Items(_OPEN),
    }
)
SCHEDULING_POLICY = Fields(
    {
        "minAvailable": Integer(least=0),
        "queue": Text(),
        # Of all pods together; the PodGroup's stay within what Volcano can count.
        "minResources": Named(Amount(most=2**63 - 1)),
        "priorityClass": Text(),
        "scheduleTimeoutSeconds": Integer(),
    }
)
RUN_POLICY = Fields(
    {
        "cleanPodPolicy": Text(),
        "ttlSecondsAfterFinished": Integer(least=0),
        "activeDeadlineSeconds": Integer(0, 2**63 - 1),
        "backoffLimit": Integer(least=0),
        "suspend": Flag(),
        "managedBy": Text(MANAGERS),
        "schedulingPolicy": SCHEDULING_POLICY,
    }
)
SPEC = Fields(
    {
        "pytorchReplicaSpecs": Named(REPLICA),
        "nprocPerNode": Text(),
        "elasticPolicy": ELASTIC_POLICY,
        "runPolicy": RUN_POLICY,
    }
)
