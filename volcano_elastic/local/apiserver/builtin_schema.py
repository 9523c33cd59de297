"""The types of those fields of built-in kinds that this server reads itself.

Not the whole of Kubernetes' types: a field that nobody here touches travels unchecked.
"""

from __future__ import annotations

from volcano_elastic.kube.resource import Object
from volcano_elastic.local.apiserver import schema
from volcano_elastic.local.apiserver.kind import Kind
from volcano_elastic.local.apiserver.status import Cause


def _object(**properties: Object) -> Object:
    return {"type": "object", "properties": properties, "nullable": True}


def _list(items: Object, *required: str) -> Object:
    element = {**items, "nullable": False, "required": list(required)}
    return {"type": "array", "items": element, "nullable": True}


def _map(values: Object) -> Object:
    return {"type": "object", "additionalProperties": values, "nullable": True}


_STRING: Object = {"type": "string", "nullable": True}
_INT: Object = {"type": "integer", "nullable": True}
_BOOL: Object = {"type": "boolean", "nullable": True}
_ANY: Object = {}
_INT_OR_STRING: Object = {"x-kubernetes-int-or-string": True, "nullable": True}
_QUANTITIES = _map(
    {"anyOf": [{"type": "number"}, {"type": "string"}]},
)
_CONDITIONS = _list(_object(type=_STRING, status=_STRING, reason=_STRING), "type", "status")
_CONTAINER = _object(
    name=_STRING,
    image=_STRING,
    command=_list(_STRING),
    args=_list(_STRING),
    resources=_object(limits=_QUANTITIES, requests=_QUANTITIES),
    env=_list(_object(name=_STRING, value=_STRING, valueFrom=_object(fieldRef=_object())), "name"),
    ports=_list(_object(containerPort=_INT, protocol=_STRING), "containerPort"),
    volumeMounts=_list(_object(name=_STRING, mountPath=_STRING), "name", "mountPath"),
)
_CONTAINER_STATUSES = _list(
    _object(name=_STRING, ready=_BOOL, restartCount=_INT, state=_map(_object()))
)
_POD = _object(
    spec=_object(
        containers=_list(_CONTAINER),
        initContainers=_list(_CONTAINER),
        volumes=_list(_object(name=_STRING), "name"),
        nodeName=_STRING,
        nodeSelector=_map(_STRING),
        tolerations=_list(_object()),
        schedulerName=_STRING,
        restartPolicy=_STRING,
        serviceAccountName=_STRING,
        priorityClassName=_STRING,
        priority=_INT,
        terminationGracePeriodSeconds=_INT,
        activeDeadlineSeconds=_INT,
        schedulingGates=_list(_object(name=_STRING), "name"),
        readinessGates=_list(_object()),
    ),
    status=_object(
        phase=_STRING,
        reason=_STRING,
        podIP=_STRING,
        hostIP=_STRING,
        startTime=_STRING,
        conditions=_CONDITIONS,
        containerStatuses=_CONTAINER_STATUSES,
        initContainerStatuses=_CONTAINER_STATUSES,
    ),
)
_REFERENCE = _object(kind=_STRING, namespace=_STRING, name=_STRING, uid=_STRING)
_SCHEMAS: dict[tuple[str, str], Object] = {
    ("", "pods"): _POD,
    ("", "nodes"): _object(
        spec=_object(unschedulable=_BOOL, taints=_list(_object(key=_STRING, effect=_STRING))),
        status=_object(
            conditions=_CONDITIONS,
            addresses=_list(_object(type=_STRING, address=_STRING)),
            capacity=_QUANTITIES,
            allocatable=_QUANTITIES,
            nodeInfo=_map(_ANY),
        ),
    ),
    ("", "services"): _object(
        spec=_object(
            type=_STRING,
            clusterIP=_STRING,
            clusterIPs=_list(_STRING),
            selector=_map(_STRING),
            ports=_list(
                _object(name=_STRING, port=_INT, protocol=_STRING, targetPort=_INT_OR_STRING),
                "port",
            ),
            externalIPs=_list(_STRING),
            externalName=_STRING,
        ),
    ),
    ("", "namespaces"): _object(
        spec=_object(finalizers=_list(_STRING)), status=_object(phase=_STRING)
    ),
    ("", "events"): _object(
        involvedObject=_REFERENCE,
        regarding=_REFERENCE,
        reason=_STRING,
        message=_STRING,
        note=_STRING,
        type=_STRING,
        count=_INT,
        firstTimestamp=_STRING,
        lastTimestamp=_STRING,
        eventTime=_STRING,
        source=_object(component=_STRING, host=_STRING),
        deprecatedSource=_object(component=_STRING, host=_STRING),
        series=_object(count=_INT),
    ),
    ("", "configmaps"): _object(data=_map(_STRING), binaryData=_map(_STRING)),
    ("", "secrets"): _object(data=_map(_STRING), stringData=_map(_STRING), type=_STRING),
    ("scheduling.k8s.io", "priorityclasses"): _object(
        value=_INT, globalDefault=_BOOL, preemptionPolicy=_STRING
    ),
    ("coordination.k8s.io", "leases"): _object(
        spec=_object(
            holderIdentity=_STRING,
            leaseDurationSeconds=_INT,
            renewTime=_STRING,
            acquireTime=_STRING,
        )
    ),
    ("autoscaling", "horizontalpodautoscalers"): _object(
        spec=_object(
            scaleTargetRef=_REFERENCE, minReplicas=_INT, maxReplicas=_INT, metrics=_list(_object())
        ),
        status=_object(currentReplicas=_INT, desiredReplicas=_INT, conditions=_CONDITIONS),
    ),
}
_SCHEMAS[("apiextensions.k8s.io", "customresourcedefinitions")] = _object(
    spec=_object(
        group=_STRING,
        scope=_STRING,
        names=_object(
            plural=_STRING,
            singular=_STRING,
            kind=_STRING,
            listKind=_STRING,
            shortNames=_list(_STRING),
            categories=_list(_STRING),
        ),
        versions=_list(
            _object(
                name=_STRING,
                served=_BOOL,
                storage=_BOOL,
                schema=_object(openAPIV3Schema=_object()),
                subresources=_object(
                    status=_object(),
                    scale=_object(
                        specReplicasPath=_STRING,
                        statusReplicasPath=_STRING,
                        labelSelectorPath=_STRING,
                    ),
                ),
                additionalPrinterColumns=_list(
                    _object(
                        name=_STRING,
                        type=_STRING,
                        jsonPath=_STRING,
                        format=_STRING,
                        description=_STRING,
                        priority=_INT,
                    )
                ),
            )
        ),
    ),
    status=_object(conditions=_CONDITIONS, storedVersions=_list(_STRING)),
)
_METADATA = _object(
    name=_STRING,
    generateName=_STRING,
    namespace=_STRING,
    uid=_STRING,
    resourceVersion=_STRING,
    creationTimestamp=_STRING,
    deletionTimestamp=_STRING,
    deletionGracePeriodSeconds=_INT,
    generation=_INT,
    labels=_map({"type": "string"}),
    annotations=_map({"type": "string"}),
    finalizers=_list({"type": "string"}),
    ownerReferences=_list(
        _object(
            apiVersion=_STRING,
            kind=_STRING,
            name=_STRING,
            uid=_STRING,
            controller=_BOOL,
            blockOwnerDeletion=_BOOL,
        ),
        "apiVersion",
        "kind",
        "name",
        "uid",
    ),
    managedFields=_list(_object()),
)


def type_errors(kind: Kind, obj: Object) -> list[Cause]:
    """Fields of the wrong type, in metadata and (of built-in kinds) elsewhere."""
    causes = [
        Cause(f"metadata.{cause.field}".rstrip("."), cause.reason, cause.message)
        for cause in schema.validate(obj.get("metadata") or {}, _METADATA)
    ]
    if kind.key in _SCHEMAS:
        causes += schema.validate(obj, _SCHEMAS[kind.key])
    return causes
