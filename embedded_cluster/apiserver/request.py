"""A request taken apart: what it is about, who asks, what it brings, and how to treat that."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import yaml
from aiohttp import web

from embedded_cluster.apiserver import protobuf
from embedded_cluster.apiserver.builtin_type import DecodeError, taken
from embedded_cluster.apiserver.kind import Kind
from embedded_cluster.apiserver.patch import APPLY
from embedded_cluster.apiserver.status import (
    StatusError,
    bad_request,
    forbidden_field,
    invalid_value,
    options_invalid,
    patch_refused,
    required,
    unsupported,
    unsupported_media_type,
)
from volcano_elastic.kube.resource import Object

_TOKEN_PREFIX = "/token/"
_YAML = ("application/yaml", "application/x-yaml", "text/yaml", "application/apply-patch+yaml")
# The last two are what curl -d and plain HTTP libraries call JSON.
_JSON = ("", "application/json", "application/x-www-form-urlencoded", "text/plain")
_ACCEPTED = "application/json, application/yaml"
_NAMES = {"POST": "CreateOptions", "PATCH": "PatchOptions"}
_PROPAGATIONS = ("Background", "Foreground", "Orphan")
_VALIDATIONS = ("Ignore", "Strict", "Warn")
_YAML_DEPTH = 200
# Python itself reads no number of thousands of digits.
_NUMBER = re.compile(r"[-+]?[0-9]{1,19}")
_NO_TIME = 10**9
"""Seconds: thirty years and more, of which no deletionTimestamp could be made some day."""


@dataclass(frozen=True, slots=True)
class Address:
    """A resource path, taken apart. `namespace` None means all, or a cluster-scoped kind."""

    group: str
    version: str
    plural: str
    namespace: str | None = None
    name: str = ""
    subresource: str = ""


def address(path: str) -> Address | None:
    """None for what is no resource's path (`/apis`, `/api/v1`, `/version`)."""
    parts = path.strip("/").split("/")
    if parts[0] == "api":
        group, rest = "", parts[1:]
    elif parts[0] == "apis" and len(parts) > 1:
        group, rest = parts[1], parts[2:]
    else:
        return None
    if len(rest) < 2 or not all(rest):
        return None
    version, *rest = rest
    namespace = None
    # /namespaces/NAME and /namespaces/NAME/status are about the namespace itself.
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] != "status":
        namespace, rest = rest[1], rest[2:]
    if len(rest) > 3:
        return None
    plural, name, subresource = [*rest, "", ""][:3]
    return Address(group, version, plural, namespace, name, subresource)


def path_and_token(request: web.BaseRequest) -> tuple[str, str]:
    """The path without a token in it, and the token: from `/token/TOKEN/...` or the header.

    client-go keeps a kubeconfig's token to itself unless the server speaks TLS, so kubectl's
    kubeconfig has to have it in the server's URL.
    """
    path = request.path
    if path.startswith(_TOKEN_PREFIX):
        token, _, rest = path.removeprefix(_TOKEN_PREFIX).partition("/")
        return "/" + rest, token
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return path, token.strip() if scheme.lower() == "bearer" else ""


async def body(request: web.BaseRequest) -> Any:
    """Return the body: JSON, YAML, or the protobuf of a few kinds; None for an empty one.

    Raises:
        StatusError: 415 for other formats, 400 for what cannot be read.
    """
    raw = await request.read()
    content_type = request.content_type if "Content-Type" in request.headers else ""
    if not raw:
        return None
    if content_type == protobuf.CONTENT_TYPE:
        return protobuf.decode(raw)
    if content_type not in (*_JSON, *_YAML) and not content_type.endswith("+json"):
        raise unsupported_media_type(content_type, _ACCEPTED)
    try:
        value = orjson.loads(raw)
        # Go reads null into an object as an object with nothing in it.
        return {} if value is None else value
    except orjson.JSONDecodeError as error:
        if content_type not in _YAML:
            raise bad_request(f"the body is not JSON: {error}") from error
    try:
        _check_yaml(raw)
        value = yaml.load(raw, yaml.CSafeLoader)
        # What JSON cannot say (dates, sets, numbers as keys) must not reach the store.
        return orjson.loads(orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS))
    except (yaml.YAMLError, orjson.JSONEncodeError, RecursionError, ValueError) as error:
        raise bad_request(f"the body is not YAML: {error}") from error


def _check_yaml(raw: bytes) -> None:
    """Raises ValueError for what would fill the memory, or the stack, once it is read."""
    depth = 0
    for event in yaml.parse(raw, yaml.CSafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _YAML_DEPTH:
            raise ValueError(f"expected at most {_YAML_DEPTH} lists and objects within each other")
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("aliases are not read here; say what is meant where it is meant")


@dataclass(frozen=True, slots=True)
class Target:
    """The object or collection that a request is about."""

    kind: Kind
    namespace: str
    name: str
    subresource: str = ""


@dataclass(slots=True)
class WriteOptions:
    """The query of a write; `warnings` collects what the answer should warn of.

    `unknown`: paths of fields that were dropped and not yet reported. `patched`: whether the client
    sent a change of an object, not the object.
    """

    dry_run: bool = False
    field_validation: str = "Ignore"
    field_manager: str = "unknown"
    force: bool = False
    patched: bool = False
    warnings: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    @property
    def refuse(self) -> Callable[[str], StatusError]:
        """Return the error for an object that is not of its kind, sent or made by a patch."""
        return patch_refused if self.patched else bad_request


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    grace_seconds: int | None = None
    uid: str | None = None
    resource_version: str | None = None
    propagation: str = "Background"
    dry_run: bool = False


def flag(query: Mapping[str, str], name: str) -> bool:
    """Return whether a query asks for something, read as Kubernetes does: clients say `True`,
    too."""
    return name in query and query[name].lower() not in ("false", "0")


def number(query: Mapping[str, str], name: str) -> int | None:
    """Raises StatusError, 400, for what is no number of at most 19 digits, as 64 bits have."""
    text = query.get(name)
    if text is not None and not _NUMBER.fullmatch(text):
        raise bad_request(f"{name}: expected a number, found {text[:40]!r}")
    return None if text is None else int(text)


def revision(query: Mapping[str, str]) -> int | None:
    """The resourceVersion that is asked for; None for none. Raises StatusError as `number`."""
    if query.get("resourceVersion", "").startswith(("+", "-")):
        raise bad_request(f"resourceVersion: expected digits, found {query['resourceVersion']!r}")
    return number(query, "resourceVersion") if query.get("resourceVersion") else None


def write_options(request: web.BaseRequest) -> WriteOptions:
    """Raises StatusError, 422, for values Kubernetes doesn't know, or an apply by nobody."""
    query, name = request.query, _NAMES.get(request.method, "UpdateOptions")
    dry_run, validation = query.getall("dryRun", []), query.get("fieldValidation") or "Warn"
    if {*dry_run} - {"All"}:
        raise options_invalid(name, unsupported("dryRun", dry_run, ["All"]))
    if validation not in _VALIDATIONS:
        raise options_invalid(name, unsupported("fieldValidation", validation, _VALIDATIONS))
    manager = query.get("fieldManager")
    if not manager and request.content_type == APPLY:
        raise options_invalid(name, required("fieldManager", "is required for apply patch"))
    if manager and not (len(manager.encode()) <= 128 and manager.isprintable()):
        why = "must be printable, of at most 128 bytes"
        raise options_invalid(name, invalid_value("fieldManager", manager, why))
    agent = request.headers.get("User-Agent", "unknown").partition("/")[0]
    patched = request.method == "PATCH"
    return WriteOptions(bool(dry_run), validation, manager or agent, flag(query, "force"), patched)


def check_list(query: Mapping[str, str], *, watch: bool) -> None:
    """Refuse what a list or a watch can't be asked for.

    Raises:
        StatusError: 422.
    """
    match, version = query.get("resourceVersionMatch", ""), query.get("resourceVersion", "")
    initial, field = "sendInitialEvents" in query, "resourceVersionMatch"
    known = ("NotOlderThan",) if watch else ("Exact", "NotOlderThan")
    refused = [
        (
            watch and initial and match != "NotOlderThan",
            f"sendInitialEvents needs {field}=NotOlderThan",
        ),
        (watch and match and not initial, "is for watches with sendInitialEvents"),
        (not watch and match and not version, "is for lists with a resourceVersion"),
        (not watch and match and query.get("continue"), "is not for lists that go on"),
        (match == "Exact" and version == "0", "resourceVersion 0 is no exact one"),
    ]
    causes = [forbidden_field(field, why) for holds, why in refused if holds]
    if initial and not watch:
        causes.append(forbidden_field("sendInitialEvents", "is for watches"))
    if match and match not in known:
        causes.append(unsupported(field, match, known))
    if causes:
        raise options_invalid("ListOptions", *causes)


def typed(sent: Any, name: str, refuse: Callable[[str], StatusError] = bad_request) -> Object:
    """Return the body, checked against a built-in type that is no kind of its own (DeleteOptions,
    ...).

    Raises:
        StatusError: of `refuse`, it is no such thing.
    """
    try:
        return taken(sent, name)
    except DecodeError as error:
        raise refuse(str(error)) from error


def delete_options(sent: Any, query: Mapping[str, str]) -> DeleteOptions:
    """From the body of a DELETE; from its query where it has none.

    Raises:
        StatusError: 400 or 422, with what was expected.
    """
    if sent is None:
        sent = {
            "dryRun": [query["dryRun"]] if "dryRun" in query else None,
            "gracePeriodSeconds": number(query, "gracePeriodSeconds"),
            "orphanDependents": flag(query, "orphanDependents") or None,
            "propagationPolicy": query.get("propagationPolicy"),
        }
    options = typed(sent, "DeleteOptions")
    grace, orphan = options.get("gracePeriodSeconds"), options.get("orphanDependents")
    if abs(grace or 0) >= _NO_TIME:
        raise bad_request(f"expected gracePeriodSeconds an integer below {_NO_TIME}, found {grace}")
    propagation, dry_run = options.get("propagationPolicy"), options.get("dryRun") or []
    causes = []
    if propagation is not None and orphan is not None:
        why = "may not be beside orphanDependents"
        causes.append(invalid_value("propagationPolicy", propagation, why))
    if propagation not in (None, *_PROPAGATIONS):
        causes.append(unsupported("propagationPolicy", propagation, _PROPAGATIONS))
    if {*dry_run} - {"All"}:
        causes.append(unsupported("dryRun", dry_run, ["All"]))
    if causes:
        raise options_invalid("DeleteOptions", *causes)
    preconditions = options.get("preconditions") or {}
    return DeleteOptions(
        grace,
        preconditions.get("uid"),
        preconditions.get("resourceVersion"),
        propagation or ("Orphan" if orphan else "Background"),
        bool(dry_run),
    )
