"""The PodGroup, and what Volcano reads from its pods."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volcano_elastic.api.pytorchjob import PyTorchJob, parse
from volcano_elastic.api.role import elastic, known
from volcano_elastic.podgroup import podgroup
from volcano_elastic.podgroup.pod_annotation import pod_annotations
from volcano_elastic.podgroup.podgroup import Requests
from volcano_elastic.podgroup.protection import Change, Member, rebalance
from volcano_elastic.pytorchjob.pod import requests

OWNER = {"kind": "PyTorchJob", "name": "a", "uid": "u1", "controller": True}


def _replica(replicas: int, gpus: int, **spec: Any) -> dict[str, Any]:
    container = {
        "name": "pytorch",
        "image": "train:1",
        "resources": {"limits": {"nvidia.com/gpu": gpus}, "requests": {"cpu": "500m"}},
    }
    return {"replicas": replicas, "template": {"spec": {"containers": [container], **spec}}}


def _job(
    low: int | None = 2,
    high: int = 4,
    *,
    master: bool = False,
    scheduling: dict[str, Any] | None = None,
    annotations: dict[str, str] | None = None,
) -> PyTorchJob:
    replicas = {"Worker": _replica(3, 1)} | ({"Master": _replica(1, 2)} if master else {})
    spec: dict[str, Any] = {"pytorchReplicaSpecs": replicas}
    if low is not None:
        spec["elasticPolicy"] = {"min": low, "max": high}
    if scheduling:
        spec["runPolicy"] = {"schedulingPolicy": scheduling}
    meta = {
        "name": "a",
        "namespace": "team",
        "uid": "u1",
        "creationTimestamp": "2026-01-01T12:00:00Z",
        "annotations": annotations or {},
    }
    return parse({"metadata": meta, "spec": spec})


def _asks(job: PyTorchJob) -> dict[str, Requests]:
    return {name: Requests(further=requests(job, spec.role)) for name, spec in job.replicas.items()}


def _built(job: PyTorchJob) -> dict[str, Any]:
    members = podgroup.members(job, None, {})
    return podgroup.build(job, OWNER, podgroup.spec(job, members, _asks(job)))


def _patch(
    job: PyTorchJob, found: dict[str, Any], live: int, masters: int = 0
) -> dict[str, Any] | None:
    members = podgroup.members(job, found, {"Master": masters, "Worker": live})
    return podgroup.patch(found, podgroup.spec(job, members, _asks(job)))


@pytest.mark.parametrize(
    ("job", "members", "resources"),
    [
        (_job(), 2, {"nvidia.com/gpu": "2", "cpu": "1"}),
        # Workers wait for the Master in an init container, which asks for memory.
        (_job(master=True), 3, {"nvidia.com/gpu": "4", "cpu": "1500m", "memory": "40Mi"}),
        (_job(None), 3, {"nvidia.com/gpu": "3", "cpu": "1500m"}),
        (_job(None, master=True), 4, {"nvidia.com/gpu": "5", "cpu": "2", "memory": "60Mi"}),
        (_job(scheduling={"minAvailable": 3}), 3, {"nvidia.com/gpu": "3", "cpu": "1500m"}),
        (_job(scheduling={"minResources": {"cpu": "1500m"}}), 2, {"cpu": "1500m"}),
    ],
    ids=["elastic", "with Master", "fixed", "fixed with Master", "minAvailable", "minResources"],
)
def test_the_gang_is_the_minimum_and_its_requests(
    job: PyTorchJob, members: int, resources: dict[str, str]
) -> None:
    spec = _built(job)["spec"]
    assert spec["minMember"] == members
    assert spec["minResources"] == resources


def test_a_gang_of_any_size_is_added_up_without_a_list_of_its_pods() -> None:
    most = 2**31 - 1
    spec = _built(_job(high=most, scheduling={"minAvailable": most}))["spec"]
    assert spec["minMember"] == most
    assert spec["minResources"]["nvidia.com/gpu"] == str(most)


def test_min_resources_stay_within_what_volcano_can_count() -> None:
    asked = {"minResources": {"nvidia.com/gpu": "1e18", "memory": "1e18", "cpu": "500m"}}
    spec = _built(_job(scheduling=asked))["spec"]
    assert spec["minResources"] == {
        "nvidia.com/gpu": str((2**63 - 1) // 1000),
        "memory": str(10**18),
        "cpu": "500m",
    }


def test_queue_and_priority_come_from_the_scheduling_policy() -> None:
    body = _built(_job(scheduling={"queue": "research", "priorityClass": "high"}))
    assert (body["spec"]["queue"], body["spec"]["priorityClassName"]) == ("research", "high")
    assert body["metadata"]["ownerReferences"] == [OWNER]


def test_annotations_of_the_job_reach_the_podgroup_but_for_tools_own() -> None:
    given = {
        "volcano.sh/sla-waiting-time": "1h",
        "kubectl.kubernetes.io/last-applied-configuration": "{}",
        "kopf.zalando.org/last-handled-configuration": "{}",
        "volcano-elastic.io/shared-memory": "1Gi",
    }
    body = _built(_job(annotations=given))
    assert body["metadata"]["annotations"] == {"volcano.sh/sla-waiting-time": "1h"}


def test_the_queue_may_come_from_volcanos_annotation() -> None:
    asked = {"scheduling.volcano.sh/queue-name": "research"}
    assert _built(_job(annotations=asked))["spec"]["queue"] == "research"
    both = _job(annotations=asked, scheduling={"queue": "vision"})
    assert _built(both)["spec"]["queue"] == "vision"
    found = _built(both)
    assert podgroup.queue_in_force(both, found) == "vision"
    assert podgroup.queue_in_force(_job(annotations=asked), found) == "vision"
    assert podgroup.queue_in_force(_job(annotations=asked), None) == "research"


def test_min_resources_count_what_the_scheduler_counts() -> None:
    job = _job(1)
    template: Any = job.replicas["Worker"].template
    template["spec"] |= {
        "overhead": {"memory": "10Mi"},
        "initContainers": [
            {"restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}},
            {"resources": {"requests": {"cpu": "2", "memory": "1Gi"}}},
        ],
        "containers": [
            {"name": "pytorch", "image": "x", "resources": {"limits": {"nvidia.com/gpu": 1}}},
            {"name": "b", "image": "x", "resources": {"requests": {"cpu": "500m"}}},
        ],
    }
    # The largest init step beside the sidecar; a limit counts as a request; overhead on top.
    assert podgroup.min_resources(job, 1, _asks(job)) == {
        "cpu": "2100m",
        "memory": "1034Mi",
        "nvidia.com/gpu": "1",
    }


@pytest.mark.parametrize(
    ("whole", "asked"),
    [
        ({"requests": {"cpu": "3"}}, {"cpu": "3100m", "memory": "1Gi"}),
        ({"limits": {"cpu": "3", "memory": "4Gi"}}, {"cpu": "600m", "memory": "1Gi"}),
        (
            {"requests": {"cpu": "1"}, "limits": {"cpu": "3", "hugepages-2Mi": "4Mi"}},
            {"cpu": "1100m", "memory": "1Gi", "hugepages-2Mi": "4Mi"},
        ),
        # Not a resource that a pod as a whole can have.
        ({"requests": {"nvidia.com/gpu": 8}}, {"cpu": "600m", "memory": "1Gi"}),
    ],
)
def test_what_a_pod_asks_for_as_a_whole_counts_instead_of_its_containers(
    whole: dict[str, Any], asked: dict[str, str]
) -> None:
    job = _job(1)
    container = {"name": "pytorch", "image": "x"}
    job.replicas["Worker"].template["spec"].update(  # type: ignore[attr-defined]
        overhead={"cpu": "100m"},
        resources=whole,
        containers=[container | {"resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}],
    )
    assert podgroup.min_resources(job, 1, _asks(job)) == asked


def test_pods_that_exist_tell_better_than_the_template() -> None:
    measured = {"Worker": Requests(further={"cpu": 700})}
    assert podgroup.min_resources(_job(2), 2, measured) == {"cpu": "1400m"}
    job = _job(1, master=True)
    with_master = podgroup.min_resources(job, 2, _asks(job) | measured)
    assert with_master == {"nvidia.com/gpu": "2", "cpu": "1200m"}


def test_somebody_elses_nonsense_in_min_resources_is_replaced() -> None:
    found = _built(_job())
    found["spec"]["minResources"]["cpu"] = "plenty"
    assert _patch(_job(), found, live=2) == {"spec": {"minResources": {"cpu": "1"}}}


def test_a_podgroup_that_is_right_is_left_alone() -> None:
    job = _job()
    found = _built(job) | {"status": {"phase": "Running"}}
    found["spec"]["networkTopology"] = {"mode": "soft"}
    found["spec"]["minResources"] = {"nvidia.com/gpu": "2000m", "cpu": 1}  # the same, spelt apart
    assert _patch(job, found, live=2) is None


def test_a_patch_holds_only_what_differs_and_never_moves_the_queue() -> None:
    found = _built(_job(3))
    found["spec"]["queue"] = "elsewhere"
    assert _patch(_job(2), found, live=3) == {
        "spec": {
            "minMember": 2,
            "minTaskMember": {"worker": 2},
            "minResources": {"nvidia.com/gpu": "2", "cpu": "1"},
        }
    }


def test_min_member_rises_only_as_far_as_pods_exist() -> None:
    found = _built(_job(1))
    assert _patch(_job(4), found, live=1) is None
    raised = _patch(_job(4), found, live=3)
    assert raised is not None and raised["spec"]["minMember"] == 3
    assert raised["spec"]["minTaskMember"] == {"worker": 3}


@pytest.mark.parametrize(
    ("job", "roles"),
    [
        (_job(), {"worker": 2}),
        (_job(master=True), {"master": 1, "worker": 2}),
        (_job(None, master=True), {"master": 1, "worker": 3}),
        # Whoever says how many pods are enough doesn't say which.
        (_job(master=True, scheduling={"minAvailable": 2}), {}),
    ],
    ids=["elastic", "with Master", "fixed with Master", "minAvailable"],
)
def test_a_gang_says_which_roles_its_minimum_has(job: PyTorchJob, roles: dict[str, int]) -> None:
    assert _built(job)["spec"]["minTaskMember"] == roles


def test_a_role_that_has_no_pod_yet_is_not_asked_of_a_gang_that_is_there() -> None:
    job = _job(master=True)
    found = _built(job)
    del found["spec"]["minTaskMember"]  # as an earlier version made it
    first = _patch(job, found, live=3)
    assert first == {"spec": {"minTaskMember": {"worker": 2}}}
    second = _patch(job, found, live=3, masters=1)
    assert second == {"spec": {"minTaskMember": {"master": 1, "worker": 2}}}


@given(
    low=st.integers(1, 5),
    more=st.integers(0, 5),
    master=st.booleans(),
    explicit=st.none() | st.integers(0, 12),
    before=st.none() | st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(0, 2)),
    live=st.tuples(st.integers(0, 1), st.integers(0, 10)),
)
def test_roles_never_make_a_gang_harder_to_start_than_its_size(
    low: int,
    more: int,
    master: bool,
    explicit: int | None,
    before: tuple[int, int, int] | None,
    live: tuple[int, int],
) -> None:
    """Pods come in falling task priority: as soon as they are as many as minMember says, they are
    also of the roles that minTaskMember asks for."""
    scheduling = {} if explicit is None else {"minAvailable": explicit}
    job = _job(low, low + more, master=master, scheduling=scheduling)
    existing = None
    if before is not None:
        total, workers, masters = before
        roles = {"worker": workers, "master": masters}
        existing = {"spec": {"minMember": total, "minTaskMember": roles}}
    found = podgroup.members(job, existing, {"Master": live[0], "Worker": live[1]})
    assert sum(found.by_role.values()) <= found.total
    enough = podgroup.shares(job, found.total)
    for name, count in enough.items():
        assert found.by_role.get(name.lower(), 0) <= count


def test_priority_falls_with_the_role_and_the_index() -> None:
    job = _job(master=True)
    assert [role.name for role in known()] == ["PS", "Master", "Worker"]
    order = [(role, i) for role in known() for i in (0, 1, 7) if i < (role.most_replicas or 8)]
    found = [
        int(pod_annotations(job, role, i, protected=True)["volcano.sh/task-priority"])
        for role, i in order
    ]
    assert found == sorted(found, reverse=True) and len(set(found)) == len(order)


def test_only_surplus_pods_cool_down_and_only_where_asked_for() -> None:
    def given(protect: float | None, *, protected: bool) -> dict[str, str]:
        asked = None if protect is None else timedelta(seconds=protect)
        return pod_annotations(_job(), elastic(), 3, protected=protected, protect=asked)

    surplus = given(90, protected=False)
    assert surplus["volcano.sh/cooldown-time"] == "90s"
    assert surplus["volcano.sh/preemptable"] == "true"
    assert given(1.5, protected=False)["volcano.sh/cooldown-time"] == "1.5s"
    for found in (
        given(90, protected=True),
        given(None, protected=False),
        given(0, protected=False),
    ):
        assert "volcano.sh/cooldown-time" not in found


def test_a_fixed_jobs_pods_only_join_their_gang() -> None:
    assert pod_annotations(_job(None), elastic(), 1, protected=False) == {
        "scheduling.k8s.io/group-name": "a",
        "volcano.sh/task-spec": "worker",
    }


def _members(text: str) -> list[Member]:
    """`0P 1p 2 3r`: rank, P or p protected, capital or r running."""
    out = []
    for word in text.split():
        flags = word.lstrip("0123456789")
        rank = int(word[: len(word) - len(flags)])
        out.append(Member(f"w{rank}", rank == 0, rank, flags.lower() == "p", flags in ("P", "r")))
    return out


@pytest.mark.parametrize(
    ("members", "count", "demote", "change"),
    [
        ("0P 1P 2r 3r", 2, True, Change()),
        ("0P 2r 3r", 2, False, Change(promote=("w2",))),
        ("0P 2 3r", 2, False, Change(promote=("w3",))),
        ("1P 2r 3r", 2, False, Change(promote=("w2",))),
        ("0p 1P 2P", 2, False, Change()),
        ("0p 1P 2P", 2, True, Change(demote=("w2",))),
        ("0r 1P 2P", 2, True, Change(promote=("w0",))),
        ("0P", 2, True, Change()),
        ("0P 1p 2P", 2, True, Change(demote=("w1",))),
    ],
    ids=[
        "as it should be",
        "a protected one was lost",
        "a running pod is promoted before a pending one",
        "worker 0 is away: another stands in",
        "nothing is demoted while things change",
        "demoted once all is calm",
        "worker 0 is always protected",
        "nobody to promote",
        "a pending pod gives up its protection first",
    ],
)
def test_protection(members: str, count: int, demote: bool, change: Change) -> None:
    assert rebalance(_members(members), count, demote=demote) == change
