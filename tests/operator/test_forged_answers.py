"""Whatever a job's own programs tell, the operator goes on, and writes what an API server takes."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
import yaml

from embedded_cluster.apiserver import schema
from tests.operator.measuring import NOW, job, worker_zero
from volcano_elastic.api.pytorchjob import parse
from volcano_elastic.operator import (
    checkpoint_report,
    coordinator_client,
    last_word,
    load_report,
    progress_report,
    round_history,
    server_report,
    speed_report,
)
from volcano_elastic.operator.coordinator_client import Report
from volcano_elastic.operator.failure_report import by_round, message
from volcano_elastic.pytorchjob.goodput import TOLD, Goodput, kept

FORGED: list[Any] = [
    None,
    True,
    -1,
    1e308,
    float("nan"),
    float("inf"),
    10**4000,
    1 << 62,
    "",
    "\ud800\0",
    "9" * 5000,
    [],
    [[None]],
    {},
    {"\ud800": "1", "-1": [1e999], "1": "1"},
]
TOLD_ROUND = {"round": 3, "world": 2, "time": 1e9, "reason": "start", "lost": 1} | {
    "first_step": 1,
    "last_step": 9,
    "pause_seconds": 0.5,
    "end_time": 2e9,
}
FAILED = {"round": 3, "worker": 1, "rank": 1, "pid": 7, "time": 1e9, "exitCode": 1, "message": "x"}
SLOW = {"rank": 1, "worker": 1, "node": "n", "cause": "input"} | {
    "batch_seconds": 0.4,
    "others_batch_seconds": 0.1,
}
DIVERGED = {"rank": 1, "worker": 1, "node": "n", "step": 4, "agreed_step": 2, "outvoted": True}
WHOLE: dict[str, Any] = {
    "job": "team/a",
    "round": 3,
    "range": {"min": 1, "max": 4},
    "ranks": {"0": 0},
    "connected": [0, 1],
    "speeds": {"2": 80.0},
    "progress": {"samples": 5, "total": 10, "remaining_seconds": 6.0},
    "metrics": {"loss": "0.5"},
    "commits": {"0123456789abcdef": 4},
    "commit_bytes": 1 << 30,
    "rounds": [TOLD_ROUND],
    "excluded": [{"node": "n", "workers": [1], "reason": "faulty"}],
    "goodput": {"id": "x", "milliseconds": dict.fromkeys(TOLD, 1), "processes": 1},
    "stragglers": [SLOW],
    "loads": {"0": {"cpus": 1.5, "memory": 1 << 30, "gpu_memory": None, "gpu_percent": None}},
    "diverged": [DIVERGED],
    "hangs": [{"round": 3, "step": 4, "seconds": 60.0, "broken": True, "words": "rank 1"}],
    "failures": [FAILED],
}


def places(found: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in an answer."""
    inner: Any = ()
    if isinstance(found, dict):
        inner = found.items()
    elif isinstance(found, list):
        inner = enumerate(found)
    for key, value in inner:
        yield (*path, key)
        yield from places(value, *path, key)


def forged() -> Iterator[dict[str, Any]]:
    for *path, last in places(WHOLE):
        for value in FORGED:
            made = copy.deepcopy(WHOLE)
            inner: Any = made
            for key in path:
                inner = inner[key]
            inner[last] = value
            yield made


def written(report: Report) -> dict[str, Any]:
    """Return all that the operator may write of an answer, and say."""
    spent = kept({}, report.goodput)
    other = report.goodput and Goodput("y", dict.fromkeys(TOLD, 1 << 62), 1)
    parts = {
        "speeds": speed_report.news({}, report.speeds),
        "commits": report.commits,
        "pauseSeconds": speed_report.pause_to_write(None, report.pause),
        "rounds": round_history.to_write((), report.rounds),
        "progress": progress_report.to_write({}, report.progress, NOW),
        "loads": load_report.to_write({}, report.loads, NOW),
        "checkpoint": checkpoint_report.to_write({}, report.checkpoint, None),
        "goodput": kept(spent, other),
    }
    said = [*report.excluded, *report.hung, *report.slow, *report.diverged]
    messages = [(one.message, one.event_name("a", "u")) for one in said]
    messages += [(message(group), "") for group in by_round(report.failures)]
    assert orjson.dumps(messages)
    return {name: value for name, value in parts.items() if value}


def test_whatever_value_is_forged_what_is_written_of_it_is_valid() -> None:
    with open("crds/kubeflow.org_pytorchjobs.yaml") as file:
        (version,) = yaml.safe_load(file)["spec"]["versions"]
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["elastic"]
    obj = job()
    obj["status"]["conditions"] = [{"type": "Failed", "status": "True"}]
    parsed = parse(obj)
    assert set(written(coordinator_client.read(json.dumps(WHOLE).encode(), parsed))) >= {
        "speeds",
        "commits",
        "rounds",
        "progress",
        "loads",
        "goodput",
    }
    for made in forged():
        # With escapes, and half pairs in UTF-8 as they are.
        for body in {
            json.dumps(made, ensure_ascii=known).encode(errors="surrogatepass")
            for known in (True, False)
        }:
            report = coordinator_client.read(body, parsed)
            for elastic in (written(report), last_word.to_write(obj, report, NOW)):
                made_whole = without_nulls(orjson.loads(orjson.dumps(elastic)))
                assert schema.validate(made_whole, status) == [], made
                # Which an API server's Go takes for a number with a fraction.
                assert all(abs(number) < 1 << 63 for number in integers(elastic)), made


def without_nulls(found: Any) -> Any:
    """Return what a merge patch leaves."""
    if isinstance(found, dict):
        return {name: without_nulls(value) for name, value in found.items() if value is not None}
    return found


def integers(found: Any) -> Iterator[int]:
    if isinstance(found, dict):
        for value in found.values():
            yield from integers(value)
    elif isinstance(found, list):
        for value in found:
            yield from integers(value)
    elif isinstance(found, int):
        yield found


@pytest.mark.parametrize(
    "body",
    [b'{"job":' + b"[" * 4000, b'{"job":"team/a","x":' + b"[" * 2000 + b"]" * 2000 + b"}"],
    ids=["open", "closed"],
)
def test_thousands_of_brackets_are_no_answer(body: bytes) -> None:
    parsed = parse(job())
    assert coordinator_client.read(body, parsed) == Report()
    assert coordinator_client.followed_of(body, parsed) is None
    assert server_report.read(body, parsed) is None
    pod = worker_zero(phase="Failed")
    pod["status"]["containerStatuses"] = [{"state": {"terminated": {"message": body.decode()}}}]
    assert last_word.read(job(), [pod]) is None
