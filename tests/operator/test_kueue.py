"""Jobs that Kueue admits: what its quotas leave is grown into, and given back to who waits."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.adapters.world import GPU, JOB, JOBSET, POD_SPEC, job, made, pods_of
from tests.operator.test_other_jobs import Server, node
from volcano_elastic.adapters.adapter import ADAPTERS
from volcano_elastic.kube.client import Client
from volcano_elastic.operator.cluster import Cluster
from volcano_elastic.operator.job_sizes import ADMITTED_WITHIN, REFUSED_FOR, JobSizes
from volcano_elastic.operator.snapshot_builder import SnapshotBuilder
from volcano_elastic.queue_policy.plan import plan
from volcano_elastic.snapshot.snapshot import Queue

Object = dict[str, Any]
NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
KEY = "team/job/a"


def flavor(name: str, gpus: int, **limits: int) -> Object:
    quota = {"name": GPU, "nominalQuota": str(gpus)} | {k: str(v) for k, v in limits.items()}
    return {"name": name, "resources": [quota]}


def cluster_queue(name: str = "q", gpus: int = 4, cohort: str = "", **spec: Any) -> Object:
    group = {"coveredResources": [GPU], "flavors": [flavor("default", gpus)]}
    found = {"resourceGroups": [group]} | ({"cohortName": cohort} if cohort else {}) | spec
    return {"kind": "ClusterQueue", "metadata": {"name": name}, "spec": found}


def local_queue(name: str = "local", queue: str = "q", **spec: Any) -> Object:
    meta = {"name": name, "namespace": "team"}
    return {"kind": "LocalQueue", "metadata": meta, "spec": {"clusterQueue": queue} | spec}


def workload(
    name: str,
    pods: int,
    *,
    owner: str | None = None,
    queue: str = "",
    local: str = "local",
    flavor: str = "default",
    age: float = 1000.0,
    **spec: Any,
) -> Object:
    """One pod has one GPU; `queue`: that which has admitted it."""
    created = (NOW - timedelta(seconds=age)).isoformat()
    meta: Object = {"name": name, "namespace": "team", "creationTimestamp": created}
    if owner is not None:
        meta["ownerReferences"] = [{"kind": "Job", "name": owner, "controller": True}]
    sets = [{"name": "main", "count": pods, "template": {"spec": deepcopy(POD_SPEC)}}]
    status: Object = {}
    if queue:
        usage = {"flavors": {GPU: flavor}, "resourceUsage": {GPU: str(pods)}, "count": pods}
        status["admission"] = {"clusterQueue": queue, "podSetAssignments": [usage]}
        status["conditions"] = [{"type": "QuotaReserved", "status": "True"}]
    return {
        "kind": "Workload",
        "metadata": meta,
        "spec": {"queueName": local, "podSets": sets} | spec,
        "status": status,
    }


def of_kueue(obj: Object, local: str = "local") -> Object:
    obj["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": local}
    obj["metadata"]["annotations"]["kueue.x-k8s.io/elastic-job"] = "true"
    return obj


def running(size: int, **admitted: Any) -> list[Object]:
    """A job of this size that Kueue has admitted, with its pods."""
    admitted = {"queue": "q"} | admitted
    return [
        of_kueue(job(size=size)),
        *pods_of(JOB, count=size, nodeName="n"),
        workload("job-a", size, owner="a", **admitted),
    ]


def built(objects: Iterable[Object], *, kueue: bool = True) -> SnapshotBuilder:
    builder = SnapshotBuilder(adapters=ADAPTERS, kueue=kueue)
    for obj in objects:
        builder.change(None, deepcopy(obj))
    return builder


def decided(*objects: Object) -> list[tuple[int, int, str]]:
    """Return the decision on the job, where there are nodes enough."""
    decisions = plan(built([node("n", 64), *objects]).snapshot(), NOW).decisions
    assert {d.job for d in decisions} <= {KEY}
    return [(d.old, d.new, str(d.reason)) for d in decisions]


def queue(name: str, *objects: Object) -> Queue:
    return next(q for q in built(objects).snapshot().queues if q.name == name)


def test_it_grows_into_quota_that_nobody_uses_and_no_further() -> None:
    assert decided(cluster_queue(), local_queue(), *running(1)) == [(1, 4, "GrewIntoIdle")]
    beside = workload("other", 2, queue="q")
    assert decided(cluster_queue(), local_queue(), *running(1), beside) == [(1, 2, "GrewIntoIdle")]


def test_it_grows_into_what_its_cohort_has_left_over_as_far_as_it_may_borrow() -> None:
    lends = cluster_queue("r", 4, "c")
    queues = [cluster_queue("q", 2, "c"), lends, local_queue()]
    assert decided(*queues, *running(1)) == [(1, 6, "GrewIntoIdle")]
    used = workload("other", 3, queue="r")
    assert decided(*queues, *running(1), used) == [(1, 3, "GrewIntoIdle")]
    limit = {"coveredResources": [GPU], "flavors": [flavor("default", 2, borrowingLimit=1)]}
    bounded = cluster_queue("q", 2, "c", resourceGroups=[limit])
    assert decided(bounded, lends, local_queue(), *running(1)) == [(1, 3, "GrewIntoIdle")]


def test_it_shrinks_for_a_workload_that_waits_for_quota() -> None:
    waits = workload("new", 2)
    assert decided(cluster_queue(), local_queue(), *running(4), waits) == [
        (4, 2, "ShrunkForMinimum")
    ]


def test_it_gives_back_what_it_borrowed_to_the_lender_who_wants_it() -> None:
    queues = [cluster_queue("q", 2, "c"), cluster_queue("r", 4, "c")]
    locals_ = [local_queue(), local_queue("theirs", "r")]
    waits = workload("new", 3, local="theirs")
    assert decided(*queues, *locals_, *running(6), waits) == [(6, 3, "ShrunkForMinimum")]


@pytest.mark.parametrize(
    "waits",
    [
        workload("new", 9),
        workload("new", 2, active=False),
        workload("new", 2, local="nowhere"),
        workload("more", 6, owner="a"),
    ],
    ids=["more than the quota", "inactive", "of no queue", "its own next slice"],
)
def test_it_shrinks_for_nobody_whom_kueue_would_not_admit(waits: Object) -> None:
    assert decided(cluster_queue(), local_queue(), *running(4), waits) == []


def test_a_queue_that_is_held_admits_nobody_and_lets_nobody_grow() -> None:
    held = cluster_queue(stopPolicy="Hold")
    assert decided(held, local_queue(), *running(4), workload("new", 2)) == []
    assert decided(held, local_queue(), *running(1)) == []


def test_a_quota_that_was_lowered_is_kept_by_giving_back() -> None:
    assert decided(cluster_queue(gpus=2), local_queue(), *running(4)) == [
        (4, 2, "LoweredToCapability")
    ]


def test_it_grows_in_the_flavor_that_it_was_admitted_with() -> None:
    group = {"coveredResources": [GPU], "flavors": [flavor("spot", 3), flavor("reserved", 5)]}
    queues = [cluster_queue(resourceGroups=[group]), local_queue()]
    assert decided(*queues, *running(1, flavor="spot")) == [(1, 3, "GrewIntoIdle")]
    assert decided(*queues, *running(1, flavor="reserved")) == [(1, 5, "GrewIntoIdle")]
    # Who waits may take any.
    assert decided(*queues, *running(3, flavor="spot"), workload("new", 7)) == [
        (3, 1, "ShrunkForMinimum")
    ]


def test_nested_cohorts_share_all_that_is_left_below_the_highest() -> None:
    cohorts = [
        {"kind": "Cohort", "metadata": {"name": "c"}, "spec": {"parentName": "top"}},
        {
            "kind": "Cohort",
            "metadata": {"name": "top"},
            "spec": {"resourceGroups": [{"flavors": [flavor("default", 1)]}]},
        },
    ]
    queues = [cluster_queue("q", 2, "c"), cluster_queue("r", 2, "top"), local_queue()]
    assert decided(*queues, *cohorts, *running(1)) == [(1, 5, "GrewIntoIdle")]


def test_cohorts_in_a_ring_end() -> None:
    ring = [
        {"kind": "Cohort", "metadata": {"name": name}, "spec": {"parentName": parent}}
        for name, parent in (("a", "b"), ("b", "a"))
    ]
    built([*ring, cluster_queue(cohort="a")]).snapshot()


def test_a_job_that_waits_for_its_admission_is_a_claim_and_one_that_is_over_none() -> None:
    waiting = of_kueue(job("b", size=2))
    waiting["spec"]["suspend"] = True
    over = workload("old", 2)
    over["status"] = {"conditions": [{"type": "Finished", "status": "True"}]}
    snapshot = built([cluster_queue(), local_queue(), waiting, workload("job-b", 2, owner="b")])
    assert [gang.key for gang in snapshot.snapshot().gangs] == ["kueue/team/job-b"]
    assert built([cluster_queue(), local_queue(), over]).snapshot().gangs == ()


def test_what_changed_nothing_leaves_the_snapshots_tuples_as_they_are() -> None:
    builder = built([cluster_queue(), local_queue(), *running(2), workload("new", 1)])
    first = builder.snapshot()
    again = workload("new", 1)
    again["metadata"]["resourceVersion"] = "9"
    assert not builder.change(None, again)
    assert builder.change(None, workload("other", 1, queue="q"))
    second = builder.snapshot()
    assert second.gangs is first.gangs and second.jobs is first.jobs
    assert second.queues is not first.queues


def test_kueues_queues_close_nobody_elses_where_there_is_no_volcano() -> None:
    plain = job("b", size=1)
    builder = built([node("n", 64), cluster_queue(), local_queue(), plain, *pods_of(JOB, "b", 1)])
    assert plan(builder.snapshot(), NOW).admitted == {"team/job/b"}


@pytest.mark.parametrize(
    ("obj", "kueue", "said"),
    [
        (of_kueue(job()), False, "--kueue"),
        (of_kueue(made(JOBSET)), True, "Kueue evicts one"),
    ],
)
def test_other_jobs_of_kueues_stay_as_they_are_and_are_told_why(
    obj: Object, kueue: bool, said: str
) -> None:
    builder = built([obj], kueue=kueue)
    assert builder.snapshot().jobs == ()
    ((_, message),) = builder.others.problems.values()
    assert said in message


@given(
    nominal=st.integers(0, 8),
    lends=st.integers(0, 8),
    size=st.integers(1, 8),
    others=st.integers(0, 6),
    waits=st.integers(0, 6),
)
def test_growth_stays_within_what_kueue_can_admit(
    nominal: int, lends: int, size: int, others: int, waits: int
) -> None:
    """Whatever waits, a job never asks for more than the cohort has left."""
    objects = [
        *(cluster_queue("q", nominal, "c"), cluster_queue("r", lends, "c")),
        *(local_queue(), local_queue("theirs", "r")),
        *running(size),
        *([workload("other", others, queue="r")] if others else []),
        *([workload("new", waits, local="theirs")] if waits else []),
    ]
    for old, new, _ in decided(*objects):
        assert new < old or new <= max(0, nominal + lends - others)


class Scene:
    def __init__(self, *objects: Object) -> None:
        self.server = Server(of_kueue(job(size=4)))
        self.cluster = Cluster(cast(Client, self.server), adapters=ADAPTERS, kueue=True)
        self.builder = built([node("n", 64), *objects])
        informer = self.cluster.others[JOB.kind]
        informer.on_change(self.builder.change)
        informer.note_write(deepcopy(self.server.obj))
        self.sizes = JobSizes(self.cluster, self.builder)

    async def at(self, now: datetime) -> int:
        decisions = plan(self.builder.snapshot(), now).decisions
        await self.sizes.carry_out({d.job: d for d in decisions}, now, 2.0)
        return int(self.server.obj["spec"]["parallelism"])


async def test_a_size_that_kueue_does_not_admit_is_taken_back_and_rests() -> None:
    """For a reason that its quotas don't show: a lending limit, say."""
    scene = Scene(
        *(cluster_queue(), local_queue(), workload("job-a", 2, owner="a", queue="q")),
        workload("job-a-4", 4, owner="a", age=0),
    )
    assert await scene.at(NOW) == 4
    later = NOW + ADMITTED_WITHIN
    assert await scene.at(later) == 2
    assert [reason for reason, _ in scene.server.events] == ["NotAdmitted"]
    scene.builder.change(None, workload("job-a-4", 4, owner="a") | {"status": _FINISHED})
    assert await scene.at(later + timedelta(seconds=1)) == 2
    # It gives way all the same.
    scene.builder.change(None, workload("new", 3))
    assert await scene.at(later + timedelta(seconds=2)) == 1
    scene.builder.change(None, workload("new", 3) | {"status": _FINISHED})
    rested = later + REFUSED_FOR
    assert await scene.at(rested - timedelta(seconds=1)) == 1
    await scene.at(rested)
    assert await scene.at(rested + timedelta(seconds=1)) == 4


_FINISHED = {"conditions": [{"type": "Finished", "status": "True"}]}
