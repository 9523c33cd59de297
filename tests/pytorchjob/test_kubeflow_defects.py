"""Where training-operator 1.9 fails; numbers are its issues (kubeflow/trainer)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from torch.distributed.run import parse_args

from tests.pytorchjob.world import (
    METRICS,
    NOW,
    World,
    active,
    begin,
    conditions,
    job_object,
    running,
    values,
)
from volcano_elastic.pytorchjob import action as a


def test_defect_an_empty_pet_standalone_stops_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    found = values(begin(1, policy={"standalone": True}), "a-worker-0")
    monkeypatch.setenv("PET_STANDALONE", found["PET_STANDALONE"])
    assert parse_args(["train.py"]).standalone is True
    assert "PET_STANDALONE" not in values(begin(1), "a-worker-0")


def test_defect_an_empty_rdzv_conf_panics_the_operator() -> None:
    policy = {"rdzvConf": [], "rdzvBackend": "etcd"}
    assert "PET_RDZV_CONF" not in values(begin(1, policy=policy), "a-worker-0")


def test_defect_2277_pet_nnodes_leaves_the_master_out() -> None:
    assert values(begin(1, 3, master=True), "a-master-0")["PET_NNODES"] == "2:4"


def test_defect_every_reconcile_puts_the_podgroup() -> None:
    world = running(2)
    assert not any(isinstance(x, a.PatchPodGroup) for x in world.reconcile())


def test_defect_replacing_the_podgroup_loses_foreign_fields() -> None:
    world = running(2)
    assert world.podgroup is not None
    world.podgroup["spec"]["networkTopology"] = {"mode": "hard"}
    world.podgroup["metadata"]["annotations"] = {"volcano.sh/sla-waiting-time": "1h"}
    world.job["spec"]["elasticPolicy"]["min"] = 1
    (patch,) = [x for x in world.reconcile() if isinstance(x, a.PatchPodGroup)]
    assert patch.body == {
        "spec": {
            "minMember": 1,
            "minTaskMember": {"worker": 1},
            "minResources": {"nvidia.com/gpu": "1"},
        }
    }


def test_defect_1571_the_gang_is_all_replicas_instead_of_the_minimum() -> None:
    world = begin(2, 8, replicas=8)
    assert world.podgroup is not None and world.podgroup["spec"]["minMember"] == 2


@pytest.mark.parametrize("phase", [None, "", "Pending", "Inqueue", "Unknown"])
def test_defect_1630_pods_and_status_wait_for_the_podgroups_phase(phase: str | None) -> None:
    world = World(job_object(elastic={"min": 2, "max": 4}), NOW)
    world.step()
    assert world.podgroup is not None
    world.podgroup["status"] = {"phase": phase}
    world.settle()
    assert len(world.live()) == 2
    world.run_all()
    world.podgroup["status"] = {"phase": "Pending"}
    for name in ("a-worker-0", "a-worker-1"):
        world.fail(name, 137)
    world.settle()
    assert world.state == "Restarting" and len(world.live()) == 2


def test_defect_an_hpa_step_is_all_or_nothing() -> None:
    world = running(2, 8)
    world.grow(5)
    assert len(world.live()) == 5
    assert world.podgroup is not None and world.podgroup["spec"]["minMember"] == 2


def test_defect_1504_workers_run_on_after_worker_0_succeeded() -> None:
    world = running(2)
    world.finish("a-worker-0")
    world.settle()
    assert world.state == "Succeeded"
    world.now += timedelta(seconds=30)
    world.settle()
    world.collect()
    assert world.live() == []


def test_defect_1751_a_pending_extra_worker_keeps_the_job_running() -> None:
    world = running(2)
    world.grow(3)
    for name in ("a-worker-0", "a-worker-1"):
        world.finish(name)
    world.settle()
    assert world.state == "Succeeded" and world.live() == []


def test_defect_a_deleted_worker_that_exits_0_counts_as_success() -> None:
    world = running(2)
    world.leaving("a-worker-1")
    world.finish("a-worker-1")
    world.settle()
    assert not world.ended


@pytest.mark.parametrize("low", [None, 2], ids=["fixed", "elastic"])
def test_defect_a_terminating_pod_under_never_fails_the_job(low: int | None) -> None:
    world = running(low, restartPolicy="Never")
    world.leaving("a-worker-1")
    world.settle()
    assert not world.ended
    world.collect()
    world.settle()
    assert len(world.live()) == 2 and not world.ended


def test_defect_running_with_fewer_than_min() -> None:
    world = begin(2)
    world.run("a-worker-0")
    world.settle()
    assert world.state == "Created"


def test_defect_restarting_stays_true_beside_succeeded() -> None:
    world = running(2)
    world.fail("a-worker-1", 137)
    world.step()
    assert world.state == "Restarting"
    world.finish("a-worker-0")
    world.settle()
    assert [c[0] for c in conditions(world) if c[1] == "True"] == ["Created", "Succeeded"]


def test_defect_after_success_a_failure_is_added() -> None:
    world = running(2, restartPolicy="Never")
    world.finish("a-worker-0")
    world.fail("a-worker-1", 1)
    world.settle()
    world.now += timedelta(minutes=1)
    world.settle()
    assert [c[0] for c in conditions(world) if c[1] == "True"] == ["Created", "Succeeded"]


@pytest.mark.parametrize("low", [None, 2], ids=["fixed", "elastic"])
def test_defect_2045_backoff_limit_forgets_pods_that_are_gone(low: int | None) -> None:
    world = running(low, runPolicy={"backoffLimit": 3})
    for _ in range(3):
        assert not world.ended
        world.now += timedelta(minutes=11)  # long enough to start the back-off afresh
        world.fail("a-worker-1", 1)
        world.settle()
        if not world.ended:
            world.run_all()
    assert world.state == "Failed"


def test_defect_3358_the_deadline_is_looked_at_only_at_the_next_event() -> None:
    world = running(2, runPolicy={"activeDeadlineSeconds": 60})
    world.now += timedelta(seconds=59)
    assert a.Requeue(timedelta(seconds=1)) in world.reconcile()
    world.now += timedelta(seconds=1)
    world.settle()
    assert world.state == "Failed"
    message = world.status["conditions"][-1]["message"]
    assert message == "Job a has failed because it was active longer than specified deadline"


def test_defect_3420_deadline_and_backoff_ignore_clean_pod_policy() -> None:
    world = running(runPolicy={"activeDeadlineSeconds": 60, "cleanPodPolicy": "None"})
    world.now += timedelta(seconds=60)
    world.settle()
    assert world.state == "Failed" and len(world.live()) == 2
    world = running(runPolicy={"activeDeadlineSeconds": 60, "cleanPodPolicy": "All"})
    world.now += timedelta(seconds=60)
    world.settle()
    world.collect()
    assert world.pods == {}


def test_defect_the_hpa_outlives_the_job() -> None:
    world = running(2, policy={"metrics": METRICS})
    world.finish("a-worker-0")
    assert any(isinstance(x, a.DeleteAutoscaler) for x in world.step())
    world.settle()
    assert world.autoscaler is None


def test_defect_1426_the_podgroup_is_made_and_deleted_endlessly_after_the_end() -> None:
    world = running(2, runPolicy={"cleanPodPolicy": "All"})
    world.finish("a-worker-0")
    world.settle()
    assert world.podgroup is not None, "pods still leave"
    world.collect()
    world.settle()
    assert world.podgroup is None
    assert not active(world.reconcile())


def test_defect_the_podgroup_goes_while_others_still_run() -> None:
    world = running(master=True)
    world.finish("a-master-0")
    world.settle()
    assert world.state == "Succeeded"
    assert sorted(world.live()) == ["a-worker-0", "a-worker-1"], "cleanPodPolicy None"
    assert world.podgroup is not None


def test_defect_1570_a_node_shutdown_fails_on_failure_jobs() -> None:
    world = running(restartPolicy="OnFailure")
    world.fail("a-worker-1", evicted=True)
    world.pods["a-worker-1"]["status"].pop("containerStatuses")  # nobody knows an exit code
    world.step()
    assert world.state == "Restarting" and len(world.live()) == 2


@pytest.mark.parametrize("low", [None, 2], ids=["fixed", "elastic"])
def test_defect_2072_a_pod_of_a_dead_node_blocks_its_index_for_ever(low: int | None) -> None:
    world = running(low)
    world.leaving("a-worker-0")
    world.settle()
    assert a.Requeue(timedelta(minutes=1)) in world.reconcile()
    world.now += timedelta(seconds=59)
    assert not active(world.step())
    world.now += timedelta(seconds=1)
    (gone,) = [x for x in world.reconcile() if isinstance(x, a.DeletePod)]
    assert (gone.name, gone.grace) == ("a-worker-0", timedelta(0))
    world.settle()
    assert "a-worker-0" in world.live()


def test_defect_2361_pods_are_created_one_after_the_other() -> None:
    world = World(job_object(replicas=50), NOW)
    created = [x for x in world.reconcile() if isinstance(x, a.CreatePod)]
    assert len(created) == 50 and {x.stage for x in created} == {a.Stage.CREATE}
