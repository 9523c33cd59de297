"""How many Workers a job has, which of them go, and where new ones come."""

from __future__ import annotations

from datetime import timedelta

from tests.pytorchjob.world import NOW, World, begin, job_object, resize, running
from volcano_elastic.pytorchjob import action as a
from volcano_elastic.pytorchjob.action import (
    CreatePod,
    DeletePod,
    EmitEvent,
    PatchPod,
    Stage,
)
from volcano_elastic.pytorchjob.observed import Resize


def test_growing_takes_the_lowest_free_indexes_and_says_why() -> None:
    world = begin(2)
    world.resize = resize(2, 4)
    actions = world.step()
    assert world.created(actions) == ["a-worker-2", "a-worker-3"]
    assert EmitEvent("GrewIntoIdle", "from 2 to 4") in actions
    status = world.status["elastic"]
    assert (status["desired"], status["lastScaleReason"]) == (4, "GrewIntoIdle")
    assert status["message"] == "from 2 to 4"
    assert status["lastScaleTime"].startswith("2026-01-01T12:00:0")
    world.settle()
    assert [world.protected(f"a-worker-{i}") for i in range(4)] == [True, True, False, False]


def test_shrinking_records_the_size_first_then_removes_exactly_the_named_pods() -> None:
    world = begin(2)
    world.grow(4)
    world.run_all()
    world.resize = resize(4, 2, "a-worker-1", "a-worker-2")
    actions = world.reconcile()
    assert [a.name for a in actions if isinstance(a, DeletePod)] == ["a-worker-1", "a-worker-2"]
    assert [a.grace for a in actions if isinstance(a, DeletePod)] == [None, None]
    # worker 1 was protected: another is, before it goes
    (promotion,) = [a for a in actions if isinstance(a, PatchPod)]
    assert promotion.name == "a-worker-3"
    assert promotion.body["metadata"]["annotations"] == {"volcano.sh/preemptable": "false"}
    assert Stage.RECORD < PatchPod.stage < DeletePod.stage < CreatePod.stage
    world.apply(actions)
    world.settle()
    assert sorted(world.live()) == ["a-worker-0", "a-worker-3"]


def test_a_decision_half_carried_out_is_finished() -> None:
    world = begin(2)
    world.grow(4)
    world.resize = resize(4, 2, "a-worker-1", "a-worker-3")
    world.apply(world.reconcile(), until=Stage.RECORD)  # the API server fails after that
    world.settle()
    assert sorted(world.live()) == ["a-worker-0", "a-worker-2"]


def test_an_operator_killed_half_way_through_a_decision_keeps_its_size() -> None:
    world = begin(2)
    world.grow(4)
    world.resize = resize(4, 2, "a-worker-1", "a-worker-3")
    world.apply(world.reconcile(), until=Stage.RECORD)
    world.resize = None  # only the API server remembers
    world.settle()
    assert sorted(world.live()) == ["a-worker-0", "a-worker-1"]


def test_a_size_without_names_takes_what_holds_least_then_the_highest_index() -> None:
    world = begin(1, 4)
    world.grow(4)
    for name in ("a-worker-0", "a-worker-2", "a-worker-3"):
        world.run(name)
    world.resize = resize(4, 2)
    world.settle()
    assert sorted(world.live()) == ["a-worker-0", "a-worker-2"]


def test_a_stale_decision_is_dropped() -> None:
    world = begin(2)
    world.resize = resize(3, 4)
    world.settle()
    assert world.status["elastic"]["desired"] == 2


def test_worker_0_never_leaves_while_others_remain() -> None:
    world = begin(1, 4)
    world.grow(3)
    world.resize = resize(3, 1, "a-worker-0", "a-worker-1")
    world.settle()
    assert world.live() == ["a-worker-0"]


def test_a_lost_status_is_taken_from_the_live_pods() -> None:
    world = begin(2)
    world.grow(3)
    world.job["status"] = {}
    world.settle()
    assert world.status["elastic"]["desired"] == 3
    assert len(world.live()) == 3


def test_a_pod_on_its_way_out_holds_its_index_but_counts_for_nothing() -> None:
    world = begin(1, 4)
    world.grow(2)
    world.leaving("a-worker-1")
    assert world.created(world.step()) == ["a-worker-2"]
    world.finish("a-worker-1")  # exits 0 on SIGTERM
    world.settle()
    assert world.state != "Succeeded"
    assert world.status["replicaStatuses"]["Worker"]["succeeded"] == 0


def test_a_lowered_max_is_kept_to() -> None:
    world = begin(2)
    world.grow(4)
    world.job["spec"]["elasticPolicy"]["max"] = 3
    world.settle()
    assert world.status["elastic"]["lastScaleReason"] == "LimitsChanged"
    assert sorted(world.live()) == ["a-worker-0", "a-worker-1", "a-worker-2"]


def test_an_evicted_surplus_pod_lowers_the_size_once() -> None:
    world = begin(2)
    world.grow(4)
    world.run_all()
    world.now += timedelta(seconds=20)
    world.leaving("a-worker-3", evicted=True)
    actions = world.settle()
    assert world.created(actions) == []
    status = world.status["elastic"]
    assert (status["desired"], status["lastScaleReason"]) == (3, "Evicted")
    assert status["message"] == "1 replica was evicted: a-worker-3"
    # It grows again while the evicted pod is still there.
    world.now += timedelta(seconds=5)
    world.resize = resize(3, 4)
    world.settle()
    assert world.status["elastic"]["desired"] == 4
    assert sorted(world.live())[-1] == "a-worker-4"


def test_another_pod_that_is_lost_beside_one_that_was_counted_as_evicted_is_made_anew() -> None:
    world = begin(1)
    world.grow(4)
    world.run_all()
    world.now += timedelta(seconds=20)
    world.leaving("a-worker-3", evicted=True)
    world.settle()
    assert world.status["elastic"]["desired"] == 3
    world.now += timedelta(seconds=1)
    world.remove("a-worker-2")
    assert len(world.created(world.settle())) == 1
    assert world.status["elastic"]["desired"] == 3


def test_what_was_evicted_is_called_so_even_if_the_planner_is_quicker_to_give_it_up() -> None:
    world = begin(2)
    world.grow(4)
    world.run_all()
    world.now += timedelta(seconds=20)
    world.leaving("a-worker-3", evicted=True)
    world.resize = resize(4, 3)
    world.settle()
    status = world.status["elastic"]
    assert (status["desired"], status["lastScaleReason"]) == (3, "Evicted")


def test_pods_evicted_one_after_another_are_all_given_up_though_the_planner_saw_one() -> None:
    world = begin(1, 8)
    world.grow(8)
    world.run_all()
    world.now += timedelta(seconds=20)
    world.leaving("a-worker-7", evicted=True)
    world.leaving("a-worker-6", evicted=True)
    world.resize = Resize(8, 7, "SurplusUnplaced", "planned before worker 6 was evicted")
    actions = world.settle()
    assert world.created(actions) == [] and len(world.live()) == 6
    status = world.status["elastic"]
    assert (status["desired"], status["lastScaleReason"]) == (6, "Evicted")


def test_growth_that_was_planned_before_an_eviction_takes_no_evicted_place_back() -> None:
    world = begin(1, 8)
    world.grow(4)
    world.run_all()
    world.now += timedelta(seconds=20)
    world.leaving("a-worker-3", evicted=True)
    world.resize = resize(4, 6)
    assert world.created(world.settle()) == []
    assert world.status["elastic"]["desired"] == 3


def test_what_leaves_for_a_minimum_does_so_beside_evictions_that_the_planner_knows_of() -> None:
    world = begin(1, 8)
    world.grow(6)
    world.run_all()
    world.leaving("a-worker-5", evicted=True)
    world.resize = resize(6, 4, "a-worker-4")
    assert world.created(world.settle()) == []
    status = world.status["elastic"]
    assert (status["desired"], status["lastScaleReason"]) == (4, "ShrunkForMinimum")
    assert sorted(world.live()) == [f"a-worker-{i}" for i in range(4)]


def test_a_pod_told_of_its_eviction_a_second_before_it_leaves_is_given_up_too() -> None:
    world = begin(1, 8)
    world.grow(8)
    world.run_all()
    world.now += timedelta(seconds=20, milliseconds=900)
    world.leaving("a-worker-7", evicted=True)
    world.leaving("a-worker-6", evicted=True)
    told = world.pods["a-worker-6"]
    leaves = told["metadata"].pop("deletionTimestamp")  # the scheduler tells first, then deletes
    world.now += timedelta(milliseconds=200)
    world.settle()
    assert world.status["elastic"]["desired"] == 7
    told["metadata"]["deletionTimestamp"] = leaves
    assert world.created(world.settle()) == []
    assert world.status["elastic"]["desired"] == 6
    assert len(world.status["elastic"]["evicted"]) == 2
    world.collect()
    world.now += timedelta(seconds=5)
    world.grow(7)
    assert "evicted" not in world.status["elastic"]


def test_an_evicted_pod_of_the_minimum_comes_back() -> None:
    world = begin(2)
    world.run_all()
    world.leaving("a-worker-1", evicted=True)
    world.settle()
    assert world.status["elastic"]["desired"] == 2
    assert sorted(world.live()) == ["a-worker-0", "a-worker-2"]


def test_an_evicted_worker_fails_nobody_and_its_place_is_not_taken_back_at_once() -> None:
    world = running(2, restartPolicy="Never")
    world.grow(3)
    world.run_all()
    world.now += timedelta(seconds=5)
    world.leaving("a-worker-2", evicted=True)
    world.settle()
    assert world.state == "Running" and len(world.live()) == 2


def test_surplus_pods_get_the_policys_grace_where_it_is_shorter_than_their_own() -> None:
    world = running(1)
    world.grow(3)
    world.run_all()
    worker = world.job["spec"]["elasticPolicy"]
    world.grace = timedelta(seconds=10)
    worker["max"] = 2
    (gone,) = [x for x in world.reconcile() if isinstance(x, a.DeletePod)]
    assert gone.grace == timedelta(seconds=10)
    world.grace = timedelta(0)
    (gone,) = [x for x in world.reconcile() if isinstance(x, a.DeletePod)]
    assert gone.grace == timedelta(seconds=1), "0 would forget it while it runs"
    world.grace = timedelta(seconds=10)
    world.pods["a-worker-2"]["spec"]["terminationGracePeriodSeconds"] = 5
    (gone,) = [x for x in world.reconcile() if isinstance(x, a.DeletePod)]
    assert gone.grace is None, "its own is shorter"


def test_surplus_pods_carry_the_policys_protection() -> None:
    world = World(job_object(elastic={"min": 1, "max": 3}), NOW)
    world.protect = timedelta(seconds=90)
    world.settle()
    world.grow(2)
    annotations = [world.pods[f"a-worker-{i}"]["metadata"]["annotations"] for i in (0, 1)]
    assert "volcano.sh/cooldown-time" not in annotations[0]
    assert annotations[1]["volcano.sh/cooldown-time"] == "90s"


def test_scaling_a_fixed_job_down_removes_the_highest_indexes() -> None:
    world = running(replicas=4)
    world.job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 2
    world.settle()
    assert sorted(world.live()) == ["a-worker-0", "a-worker-1"]


def test_a_job_that_is_elastic_no_longer_forgets_its_size() -> None:
    world = begin(low=1, replicas=1)
    world.status["elastic"]["gpuHours"] = 1.5
    world.job["spec"]["runPolicy"] = {"suspend": True}
    world.settle()
    del world.job["spec"]["elasticPolicy"], world.job["spec"]["runPolicy"]
    world.settle()
    assert world.status["elastic"] == {"gpuHours": 1.5, "restarts": 0}
