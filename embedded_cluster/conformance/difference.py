"""Compares two servers' answers to one case, after masking what must differ. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from embedded_cluster.conformance.case import Case
from embedded_cluster.conformance.player import Answer

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)")
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_ADDRESS = re.compile(r"\b10\.96\.\d+\.\d+\b")
_AGE = re.compile(r"\d+(ms|s|m|m\d+s)")
# Lists have the revision of the moment; the others are changed by controllers at any moment too.
_SHARED = ("List", "Table", "Node", "CustomResourceDefinition", "Namespace")
_NODE_KEY = "node.kubernetes.io/"
_MISSING = "(nothing)"


@dataclass(frozen=True, slots=True)
class Difference:
    """One place of one answer; `where` names it: noun/case#number verb path: place."""

    where: str
    real: Any
    embedded: Any


def differences(
    case: Case, namespace: str, real: list[Answer], ours: list[Answer]
) -> list[Difference]:
    found = []
    masks = _Mask(namespace), _Mask(namespace)
    for number, (theirs, mine) in enumerate(zip(real, ours, strict=True), start=1):
        where = f"{case.noun}/{case.name}#{number} {theirs.step.text}"
        wanted, got = (
            {
                "status": answer.status,
                "headers": mask.of(answer.headers),
                "body": mask.of(answer.body),
            }
            for mask, answer in zip(masks, (theirs, mine), strict=True)
        )
        if theirs.step.unseen:
            wanted, got = {"status": theirs.status}, {"status": mine.status}
        elif theirs.status != mine.status:
            # The rest follows from that; what was said tells why.
            found.append(Difference(f"{where}: status", _said(wanted), _said(got)))
            continue
        found += [
            Difference(f"{where}: {place}", a, b) for place, a, b in _compare(wanted, got, "")
        ]
    return found


def _said(answer: dict[str, Any]) -> str:
    body = answer["body"]
    message = body.get("message", "") if isinstance(body, dict) else ""
    return f"{answer['status']} {message}".strip()


def _compare(real: Any, ours: Any, place: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(real, dict) and isinstance(ours, dict):
        for key in sorted({*real, *ours}):
            below = f"{place}.{key}" if place else key
            yield from _compare(real.get(key, _MISSING), ours.get(key, _MISSING), below)
    elif isinstance(real, list) and isinstance(ours, list) and len(real) == len(ours):
        for number, (one, other) in enumerate(zip(real, ours, strict=True)):
            yield from _compare(one, other, f"{place}[{number}]")
    elif real != ours or type(real) is not type(ours):
        yield place, real, ours


class _Mask:
    """Replaces what no two servers have in common by its order of appearance."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._uids: dict[str, str] = {}
        self._revisions: dict[str, str] = {}
        self._seen: set[str] = set()

    def answer(self, answer: Answer) -> dict[str, Any]:
        return {
            "status": answer.status,
            "headers": self.of(answer.headers),
            "body": self.of(answer.body),
        }

    def of(self, value: Any) -> Any:
        if isinstance(value, dict):
            return self._object(value)
        if isinstance(value, list):
            return [self.of(one) for one in value]
        if isinstance(value, str):
            return self._text(value)
        return value

    def _object(self, value: dict[str, Any]) -> dict[str, Any]:
        kind = str(value.get("kind") or "")
        masked = {}
        for name, one in value.items():
            if name == "metadata" and isinstance(one, dict):
                one = self._metadata(one, alone=not kind.endswith(_SHARED))
            elif name == "cells" and isinstance(one, list):
                one = [
                    _AGE.sub("AGE", self.of(c))
                    if isinstance(c, str) and _AGE.fullmatch(c)
                    else self.of(c)
                    for c in one
                ]
            elif name == "resources" and isinstance(one, list) and kind == "APIResourceList":
                # In the order in which their CRDs happened to be seen.
                one = sorted(self.of(one), key=lambda resource: str(resource["name"]))
            elif name == "causes" and isinstance(one, list):
                # Go's maps have no order.
                one = sorted(
                    self.of(one), key=lambda cause: (cause.get("field", ""), cause["message"])
                )
            elif name == "taints" and isinstance(one, list):
                # The node controller's, which come and go with its rounds.
                one = [self.of(t) for t in one if not str(t.get("key")).startswith(_NODE_KEY)]
                if not one:
                    continue
            else:
                one = self.of(one)
            masked[self._text(name)] = one
        return masked

    def _metadata(self, meta: dict[str, Any], *, alone: bool) -> dict[str, Any]:
        # Who changed which field is compared by what an apply does, not by its records.
        meta = {name: one for name, one in meta.items() if name != "managedFields"}
        # A bookmark and a list have the revision of the moment.
        alone = alone and "uid" in meta
        if version := str(meta.get("resourceVersion") or ""):
            self._seen.add(version)
            meta["resourceVersion"] = "REVISION"
            if alone:
                same = self._revisions.get(meta["uid"]) == version
                meta["resourceVersion"] += " as before" if same else " new"
                self._revisions[meta["uid"]] = version
        if meta.get("continue"):
            meta["continue"] = "CONTINUE"
        prefix, name = meta.get("generateName"), str(meta.get("name", ""))
        if prefix and name.startswith(prefix):
            meta["name"] = f"{prefix}({len(name) - len(prefix)} letters)"
        return {name: self.of(one) for name, one in meta.items()}

    def _text(self, text: str) -> str:
        text = text.replace(self._namespace, "$ns")
        text = _TIME.sub("TIME", text)
        text = _ADDRESS.sub("ADDRESS", text)
        # Before revisions, whose digits may stand between two hyphens of a uid.
        text = _UID.sub(
            lambda match: self._uids.setdefault(match[0], f"uid {len(self._uids) + 1}"), text
        )
        for version in self._seen:
            text = re.sub(rf"(?<!uid )\b{version}\b", "REVISION", text)
        return text
