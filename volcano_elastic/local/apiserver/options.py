"""What a request asks for beside its body: the object it is about, and how to treat it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from volcano_elastic.local.apiserver.kind import Kind
from volcano_elastic.local.apiserver.status import (
    bad_request,
    options_invalid,
    required,
    unsupported,
)


@dataclass(frozen=True, slots=True)
class Target:
    """What a request is about."""

    kind: Kind
    namespace: str
    name: str
    subresource: str = ""


@dataclass(slots=True)
class WriteOptions:
    """The query of a write; `warnings` collects what the answer should warn of.

    `unknown`: paths of fields that were dropped and not yet reported.
    """

    dry_run: bool = False
    field_validation: str = "Ignore"
    field_manager: str = "unknown"
    force: bool = False
    field_manager_given: bool = False
    warnings: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def check_apply(self) -> None:
        """Raises StatusError, 422, if nobody says who applies."""
        if not self.field_manager_given:
            cause = required("fieldManager", "is required for apply patch")
            raise options_invalid("PatchOptions", cause)


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    grace_seconds: int | None = None
    uid: str | None = None
    resource_version: str | None = None
    propagation: str = "Background"
    dry_run: bool = False


def flag(query: Mapping[str, str], name: str) -> bool:
    """Whether a query asks for something, read as Kubernetes does: clients say `True`, too."""
    return name in query and query[name].lower() not in ("false", "0")


def delete_options(body: Any, query: Mapping[str, str]) -> DeleteOptions:
    """From the body of a DELETE, else from its query.

    Raises:
        StatusError: 400 or 422, with what was expected.
    """
    options = body if body is not None else {}
    if not isinstance(options, dict):
        raise bad_request("DeleteOptions: expected an object")
    if options.get("kind", "DeleteOptions") != "DeleteOptions":
        raise bad_request(f"expected DeleteOptions, found a {options['kind']}")
    preconditions = options.get("preconditions") or {}
    grace = options.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
    if isinstance(grace, str) and grace.lstrip("-").isdecimal():
        grace = int(grace)
    if not isinstance(preconditions, dict) or isinstance(grace, bool | str | float | list | dict):
        raise bad_request(
            "DeleteOptions: expected preconditions to be an object and gracePeriodSeconds an "
            f"integer, found {preconditions!r} and {grace!r}"
        )
    propagation = options.get("propagationPolicy") or query.get("propagationPolicy")
    if propagation is None:
        orphan = options.get("orphanDependents", flag(query, "orphanDependents"))
        propagation = "Orphan" if orphan is True else "Background"
    if propagation not in ("Background", "Foreground", "Orphan"):
        known = ["Background", "Foreground", "Orphan"]
        cause = unsupported("propagationPolicy", propagation, known)
        raise options_invalid("DeleteOptions", cause)
    return DeleteOptions(
        grace,
        preconditions.get("uid"),
        preconditions.get("resourceVersion"),
        propagation,
        bool(options.get("dryRun") or query.get("dryRun")),
    )
