"""Which runs a job is like, said in words."""

from __future__ import annotations

from typing import Any

from tests.brain.world import run
from volcano_elastic.brain.estimate.similarity import Similar
from volcano_elastic.brain.history.run import Run
from volcano_elastic.brain.past import Past, PastRun


def runs(count: int, **given: Any) -> list[Run]:
    return [run(f"{given}{i}", **given) for i in range(count)]


def similar(job: Run, known: list[Run]) -> Similar[PastRun]:
    return Past(known).similar(job, "Worker")


def test_a_likeness_is_explained() -> None:
    known = runs(41, data_set="") + runs(50, user="bob", data_set="")
    found = similar(run("new", data_set=""), known)
    assert found.explained() == "p95 of 41 runs by this user with this image"
    assert len(found.runs) == 41


def test_the_narrowest_likeness_that_enough_runs_have_is_taken() -> None:
    known = runs(2) + runs(3, data_set="coco")
    found = similar(run("new"), known)
    assert (len(found.runs), found.likeness) == (5, "by this user with this image")
    assert similar(run("new"), [*known, run("third")]).likeness == (
        "by this user with this image on this data set"
    )


def test_where_no_likeness_has_enough_the_most_runs_are_taken() -> None:
    found = similar(run("new"), [run("a", image="bert:2"), run("b", image="bert:3", data_set="")])
    assert (len(found.runs), found.likeness) == (2, "by this user")
    assert found.explained() == "p95 of 2 runs by this user"


def test_what_is_not_known_is_like_nothing() -> None:
    unknown = {"user": "", "image": "", "data_set": "", "queue": ""}
    found = similar(run("new", **unknown), runs(9, **unknown))
    assert not found.runs and found.explained() == "no earlier run is like this one"


def test_a_run_counts_once_and_only_when_it_has_ended_and_was_measured() -> None:
    past = Past([run("goes on", outcome="", ended=None), run("unmeasured", loads=())])
    for _ in range(3):
        past.add(run("known"))
    assert [one.uid for one in past.similar(run("new"), "Worker").runs] == ["known"]
    assert past.similar(run("new"), "PS").runs == ()
