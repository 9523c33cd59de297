"""`doctor` says nothing of a cluster that is well, and of others the repair."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from volcano_elastic import assets
from volcano_elastic.api.moment import micro_timestamp, timestamp
from volcano_elastic.doctor.diagnose import diagnose
from volcano_elastic.doctor.diagnosis import Diagnosis, Status
from volcano_elastic.doctor.facts import Facts, Right, Trial, Untold
from volcano_elastic.doctor.installation import needed_rights, release

NOW = datetime(2026, 11, 23, 12, 0, 0, tzinfo=UTC)
OUR_CRDS = {
    crd["metadata"]["name"]: crd
    for crd in (
        yaml.load((assets.CRDS / name).read_text(), yaml.CSafeLoader) for name in assets.OURS
    )
}
CRDS = {
    crd["metadata"]["name"]: crd
    for crd in (
        yaml.load(file.read_text(), yaml.CSafeLoader) for file in assets.CRDS.glob("*.yaml")
    )
}


def deployment(namespace: str, name: str, image: str, *args: str, ready: int = 1) -> dict[str, Any]:
    container = {"name": "it", "image": image, "args": list(args)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"replicas": 1, "template": {"spec": {"containers": [container]}}},
        "status": {"readyReplicas": ready},
    }


def volcano(tag: str = "v1.15.1", ready: int = 1) -> dict[str, Any]:
    return deployment(
        "volcano-system",
        "volcano-scheduler",
        f"docker.io/volcanosh/vc-scheduler:{tag}",
        "--scheduler-conf=/volcano.scheduler/volcano-scheduler.conf",
        "--disable-default-scheduler-config=true",
        ready=ready,
    )


OPERATOR = deployment("volcano-elastic-system", "volcano-elastic", "volcano-elastic-operator:0.1.0")


def configmap(text: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "volcano-scheduler-configmap", "namespace": "volcano-system"},
        "data": {"volcano-scheduler.conf": text},
    }


def trial(*, defaulted: bool = True, server: datetime = NOW) -> Trial:
    policy = {"cleanPodPolicy": "None"} if defaulted else {}
    answer = {"metadata": {"creationTimestamp": timestamp(server)}, "spec": {"runPolicy": policy}}
    return Trial(answer, NOW, NOW + timedelta(milliseconds=50))


def job(**changes: Any) -> dict[str, Any]:
    pod = {
        "containers": [{"name": "pytorch", "image": "i"}],
        "volumes": [{"name": "commits", "persistentVolumeClaim": {"claimName": "commits"}}],
    } | changes
    return {
        "metadata": {
            "name": "bert",
            "namespace": "ml",
            "annotations": {"volcano-elastic.io/shared-memory": "16Gi"},
        },
        "spec": {
            "elasticPolicy": {"rdzvBackend": "volcano-elastic"},
            "pytorchReplicaSpecs": {"Worker": {"template": {"spec": pod}}},
        },
    }


def claim(mode: str) -> dict[tuple[str, str], dict[str, Any]]:
    return {("ml", "commits"): {"spec": {"accessModes": [mode]}}}


def lease(name: str, renewed: datetime, holder: str = "one") -> dict[str, Any]:
    spec = {"holderIdentity": holder, "renewTime": micro_timestamp(renewed)}
    return {"metadata": {"name": name}, "spec": spec}


CA = {"webhooks": [{"name": "it", "clientConfig": {"caBundle": "Cg=="}}]}
WELL = Facts(
    version="0.1.0",
    crds=CRDS,
    our_crds=OUR_CRDS,
    deployments=(volcano(), OPERATOR),
    scheduler_configmap=configmap(assets.SCHEDULER_CONFIGURATIONS["capacity"].read_text()),
    queues=(),
    webhooks=(CA, CA),
    trial=trial(),
    lease=lease("volcano-elastic", NOW - timedelta(seconds=3)),
    node_leases=(lease("gpu-1", NOW - timedelta(seconds=8)),),
    operator_lacks=(),
    tools_lack=(),
    jobs=(job(),),
    claims=claim("ReadWriteMany"),
)


def grave(facts: Facts) -> list[Diagnosis]:
    return [one for one in diagnose(facts) if one.status is not Status.OK]


def test_a_cluster_that_is_well_has_nothing_to_repair() -> None:
    assert grave(WELL) == []
    assert {one.code for one in diagnose(WELL)} == {
        *("crds", "volcano", "scheduler-config", "operator", "leader", "webhooks", "rights"),
        *("tools-rights", "clocks", "neighbours", "shared-folder", "shared-memory"),
    }


def without(name: str) -> Mapping[str, Any]:
    return {crd: value for crd, value in CRDS.items() if crd != name}


def pruned() -> Mapping[str, Any]:
    """Another project's PyTorchJob over ours."""
    crds = copy.deepcopy(CRDS)
    (version,) = crds["pytorchjobs.kubeflow.org"]["spec"]["versions"]
    del version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["elastic"]
    return crds


BARE = {"webhooks": [{"name": "bare", "clientConfig": {}}]}
TRAINING_OPERATOR = "kubeflow/training-operator:v1-855e096"
CASES: dict[str, tuple[dict[str, Any], str, Status, str]] = {
    "no CRD": ({"crds": without("pytorchjobs.kubeflow.org")}, "crds", Status.ERROR, "not there"),
    "Kubeflow's CRD": ({"crds": pruned()}, "crds", Status.ERROR, "v1.status.elastic"),
    "no PodGroups": (
        {"crds": without("podgroups.scheduling.volcano.sh")},
        "crds",
        Status.ERROR,
        "podgroups",
    ),
    "no Volcano": ({"deployments": (OPERATOR,)}, "volcano", Status.ERROR, "no Deployment"),
    "an old Volcano": (
        {"deployments": (volcano("v1.11.2"), OPERATOR)},
        "volcano",
        Status.ERROR,
        "Volcano 1.11",
    ),
    "a Volcano of no release": (
        {"deployments": (volcano("latest"), OPERATOR)},
        "volcano",
        Status.UNKNOWN,
        "'latest'",
    ),
    "a Volcano that is down": (
        {"deployments": (volcano(ready=0), OPERATOR)},
        "volcano",
        Status.ERROR,
        "no ready pod",
    ),
    "Volcano's own configuration": (
        {
            "scheduler_configmap": configmap(
                'actions: "enqueue, allocate, backfill"\ntiers:\n- plugins:\n  - name: gang\n'
            )
        },
        "scheduler-config",
        Status.ERROR,
        "",
    ),
    "a configuration that is no YAML": (
        {"scheduler_configmap": configmap("actions: [")},
        "scheduler-config",
        Status.ERROR,
        "",
    ),
    "no configuration": (
        {"scheduler_configmap": None},
        "scheduler-config",
        Status.WARNING,
        "no ConfigMap",
    ),
    "no operator": ({"deployments": (volcano(),)}, "operator", Status.WARNING, "no Deployment"),
    "an operator that is down": (
        {"deployments": (volcano(), OPERATOR | {"status": {}})},
        "operator",
        Status.ERROR,
        "no ready pod",
    ),
    "another version's operator": (
        {"version": "0.2.0"},
        "operator",
        Status.WARNING,
        "runs 0.1.0, this tool is 0.2.0",
    ),
    "no leader": ({"lease": None}, "leader", Status.ERROR, "no operator leads"),
    "a leader that is gone": (
        {"lease": lease("volcano-elastic", NOW - timedelta(hours=1))},
        "leader",
        Status.ERROR,
        "3600 s",
    ),
    "no webhooks": ({"webhooks": ()}, "webhooks", Status.WARNING, "not both"),
    "webhooks without authority": ({"webhooks": (CA, BARE)}, "webhooks", Status.ERROR, "bare"),
    "webhooks behind a firewall": (
        {"trial": trial(defaulted=False)},
        "webhooks",
        Status.ERROR,
        "dry run",
    ),
    "lacking rights": (
        {"operator_lacks": (Right("patch", "", "pods"),)},
        "rights",
        Status.ERROR,
        "may not patch pods",
    ),
    "a user's lacking rights": (
        {"tools_lack": (Right("list", "scheduling.volcano.sh", "queues"),)},
        "tools-rights",
        Status.ERROR,
        "list queues.scheduling.volcano.sh",
    ),
    "a clock here that is ahead": (
        {"trial": trial(server=NOW - timedelta(seconds=60)), "lease": lease("l", NOW)},
        "clocks",
        Status.WARNING,
        "this machine is 59 s ahead of",
    ),
    "a node's clock that is ahead": (
        {"node_leases": (lease("gpu-1", NOW + timedelta(seconds=30)),)},
        "clocks",
        Status.WARNING,
        "node gpu-1 is 30 s ahead",
    ),
    "training-operator": (
        {"deployments": (volcano(), OPERATOR, deployment("kubeflow", "t-o", TRAINING_OPERATOR))},
        "neighbours",
        Status.WARNING,
        "kubeflow/t-o",
    ),
    "Kueue": (
        {"crds": {**CRDS, "clusterqueues.kueue.x-k8s.io": {}}},
        "neighbours",
        Status.WARNING,
        "Kueue is there",
    ),
    "Kueue, whose Jobs are sized": (
        {
            "crds": {**CRDS, "clusterqueues.kueue.x-k8s.io": {}},
            "deployments": (volcano(), OPERATOR, deployment("o", "o", "o:1", "--kueue")),
        },
        "neighbours",
        Status.WARNING,
        "and its elastic Jobs are sized (--kueue)",
    ),
    "no folder": ({"jobs": (job(volumes=[]),)}, "shared-folder", Status.WARNING, "no volume"),
    "a claim for one node": (
        {"claims": claim("ReadWriteOnce")},
        "shared-folder",
        Status.WARNING,
        "ReadWriteOnce",
    ),
    "a claim that is not there": ({"claims": {}}, "shared-folder", Status.ERROR, "claim commits"),
    "the runtime's shared memory": (
        {"jobs": (job() | {"metadata": {"name": "bert", "namespace": "ml"}},)},
        "shared-memory",
        Status.WARNING,
        "64 MiB",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_told_with_its_repair(case: str) -> None:
    changes, code, status, words = CASES[case]
    found = grave(replace(WELL, **changes))
    # What an old Volcano lacks is also said of its configuration.
    assert {one.code for one in found} - {"scheduler-config"} <= {code}, found
    assert (found[0].code, found[0].status) == (code, status)
    assert words in found[0].found
    assert all(one.consequence and one.repair for one in found)


@pytest.mark.parametrize(
    "args", [["--enable-scheme=tfjob", "--enable-scheme=mpijob"], ["--enable-scheme", "tfjob"]]
)
def test_a_training_operator_for_other_kinds_is_no_neighbour(args: list[str]) -> None:
    other = deployment("kubeflow", "t-o", TRAINING_OPERATOR, *args)
    assert grave(replace(WELL, deployments=(volcano(), OPERATOR, other))) == []


def test_a_training_operator_at_rest_is_no_neighbour() -> None:
    other = deployment("kubeflow", "t-o", TRAINING_OPERATOR)
    other["spec"]["replicas"] = 0
    assert grave(replace(WELL, deployments=(volcano(), OPERATOR, other))) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda it: it["spec"].pop("elasticPolicy"),
        lambda it: it["spec"]["elasticPolicy"].update(rdzvBackend="c10d"),
        lambda it: it.update(status={"conditions": [{"type": "Failed", "status": "True"}]}),
    ],
    ids=["rigid", "another back end", "ended"],
)
def test_jobs_that_keep_no_commits_of_ours_are_not_judged(
    change: Callable[[dict[str, Any]], object],
) -> None:
    other = job(volumes=[])
    change(other)
    assert grave(replace(WELL, jobs=(other,))) == []


_FACTS = [one.name for one in fields(Facts) if one.name not in ("version", "our_crds")]


@pytest.mark.parametrize("name", _FACTS)
def test_a_fact_that_is_not_told_is_unknown_and_never_well_nor_wrong(name: str) -> None:
    facts = replace(WELL, **{name: Untold("no right to see it")})
    found = grave(facts)
    # Without queues the rest of the configuration is judged; without claims, volumes are.
    assert found or name in ("queues", "claims")
    assert {one.status for one in found} <= {Status.UNKNOWN}
    assert len(diagnose(facts)) <= len(diagnose(WELL))


def test_no_right_is_asked_for_where_the_api_server_serves_no_such_thing() -> None:
    gone = Untold("this API server does not serve it", unserved=True)
    facts = replace(WELL, deployments=gone, operator_lacks=gone, tools_lack=gone)
    repairs = {one.code: one.repair for one in grave(facts) if one.status is Status.UNKNOWN}
    assert {"volcano", "operator", "rights", "tools-rights", "neighbours"} <= set(repairs)
    for repair in repairs.values():
        assert "local up" in repair and "run this as" not in repair


@given(
    st.lists(st.sampled_from(list(CASES)), max_size=6),
    st.lists(st.sampled_from(_FACTS), max_size=8),
)
def test_whatever_is_observed_is_judged_and_the_gravest_comes_first(
    cases: list[str], untold: list[str]
) -> None:
    changes: dict[str, Any] = {}
    for case in cases:
        changes |= CASES[case][0]
    found = diagnose(replace(WELL, **changes | {name: Untold("no") for name in untold}))
    ranks = [list(Status).index(one.status) for one in found]
    assert ranks == sorted(ranks)
    for one in found:
        assert one.found and bool(one.repair) == (one.status is not Status.OK)


def test_the_operators_rights_are_read_from_its_roles() -> None:
    roles = [one for one in yaml.safe_load_all(assets.OPERATOR_RIGHTS.read_text()) if one]
    needed = needed_rights(roles)
    assert len(needed) == len(set(needed)) > 40
    assert Right("get", "", "secrets", "volcano-elastic-system", "volcano-elastic-tokens") in needed
    assert Right("patch", "", "pods") in needed


@pytest.mark.parametrize(
    ("tag", "version"),
    [
        ("v1.15.1", (1, 15)),
        ("1.12", (1, 12)),
        ("v1.15.0-alpha.1", (1, 15)),
        ("latest", None),
        ("", None),
        ("v1", None),
    ],
)
def test_a_release_is_read_from_an_images_tag(tag: str, version: tuple[int, int] | None) -> None:
    assert release(tag) == version
