"""Promises of all commands: help, completion, and what none of them hides."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.cli.world import FULL, WAITING, run
from tests.queue_policy.world import NOW, job, node, pods, ruled, world
from volcano_elastic.api.queue_policy import Grow, Surplus
from volcano_elastic.cli.top import top_json, view
from volcano_elastic.cluster_state.reason import WORDS, Reason
from volcano_elastic.queue_policy.plan import plan
from volcano_elastic.snapshot.codec import Observation
from volcano_elastic.snapshot.snapshot import Queue

RING = (Queue("default", parent="up"), Queue("up", parent="default"))
ORPHAN = (Queue("default", parent="ghost"),)


@pytest.mark.parametrize(
    ("queues", "problem"),
    [
        (RING, "its parents run in a ring (default → up → default)"),
        (ORPHAN, "its parent ghost does not exist"),
    ],
    ids=["ring", "no such parent"],
)
def test_parents_that_cannot_be_are_said_by_every_tool(
    queues: tuple[Queue, ...], problem: str, saved: Any
) -> None:
    from rich.console import Console

    seen = replace(WAITING, queues=queues)
    file = saved(seen)
    said = run("plan", "--snapshot", file)
    assert said.exit_code == 0 and f"Warning: queue default: {problem}" in said.stderr
    found = json.loads(run("plan", "--json", "--snapshot", file).stdout)
    assert found["queues"][0]["problem"].startswith(problem)
    assert f"queue:        {problem}" in run("explain", "ns/a", "--snapshot", file).output
    found = json.loads(run("explain", "ns/a", "--json", "--snapshot", file).output)
    assert found["queueProblem"].startswith(problem)
    screen = Console(width=400)
    with screen.capture() as shown:
        screen.print(view(Observation(NOW, seen)))
    assert f"queue default: {problem}" in shown.get()


@pytest.mark.parametrize(
    ("fields", "rules", "reason", "rest"),
    [
        (
            {},
            {"surplus": Surplus(max_per_job=1)},
            Reason.AT_MAX_PER_JOB,
            ": 2, since policy rules has surplus.maxPerJob 1\n",
        ),
        (
            {"scaler": "hpa", "replicas": 2},
            {"surplus": Surplus(max_per_job=3)},
            Reason.AT_REPLICAS,
            ": 2, since 2 are asked for\n",
        ),
        (
            {"node_unit": 2, "max": 3, "min": 2},
            {},
            Reason.AT_MAX,
            ": 2, since its nodeUnit is 2\n",
        ),
        ({"max": 2}, {"surplus": Surplus(max_per_job=5)}, Reason.AT_MAX, "\n"),
        ({"node_unit": 2}, {"grow": Grow(max_step=1)}, Reason.MAX_STEP_TOO_SMALL, "\n"),
    ],
    ids=["maxPerJob", "hpa", "nodeUnit", "max", "maxStep"],
)
def test_every_tool_says_what_keeps_a_job_below_its_max(
    saved: Any, fields: dict[str, Any], rules: dict[str, Any], reason: Reason, rest: str
) -> None:
    from rich.console import Console

    a = replace(job("a", 1, 4, 2), **fields)
    seen = ruled(world([node("n", 4)], [a], pods(a, "n", "n")), **rules)
    file = saved(seen)
    words = WORDS[reason]
    assert f"{words}{rest}" in run("explain", "a", "--snapshot", file).output
    assert f"no more: {words}" in " ".join(run("plan", "--snapshot", file).output.split())
    assert top_json(Observation(NOW, seen), plan(seen, NOW))["jobs"][0]["next"] == str(reason)
    screen = Console(width=400)
    with screen.capture() as shown:
        screen.print(view(Observation(NOW, seen)))
    assert words in shown.get()


def test_without_a_cluster_it_is_said_where_it_was_looked_for() -> None:
    for command in ("plan", "top", "snapshot"):
        said = run(command)
        assert said.exit_code == 2 and "kubeconfig /nowhere: No such file" in said.stderr


def test_a_mistyped_command_is_told_the_one_that_is_nearest() -> None:
    assert "Did you mean 'explain'?" in run("exlpain", "a").stderr
    assert run("local", "falut", "kill").stderr.count("'fault'") == 1
    assert "Did you mean" not in run("zzz").stderr


def test_the_list_of_commands_has_whole_sentences() -> None:
    for said in (run("--help"), run("local", "--help")):
        listed = said.output.partition("Commands:")[2]
        assert "Runs the cluster" in listed or "Queues and jobs:" in listed
        assert "..." not in listed


def test_a_snapshot_is_the_whole_picture(saved: Any) -> None:
    said = run("plan", "--snapshot", saved(FULL), "--kubeconfig", "k")
    assert said.exit_code == 2 and "--snapshot holds it all" in said.stderr
    assert run("plan", "--snapshot", "/nowhere/s.json").exit_code == 2


TOOLS = (
    *("snapshot", "plan", "explain", "top", "replay", "check-config", "completion"),
    *("check-nodes", "goodput"),
)


@pytest.mark.parametrize("command", TOOLS)
def test_help_has_examples(command: str) -> None:
    said = run(command, "--help")
    assert said.exit_code == 0
    assert "Example" in said.output and f"volcano-elastic {command}" in said.output
    if command != "completion":
        assert "Exits 0" in said.output


@pytest.mark.process
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_ask_this_program(shell: str) -> None:
    said = run("completion", shell)
    assert said.exit_code == 0
    assert f"_VOLCANO_ELASTIC_COMPLETE={shell}_complete" in said.output


def test_usage_errors_exit_with_2() -> None:
    assert run("completion", "csh").exit_code == 2
    assert run("plan", "--snapshot").exit_code == 2
    assert run("nothing").exit_code == 2
