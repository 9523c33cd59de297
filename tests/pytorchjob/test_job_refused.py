"""Jobs that cannot be carried out, from the beginning or by an edit."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.pytorchjob.manifest import manifest
from tests.pytorchjob.world import NOW, begin, job_object
from volcano_elastic.api.pytorchjob_validation import validate
from volcano_elastic.pytorchjob.action import (
    CreatePod,
    CreatePodGroup,
    CreateService,
    DeleteJob,
    EmitEvent,
    PatchStatus,
    Requeue,
)
from volcano_elastic.pytorchjob.guard import refuse


def test_an_invalid_job_fails_saying_what_would_be_right_and_gets_no_pods() -> None:
    obj = job_object(elastic={"min": 3, "max": 2})
    actions = refuse(obj, validate(obj), (), NOW)
    (patch,) = [a for a in actions if isinstance(a, PatchStatus)]
    message = patch.status["conditions"][-1]["message"]
    assert message == (
        "spec.elasticPolicy.min: Invalid value: 3: must be at most max (2); a failed job stays "
        "failed: correct it and create it anew"
    )
    assert patch.status["conditions"][-1]["type"] == "Failed"
    assert EmitEvent("PyTorchJobInvalid", message, warning=True) in actions
    assert not any(isinstance(a, CreatePod | CreateService | CreatePodGroup) for a in actions)
    obj["status"] = patch.status
    assert refuse(obj, validate(obj), (), NOW) == []


def test_however_much_is_wrong_the_status_can_hold_it() -> None:
    obj = job_object()
    containers = obj["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    containers += [{"name": f"c{i}", "image": ""} for i in range(20_000)]
    obj["spec"]["pytorchReplicaSpecs"]["x" * 100_000] = {}
    actions = refuse(obj, validate(obj), (), NOW)
    (patch,) = (a for a in actions if isinstance(a, PatchStatus))
    message = patch.status["conditions"][-1]["message"]
    assert "containers[1].image" in message and "and 19981 more" in message
    assert len(message) < 10_000


def test_a_running_job_that_is_edited_into_nonsense_goes_on() -> None:
    world = begin(2)
    world.run_all()
    world.settle()
    world.job["spec"]["elasticPolicy"]["max"] = 1
    actions = refuse(world.job, validate(world.job), (), NOW)
    world.apply(actions)
    assert world.state == "Running"
    assert "must be at most max (1)" in world.status["elastic"]["message"]
    assert refuse(world.job, validate(world.job), (), NOW) == []
    world.job["spec"]["elasticPolicy"]["max"] = 4
    world.settle()
    assert "message" not in world.status["elastic"]


def test_a_running_job_that_is_edited_into_nonsense_gets_no_new_pods_until_it_is_right() -> None:
    world = begin(2)
    world.run_all()
    world.settle()
    world.job["spec"]["elasticPolicy"]["max"] = 1
    world.apply(refuse(world.job, validate(world.job), (), NOW))
    world.remove("a-worker-1")
    # There is no telling what the pod should be like; the others go on.
    assert refuse(world.job, validate(world.job), (), NOW) == []
    assert "a-worker-0" in world.pods
    world.job["spec"]["elasticPolicy"]["max"] = 4
    assert world.created(world.settle()) == ["a-worker-1"]


def _finished(obj: dict[str, Any]) -> list[Any]:
    (patch,) = [a for a in refuse(obj, validate(obj), (), NOW) if isinstance(a, PatchStatus)]
    return refuse(obj | {"status": patch.status}, validate(obj), (), NOW + timedelta(seconds=60))


def test_a_refused_job_goes_after_its_time_to_live() -> None:
    for seconds, expected in ((60, [DeleteJob()]), (90, [Requeue(timedelta(seconds=30))])):
        run_policy = {"ttlSecondsAfterFinished": seconds}
        assert _finished(manifest({"min": 3, "max": 2}, runPolicy=run_policy)) == expected
    assert _finished(manifest({"min": 3, "max": 2})) == []
    # Wrong itself: nothing can be told from it.
    assert _finished(manifest(runPolicy={"ttlSecondsAfterFinished": -1})) == []


@pytest.mark.parametrize("manager", ["kueue.x-k8s.io/multikueue", "somebody"])
def test_another_managers_job_is_left_alone_though_it_is_wrong(manager: str) -> None:
    obj = manifest({"min": 3, "max": 2}, runPolicy={"managedBy": manager})
    assert refuse(obj, validate(obj), (), NOW) == []
