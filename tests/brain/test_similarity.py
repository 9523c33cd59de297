"""Which runs a job is like, said in words."""

from __future__ import annotations

from dataclasses import dataclass

from volcano_elastic.brain.estimate.similarity import similar


@dataclass(frozen=True)
class Run:
    user: str = "ann"
    queue: str = "vision"
    image: str = "resnet:1"
    data_set: str = "imagenet"


def test_a_likeness_is_explained() -> None:
    runs = [Run(data_set="")] * 41 + [Run(user="bob")] * 50
    found = similar(Run(data_set=""), runs)
    assert found.explained() == "p95 of 41 runs by this user with this image"
    assert len(found.runs) == 41


def test_the_narrowest_likeness_that_enough_runs_have_is_taken() -> None:
    runs = [Run()] * 2 + [Run(data_set="coco")] * 3
    found = similar(Run(), runs)
    assert (len(found.runs), found.likeness) == (5, "by this user with this image")
    assert similar(Run(), [*runs, Run()]).likeness == (
        "by this user with this image on this data set"
    )


def test_where_no_likeness_has_enough_the_most_runs_are_taken() -> None:
    found = similar(Run(), [Run(image="bert:2"), Run(image="bert:3", data_set="")])
    assert (len(found.runs), found.likeness) == (2, "by this user")
    assert found.explained() == "p95 of 2 runs by this user"


def test_what_is_not_known_is_like_nothing() -> None:
    unknown = Run(user="", image="", data_set="", queue="")
    found = similar(unknown, [unknown] * 9)
    assert not found.runs and found.explained() == "no earlier run is like this one"
