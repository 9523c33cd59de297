"""What a PyTorchJob may say: refusals in Kubeflow's words and ours, warnings, defaults."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.job_world import World, job_object
from volcano_elastic.api import json_patch, shape
from volcano_elastic.api.pytorchjob import InvalidJob, parse
from volcano_elastic.api.pytorchjob_defaults import defaulted
from volcano_elastic.api.pytorchjob_shape import ELASTIC_POLICY, REPLICA, RUN_POLICY, SPEC
from volcano_elastic.api.pytorchjob_validation import validate, validate_update
from volcano_elastic.api.pytorchjob_warning import warn
from volcano_elastic.local.apiserver import patch as apiserver_patch
from volcano_elastic.local.apiserver import schema as apiserver_schema
from volcano_elastic.operator.snapshot import picture
from volcano_elastic.pytorchjob.action import DeleteJob, PatchStatus, Requeue
from volcano_elastic.pytorchjob.observed import Observed
from volcano_elastic.pytorchjob.reconcile import reconcile, refuse

CRD = Path(__file__).parents[1] / "crds/kubeflow.org_pytorchjobs.yaml"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
Object = dict[str, Any]
WORKER = ("spec", "pytorchReplicaSpecs", "Worker")
TEMPLATE = (*WORKER, "template")
CONTAINERS = (*TEMPLATE, "spec", "containers")
_SHARED_MEMORY = "volcano-elastic.io/shared-memory"


def manifest(elastic: Object | None = None, **spec: Any) -> Object:
    template = {"spec": {"containers": [{"name": "pytorch", "image": "train:1"}]}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "a", "namespace": "team"},
        "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 2, "template": template}}}
        | ({"elasticPolicy": elastic} if elastic is not None else {})
        | spec,
    }


def edited(*path: str | int, value: Any = None, of: Object | None = None) -> Object:
    """A sound job with one field changed; None takes it out."""
    obj = copy.deepcopy(manifest() if of is None else of)
    at: Any = obj
    for step in path[:-1]:
        at = at.setdefault(step, {}) if isinstance(at, dict) else at[step]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return obj


def said(obj: Object) -> list[str]:
    return [str(problem) for problem in validate(obj)]


def with_master(**replica: Any) -> Object:
    obj = manifest()
    template = obj["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    obj["spec"]["pytorchReplicaSpecs"]["Master"] = {"template": template} | replica
    return obj


_DNS_1035 = (
    "should match: a DNS-1035 label must consist of lower case alphanumeric characters or '-', "
    "start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name', "
    " or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
)


@pytest.mark.parametrize(
    ("obj", "words"),
    [
        (
            edited("metadata", "name", value="A_b"),
            f'metadata.name: Invalid value: "A_b": {_DNS_1035}',
        ),
        (
            edited("spec", "pytorchReplicaSpecs"),
            "spec.pytorchReplicaSpecs: Required value: must be required",
        ),
        (
            edited("spec", "pytorchReplicaSpecs", "worker", value={}),
            'spec.pytorchReplicaSpecs[worker]: Unsupported value: "worker": supported values: '
            '"Master", "Worker"',
        ),
        (
            edited(*CONTAINERS, value=[]),
            "spec.pytorchReplicaSpecs[Worker].template.spec.containers: Required value: must be "
            "specified",
        ),
        (
            edited(*CONTAINERS, 0, "name", value="main"),
            "spec.pytorchReplicaSpecs[Worker].template.spec.containers: Required value: must have "
            "at least one container with name pytorch",
        ),
        (
            edited(*CONTAINERS, 0, "image"),
            "spec.pytorchReplicaSpecs[Worker].template.spec.containers[0].image: Required value: "
            "must be required",
        ),
        (with_master(), "spec.pytorchReplicaSpecs[Master].replicas: Forbidden: must be 1"),
        (
            with_master(replicas=2),
            "spec.pytorchReplicaSpecs[Master].replicas: Forbidden: must be 1",
        ),
        (
            edited(*WORKER, "replicas", value=0),
            "spec.pytorchReplicaSpecs[Worker].replicas: Forbidden: must be at least 1",
        ),
        (
            edited(*WORKER, of=with_master(replicas=1)) | {},
            None,
        ),
        (
            edited(
                "spec", "elasticPolicy", value={}, of=edited(*WORKER, of=with_master(replicas=1))
            ),
            "spec.pytorchReplicaSpecs[Worker]: Required value: must be configured if elastic "
            "policy is used",
        ),
        (
            manifest({"nProcPerNode": 2}, nprocPerNode="2"),
            "spec.elasticPolicy.nProcPerNode: Forbidden: must not be used with spec.nprocPerNode",
        ),
        (
            manifest(runPolicy={"managedBy": "me"}),
            'spec.runPolicy.managedBy: Unsupported value: "me": supported values: '
            '"kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue"',
        ),
    ],
)
def test_what_kubeflow_refuses_is_refused_in_its_words(obj: Object, words: str | None) -> None:
    if words is None:
        assert said(obj) == []
    else:
        assert words in said(obj)


@pytest.mark.parametrize(
    ("elastic", "words"),
    [
        ({"min": 3, "max": 2}, "min: Invalid value: 3: must be at most max (2)"),
        ({"minReplicas": 3, "max": 2}, "minReplicas: Invalid value: 3: must be at most max (2)"),
        ({"min": 3, "maxReplicas": 2}, "min: Invalid value: 3: must be at most maxReplicas (2)"),
        ({"min": -1, "max": 2}, "min: Invalid value: -1: must be an integer of at least 1"),
        ({"max": 0}, "max: Invalid value: 0: must be an integer of at least 1"),
        ({"max": "4"}, 'max: Invalid value: "4": must be an integer of at least 1'),
        ({"max": True}, "max: Invalid value: true: must be an integer of at least 1"),
        ({"max": 2**31}, "max: Invalid value: 2147483648: must be an integer of at least 1"),
        (
            {"min": 1, "minReplicas": 2},
            "min: Invalid value: 1: must equal minReplicas (2) or be left out",
        ),
        (
            {"max": 1, "maxReplicas": 2},
            "max: Invalid value: 1: must equal maxReplicas (2) or be left out",
        ),
        (
            {"min": 2, "max": 5, "nodeUnit": 2},
            "max: Invalid value: 5: must be a multiple of nodeUnit (2)",
        ),
        (
            {"nodeUnit": 3},
            "nodeUnit: Invalid value: 3: must divide Worker.replicas (2), which here is both min "
            "and max",
        ),
        (
            {"scaler": "magic"},
            'scaler: Unsupported value: "magic": supported values: "volcano", "hpa", "none"',
        ),
        (
            {"coordinator": "none"},
            'coordinator: Unsupported value: "none": supported values: "worker0", "dedicated"',
        ),
        ({"cooldownSeconds": -5}, "cooldownSeconds: Invalid value: -5: must be an integer of at"),
        ({"maxRestarts": -1}, "maxRestarts: Invalid value: -1: must be an integer of at least 0"),
        ({"rdzvPort": 0}, "rdzvPort: Invalid value: 0: must be an integer from 1 to 65535"),
        ({"rdzvConf": [{"key": "a"}]}, "rdzvConf[0].value: Required value: must be required"),
        ({"rdzvConf": ["a"]}, 'rdzvConf[0]: Invalid value: "a": must be an object'),
        ({"standalone": "yes"}, 'standalone: Invalid value: "yes": must be true or false'),
    ],
)
def test_an_impossible_elastic_policy_is_refused(elastic: Object, words: str) -> None:
    (problem,) = said(manifest(elastic))
    assert problem.startswith(f"spec.elasticPolicy.{words}")


@pytest.mark.parametrize(
    ("obj", "words"),
    [
        (edited("spec"), "spec: Required value: must be required"),
        (
            edited(*WORKER, "restartPolicy", value="Sometimes"),
            'spec.pytorchReplicaSpecs[Worker].restartPolicy: Unsupported value: "Sometimes": '
            'supported values: "Always", "OnFailure", "Never", "ExitCode"',
        ),
        (
            edited(*CONTAINERS, 0, "resources", value={"requests": {"cpu": "lots"}}),
            "spec.pytorchReplicaSpecs[Worker].template.spec.containers[0].resources.requests[cpu]: "
            'Invalid value: "lots": expected a quantity such as 2, 500m, 1.5 or 8Gi',
        ),
        (
            edited(*CONTAINERS, 0, "resources", value={"requests": {"cpu": "-1"}}),
            "spec.pytorchReplicaSpecs[Worker].template.spec.containers[0].resources.requests[cpu]: "
            'Invalid value: "-1": must be at least 0',
        ),
        (
            edited(*CONTAINERS, 0, "resources", value={"limits": {"nvidia.com/gpu": "1e30"}}),
            "spec.pytorchReplicaSpecs[Worker].template.spec.containers[0].resources.limits"
            '[nvidia.com/gpu]: Invalid value: "1e30": must be at most 9223372036854775',
        ),
        (
            manifest(runPolicy={"schedulingPolicy": {"minResources": {"cpu": "-1m"}}}),
            "spec.runPolicy.schedulingPolicy.minResources[cpu]: Invalid value: "
            '"-1m": must be at least 0',
        ),
        (
            edited(*TEMPLATE, value="pod"),
            'spec.pytorchReplicaSpecs[Worker].template: Invalid value: "pod": must be an object',
        ),
        (
            manifest(runPolicy={"backoffLimit": -1}),
            "spec.runPolicy.backoffLimit: Invalid value: -1: must be an integer of at least 0",
        ),
        (
            manifest(runPolicy={"schedulingPolicy": {"minResources": {"cpu": "x"}}}),
            "spec.runPolicy.schedulingPolicy.minResources[cpu]: Invalid value: "
            '"x": expected a quantity',
        ),
        (
            edited("metadata", "annotations", _SHARED_MEMORY, value="much"),
            f'metadata.annotations[{_SHARED_MEMORY}]: Invalid value: "much": expected a quantity',
        ),
        (
            edited(*TEMPLATE, "metadata", "annotations", _SHARED_MEMORY, value="-1Gi"),
            "spec.pytorchReplicaSpecs[Worker].template.metadata.annotations"
            f'[{_SHARED_MEMORY}]: Invalid value: "-1Gi": must be more than 0',
        ),
        (
            edited("metadata", "name", value="a" * 55),
            'metadata.name: Invalid value: "' + "a" * 55 + '": must be no more than 54 characters',
        ),
        (
            edited("metadata", "name", value="a" * 53, of=manifest({"min": 1, "max": 101})),
            'metadata.name: Invalid value: "' + "a" * 53 + '": must be no more than 52 characters',
        ),
        (
            edited(*WORKER, "replicas", value=2**31 - 1),
            "spec.pytorchReplicaSpecs[Worker].replicas: Invalid value: 2147483647: must be at most "
            "100000",
        ),
        (
            manifest({"min": 100_001, "max": 200_000}),
            "spec.elasticPolicy.min: Invalid value: 100001: must be at most 100000",
        ),
        (
            manifest({"maxReplicas": 2**31 - 1}),
            "spec.elasticPolicy.maxReplicas: Invalid value: 2147483647: must be at most 100000",
        ),
    ],
)
def test_what_could_never_run_is_refused_with_its_path(obj: Object, words: str) -> None:
    (problem,) = said(obj)
    assert problem.startswith(words)
    with pytest.raises(InvalidJob):
        parse(obj)


def test_all_that_is_wrong_is_said_at_once() -> None:
    obj = edited(*CONTAINERS, 0, "image", of=manifest({"min": 0}, runPolicy={"backoffLimit": -1}))
    assert len(validate(obj)) == 3


@pytest.mark.parametrize(
    ("obj", "words"),
    [
        (
            manifest({"nProcPerNode": 2}),
            "spec.elasticPolicy.nProcPerNode is deprecated, use spec.nprocPerNode instead",
        ),
        (
            edited(*WORKER, "replicas", value=9, of=manifest({"min": 1, "max": 2})),
            "spec.pytorchReplicaSpecs[Worker].replicas: 9 is outside 1..2, the range of "
            "elasticPolicy, which wins",
        ),
        (
            manifest({"rdzvBackend": "zeus"}),
            "spec.elasticPolicy.rdzvBackend: 'zeus' is none of volcano-elastic, c10d, etcd, "
            "etcd-v2; torchrun must find it among the plug-ins of the image",
        ),
        (
            manifest(nprocPerNode="xpu"),
            "spec.nprocPerNode: expected auto, cpu, gpu or a number, found 'xpu'",
        ),
        (
            manifest(runPolicy={"cleanPodPolicy": "running"}),
            "spec.runPolicy.cleanPodPolicy: expected All, Running, None; 'running' is taken for "
            "All",
        ),
        (
            manifest(runPolicy={"schedulingPolicy": {"scheduleTimeoutSeconds": 5}}),
            "spec.runPolicy.schedulingPolicy.scheduleTimeoutSeconds is ignored: Volcano has no "
            "such limit",
        ),
        (
            manifest(runPolicy={"schedulingPolicy": {"minAvailable": 3}}),
            "spec.runPolicy.schedulingPolicy.minAvailable: 3 is more than the job's 2 pods: it "
            "can never start",
        ),
        (
            manifest({"metrics": [{"type": "Resource"}], "scaler": "volcano"}),
            "spec.elasticPolicy.metrics are ignored under scaler volcano",
        ),
        (
            manifest({"standalone": True}),
            "spec.elasticPolicy.standalone: each of up to 2 pods trains by itself",
        ),
        (
            edited(*TEMPLATE, "spec", "schedulerName", value="x", of=manifest({"max": 2})),
            "spec.elasticPolicy: a pod template names another scheduler than volcano: the job "
            "gets no PodGroup and keeps its size",
        ),
        (
            manifest({"minReplica": 2}),
            "unknown field spec.elasticPolicy.minReplica; did you mean minReplicas?",
        ),
        (
            edited(*WORKER, "replica", value=3),
            "unknown field spec.pytorchReplicaSpecs[Worker].replica; did you mean replicas?",
        ),
        (
            edited("metadata", "annotations", "volcano-elastic.io/sharedmemory", value="1Gi"),
            "unknown annotation volcano-elastic.io/sharedmemory; did you mean "
            "volcano-elastic.io/shared-memory?",
        ),
    ],
)
def test_what_kubeflow_accepts_is_accepted_with_a_warning(obj: Object, words: str) -> None:
    assert said(obj) == []
    assert warn(obj) == [words]
    parse(obj)


def test_a_plain_job_warns_of_nothing() -> None:
    assert warn(manifest()) == []
    assert warn(defaulted(manifest({"min": 2, "max": 8}))) == []
    # 1 is what an unset Worker.replicas is stored as.
    assert warn(edited(*WORKER, "replicas", value=1, of=manifest({"min": 2, "max": 8}))) == []


def test_fields_of_the_pod_template_are_others_to_check() -> None:
    obj = edited(*TEMPLATE, "spec", "fieldOfNextYear", value={"a": [1]})
    assert said(obj) == [] and warn(obj) == []
    job = parse(obj)
    assert job.worker is not None and job.worker.pod_spec["fieldOfNextYear"] == {"a": [1]}


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ({"managedBy": "kubeflow.org/training-operator"}, {}, None),
        (
            {},
            {"managedBy": "kueue.x-k8s.io/multikueue"},
            'spec.runPolicy.managedBy: Invalid value: "kueue.x-k8s.io/multikueue": field is '
            "immutable",
        ),
        (
            {"schedulingPolicy": {"queue": "a"}},
            {"schedulingPolicy": {"queue": "b"}},
            'spec.runPolicy.schedulingPolicy.queue: Invalid value: "b": '
            "spec.runPolicy.schedulingPolicy.queue is immutable",
        ),
        ({"schedulingPolicy": {"queue": "default"}}, {}, None),
        (
            {},
            {"schedulingPolicy": {"queue": "b"}},
            'spec.runPolicy.schedulingPolicy.queue: Invalid value: "b": '
            "spec.runPolicy.schedulingPolicy.queue is immutable",
        ),
    ],
)
def test_queue_and_manager_stay(old: Object, new: Object, problem: str | None) -> None:
    found = validate_update(manifest(runPolicy=old), manifest(runPolicy=new))
    assert [str(one) for one in found] == ([problem] if problem else [])


def test_the_annotation_may_not_move_a_job_to_another_queue() -> None:
    moved = edited("metadata", "annotations", "scheduling.volcano.sh/queue-name", value="b")
    assert validate_update(manifest(), moved)
    assert validate_update(moved, moved) == []


def test_what_is_stored_of_the_defaults_follows_from_no_other_field() -> None:
    obj = with_master(replicas=1) | {}
    obj["spec"]["elasticPolicy"] = {"max": 4}
    del obj["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"]
    before = copy.deepcopy(obj)
    replica = "/spec/pytorchReplicaSpecs"
    assert {op["path"]: op["value"] for op in json_patch.difference(obj, defaulted(obj))} == {
        "/spec/runPolicy": {"cleanPodPolicy": "None", "suspend": False},
        "/spec/elasticPolicy/nodeUnit": 1,
        "/spec/elasticPolicy/coordinator": "worker0",
        f"{replica}/Worker/replicas": 1,
        f"{replica}/Worker/restartPolicy": "OnFailure",
        f"{replica}/Master/restartPolicy": "OnFailure",
    }
    assert obj == before
    policy = parse(obj).elastic
    assert policy is not None and (policy.min, policy.max) == (4, 4)


def test_a_deadline_beyond_all_clocks_is_read() -> None:
    job = parse(manifest(runPolicy={"activeDeadlineSeconds": 2**63 - 1}))
    assert job.run_policy.active_deadline is not None
    assert job.run_policy.active_deadline.days == 36525


# The CRD


def _crd_version() -> Object:
    (version,) = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    found: Object = version
    return found


def _crd_spec() -> Object:
    properties = _crd_version()["schema"]["openAPIV3Schema"]["properties"]
    found: Object = properties["spec"]
    return found


def _differences(field: shape.Shape, schema: Object, path: str) -> Iterator[str]:
    kinds = {"Integer": "integer", "Text": "string", "Flag": "boolean", "Items": "array"}
    wanted = kinds.get(type(field).__name__, "object")
    if isinstance(field, shape.Amount):
        if not schema.get("x-kubernetes-int-or-string"):
            yield f"{path}: the CRD takes no quantity"
        return
    if schema.get("type") != wanted:
        yield f"{path}: {wanted} here, {schema.get('type')} in the CRD"
        return
    if isinstance(field, shape.Integer):
        least, most = schema.get("minimum", -(2**31)), schema.get("maximum", field.most)
        if (least, most) != (field.least, field.most):
            yield f"{path}: {field} here, {least} to {most} in the CRD"
    elif isinstance(field, shape.Text):
        if schema.get("enum") not in (None, list(field.words)):
            yield f"{path}: {field.words} here, {schema['enum']} in the CRD"
    elif isinstance(field, shape.Items):
        yield from _differences(field.item, schema["items"], f"{path}[]")
    elif isinstance(field, shape.Named):
        yield from _differences(field.value, schema["additionalProperties"], f"{path}[]")
    elif isinstance(field, shape.Fields):
        declared = schema.get("properties") or {}
        if field.open != bool(schema.get("x-kubernetes-preserve-unknown-fields")):
            yield f"{path}: unknown fields are kept by one of the two"
        if set(schema.get("required") or ()) - {"pytorchReplicaSpecs"} != set(field.required):
            yield f"{path}: {field.required} required here, {schema.get('required')} in the CRD"
        for name in declared.keys() ^ field.fields.keys():
            yield f"{path}.{name}: only {'in the CRD' if name in declared else 'here'}"
        for name in declared.keys() & field.fields.keys():
            yield from _differences(field.fields[name], declared[name], f"{path}.{name}")


def test_the_crd_declares_exactly_the_fields_that_are_read() -> None:
    assert list(_differences(SPEC, _crd_spec(), "spec")) == []


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
        ("Queue", ".spec.runPolicy.schedulingPolicy.queue"),
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
    status["elastic"] |= {"speeds": {"2": 100.5}, "gpuHours": 1.25}
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


# Properties

_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 2**64)
    | st.floats(allow_nan=False)
    | st.sampled_from(["", "a", "1Gi", "1e999999999", "Worker", "All", "None", "volcano"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", max_size=2), inner),
    max_leaves=6,
)


def _of(field: shape.Shape, wild: int = 1) -> st.SearchStrategy[Any]:
    """What the field takes, and in `wild` of ten cases anything."""
    match field:
        case shape.Integer(least, most):
            right: st.SearchStrategy[Any] = st.integers(max(least, -1), min(most, 6))
        case shape.Text(words):
            right = st.sampled_from([*words, "", "pytorch", "x"])
        case shape.Flag():
            right = st.booleans()
        case shape.Amount():
            right = st.sampled_from(["1", "500m", 2, "8Gi"])
        case shape.Items(item):
            right = st.lists(_of(item, wild), max_size=2)
        case shape.Named(value):
            right = st.dictionaries(st.sampled_from(["Worker", "Master", "cpu"]), _of(value, wild))
        case shape.Fields(fields, _, needed):
            parts = {name: _of(field, wild) for name, field in fields.items()}
            optional = {n: part for n, part in parts.items() if wild or n not in needed}
            must = {} if wild else {n: parts[n] for n in needed}
            right = st.fixed_dictionaries(must, optional=optional)
    return st.one_of(*[right] * (10 - wild), *[_json] * wild)


_PROFILE = settings(
    deadline=None,
    max_examples=200,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@_PROFILE
@given(st.one_of(_json, _of(SPEC)), st.one_of(_json, st.just({"name": "a"})))
def test_no_json_breaks_the_checks(spec: Any, meta: Any) -> None:
    obj = {"metadata": meta, "spec": spec}
    before = copy.deepcopy(obj)
    full = defaulted(obj)
    assert defaulted(full) == full
    assert apiserver_patch.json_patch(obj, json_patch.difference(obj, full)) == full
    problems = validate(obj)
    assert validate(obj) == problems
    if not problems:
        warn(obj)
        parse(obj)
    if not validate(full):
        warn(full)
        parse(obj)
    else:
        with pytest.raises(InvalidJob):
            parse(obj)
    assert obj == before


_ends = st.none() | st.integers(1, 9)


@st.composite
def _jobs_of_kubeflow(draw: st.DrawFn) -> Object:
    """Jobs that training-operator 1.9 and its webhook accept, and that could run there."""
    container = {"name": "pytorch", "image": "i"}
    template = {
        "spec": {"containers": draw(st.permutations([container, {"name": "b", "image": "j"}]))}
    }
    replicas: Object = {}
    worker: Object = {"template": template}
    if (count := draw(_ends)) is not None:
        worker["replicas"] = count
    if policy := draw(st.sampled_from(["", "Always", "OnFailure", "Never", "ExitCode"])):
        worker["restartPolicy"] = policy
    master = draw(st.booleans())
    if master:
        replicas["Master"] = {"replicas": 1, "template": template}
    elastic = draw(st.none() | st.just({}))
    if elastic is not None or not master or draw(st.booleans()):
        replicas["Worker"] = worker
    spec: Object = {"pytorchReplicaSpecs": replicas}
    if elastic is not None:
        low, high = draw(_ends), draw(_ends)
        if low is not None:
            elastic["minReplicas"] = low
        if high is not None:
            # The one range that Kubeflow takes and nobody can run.
            elastic["maxReplicas"] = max(high, low or 1)
        elastic |= draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "rdzvBackend": st.sampled_from(["c10d", "etcd", "etcd-v2", "zeus", ""]),
                    "rdzvPort": st.integers(1, 65535),
                    "rdzvHost": st.just("h"),
                    "rdzvId": st.just("7"),
                    "rdzvConf": st.lists(st.just({"key": "a", "value": "b"})),
                    "standalone": st.booleans(),
                    "maxRestarts": st.integers(0, 9),
                    "metrics": st.just([{"type": "Resource"}]),
                },
            )
        )
        spec["elasticPolicy"] = elastic
    if elastic is not None and draw(st.booleans()):
        elastic["nProcPerNode"] = 2
    elif draw(st.booleans()):
        spec["nprocPerNode"] = draw(st.sampled_from(["auto", "cpu", "gpu", "4", "xpu"]))
    spec["runPolicy"] = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "cleanPodPolicy": st.sampled_from(["All", "Running", "None", "Other", ""]),
                "ttlSecondsAfterFinished": st.integers(0, 2**31 - 1),
                "activeDeadlineSeconds": st.integers(0, 2**63 - 1),
                "backoffLimit": st.integers(0, 2**31 - 1),
                "suspend": st.booleans(),
                "managedBy": st.sampled_from(
                    ["kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue"]
                ),
                "schedulingPolicy": st.fixed_dictionaries(
                    {},
                    optional={
                        "minAvailable": st.integers(0, 20),
                        "queue": st.sampled_from(["", "q"]),
                        "minResources": st.just({"cpu": 4, "memory": "8Gi"}),
                        "priorityClass": st.just("high"),
                        "scheduleTimeoutSeconds": st.integers(-1, 9),
                    },
                ),
            },
        )
    )
    return {"metadata": {"name": "a"}, "spec": spec}


@_PROFILE
@given(_jobs_of_kubeflow())
def test_what_kubeflow_accepts_and_can_run_is_accepted(obj: Object) -> None:
    assert said(obj) == []
    assert said(defaulted(obj)) == []
    job = parse(obj)
    assert job.elastic is None or 1 <= job.elastic.min <= job.elastic.max
    warn(obj)


_replica_shape = REPLICA.fields["template"]


@_PROFILE
@given(
    _of(_replica_shape, 0),
    _of(ELASTIC_POLICY, 0),
    _of(RUN_POLICY, 0),
    st.booleans(),
    st.booleans(),
)
def test_what_is_accepted_can_be_planned_and_carried_out(
    template: Object, elastic: Object, run_policy: Object, is_elastic: bool, master: bool
) -> None:
    spec = template.setdefault("spec", {})
    for i, container in enumerate(spec.setdefault("containers", [])):
        container |= {"name": f"c{i}", "image": "i"}
    spec["containers"].append({"name": "pytorch", "image": "i"})
    obj = edited(*TEMPLATE, value=template, of=manifest(elastic if is_elastic else None))
    obj["metadata"] |= {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    obj["spec"]["runPolicy"] = run_policy
    if master:
        obj["spec"]["pytorchReplicaSpecs"]["Master"] = {"replicas": 1, "template": template}
    assume(not validate(defaulted(obj)))
    picture([obj])
    reconcile(parse(obj), Observed(admitted=True), NOW)


def _finished(obj: Object) -> list[Any]:
    (patch,) = [a for a in refuse(obj, validate(obj), NOW) if isinstance(a, PatchStatus)]
    return refuse(obj | {"status": patch.status}, validate(obj), NOW + timedelta(seconds=60))


def test_a_refused_job_goes_after_its_time_to_live() -> None:
    for seconds, expected in ((60, [DeleteJob()]), (90, [Requeue(timedelta(seconds=30))])):
        run_policy = {"ttlSecondsAfterFinished": seconds}
        assert _finished(manifest({"min": 3, "max": 2}, runPolicy=run_policy)) == expected
    assert _finished(manifest({"min": 3, "max": 2})) == []
    # Wrong itself: nothing can be told from it.
    assert _finished(manifest(runPolicy={"ttlSecondsAfterFinished": -1})) == []


@pytest.mark.parametrize("manager", ["kueue.x-k8s.io/multikueue", "somebody"])
def test_another_managers_job_is_left_alone_though_it_is_wrong(manager: str) -> None:
    obj = manifest({"min": 3, "max": 2}, runPolicy={"managedBy": manager})
    assert refuse(obj, validate(obj), NOW) == []
