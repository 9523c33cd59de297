"""From what the informers hold to the planner's snapshot."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.operation_count import operations
from tests.pytorchjob.world import job_object
from volcano_elastic.api.queue_policy import Mode, QueuePolicy
from volcano_elastic.operator.snapshot_builder import KINDS, SnapshotBuilder, snapshot_of
from volcano_elastic.queue_policy.plan import plan
from volcano_elastic.snapshot.snapshot import Memory, Requirement, Snapshot

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


def kinded(**kinds: list[Object]) -> list[Object]:
    known = {resource.plural: resource.kind for resource in KINDS}
    known |= {"jobs": "PyTorchJob", "resourcequotas": "ResourceQuota"}
    return [obj | {"kind": known[name]} for name, objects in kinds.items() for obj in objects]


def snapshot(**kinds: list[Object]) -> Snapshot:
    return snapshot_of(kinded(**kinds))


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
    a, b = snapshot(jobs=[elastic, fixed, over, wrong]).jobs
    assert (a.key, a.min, a.max, a.desired, a.pod_requests) == ("team/a", 2, 4, 3, {GPU: 1000})
    assert a.last_scale is not None and a.last_scale.microsecond == 250000
    assert (a.last_reason, a.cooldown.total_seconds()) == ("GrewIntoIdle", 5)
    assert (b.key, b.min, b.max, b.desired) == ("team/fixed", 3, 3, 3)
    assert b.master_requests == {GPU: 1000}
    # As the PodGroup has it: with the init container that waits for the Master.
    assert b.pod_requests == {GPU: 1000, "cpu": 100, "memory": 20 * 2**20 * 1000}


def test_an_explicit_min_available_is_the_least_that_is_planned_for() -> None:
    policy = {"schedulingPolicy": {"minAvailable": 4}}
    obj = job_object(elastic={"min": 1, "max": 8}, master=True, runPolicy=policy)
    (seen,) = snapshot(jobs=[obj]).jobs
    assert (seen.min, seen.desired, seen.max) == (3, 3, 8), "the Master is the fourth"


@pytest.mark.parametrize(
    ("phase", "state", "halted"),
    [
        ("Running", {"running": {}}, ""),
        ("Running", {"waiting": {"reason": "CrashLoopBackOff"}}, "CrashLoopBackOff"),
        ("Running", {"terminated": {"exitCode": 1, "reason": "Error"}}, "Error"),
        ("Running", {"waiting": {}}, "Waiting"),
        ("Pending", {"waiting": {"reason": "ContainerCreating"}}, ""),
    ],
)
def test_a_running_pod_whose_container_does_not_run_says_why(
    phase: str, state: Any, halted: str
) -> None:
    made = pod("lone", phase=phase)
    made["status"]["containerStatuses"] = [{"name": "pytorch", "state": state}]
    (seen,) = snapshot(pods=[made]).pods
    assert seen.halted == halted


@pytest.mark.parametrize(
    ("name", "code", "halted"),
    [("fetch", 0, ""), ("fetch", 1, "Completed"), ("pytorch", 0, "Completed")],
)
def test_a_container_that_has_done_its_work_beside_training_halts_nothing(
    name: str, code: int, halted: str
) -> None:
    made, other = pod("lone", phase="Running"), {"fetch": "pytorch", "pytorch": "fetch"}[name]
    ended = {"terminated": {"exitCode": code, "reason": "Completed"}}
    made["status"]["containerStatuses"] = [
        {"name": name, "state": ended},
        {"name": other, "state": {"running": {}}},
    ]
    (seen,) = snapshot(pods=[made]).pods
    assert seen.halted == halted


def test_ended_pods_hold_nothing_but_successes_are_counted() -> None:
    view = snapshot(
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


def test_a_job_speaks_for_its_gang_and_nobody_else_does() -> None:
    view = snapshot(
        jobs=[job_object(elastic={"min": 1, "max": 2})],
        podgroups=[
            podgroup("a", owner="PyTorchJob"),
            podgroup("v", owner="Job"),
            podgroup("done", status={"phase": "Completed"}),
            # Another operator's, or one that is refused: its pods are still a gang to Volcano.
            podgroup("stranger", owner="PyTorchJob"),
        ],
    )
    assert [gang.key for gang in view.gangs] == ["team/v", "team/stranger"]
    assert (view.gangs[0].queue, view.gangs[0].min_member) == ("q", 2)


def test_a_pending_vcjob_says_what_each_of_its_pods_will_ask_for() -> None:
    group = podgroup("v", owner="Job")
    group["spec"]["minResources"] = {GPU: "4", "cpu": "3"}
    alone = podgroup("g")
    alone["spec"]["minResources"] = {GPU: "4"}
    v, g = snapshot(podgroups=[group, alone]).gangs
    assert v.pod_requests == {GPU: 2000, "cpu": 1500}
    assert g.pod_requests is None, "nobody makes pods for a PodGroup without an owner"


def test_pods_behind_a_foreign_gate_are_not_waiting_yet() -> None:
    def gated(name: str, gate: str) -> Object:
        spec = {"schedulingGates": [{"name": gate}]}
        return pod(name, job=None, phase="Pending", spec=spec)

    gates = ("example.com/quota", "scheduling.volcano.sh/queue-allocation-gate")
    view = snapshot(pods=[gated(f"p{i}", gate) for i, gate in enumerate(gates)])
    assert [p.key for p in view.pods] == ["team/p1"]


def test_priorities_come_from_priority_classes() -> None:
    job = job_object(runPolicy={"schedulingPolicy": {"priorityClass": "high"}})
    group = podgroup("v", owner="Job")
    classes: list[Object] = [
        {"metadata": {"name": "high"}, "value": 100},
        {"metadata": {"name": "usual"}, "value": 7, "globalDefault": True},
    ]
    view = snapshot(jobs=[job], podgroups=[group], priorityclasses=classes)
    assert (view.jobs[0].priority, view.gangs[0].priority) == (100, 7)
    builder = SnapshotBuilder()
    for obj in kinded(jobs=[job], priorityclasses=classes):
        builder.change(None, obj)
    raised = classes[0] | {"kind": "PriorityClass", "value": 200}
    assert builder.change(None, raised)
    assert builder.snapshot().jobs[0].priority == 200


def test_what_the_planner_cannot_foresee_is_named() -> None:
    claims = job_object(elastic={"min": 1, "max": 2})
    template = claims["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    template["spec"]["resourceClaims"] = [{"name": "gpu"}]
    spread = job_object(elastic={"min": 1, "max": 2})
    spread["metadata"]["name"] = "b"
    group = podgroup("b", owner="PyTorchJob")
    group["spec"]["networkTopology"] = {"mode": "hard"}
    view = snapshot(jobs=[claims, spread], podgroups=[group])
    assert [job.unmodelled for job in view.jobs] == ["resourceClaims", "networkTopology"]


def test_what_was_measured_is_read_back() -> None:
    job = job_object(elastic={"min": 1, "max": 4, "metrics": [{}]}, replicas=3)
    speeds = {"2": 190.0, "1": 100, "x": 1, "4": "fast"}
    job["status"] = {"elastic": {"speeds": speeds, "gpuHours": 1.5, "pauseSeconds": 0.1}}
    seen = snapshot(jobs=[job]).jobs[0]
    assert seen.pause == timedelta(seconds=0.1)
    assert (seen.speeds, seen.gpu_hours) == ({1: 100.0, 2: 190.0}, 1.5)
    assert (seen.scaler, seen.replicas) == ("hpa", 3)


def scale_plan(name: str, replicas: int, scale_type: str = "manual", **status: Any) -> Object:
    meta: Object = {"name": name, "namespace": "team", "labels": {"scale-type": scale_type}}
    roles = {"Worker": {"replicas": replicas}}
    spec = {"ownerJob": "a", "replicaResourceSpecs": roles}
    return {"kind": "ScalePlan", "metadata": meta, "spec": spec, "status": status}


def test_the_plan_that_counts_is_the_jobs_wish_for_as_long_as_it_counts() -> None:
    (job,) = kinded(jobs=[job_object(elastic={"min": 1, "max": 4})])
    builder = SnapshotBuilder()

    def wish() -> tuple[str, int | None]:
        (seen,) = builder.snapshot().jobs
        return seen.scaler, seen.replicas

    auto, manual = scale_plan("new", 4, "auto"), scale_plan("old", 2)
    builder.change(None, auto)
    builder.change(None, job)
    assert wish() == ("hpa", 4), "it may be there before its job"
    assert builder.change(None, manual)
    assert wish() == ("hpa", 2), "a person's counts before a program's"
    expired = scale_plan("old", 2, phase="Expired")
    assert builder.change(manual, expired)
    assert wish() == ("hpa", 4)
    elsewhere = auto | {"spec": auto["spec"] | {"ownerJob": "b"}}
    assert builder.change(auto, elsewhere)
    assert wish() == ("volcano", None)
    assert not builder.change(None, scale_plan("bad", 3, "sometimes"))
    assert not builder.change(None, scale_plan("other", 3, jobUID="of another job"))
    assert builder.change(elsewhere, auto) and builder.change(auto, None)
    assert wish() == ("volcano", None)


def test_a_plan_that_names_pods_sizes_nothing_until_it_is_known_which_are_meant() -> None:
    job = job_object(elastic={"min": 1, "max": 4})
    plan = scale_plan("p", 2)
    plan["spec"]["removePods"] = [{"name": "a-worker-1"}]
    assert snapshot_of([*kinded(jobs=[job]), plan]).jobs[0].replicas is None
    known = plan | {"status": {"pods": {"a-worker-1": "p1"}}}
    assert snapshot_of([*kinded(jobs=[job]), known]).jobs[0].replicas == 2


def test_kueues_word_counts_before_a_plans() -> None:
    admitted = job_object(elastic={"min": 1, "max": 4}, replicas=3)
    admitted["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    seen = snapshot_of([*kinded(jobs=[admitted]), scale_plan("p", 2)]).jobs[0]
    assert (seen.min, seen.max, seen.replicas) == (3, 3, None)


def test_a_speed_that_no_training_has_is_not_planned_with() -> None:
    job = job_object(elastic={"min": 1, "max": 8}, replicas=2)
    speeds = {"1": 5e-324, "2": 190.0, "4": 1e308, "8": math.nan}
    job["status"] = {"elastic": {"desired": 2, "speeds": speeds}}
    seen = snapshot(jobs=[job])
    assert seen.jobs[0].speeds == {2: 190.0}
    plan(seen, datetime(2026, 1, 1, tzinfo=UTC))


def test_required_node_affinity_is_read() -> None:
    def affine(*terms: Object) -> Object:
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        return pod("p", spec={"affinity": {"nodeAffinity": required}})

    zone = {"key": "zone", "operator": "In", "values": ["a", "b"]}
    name = {"key": "metadata.name", "operator": "In", "values": ["n"]}
    (found,) = snapshot(pods=[affine({"matchExpressions": [zone], "matchFields": [name]}, {})]).pods
    both = (Requirement("zone", "In", ("a", "b")), Requirement("metadata.name", "In", ("n",), True))
    assert found.node_affinity == (both,)
    (nowhere,) = snapshot(pods=[affine({})]).pods
    assert nowhere.node_affinity, "an empty term matches no node"


def test_nodes_that_failed_a_job_are_no_room_for_its_pods() -> None:
    job = job_object(elastic={"min": 1, "max": 4})
    until = "2026-01-01T13:00:00.000000Z"
    job["status"] = {
        "elastic": {"excludedNodes": [{"node": "n1", "reason": "ECC", "until": until}]}
    }
    (seen,) = snapshot(jobs=[job]).jobs
    assert seen.excluded == ("n1",)
    assert seen.node_affinity == ((Requirement("metadata.name", "NotIn", ("n1",), True),),)


def test_a_coordinators_own_pod_holds_room_and_counts_in_no_jobs_size() -> None:
    labels = {"training.kubeflow.org/replica-type": "coordinator"}
    own = pod("a-coordinator", job="a", meta={"labels": labels}, spec={"nodeName": "n1"})
    worker = pod("a-worker-0", job="a")
    found = snapshot(jobs=[job_object()], pods=[own, worker]).pods
    jobs = {one.key: (one.job, one.node) for one in found}
    assert jobs == {"team/a-coordinator": (None, "n1"), "team/a-worker-0": ("team/a", None)}


def test_a_node_that_says_nothing_of_its_readiness_takes_pods() -> None:
    (found,) = snapshot(nodes=[{"metadata": {"name": "n", "resourceVersion": "1"}}]).nodes
    assert found.ready and found.takes_pods


def test_policies_are_read_and_the_oldest_of_a_queue_counts() -> None:
    def policy(name: str, created: str, **spec: Any) -> Object:
        meta = {"name": name, "creationTimestamp": created}
        return {"kind": "QueuePolicy", "metadata": meta, "spec": {"queue": "q"} | spec}

    builder = SnapshotBuilder()
    young = policy("a", "2026-01-02T00:00:00Z", mode="Off")
    old = policy("b", "2026-01-01T00:00:00Z", mode="Hold")
    for obj in (young, old):
        assert builder.change(None, obj)
    assert builder.policy_of("q").mode is Mode.HOLD
    assert builder.policy_of("other") == QueuePolicy("other")
    assert builder.change(old, policy("b", "2026-01-01T00:00:00Z", grow={"maxStep": 0}))
    assert str(builder.invalid["b"]).startswith("spec.grow.maxStep: must be an integer")
    assert builder.policy_of("q").mode is Mode.OFF, "what is invalid does not count"


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
    view = snapshot(nodes=[node], queues=[queue])
    assert view.nodes[0].allocatable == {GPU: 4000}
    assert (view.nodes[0].ready, view.nodes[0].unschedulable) == (False, True)
    assert view.nodes[0].taints == (("k", "", "NoSchedule"),)
    assert (view.queues[0].open, view.queues[0].capability) == (False, {GPU: 8000})
    assert (view.queues[0].guarantee, view.queues[0].deserved) == ({GPU: 2000}, None)


def test_queues_know_their_place() -> None:
    child = {"metadata": {"name": "c"}, "spec": {"parent": "p", "weight": 3, "reclaimable": False}}
    top = {"metadata": {"name": "p"}, "spec": {"parent": "root", "priority": 5}}
    c, p = snapshot(queues=[child, top]).queues
    assert (c.parent, c.weight, c.priority, c.reclaimable) == ("p", 3, 0, False)
    assert (p.parent, p.weight, p.priority, p.reclaimable) == (None, 1, 5, True)


def test_a_change_leaves_all_other_values_the_same_objects() -> None:
    builder = SnapshotBuilder()
    for obj in kinded(
        jobs=[job_object(elastic={"min": 1, "max": 4})],
        pods=[pod("a-worker-0", job="a"), pod("p", phase="Pending")],
    ):
        builder.change(None, obj)
    before = builder.snapshot()
    again = kinded(pods=[pod("p", version=2, phase="Pending", hostIP="1.2.3.4")])[0]
    assert not builder.change(None, again), "nothing that a plan could depend on"
    assert builder.snapshot().pods is before.pods
    running = kinded(pods=[pod("p", version=3, spec={"nodeName": "n"})])[0]
    assert builder.change(again, running)
    after = builder.snapshot()
    assert after.pods[0] is before.pods[0] and after.pods[1].node == "n"
    assert after.jobs is before.jobs and after.nodes is before.nodes
    assert builder.change(running, None)
    assert [p.key for p in builder.snapshot().pods] == ["team/a-worker-0"]


def test_successes_are_counted_once_and_forgotten_with_their_pods() -> None:
    builder = SnapshotBuilder()
    done = kinded(pods=[pod("a-worker-1", job="a", phase="Succeeded")])[0]
    for obj in [*kinded(jobs=[job_object(elastic={"min": 1, "max": 4})]), done, done]:
        builder.change(None, obj)
    assert builder.snapshot().jobs[0].succeeded == 1
    builder.change(done, None)
    assert builder.snapshot().jobs[0].succeeded == 0


def test_one_unreadable_object_does_not_stop_the_rest() -> None:
    broken = podgroup("v", owner="Job")
    broken["spec"]["minMember"] = "many"
    view = snapshot(podgroups=[broken, podgroup("w")], pods=[pod("p", phase="Pending")])
    assert [gang.key for gang in view.gangs] == ["team/w"]
    assert len(view.pods) == 1


def test_jobs_of_another_operator_are_left_to_it() -> None:
    builder = SnapshotBuilder(serves=lambda job: job["metadata"]["namespace"] == "mine")
    for obj in kinded(jobs=[job_object()], podgroups=[podgroup("a", owner="PyTorchJob")]):
        builder.change(None, obj)
    view = builder.snapshot()
    assert view.jobs == () and [gang.key for gang in view.gangs] == ["team/a"]


def test_the_last_plans_memory_is_in_the_next_picture() -> None:
    builder = SnapshotBuilder()
    builder.memory = Memory(blocked_since={"team/a": datetime(2026, 1, 1, tzinfo=UTC)})
    assert builder.snapshot().memory is builder.memory


def test_one_change_among_very_many_pods_is_cheap() -> None:
    def cost(pods: int) -> int:
        builder = SnapshotBuilder()
        for index in range(pods):
            obj = pod(f"p{index}", spec={"nodeName": f"n{index % 2000}"}) | {"kind": "Pod"}
            builder.change(None, obj)
        builder.snapshot()
        changed = pod("p7", spec={"nodeName": "elsewhere"}) | {"kind": "Pod"}
        assert builder.change(None, changed)
        builder.snapshot()
        other = pod("p8", spec={"nodeName": "elsewhere"}) | {"kind": "Pod"}
        return operations(lambda: (builder.change(None, other), builder.snapshot()))

    assert cost(20_000) <= cost(20) + 10


def waiting(name: str, owner: str | None = "ReplicaSet", **more: Any) -> Object:
    """A pod of somebody else's that no scheduler has found a node for."""
    reference = {"kind": owner, "name": "web-5d9", "uid": "u9", "controller": True}
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "lastTransitionTime": "2026-01-01T12:00:07Z",
    }
    meta = {"ownerReferences": [reference] if owner else []}
    return pod(name, meta=meta, phase="Pending", conditions=[condition], **more)


def test_a_pending_pod_of_a_deployment_says_whose_it_is_and_since_when_it_waits() -> None:
    spec = {"priority": 1000, "schedulerName": "default-scheduler"}
    (seen,) = snapshot(pods=[waiting("web-0", spec=spec)]).pods
    assert (seen.gang, seen.job, seen.node) == (None, None, None)
    assert seen.owner == "ReplicaSet team/web-5d9"
    assert (seen.priority, seen.scheduler) == (1000, "default-scheduler")
    assert seen.unschedulable_since == datetime(2026, 1, 1, 12, 0, 7, tzinfo=UTC)


def test_a_pod_that_nobody_has_tried_to_place_is_not_unschedulable() -> None:
    held = waiting("p-0")
    held["status"]["conditions"][0]["reason"] = "SchedulingGated"
    placed = waiting("p-1", spec={"nodeName": "n"})
    new = pod("p-2", phase="Pending")
    pods = snapshot(pods=[held, placed, new]).pods
    assert [seen.unschedulable_since for seen in pods] == [None] * 3


def test_pods_of_jobs_and_gangs_wait_with_them_and_not_alone() -> None:
    mine = pod("a-worker-0", job="a")
    mine["status"] = waiting("x")["status"]
    theirs = waiting("v-0", owner="Job")
    theirs["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": "v"}
    for seen in snapshot(pods=[mine, theirs]).pods:
        assert seen.unschedulable_since is None


@pytest.mark.parametrize(
    ("name", "kind", "api", "loose"),
    [
        ("podgroup-7f", "ReplicaSet", "apps/v1", True),
        ("podgroup-7f", "Job", "batch/v1", True),
        ("podgroup-7f", "Job", "batch.volcano.sh/v1alpha1", False),
        ("train-7f", "Job", "batch.volcano.sh/v1alpha1", False),
        ("mine", "Whatever", "example.com/v1", False),
    ],
)
def test_a_podgroup_that_volcano_made_for_pods_without_one_is_told_from_others(
    name: str, kind: str, api: str, loose: bool
) -> None:
    group = podgroup(name)
    group["metadata"]["ownerReferences"] = [
        {"apiVersion": api, "kind": kind, "name": "web", "controller": True}
    ]
    (seen,) = snapshot(podgroups=[group]).gangs
    assert seen.loose is loose


def test_a_resource_quota_is_what_pods_of_a_namespace_may_ask_for() -> None:
    hard = {
        "requests.nvidia.com/gpu": "4",
        "cpu": "10",
        "pods": "20",
        "limits.cpu": "99",
        "requests.storage": "1Ti",
        "services": "5",
    }
    obj = {
        "metadata": {"name": "gpus", "namespace": "team", "uid": "q1", "resourceVersion": "1"},
        "spec": {"hard": hard, "scopes": ["NotTerminating"]},
        "status": {"hard": hard, "used": {"requests.nvidia.com/gpu": "3", "pods": "7"}},
    }
    (seen,) = snapshot(resourcequotas=[obj]).quotas
    assert seen.key == "team/gpus" and seen.scoped
    assert seen.hard == {GPU: 4000, "cpu": 10_000, "pods": 20_000}
    assert seen.used == {GPU: 3000, "pods": 7000}
