"""The CRD: every field that is read and written, and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from embedded_cluster.apiserver import schema as apiserver_schema
from tests.pytorchjob.manifest import manifest
from tests.pytorchjob.world import NOW, World, job_object
from volcano_elastic.api import shape
from volcano_elastic.api.pytorchjob import parse
from volcano_elastic.api.pytorchjob_defaults import defaulted
from volcano_elastic.api.pytorchjob_shape import SPEC
from volcano_elastic.pytorchjob.goodput import USES, Goodput, kept, with_places

Object = dict[str, Any]
CRD = Path(__file__).parents[2] / "crds/kubeflow.org_pytorchjobs.yaml"


def _crd_version() -> Object:
    (version,) = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    found: Object = version
    return found


def _crd_spec() -> Object:
    properties = _crd_version()["schema"]["openAPIV3Schema"]["properties"]
    found: Object = properties["spec"]
    return found


class _Recording(dict[str, Any]):
    """Notes which of its fields are asked for, by their paths."""

    def __init__(self, raw: Mapping[str, Any], path: str, read: set[str]) -> None:
        super().__init__({k: _recording(v, f"{path}.{k}", read) for k, v in raw.items()})
        self._path, self._read = path, read

    def __getitem__(self, key: str) -> Any:
        self._read.add(f"{self._path}.{key}")
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._read.add(f"{self._path}.{key}")
        return super().get(key, default)


def _recording(value: Any, path: str, read: set[str]) -> Any:
    if isinstance(value, dict):
        return _Recording(value, path, read)
    return [_recording(v, path, read) for v in value] if isinstance(value, list) else value


def test_every_field_of_the_spec_is_read_by_the_typed_view(monkeypatch: pytest.MonkeyPatch) -> None:
    # The less it says, the more has to be looked for.
    obj = manifest({}, runPolicy={"schedulingPolicy": {"minAvailable": 1}})
    read: set[str] = set()
    # Validation reads everything; it is the view that may forget a field.
    monkeypatch.setattr("volcano_elastic.api.pytorchjob.validate", lambda obj: [])
    monkeypatch.setattr(
        "volcano_elastic.api.pytorchjob.defaulted",
        lambda obj: _recording(defaulted(obj), "", read),
    )
    parse(obj)
    fields = SPEC.fields

    def below(name: str) -> shape.Fields:
        found = fields[name]
        assert isinstance(found, shape.Fields)
        return found

    run = below("runPolicy").fields
    scheduling = run["schedulingPolicy"]
    assert isinstance(scheduling, shape.Fields)
    declared = {f".spec.{name}" for name in fields}
    declared |= {f".spec.elasticPolicy.{name}" for name in below("elasticPolicy").fields}
    declared |= {f".spec.runPolicy.{name}" for name in run}
    declared |= {f".spec.runPolicy.schedulingPolicy.{name}" for name in scheduling.fields}
    # Accepted and ignored, as by Kubeflow under Volcano.
    declared -= {".spec.runPolicy.schedulingPolicy.scheduleTimeoutSeconds"}
    assert declared - read == set()


def test_defaults_that_the_crd_declares_are_those_of_admission() -> None:
    obj = manifest({"min": 1}, runPolicy={})
    by_schema = copy.deepcopy(obj)
    apiserver_schema.apply_defaults(by_schema["spec"], _crd_spec())
    assert by_schema != obj
    assert defaulted(by_schema) == defaulted(obj)


def test_the_crd_keeps_kubeflows_columns_first_and_its_subresources() -> None:
    version = _crd_version()
    columns = [(c["name"], c["jsonPath"]) for c in version["additionalPrinterColumns"]]
    assert columns == [
        ("State", ".status.conditions[-1:].type"),
        ("Age", ".metadata.creationTimestamp"),
        ("Min", ".status.elastic.min"),
        ("Max", ".status.elastic.max"),
        ("Ready", ".status.elastic.ready"),
        ("Progress", ".status.elastic.progress.progressPercentage"),
        ("Queue", ".status.queue"),
    ]
    assert version["subresources"] == {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.pytorchReplicaSpecs.Worker.replicas",
            "statusReplicasPath": ".status.replicaStatuses.Worker.active",
            "labelSelectorPath": ".status.replicaStatuses.Worker.selector",
        },
    }


def test_the_crd_keeps_every_field_of_the_status_that_is_written() -> None:
    world = World(job_object(elastic={"min": 2, "max": 4}), NOW)
    world.settle()
    world.run_all()
    world.grow(4)
    world.settle()
    world.finish("a-worker-0")
    world.settle()
    status = world.status
    assert {"desired", "ready", "lastScaleTime", "lastScaleReason"} <= status["elastic"].keys()
    # By operator/measurement.py.
    status["elastic"] |= {"speeds": {"2": 100.5}, "gpuHours": 1.25, "pauseSeconds": 0.3}
    told = Goodput("a ledger", dict.fromkeys(USES, 1 << 40))
    status["elastic"]["goodput"] = with_places(kept(None, told), 1, 2, 3)
    schema = _crd_version()["schema"]["openAPIV3Schema"]
    obj = manifest() | {"status": copy.deepcopy(status)}
    assert apiserver_schema.prune(obj, schema) == []
    assert apiserver_schema.validate(obj, schema) == []
    assert obj["status"] == status


def test_every_field_of_the_crd_is_described() -> None:
    def bare(schema: Object, path: str) -> Iterator[str]:
        for name, field in (schema.get("properties") or {}).items():
            if not field.get("description"):
                yield f"{path}.{name}"
            yield from bare(field, f"{path}.{name}")
        for part in ("items", "additionalProperties"):
            if isinstance(schema.get(part), dict):
                yield from bare(schema[part], path)

    root = _crd_version()["schema"]["openAPIV3Schema"]
    assert [p for p in bare(root, "") if p not in (".apiVersion", ".kind", ".metadata")] == []


def test_the_crd_is_small_enough_for_kubectls_client_side_apply() -> None:
    # kubectl keeps the whole object in an annotation, and annotations may have 256 KiB.
    assert len(yaml.safe_dump(yaml.safe_load(CRD.read_text()))) < 200_000
