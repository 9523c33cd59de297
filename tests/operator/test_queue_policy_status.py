"""A QueuePolicy's status, which queue admins read, and the CRD that holds it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from tests.operator.process import ROOT
from volcano_elastic.api.brain_mode import BrainMode
from volcano_elastic.api.queue_policy import (
    Cordon,
    Diverged,
    ForOtherQueues,
    ForPods,
    InvalidPolicy,
    LeaveNodes,
    Mode,
    Order,
    QueuePolicy,
    Step,
    Stragglers,
    parse,
)
from volcano_elastic.cluster_state.queue_figures import QueueFigures
from volcano_elastic.cluster_state.reason import Reason
from volcano_elastic.operator.queue_policy_status import Seen, status
from volcano_elastic.queue_policy.decision import Decision
from volcano_elastic.snapshot.snapshot import Queue

Object = dict[str, Any]
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
OPEN = Queue("research")
FIGURES = QueueFigures("nvidia.com/gpu", 2000, 3000, 1000, 500, 0, 2)


def policy(status: Object | None = None, **spec: Any) -> Object:
    obj: Object = {
        "metadata": {"name": "p", "generation": 3},
        "spec": {"queue": "research"} | spec,
    }
    return obj | ({"status": status} if status is not None else {})


def seen(**more: Any) -> Seen:
    given = {
        "queue": OPEN,
        "in_force": QueuePolicy("research", name="p"),
        "figures": FIGURES,
        "blocked": {},
    }
    return Seen(**(given | more))


def decision(**more: Any) -> Decision:
    given = {"job": "team/a", "old": 1, "new": 3, "reason": Reason.GREW_INTO_IDLE, "message": "m"}
    return Decision(**(given | more))


def told(found: Object, type_: str) -> tuple[str, str]:
    condition = next(c for c in found["conditions"] if c["type"] == type_)
    return condition["status"], condition["reason"]


def test_figures_are_told_in_units_of_the_resource() -> None:
    found = status(policy(), None, seen(), NOW)
    assert {name: found[name] for name in ("free", "guaranteed", "surplus", "borrowed")} == {
        "free": "2",
        "guaranteed": "3",
        "surplus": "1",
        "borrowed": "500m",
    }
    assert (found["owedToMinimums"], found["jobs"], found["resizesTotal"]) == ("0", 2, 0)
    assert found["observedGeneration"] == 3
    assert told(found, "Active") == ("True", "Active")
    assert told(found, "MinimumBlocked") == ("False", "NoneBlocked")
    assert told(found, "Stale") == ("False", "Planned")


def test_nothing_new_changes_nothing() -> None:
    first = status(policy(), None, seen(decisions=[decision()]), NOW)
    later = NOW + timedelta(minutes=5)
    assert status(policy(first), None, seen(), later) == first


def test_decisions_are_counted_and_the_last_one_shown() -> None:
    first = status(policy(), None, seen(decisions=[decision()] * 2), NOW)
    second = status(policy(first), None, seen(decisions=[decision(old=3, new=1)]), NOW)
    assert (first["resizesTotal"], second["resizesTotal"]) == (2, 3)
    change = {"job": "team/a", "from": 3, "to": 1, "reason": "GrewIntoIdle", "message": "m"}
    assert second["lastDecision"] == {"time": "2026-01-01T12:00:00Z", "changes": [change]}


def test_a_dry_run_that_decides_the_same_again_is_one_decision_and_no_resize() -> None:
    dry = [decision(dry_run=True)]
    first = status(policy(), None, seen(decisions=dry), NOW)
    later = NOW + timedelta(seconds=1)
    assert status(policy(first), None, seen(decisions=dry), later) == first
    assert first["resizesTotal"] == 0 and first["lastDecision"]["changes"][0]["dryRun"] is True


def test_very_many_changes_are_cut_short_but_all_counted() -> None:
    found = status(policy(), None, seen(decisions=[decision()] * 50), NOW)
    assert (len(found["lastDecision"]["changes"]), found["resizesTotal"]) == (20, 50)


def test_the_younger_of_two_policies_says_that_the_older_one_counts() -> None:
    older = QueuePolicy("research", name="older")
    found = status(policy({"free": "2", "resizesTotal": 4}), None, seen(in_force=older), NOW)
    assert told(found, "Active") == ("False", "Superseded")
    assert "older" in found["conditions"][0]["message"]
    assert "free" not in found and found["resizesTotal"] == 4


@pytest.mark.parametrize(
    ("queue", "mode", "reason"),
    [
        (None, Mode.ACTIVE, "QueueNotFound"),
        (Queue("research", open=False), Mode.ACTIVE, "QueueClosed"),
        (OPEN, Mode.OFF, "Off"),
        (OPEN, Mode.DRY_RUN, "DryRun"),
    ],
)
def test_a_policy_that_changes_nothing_says_why(
    queue: Queue | None, mode: Mode, reason: str
) -> None:
    force = QueuePolicy("research", name="p", mode=mode)
    found = status(policy(), None, seen(queue=queue, in_force=force), NOW)
    assert told(found, "Active") == ("False", reason)


@pytest.mark.parametrize(("mode", "active"), [(Mode.ACTIVE, "True"), (Mode.OFF, "False")])
def test_parents_that_cannot_be_are_said_in_the_condition(mode: Mode, active: str) -> None:
    """The policy is in force all the same, as its mode has it."""
    force = QueuePolicy("research", name="p", mode=mode)
    figures = FIGURES._replace(problem="its parent ghost does not exist")
    found = status(policy(), None, seen(in_force=force, figures=figures), NOW)
    assert told(found, "Active") == (active, "ParentInvalid")
    assert found["conditions"][0]["message"].endswith("its parent ghost does not exist")
    assert "problem" not in found


def test_an_invalid_policy_names_the_field() -> None:
    with pytest.raises(InvalidPolicy) as error:
        parse(policy(rebalance={"gap": 0.5}))
    found = status(policy(), error.value, seen(in_force=QueuePolicy("research")), NOW)
    assert told(found, "Active") == ("False", "Invalid")
    assert "spec.rebalance.gap: must be 0 (off) or at least 1" in found["conditions"][0]["message"]


def test_blocked_minimums_are_named_and_the_time_of_the_change_kept() -> None:
    blocked = {f"team/{name}": "it needs 9 GPUs, and there are 4" for name in "abcde"}
    first = status(policy(), None, seen(blocked=blocked), NOW)
    condition = first["conditions"][1]
    assert told(first, "MinimumBlocked") == ("True", "NotEnoughResources")
    assert condition["message"].startswith("team/a: it needs 9 GPUs")
    assert condition["message"].endswith("and 2 more")
    later = NOW + timedelta(minutes=1)
    second = status(policy(first), None, seen(blocked={"team/a": "why"}), later)
    assert second["conditions"][1]["lastTransitionTime"] == condition["lastTransitionTime"]
    third = status(policy(second), None, seen(), later)
    assert third["conditions"][1]["lastTransitionTime"] == "2026-01-01T12:01:00Z"


@pytest.mark.parametrize("queue", [None, Queue("research", open=False)])
def test_who_waits_for_a_queue_that_is_not_open_lacks_no_resources(queue: Queue | None) -> None:
    found = status(policy(), None, seen(queue=queue, blocked={"team/a": "why"}), NOW)
    assert told(found, "MinimumBlocked") == ("True", "QueueClosed")


def test_without_a_plan_the_figures_stay_and_are_called_stale() -> None:
    first = status(policy(), None, seen(blocked={"team/a": "why"}), NOW)
    failed = seen(figures=None, blocked=None, failure="ZeroDivisionError()")
    second = status(policy(first), None, failed, NOW)
    assert told(second, "Stale") == ("True", "NoPlan")
    assert second["free"] == first["free"]
    assert told(second, "MinimumBlocked") == ("True", "NotEnoughResources")


# The CRD

CRD = yaml.safe_load((ROOT / "crds/policy.volcano-elastic.io_queuepolicies.yaml").read_text())
SCHEMA = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]


def leaves(schema: Object, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Object]:
    if schema.get("type") != "object":
        return {path: schema}
    return {
        found: leaf
        for name, part in schema["properties"].items()
        for found, leaf in leaves(part, (*path, name)).items()
    }


def nested(path: tuple[str, ...], value: object) -> Object:
    for name in reversed(path):
        value = {name: value}
    assert isinstance(value, dict)
    return value


def merged(*parts: Object) -> Object:
    out: Object = {}
    for part in parts:
        for name, value in part.items():
            both = isinstance(value, dict) and isinstance(out.get(name), dict)
            out[name] = merged(out[name], value) if both else value
    return out


def another(path: tuple[str, ...], leaf: Object) -> object:
    """A value that is not the default."""
    if "enum" in leaf:
        return leaf["enum"][-1]
    if leaf.get("type") == "string":
        return "other"
    return {"gap": 3, "weight": 3}.get(path[-1], 1 if leaf.get("default") != 1 else 0)


FIELDS = leaves(SCHEMA["spec"])
PARTS = {name for path in FIELDS for name in path[:-1]}


def test_a_queue_without_a_policy_gets_the_schemas_defaults() -> None:
    assert parse({"spec": {"queue": "q"}}) == QueuePolicy("q")


def test_the_schema_and_the_typed_view_name_the_same_choices() -> None:
    choices = {".".join(path): leaf["enum"] for path, leaf in FIELDS.items() if "enum" in leaf}
    assert choices == {
        "mode": list(Mode),
        "surplus.order": list(Order),
        "surplus.step": list(Step),
        "shrink.forOtherQueues": list(ForOtherQueues),
        "shrink.forPods": list(ForPods),
        "nodes.leave": list(LeaveNodes),
        "nodes.cordon": list(Cordon),
        "nodes.stragglers": list(Stragglers),
        "nodes.diverged": list(Diverged),
        "brain.mode": list(BrainMode),
    }


@pytest.mark.parametrize("path", [path for path in FIELDS if path != ("queue",)])
def test_every_field_of_the_schema_is_read(path: tuple[str, ...]) -> None:
    leaf = FIELDS[path]
    spec = merged({"queue": "q"}, nested(path, another(path, leaf)))
    assert parse({"spec": spec}) != QueuePolicy("q"), "the typed view reads it"
    wrong = merged({"queue": "q"}, nested(path, ["wrong"]))
    with pytest.raises(InvalidPolicy, match=r"\.".join(["spec", *path])):
        parse({"spec": wrong})


def test_every_field_is_described() -> None:
    for schema in (SCHEMA["spec"], SCHEMA["status"]):
        for path, leaf in leaves(schema).items():
            assert leaf.get("description"), ".".join(path)


def test_the_status_we_write_is_in_the_schema() -> None:
    found = status(policy(), None, seen(decisions=[decision(dry_run=True)]), NOW)
    known = SCHEMA["status"]["properties"]
    assert found.keys() <= known.keys()
    assert found["lastDecision"].keys() <= known["lastDecision"]["properties"].keys()
    change = known["lastDecision"]["properties"]["changes"]["items"]["properties"]
    assert found["lastDecision"]["changes"][0].keys() <= change.keys()
    condition = known["conditions"]["items"]["properties"]
    assert all(c.keys() <= condition.keys() for c in found["conditions"])
