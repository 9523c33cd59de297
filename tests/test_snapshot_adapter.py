"""From what the informers hold to the planner's picture."""

from __future__ import annotations

from typing import Any

from job_world import job_object

from volcano_elastic.operator.snapshot import Adapter
from volcano_elastic.queue_policy.snapshot import Gang, Snapshot

Object = dict[str, Any]
GPU = "nvidia.com/gpu"


def pod(name: str, *, job: str | None = None, version: int = 1, **more: Any) -> Object:
    meta: Object = {"name": name, "namespace": "team", "uid": name, "resourceVersion": str(version)}
    meta["creationTimestamp"] = "2026-01-01T12:00:00Z"
    if job:
        meta["labels"] = {
            "training.kubeflow.org/replica-type": "worker",
            "training.kubeflow.org/replica-index": name[-1],
        }
        meta["annotations"] = {"scheduling.k8s.io/group-name": job}
        meta["ownerReferences"] = [
            {"kind": "PyTorchJob", "name": job, "uid": "u1", "controller": True}
        ]
    meta |= more.pop("meta", {})
    container = {"name": "pytorch", "resources": {"limits": {GPU: "1"}}}
    spec = {"containers": [container]} | more.pop("spec", {})
    return {"metadata": meta, "spec": spec, "status": {"phase": "Running"} | more}


def podgroup(name: str, *, owner: str | None = None, **more: Any) -> Object:
    meta: Object = {"name": name, "namespace": "team", "uid": name, "resourceVersion": "1"}
    meta["creationTimestamp"] = "2026-01-01T12:00:00Z"
    if owner:
        meta["ownerReferences"] = [{"kind": owner, "name": name, "uid": "u1", "controller": True}]
    return {"metadata": meta, "spec": {"minMember": 2, "queue": "q"}} | more


def picture(adapter: Adapter | None = None, **kinds: list[Object]) -> Snapshot:
    names = ("jobs", "pods", "podgroups", "nodes", "queues")
    return (adapter or Adapter()).snapshot(**{name: kinds.get(name, []) for name in names})


def test_jobs_that_want_pods_are_seen_with_their_durable_size() -> None:
    elastic = job_object(elastic={"min": 2, "max": 4, "cooldownSeconds": 5})
    elastic["status"] = {
        "elastic": {
            "desired": 3,
            "lastScaleTime": "2026-01-01T12:00:00.250000Z",
            "lastScaleReason": "GrewIntoIdle",
        }
    }
    fixed = job_object(master=True, replicas=3)
    fixed["metadata"]["name"] = "fixed"
    over = job_object()
    over["metadata"]["name"] = "over"
    over["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
    wrong = job_object(elastic={"min": 4, "max": 2})
    wrong["metadata"]["name"] = "wrong"
    a, b = picture(jobs=[elastic, fixed, over, wrong]).jobs
    assert (a.key, a.min, a.max, a.desired, a.pod_requests) == ("team/a", 2, 4, 3, {GPU: 1000})
    assert a.last_scale is not None and a.last_scale.microsecond == 250000
    assert (a.last_reason, a.cooldown.total_seconds()) == ("GrewIntoIdle", 5)
    assert (b.key, b.min, b.max, b.desired) == ("team/fixed", 3, 3, 3)
    assert b.master_requests == {GPU: 1000}


def test_ended_pods_hold_nothing_but_successes_are_counted() -> None:
    view = picture(
        jobs=[job_object(elastic={"min": 1, "max": 4})],
        pods=[
            pod("a-worker-0", job="a", spec={"nodeName": "n"}),
            pod("a-worker-1", job="a", phase="Succeeded"),
            pod("a-worker-2", job="a", phase="Failed"),
            pod("a-worker-3", job="a", meta={"deletionTimestamp": "2026-01-01T12:00:30Z"}),
            pod("a-worker-4", job="a", phase="Succeeded", meta={"deletionTimestamp": "2026-01-01"}),
            pod("lone", phase="Pending"),
        ],
    )
    assert [p.key for p in view.pods] == ["team/a-worker-0", "team/a-worker-3", "team/lone"]
    first, leaving, lone = view.pods
    assert (first.job, first.index, first.node, first.running) == ("team/a", 0, "n", True)
    assert leaving.terminating and leaving.leaves_by is not None
    assert (lone.job, lone.gang, lone.running) == (None, None, False)
    assert view.jobs[0].succeeded == 1


def test_only_other_peoples_gangs_are_gangs() -> None:
    view = picture(
        podgroups=[
            podgroup("a", owner="PyTorchJob"),
            podgroup("v", owner="Job"),
            podgroup("done", status={"phase": "Completed"}),
        ]
    )
    (gang,) = view.gangs
    assert isinstance(gang, Gang)
    assert (gang.key, gang.queue, gang.min_member) == ("team/v", "q", 2)


def test_nodes_and_queues_are_read_and_nonsense_in_them_is_left_out() -> None:
    node = {
        "metadata": {"name": "n", "resourceVersion": "1"},
        "spec": {"unschedulable": True, "taints": [{"key": "k", "effect": "NoSchedule"}]},
        "status": {
            "allocatable": {GPU: "4", "odd": "many"},
            "conditions": [{"type": "Ready", "status": "False"}],
        },
    }
    queue = {
        "metadata": {"name": "q", "resourceVersion": "1"},
        "spec": {"capability": {GPU: 8}, "guarantee": {"resource": {GPU: "2"}}},
        "status": {"state": "Closed"},
    }
    view = picture(nodes=[node], queues=[queue])
    assert view.nodes[0].allocatable == {GPU: 4000}
    assert (view.nodes[0].ready, view.nodes[0].unschedulable) == (False, True)
    assert view.nodes[0].taints == (("k", "", "NoSchedule"),)
    assert (view.queues[0].open, view.queues[0].capability) == (False, {GPU: 8000})
    assert (view.queues[0].guarantee, view.queues[0].deserved) == ({GPU: 2000}, None)


def test_a_new_version_of_an_object_is_read_anew() -> None:
    adapter = Adapter()
    assert picture(adapter, pods=[pod("p", phase="Pending")]).pods[0].running is False
    assert picture(adapter, pods=[pod("p", version=2)]).pods[0].running is True
