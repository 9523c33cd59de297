"""A ScalePlan's status, from its creation to its end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.pytorchjob.world import job_object
from volcano_elastic.api.pytorchjob import parse as parse_job
from volcano_elastic.api.scale_plan import InvalidPlan, ScalePlan, parse
from volcano_elastic.cluster_state.reason import NoChange, Reason
from volcano_elastic.operator.scale_plan_status import Seen, status

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
Object = dict[str, Any]


def scale_plan(name: str = "p", scale_type: str = "manual", **spec: Any) -> Object:
    meta = {"name": name, "namespace": "team", "generation": 3}
    meta |= {"creationTimestamp": "2026-01-01T12:00:00Z", "labels": {"scale-type": scale_type}}
    roles = {"Worker": {"replicas": 3}}
    return {"metadata": meta, "spec": {"ownerJob": "a", "replicaResourceSpecs": roles} | spec}


def job(desired: int = 3, ready: int = 3, resources: Object | None = None, **more: Any) -> Object:
    obj = job_object(**({"elastic": {"min": 1, "max": 4}} | more))
    obj["status"] = {"elastic": {"desired": desired, "ready": ready}}
    if resources is not None:
        obj["status"]["elastic"]["resources"] = {"Worker": resources}
    return obj


def told(
    plan: Object,
    job: Object | None,
    now: datetime = NOW,
    stays: NoChange | None = None,
    others: tuple[Object, ...] = (),
    pods: dict[str, str] | None = None,
) -> Object:
    parsed: ScalePlan | InvalidPlan
    try:
        parsed = parse(plan)
    except InvalidPlan as error:
        return status(plan, error, Seen(None), now)
    counts = parse(others[0]) if others else parsed
    seen = Seen(job, parse_job(job) if job else None, counts, stays, pods or {})
    return status(plan, parsed, seen, now)


def condition(found: Object, type_: str) -> tuple[str, str, str]:
    (one,) = [c for c in found["conditions"] if c["type"] == type_]
    return one["status"], one["reason"], one["message"]


def test_a_plan_is_carried_out_step_by_step() -> None:
    stays = NoChange(Reason.NO_ROOM, Reason.NOBODY_WAITS)
    waits = told(scale_plan(), job(desired=1), stays=stays)
    assert waits["phase"] == "Pending"
    assert condition(waits, "Accepted")[:2] == ("True", "Counts")
    state, reason, message = condition(waits, "Replicas")
    assert (state, reason) == ("False", "NoRoom")
    assert message == ("Worker: 1 of 3 pods: there is no idle room that its workers could use"), (
        "it says why not"
    )
    scaling = told(scale_plan() | {"status": waits}, job(ready=2), NOW + timedelta(minutes=1))
    assert (scaling["phase"], condition(scaling, "Replicas")[1]) == ("Scaling", "PodsNotReady")
    done = told(scale_plan() | {"status": scaling}, job(), NOW + timedelta(minutes=2))
    assert (done["phase"], condition(done, "Replicas")[0]) == ("Succeeded", "True")
    times = [one["conditions"][1]["lastTransitionTime"] for one in (waits, scaling, done)]
    assert times == ["2026-01-01T12:00:00Z"] * 2 + ["2026-01-01T12:02:00Z"]
    assert (done["observedGeneration"], done["jobUID"]) == (3, "u1")
    again = told(scale_plan() | {"status": done}, job(), NOW + timedelta(hours=1))
    assert again == done, "nothing new is to be written"


@pytest.mark.parametrize(
    ("replicas", "elastic", "target", "said"),
    [
        (9, {"min": 1, "max": 4}, 4, "9 are asked for, 1 to 4 may be"),
        (0, {"min": 2, "max": 4}, 2, "0 are asked for, 2 to 4 may be"),
        (3, {"min": 2, "max": 4, "nodeUnit": 2}, 2, "3 are asked for, 2 to 4 in steps of 2 may be"),
    ],
)
def test_a_size_out_of_the_jobs_range_is_carried_out_as_far_as_may_be(
    replicas: int, elastic: Object, target: int, said: str
) -> None:
    plan = scale_plan(replicaResourceSpecs={"Worker": {"replicas": replicas}})
    found = told(plan, job(target, target, elastic=elastic))
    assert found["phase"] == "Succeeded"
    state, reason, message = condition(found, "Replicas")
    assert (state, reason) == ("False", "OutsideOfRange") and said in message


def test_pods_that_nobody_sizes_are_said() -> None:
    plan = scale_plan(replicaResourceSpecs={"Master": {"replicas": 2}})
    assert condition(told(plan, job(master=True)), "Replicas")[:2] == ("False", "NotElastic")
    assert condition(told(plan, job()), "Replicas")[:2] == ("False", "NoSuchRole")
    rigid = job(elastic=None, replicas=2)
    assert condition(told(scale_plan(), rigid), "Replicas")[1] == "NotElastic"


def test_resources_are_as_planned_or_it_is_said_what_is_in_the_way() -> None:
    resource = {"cpu": "2", "memory": "4Gi"}
    plan = scale_plan(replicaResourceSpecs={"Worker": {"resource": resource}})
    assert told(plan, job())["phase"] == "Pending"
    done = told(plan, job(resources=resource))
    assert (done["phase"], condition(done, "Resources")[0]) == ("Succeeded", "True")
    less = resource | {"memory": "2Gi", "message": "ScalePlan p; no node has more than n1"}
    bounded = told(plan, job(resources=less))
    assert (bounded["phase"], condition(bounded, "Resources")[1]) == ("Succeeded", "BoundedByNode")
    half = scale_plan(replicaResourceSpecs={"Worker": {"resource": {"cpu": "2"}}})
    assert condition(told(half, job()), "Resources")[1] == "Incomplete"


def test_what_is_not_carried_out_is_said() -> None:
    found = told(scale_plan(psHosts=["ps-0"]), job())
    state, reason, message = condition(found, "Pods")
    assert (found["phase"], state, reason) == ("Succeeded", "False", "NotAll")
    assert message.startswith("psHosts is not carried out: its hosts aren't")


@pytest.mark.parametrize(
    "spec",
    [
        {"replicaResourceSpecs": {"PS": {"replicas": 3}}},
        {"replicaResourceSpecs": {}, "psHosts": [f"a-ps-{i}:23456" for i in range(3)]},
        {"replicaResourceSpecs": {}, "createPods": [{"name": "a-ps-2"}]},
    ],
)
def test_parameter_servers_are_counted_until_all_of_them_run(spec: Object) -> None:
    plan = scale_plan(**spec)
    assert condition(told(plan, job()), "Replicas")[1] == "NoSuchRole"
    obj = job()
    replicas = obj["spec"]["pytorchReplicaSpecs"]
    replicas["PS"] = replicas["Worker"] | {"replicas": 2}
    found = told(plan, obj)
    assert (found["phase"], condition(found, "Replicas")[2]) == ("Pending", "PS: 2 of 3 pods")
    obj["status"]["elastic"]["servers"] = {"replicas": 3, "insteadOf": 2}
    obj["status"]["replicaStatuses"] = {"PS": {"active": 2}}
    found = told(plan, obj)
    assert (found["phase"], condition(found, "Replicas")[2]) == ("Scaling", "PS: 2 of 3 pods run")
    obj["status"]["replicaStatuses"]["PS"]["active"] = 3
    found = told(plan, obj)
    assert (found["phase"], condition(found, "Replicas")[0]) == ("Succeeded", "True")
    assert all(one["type"] != "Pods" for one in found["conditions"])


def test_workers_that_are_made_by_name_are_counted_and_none_leaves_for_them() -> None:
    named = [{"name": f"a-worker-{index}"} for index in (2, 3)]
    plan = scale_plan(createPods=named, replicaResourceSpecs={})
    found = told(plan, job(desired=2, ready=2))
    assert (found["phase"], condition(found, "Replicas")[2]) == ("Pending", "Worker: 2 of 4 pods")
    found = told(plan, job(desired=4, ready=4))
    assert (found["phase"], condition(found, "Replicas")[0]) == ("Succeeded", "True")
    more = scale_plan(createPods=[{"name": "a-worker-0"}], replicaResourceSpecs={})
    assert condition(told(more, job()), "Replicas") == ("True", "AsPlanned", "Worker: 3 pods")
    served = job()
    replicas = served["spec"]["pytorchReplicaSpecs"]
    replicas["PS"] = replicas["Worker"] | {"replicas": 2}
    served["status"]["elastic"]["servers"] = {"replicas": 4, "insteadOf": 2}
    served["status"]["replicaStatuses"] = {"PS": {"active": 4}}
    third = scale_plan(createPods=[{"name": "a-ps-2"}], replicaResourceSpecs={})
    assert condition(told(third, served), "Replicas")[2] == "PS: 4 pods", "its loads asked for it"
    most = told(scale_plan(createPods=[{"name": "a-worker-8"}], replicaResourceSpecs={}), job(4, 4))
    assert condition(most, "Replicas")[1] == "OutsideOfRange"
    assert "9 are asked for, 1 to 4 may be" in condition(most, "Replicas")[2]


def test_pods_that_are_named_have_left_or_it_is_said_why_not() -> None:
    named = [{"name": f"a-worker-{index}"} for index in (1, 2)]
    plan = scale_plan(removePods=named[:1], migratePods=named, replicaResourceSpecs={})
    both = {"a-worker-1": "p1", "a-worker-2": "p2"}
    first = told(plan, job(), pods=both)
    assert first["pods"] == both and first["phase"] == "Pending"
    plan["status"] = first
    gone = told(plan, job(), pods={"a-worker-1": "p1", "a-worker-2": "another"})
    assert gone["pods"] == both, "who came later isn't meant"
    assert condition(gone, "Pods")[2] == "a-worker-1 has not left yet; a-worker-2 left"
    done = told(plan, job(), pods={"a-worker-2": "another"})
    assert (done["phase"], condition(done, "Pods")[0]) == ("Succeeded", "True")
    least = told(plan, job(desired=1, ready=1), pods=both)
    assert "a-worker-1 has not left yet: 1 is the job's least" in condition(least, "Pods")[2]


def test_worker_0_stays_and_a_pod_that_never_was_is_none() -> None:
    named = [{"name": "a-worker-0"}, {"name": "a-worker-9"}]
    plan = scale_plan(removePods=named, replicaResourceSpecs={})
    plan["status"] = told(plan, job(), pods={"a-worker-0": "p0"})
    found = told(plan, job(), pods={"a-worker-0": "p0"})
    assert (found["phase"], condition(found, "Pods")[:2]) == ("Succeeded", ("False", "NotAll"))
    assert condition(found, "Pods")[2] == (
        "a-worker-0 stays: the others need it; a-worker-9: there was no such Worker"
    )


def test_only_one_plan_counts_and_the_others_say_which() -> None:
    by_hand = scale_plan("by-hand")
    beaten = told(scale_plan("auto", "auto"), job(), others=(by_hand,))
    assert beaten["phase"] == "Superseded"
    assert condition(beaten, "Accepted")[2] == (
        "ScalePlan by-hand counts for the job: manual, and this one is auto"
    )
    older = told(scale_plan("older"), job(), others=(by_hand,))
    assert condition(older, "Accepted")[2].endswith("manual, and newer than this one")


def test_a_plan_ends_with_its_time_or_its_job() -> None:
    plan = scale_plan(expireSeconds=60)
    assert told(plan, job())["expires"] == "2026-01-01T12:01:00Z"
    expired = told(plan, job(), NOW + timedelta(seconds=60))
    assert (expired["phase"], condition(expired, "Accepted")[1]) == ("Expired", "Expired")
    early = told(scale_plan(), None)
    assert (early["phase"], condition(early, "Accepted")[1]) == ("Pending", "JobNotFound")
    once = scale_plan() | {"status": told(scale_plan(), job())}
    assert told(once, None)["phase"] == "Expired"
    another = job()
    another["metadata"]["uid"] = "u2"
    assert condition(told(once, another), "Accepted")[1] == "JobGone"
    ended = job()
    ended["status"]["conditions"] = [{"type": "Succeeded", "status": "True"}]
    assert condition(told(scale_plan(), ended), "Accepted")[1] == "JobEnded"


def test_a_plan_that_makes_no_sense_says_what_would() -> None:
    found = told(scale_plan(scale_type="sometimes"), job())
    assert found["phase"] == "Failed"
    assert "must be auto or manual" in condition(found, "Accepted")[2]
