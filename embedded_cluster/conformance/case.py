"""Reads the cases to play: cases/*.yaml, one file a noun; README.md beside this says how to write
them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent / "cases"

# By resource: the root of its API, and whether its objects are in namespaces.
_ROOTS = {
    "configmaps": ("/api/v1", True),
    "endpoints": ("/api/v1", True),
    "events": ("/api/v1", True),
    "namespaces": ("/api/v1", False),
    "nodes": ("/api/v1", False),
    "pods": ("/api/v1", True),
    "secrets": ("/api/v1", True),
    "serviceaccounts": ("/api/v1", True),
    "services": ("/api/v1", True),
    "leases": ("/apis/coordination.k8s.io/v1", True),
    "priorityclasses": ("/apis/scheduling.k8s.io/v1", False),
    "horizontalpodautoscalers": ("/apis/autoscaling/v2", True),
    "customresourcedefinitions": ("/apis/apiextensions.k8s.io/v1", False),
    "mutatingwebhookconfigurations": ("/apis/admissionregistration.k8s.io/v1", False),
    "validatingwebhookconfigurations": ("/apis/admissionregistration.k8s.io/v1", False),
    "pytorchjobs": ("/apis/kubeflow.org/v1", True),
    "podgroups": ("/apis/scheduling.volcano.sh/v1beta1", True),
    "queues": ("/apis/scheduling.volcano.sh/v1beta1", False),
    "queuepolicies": ("/apis/policy.volcano-elastic.io/v1alpha1", False),
}
_CONTENT = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
    "yaml": "application/yaml",
    "cbor": "application/cbor",
}
_ACCEPT = {
    "table": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
}


@dataclass(frozen=True, slots=True)
class Step:
    """One request, watch, or wait, as written: `text` names it, `body` is what goes with it."""

    text: str
    verb: str
    path: str
    body: Any
    content_type: str
    accept: str
    unseen: bool
    """Only the status is compared: the rest depends on how far a controller is."""


@dataclass(frozen=True, slots=True)
class Case:
    noun: str
    name: str
    steps: tuple[Step, ...]


def cases(nouns: tuple[str, ...] = ()) -> Iterator[Case]:
    """All cases, or those of some nouns.

    Raises:
        ValueError: a step that can't be read; says where it stands.
    """
    for file in sorted(FOLDER.glob("*.yaml")):
        if nouns and file.stem not in nouns:
            continue
        for name, steps in yaml.safe_load(file.read_text()).items():
            yield Case(file.stem, name, tuple(_step(step, f"{file}: {name}") for step in steps))


def _step(written: Any, where: str) -> Step:
    text, body = next(iter(written.items())) if isinstance(written, dict) else (written, None)
    if str(text).startswith(("KUBECTL ", "PROGRAM ")):
        verb, _, rest = str(text).partition(" ")
        return Step(str(text), verb, rest, body, "", "", False)
    verb, path, *forms = str(text).split()
    content_type, accept, unseen = "application/json", "application/json", False
    for form in forms:
        if form in _CONTENT:
            content_type = _CONTENT[form]
        elif form in _ACCEPT:
            accept = _ACCEPT[form]
        elif form == "unseen":
            unseen = True
        else:
            raise ValueError(f"{where}: {text}: expected {[*_CONTENT, *_ACCEPT]}, found {form!r}")
    if verb != "EVENTS" and not path.startswith("/"):
        resource = path.partition("/")[0].partition("?")[0]
        if resource not in _ROOTS:
            raise ValueError(f"{where}: {text}: expected /PATH or one of {[*_ROOTS]}")
        root, namespaced = _ROOTS[resource]
        path = f"{root}/namespaces/$ns/{path}" if namespaced else f"{root}/{path}"
    return Step(str(text), verb, path, body, content_type, accept, unseen)
