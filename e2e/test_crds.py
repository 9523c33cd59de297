"""The CRDs as an API server takes them: every one, in full, and refusing what they must."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.kubectl import Kubectl
from embedded_cluster.apiserver.patch import merge
from embedded_cluster.conformance.control_plane import ROOT, ControlPlane, EmbeddedControlPlane
from volcano_elastic.kube.resource import CRDS

pytestmark = pytest.mark.e2e
# Client-side apply keeps the whole object in an annotation; all annotations have this much room.
_ANNOTATIONS_BYTES = 256 * 1024
_FILES = sorted((ROOT / "crds").glob("*.yaml"))
_EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))

_JOB: dict[str, Any] = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {"name": "job"},
    "spec": {
        "elasticPolicy": {"minReplicas": 2, "maxReplicas": 4},
        "pytorchReplicaSpecs": {
            "Worker": {"template": {"spec": {"containers": [{"name": "pytorch", "image": "i:1"}]}}}
        },
    },
}
_POLICY: dict[str, Any] = {
    "apiVersion": "policy.volcano-elastic.io/v1alpha1",
    "kind": "QueuePolicy",
    "metadata": {"name": "policy"},
    "spec": {"queue": "default"},
}
_PLAN: dict[str, Any] = {
    "apiVersion": "policy.volcano-elastic.io/v1alpha1",
    "kind": "ScalePlan",
    "metadata": {"name": "plan"},
    "spec": {"ownerJob": "job", "replicaResourceSpecs": {"Worker": {"replicas": 2}}},
}


@pytest.fixture
def kubectl(control_plane: ControlPlane, tmp_path: Path) -> Kubectl:
    return Kubectl(control_plane.kubeconfig, tmp_path)


@pytest.fixture
def cel(control_plane: ControlPlane) -> None:
    if isinstance(control_plane, EmbeddedControlPlane):
        pytest.skip("the embedded API server evaluates no CEL; the operator refuses there")


@pytest.mark.parametrize("file", _FILES, ids=lambda file: file.name)
async def test_each_crd_is_served_and_small_enough_for_client_side_apply(
    control_plane: ControlPlane, kubectl: Kubectl, file: Path
) -> None:
    await kubectl("apply", "--server-side=false", "--validate=strict", "-f", str(file))
    name = yaml.safe_load(file.read_text())["metadata"]["name"]
    async with control_plane.client() as client:
        crd = await client.get(CRDS, name)
    true = {c["type"] for c in crd["status"]["conditions"] if c["status"] == "True"}
    assert {"Established", "NamesAccepted"} <= true
    assert "NonStructuralSchema" not in true
    sizes = {key: len(value) for key, value in crd["metadata"]["annotations"].items()}
    assert sizes["kubectl.kubernetes.io/last-applied-configuration"] > 0
    assert sum(sizes.values()) < _ANNOTATIONS_BYTES


@pytest.mark.parametrize("file", _EXAMPLES, ids=lambda file: file.name)
async def test_each_example_is_accepted_without_a_warning(kubectl: Kubectl, file: Path) -> None:
    await kubectl("create", "--dry-run=server", "--validate=strict", "-f", str(file))


async def test_a_pod_template_is_kept_in_full_and_its_defaults_are_left_to_the_pod(
    kubectl: Kubectl,
) -> None:
    job = copy.deepcopy(_JOB)
    template = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    template["metadata"] = {"labels": {"team": "a"}, "annotations": {"note": "b"}}
    template["spec"]["aFieldOfTomorrow"] = {"deep": [1, 2]}
    answer = await kubectl(
        "create", "--dry-run=server", "--validate=false", "-o", "json", "-f", "-", stdin=job
    )
    stored = json.loads(answer)["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    assert stored["metadata"]["labels"] == {"team": "a"}
    assert stored["spec"] == template["spec"]


async def test_a_field_without_a_value_counts_as_absent(kubectl: Kubectl) -> None:
    """Templates leave them so: `elasticPolicy:` and nothing behind it is null."""
    job = copy.deepcopy(_JOB)
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    worker |= {"replicas": None, "restartPolicy": None}
    worker["template"]["spec"] |= {"nodeSelector": {"zone": None}, "tolerations": None}
    job["spec"] |= {"elasticPolicy": None, "runPolicy": None, "nprocPerNode": None}
    answer = await kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=job)
    spec = json.loads(answer)["spec"]
    assert spec.keys() == {"pytorchReplicaSpecs", "runPolicy"}
    assert spec["runPolicy"] == {"suspend": False}
    assert spec["pytorchReplicaSpecs"]["Worker"].keys() == {"template"}
    assert spec["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["nodeSelector"] == {}


_REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (_JOB, {"spec": {"elasticPolicy": {"minReplicas": 5}}}, "spec.elasticPolicy"),
    (_JOB, {"spec": {"elasticPolicy": {"minReplicas": None, "min": 5}}}, "spec.elasticPolicy"),
    (_JOB, {"spec": {"elasticPolicy": {"min": 3}}}, "spec.elasticPolicy.min"),
    (_JOB, {"spec": {"elasticPolicy": {"max": 3}}}, "spec.elasticPolicy.max"),
    (_JOB, {"spec": {"elasticPolicy": {"minReplicas": 3, "nodeUnit": 2}}}, "nodeUnit"),
    (_JOB, {"spec": {"pytorchReplicaSpecs": {"Worker": None, "Master": {}}}}, "Worker"),
    (_PLAN, {"spec": {"replicaResourceSpecs": None}}, "must say something of a role"),
    (_PLAN, {"spec": {"replicaResourceSpecs": {"Chief": {"replicas": 1}}}}, "roles are Worker"),
    (
        _PLAN,
        {"spec": {"createPods": [{"name": "one"}], "removePods": [{"name": "two"}]}},
        "createPods",
    ),
]
_REFUSED_BY_SCHEMA: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (_JOB, {"spec": {"elasticPolicy": {"minReplicas": -1}}}, "spec.elasticPolicy.minReplicas"),
    (_JOB, {"spec": {"elasticPolicy": {"scaler": "magic"}}}, "spec.elasticPolicy.scaler"),
    (_JOB, {"spec": {"elasticPolicy": {"maxReplicas": "4"}}}, "spec.elasticPolicy.maxReplicas"),
    (_JOB, {"spec": {"pytorchReplicaSpecs": None}}, "spec.pytorchReplicaSpecs"),
    (_JOB, {"spec": {"runPolicy": {"suspend": "yes"}}}, "spec.runPolicy.suspend"),
    (_POLICY, {"spec": {"mode": "Sometimes"}}, "spec.mode"),
    (_POLICY, {"spec": {"surplus": {"minEfficiency": 2}}}, "spec.surplus.minEfficiency"),
    (_POLICY, {"spec": {"grow": {"cooldownSeconds": -1}}}, "spec.grow.cooldownSeconds"),
    (_PLAN, {"spec": {"ownerJob": None}}, "spec.ownerJob"),
    (_PLAN, {"spec": {"replicaResourceSpecs": {"Worker": {"replicas": -1}}}}, "replicas"),
    (_PLAN, {"spec": {"replicaResourceSpecs": {"Worker": {"resource": {"cpu": "x"}}}}}, "cpu"),
    (_PLAN, {"spec": {"expireSeconds": "soon"}}, "spec.expireSeconds"),
]


def _words(case: object) -> str:
    if not isinstance(case, dict):
        return ""
    return str(case["kind"]) if "kind" in case else json.dumps(case["spec"]).replace('"', "")


@pytest.mark.parametrize(("valid", "change", "path"), _REFUSED, ids=_words)
@pytest.mark.usefixtures("cel")
async def test_a_rule_refuses_and_names_the_field(
    kubectl: Kubectl, valid: dict[str, Any], change: dict[str, Any], path: str
) -> None:
    await _refused(kubectl, valid, change, path)


@pytest.mark.parametrize(("valid", "change", "path"), _REFUSED_BY_SCHEMA, ids=_words)
async def test_the_schema_refuses_and_names_the_field(
    kubectl: Kubectl, valid: dict[str, Any], change: dict[str, Any], path: str
) -> None:
    await _refused(kubectl, valid, change, path)


async def _refused(
    kubectl: Kubectl, valid: dict[str, Any], change: dict[str, Any], path: str
) -> None:
    create = ("create", "--dry-run=server", "--validate=false", "-f", "-")
    await kubectl(*create, stdin=valid)
    assert path in await kubectl.refused(*create, stdin=merge(valid, change))


_IMMUTABLE: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    (
        _JOB,
        {"spec": {"runPolicy": {"schedulingPolicy": {"queue": "a"}}}},
        {"spec": {"runPolicy": {"schedulingPolicy": {"queue": "b"}}}},
    ),
    (
        _JOB,
        {"spec": {"runPolicy": {"managedBy": "kubeflow.org/training-operator"}}},
        {"spec": {"runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"}}},
    ),
    (_POLICY, {"spec": {"queue": "a"}}, {"spec": {"queue": "b"}}),
    (_PLAN, {"spec": {"ownerJob": "a"}}, {"spec": {"ownerJob": "b"}}),
]


@pytest.mark.parametrize(("valid", "first", "then"), _IMMUTABLE, ids=_words)
@pytest.mark.usefixtures("cel")
async def test_what_is_immutable_stays(
    kubectl: Kubectl, valid: dict[str, Any], first: dict[str, Any], then: dict[str, Any]
) -> None:
    obj = merge(valid, first)
    kind, name = obj["kind"].lower(), obj["metadata"]["name"]
    await kubectl("create", "-f", "-", stdin=obj)
    try:
        said = await kubectl.refused("patch", kind, name, "--type=merge", "-p", json.dumps(then))
        assert "immutable" in said
    finally:
        await kubectl("delete", kind, name)


_POLICY_OF_JOB = {"elasticPolicy": {"rdzvBackend": "c10d", "rdzvPort": 1234}}
_MEETS_ELSEWHERE: list[dict[str, Any]] = [
    {"elasticPolicy": {"rdzvBackend": "volcano-elastic"}},
    {"elasticPolicy": {"rdzvHost": "elsewhere"}},
    {"elasticPolicy": {"rdzvPort": 1235}},
    {"elasticPolicy": {"rdzvId": "x"}},
    {"elasticPolicy": {"standalone": True}},
    {"elasticPolicy": {"coordinator": "dedicated"}},
    {"elasticPolicy": None},
]
_MEETS_THERE: list[dict[str, Any]] = [
    {"elasticPolicy": {"rdzvBackend": None, "rdzvHost": "job-worker-0"}},
    {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 8, "maxRestarts": 3}},
]


@pytest.mark.usefixtures("cel")
async def test_the_rendezvous_of_a_running_job_is_immutable_in_the_crd_too(
    kubectl: Kubectl,
) -> None:
    obj = merge(_JOB, {"spec": _POLICY_OF_JOB})
    name = obj["metadata"]["name"]

    def patch(change: dict[str, Any]) -> tuple[str, ...]:
        return ("patch", "pytorchjob", name, "--type=merge", "-p", json.dumps({"spec": change}))

    await kubectl("create", "-f", "-", stdin=obj)
    try:
        for change in _MEETS_ELSEWHERE:
            said = await kubectl.refused(*patch(change))
            assert "spec.elasticPolicy" in said and "while the job is not suspended" in said
        for change in _MEETS_THERE:
            await kubectl(*patch(change), "--dry-run=server")
        for change in _MEETS_ELSEWHERE:
            await kubectl(*patch(change | {"runPolicy": {"suspend": True}}), "--dry-run=server")
        await kubectl(*patch({"runPolicy": {"suspend": True}}))
        for change in _MEETS_ELSEWHERE:
            await kubectl(*patch(change | {"runPolicy": {"suspend": False}}), "--dry-run=server")
    finally:
        await kubectl("delete", "pytorchjob", name)
