"""Kubernetes' protobuf bodies, of the kinds that kubectl's typed commands send; answers are JSON.

`kubectl create namespace|configmap|secret|serviceaccount|priorityclass|service` and `drain` know no
other way. Field numbers are those of Kubernetes' generated.proto; types are in builtin_types.txt.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from embedded_cluster.apiserver.builtin_type import types
from embedded_cluster.apiserver.status import bad_request, unsupported_media_type
from volcano_elastic.kube.resource import Object

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_NUMBERS = {
    "ConfigMap": "1 metadata 2 data 3 binaryData 4 immutable",
    "DeleteOptions": "1 gracePeriodSeconds 2 preconditions 3 orphanDependents 4 propagationPolicy "
    "5 dryRun",
    "Eviction": "1 metadata 2 deleteOptions",
    "LocalObjectReference": "1 name",
    "Namespace": "1 metadata 2 spec 3 status",
    "NamespaceSpec": "1 finalizers",
    "NamespaceStatus": "1 phase",
    "ObjectMeta": "1 name 2 generateName 3 namespace 4 selfLink 5 uid 6 resourceVersion "
    "7 generation 8 creationTimestamp 9 deletionTimestamp 10 deletionGracePeriodSeconds 11 labels "
    "12 annotations 13 ownerReferences 14 finalizers",
    "OwnerReference": "1 kind 3 name 4 uid 5 apiVersion 6 controller 7 blockOwnerDeletion",
    "Preconditions": "1 uid 2 resourceVersion",
    "PriorityClass": "1 metadata 2 value 3 globalDefault 4 description 5 preemptionPolicy",
    "Secret": "1 metadata 2 data 3 type 4 stringData 5 immutable",
    "Service": "1 metadata 2 spec 3 status",
    "ServicePort": "1 name 2 protocol 3 port 4 targetPort 5 nodePort 6 appProtocol",
    "ServiceSpec": "1 ports 2 selector 3 clusterIP 4 type 5 externalIPs 7 sessionAffinity "
    "8 loadBalancerIP 10 externalName 11 externalTrafficPolicy 12 healthCheckNodePort "
    "13 publishNotReadyAddresses 18 clusterIPs",
    "ServiceStatus": "1 loadBalancer",
    "LoadBalancerStatus": "",
    "ServiceAccount": "1 metadata 3 imagePullSecrets 4 automountServiceAccountToken",
}


def decode(raw: bytes) -> Object:
    """The object in JSON's form.

    Raises:
        StatusError: 415 for a kind or field that is not known here, 400 for what is no protobuf.
    """
    if not raw.startswith(_MAGIC):
        raise bad_request(f"a body of type {CONTENT_TYPE}: expected it to begin with k8s\\0")
    try:
        envelope = dict(_fields(raw[len(_MAGIC) :]))
        kind = {name: _text(value) for name, value in _fields(envelope[1])}
        return {"apiVersion": kind[1], "kind": kind[2], **_message(envelope[2], kind[2])}
    except (KeyError, IndexError, ValueError, TypeError, OverflowError) as error:
        raise bad_request(f"a body of type {CONTENT_TYPE} cannot be read: {error!r}") from error


@functools.cache
def _numbers(name: str) -> dict[int, str]:
    if name not in _NUMBERS:
        raise unsupported_media_type(f"{CONTENT_TYPE} of a {name}", "application/json")
    words = _NUMBERS[name].split()
    return {int(number): field for number, field in zip(words[::2], words[1::2], strict=True)}


def _message(raw: bytes, name: str) -> Object:
    found: Object = {}
    for number, value in _fields(raw):
        field = _numbers(name).get(number)
        if field is None:
            what = f"{CONTENT_TYPE} with field {number} of a {name}"
            raise unsupported_media_type(what, "application/json")
        wanted = types()[name][field]
        if wanted[0] == "[":
            found.setdefault(field, []).append(_value(value, wanted[1:-1]))
        elif wanted[0] == "{":
            entry = dict(_fields(value))
            key = _text(entry.get(1, b""))
            found.setdefault(field, {})[key] = _value(entry.get(2, b""), wanted[1:-1])
        else:
            found[field] = _value(value, wanted)
    return found


def _value(value: Any, wanted: str) -> Any:
    match wanted:
        case "string":
            return _text(value)
        case "bytes":
            return base64.b64encode(value).decode()
        case "integer":
            return value - (1 << 64) if value >> 63 else int(value)
        case "boolean":
            return bool(value)
        case "time":
            seconds = dict(_fields(value)).get(1, 0)
            stamp = datetime.fromtimestamp(seconds, UTC) if seconds else None
            return stamp and stamp.strftime("%Y-%m-%dT%H:%M:%SZ")
        case "intOrString":
            parts = dict(_fields(value))
            return _text(parts.get(3, b"")) if parts.get(1) else parts.get(2, 0)
    return _message(value, wanted)


def _text(value: bytes) -> str:
    return value.decode()


def _fields(raw: bytes) -> Iterator[tuple[int, Any]]:
    """Each field's number, with its bytes or, of a varint, its number."""
    at = 0
    while at < len(raw):
        key, at = _varint(raw, at)
        if key & 7 == 0:
            value, at = _varint(raw, at)
            yield key >> 3, value
        elif key & 7 == 2:
            length, at = _varint(raw, at)
            if at + length > len(raw):
                raise ValueError(f"expected {length} bytes at {at}, found {len(raw) - at}")
            yield key >> 3, raw[at : at + length]
            at += length
        else:
            raise ValueError(f"expected a varint or bytes at {at}, found wire type {key & 7}")


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError(f"a number at {at} has no end")
