"""The HorizontalPodAutoscaler of a job, and what `kubectl scale` does."""

from __future__ import annotations

import copy

import pytest

from tests.pytorchjob.world import METRICS, active, begin
from volcano_elastic.pytorchjob import action as a


def test_metrics_make_an_autoscaler_between_min_and_max() -> None:
    world = begin(2, 6, policy={"metrics": METRICS})
    assert world.autoscaler is not None
    assert world.autoscaler["spec"] == {
        "scaleTargetRef": {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "a"},
        "minReplicas": 2,
        "maxReplicas": 6,
        "metrics": METRICS,
    }


def test_an_autoscaler_follows_the_job_and_is_left_alone_when_it_is_right() -> None:
    world = begin(2, 6, policy={"metrics": METRICS})
    assert world.autoscaler is not None
    # The API server adds defaults and spells quantities its own way.
    spec = world.autoscaler["spec"]
    spec["behavior"] = {"scaleUp": {"stabilizationWindowSeconds": 0}}
    spec["metrics"] = copy.deepcopy(METRICS)
    spec["metrics"][0]["resource"]["target"]["averageValue"] = "1.5"
    assert not active(world.reconcile())
    world.job["spec"]["elasticPolicy"]["max"] = 8
    world.settle()
    assert world.autoscaler["spec"]["maxReplicas"] == 8
    assert world.autoscaler["spec"]["behavior"]


@pytest.mark.parametrize("why", ["no metrics any more", "another scaler", "suspended"])
def test_an_autoscaler_goes_when_nothing_asks_for_it(why: str) -> None:
    world = begin(2, 6, policy={"metrics": METRICS})
    spec = world.job["spec"]
    if why == "no metrics any more":
        del spec["elasticPolicy"]["metrics"]
    elif why == "another scaler":
        spec["elasticPolicy"]["scaler"] = "volcano"
    else:
        spec["runPolicy"] = {"suspend": True}
    world.settle()
    assert world.autoscaler is None


@pytest.mark.parametrize("scaler", ["volcano", "none"])
def test_kubectl_scale_is_ignored_with_one_warning_unless_scaler_is_hpa(scaler: str) -> None:
    world = begin(2, policy={"scaler": scaler})
    assert not world.events(world.reconcile()), "what the manifest said is no scaling"
    world.job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 3
    (warning,) = [x for x in world.step() if isinstance(x, a.EmitEvent)]
    assert (warning.reason, warning.warning) == ("ScaleIgnored", True)
    assert "went from 2 to 3" in warning.message and "between 2 and 4" in warning.message
    world.settle()
    assert len(world.live()) == 2
    assert not world.events(world.reconcile())


def test_under_hpa_a_wish_changes_no_pods_by_itself_and_warns_nobody() -> None:
    world = begin(2, policy={"metrics": METRICS})
    world.job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 4
    assert not world.events(world.settle())
    assert len(world.live()) == 2  # the policy caps the wish, and says what is granted
