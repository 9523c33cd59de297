"""Decides what to do for one job, given what is there. Pure: the same view gives the same
actions."""

from __future__ import annotations

from datetime import datetime

from volcano_elastic.api.pytorchjob import PyTorchJob
from volcano_elastic.pytorchjob.action import Action
from volcano_elastic.pytorchjob.desired import desired
from volcano_elastic.pytorchjob.difference import difference
from volcano_elastic.pytorchjob.guard import guard
from volcano_elastic.pytorchjob.observed import Observed
from volcano_elastic.pytorchjob.settings import DEFAULTS, Settings
from volcano_elastic.pytorchjob.view import look


def reconcile(
    job: PyTorchJob, observed: Observed, now: datetime, settings: Settings = DEFAULTS
) -> list[Action]:
    """Return the actions that bring a job from what is observed nearer to what it should be.

    guard       may the job be touched at all?
    view        its pods as replicas, and the rendezvous that the running ones know
    desired     status, gang, pods, services, coordinator and autoscaler that it should have
    difference  from what there is to that, as actions in stages
    """
    forbidden = guard(job, observed.pods, now)
    if forbidden is not None:
        return forbidden
    view = look(job, observed, now)
    return difference(desired(view, settings), view)
