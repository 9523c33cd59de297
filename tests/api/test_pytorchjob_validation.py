"""A PyTorchJob's validation: refusals in Kubeflow's words and ours, warnings, defaults."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.pytorchjob.manifest import (
    CONTAINERS,
    TEMPLATE,
    WORKER,
    edited,
    manifest,
    said,
    with_master,
)
from volcano_elastic.api import json_patch
from volcano_elastic.api.pytorchjob import InvalidJob, parse
from volcano_elastic.api.pytorchjob_defaults import defaulted
from volcano_elastic.api.pytorchjob_validation import validate, validate_update
from volcano_elastic.api.pytorchjob_warning import warn

Object = dict[str, Any]
_SHARED_MEMORY = "volcano-elastic.io/shared-memory"


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
            '"PS", "Master", "Worker"',
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
            edited("metadata", "annotations", "volcano-elastic.io/cpu-limit", value="15 CPUs"),
            'metadata.annotations[volcano-elastic.io/cpu-limit]: Invalid value: "15 CPUs": '
            "expected a quantity",
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
    assert job.sized is not None and job.sized.pod_spec["fieldOfNextYear"] == {"a": [1]}


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
