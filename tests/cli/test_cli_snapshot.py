"""A snapshot from a file: a plan of it, or a refusal that names the file."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from tests.queue_policy.world import NOW
from tests.snapshot.world import RICH, edited
from volcano_elastic.cli.main import main
from volcano_elastic.snapshot.codec import Observation, encode


def planned(text: str) -> Result:
    return CliRunner().invoke(main, ["plan", "--snapshot", "-"], input=text)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("jobs", 0, "max"), 0, "$.snapshot.jobs[0].max: must be at least min, 1, found 0"),
        (("jobs", 0, "max"), "four", "Expected `int`, got `str` - at `$.snapshot.jobs[0].max`"),
    ],
)
def test_a_snapshot_with_a_slip_is_refused_by_the_name_of_its_file(
    place: tuple[str | int, ...], value: object, message: str
) -> None:
    said = planned(edited(("snapshot", *place), value))
    assert (said.exit_code, said.stdout) == (2, "")
    assert said.stderr.startswith("Error: standard input: ") and message in said.stderr


def test_a_job_whose_queue_is_not_there_is_no_slip_but_cannot_start() -> None:
    said = planned(edited(("snapshot", "jobs", 1, "queue"), "nowhere"))
    assert said.exit_code == 1 and "queue nowhere does not exist" in said.stdout


def places(value: object, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value)  # type: ignore[call-overload]
    for key, one in inner:
        yield (*at, key)
        if isinstance(one, dict | list):
            yield from places(one, (*at, key))


@pytest.mark.parametrize(
    "odd",
    [-1, 0, 10**30, "", "x", "-PT1S", "9999-12-31T23:59:59Z", None, [], {}],
    ids=repr,
)
def test_whatever_a_snapshot_says_there_is_a_plan_or_a_refusal(odd: object) -> None:
    for place in places(json.loads(encode(Observation(NOW, RICH)))):
        said = planned(edited(place, odd))
        assert said.exception is None or isinstance(said.exception, SystemExit), place
