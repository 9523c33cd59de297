"""Plans of jobs with parameter servers: what they say, when, and how they are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.brain.world import NOW, amounts, run
from tests.operator.process import job
from volcano_elastic.api.amount import Bytes, Cpu
from volcano_elastic.api.pytorchjob_shape import CPU_LIMIT_ANNOTATION
from volcano_elastic.api.scale_plan import RolePlan, parse
from volcano_elastic.api.server_bounds import BOUNDS_ANNOTATION
from volcano_elastic.brain import auto_plan
from volcano_elastic.brain.advice import advise
from volcano_elastic.brain.estimate.amounts import Amounts
from volcano_elastic.brain.history.run import PodLoad, Run
from volcano_elastic.brain.past import Past
from volcano_elastic.brain.served_job import PlannedSize, cpu_limit, is_served, planned

WAIT = timedelta(minutes=3)
NODE = amounts(64, 256)
LATER = NOW + 5 * WAIT


def served(servers: int = 1, most: int = 10, **status: Any) -> dict[str, Any]:
    made = job("a", 1, most)
    made["metadata"] |= {"uid": "u1", "annotations": {CPU_LIMIT_ANNOTATION: "15"}}
    replicas = made["spec"]["pytorchReplicaSpecs"]
    for name, cpu, memory in (("Worker", "8", "16Gi"), ("PS", "4", "8Gi")):
        container = {"name": "pytorch", "image": "train:1"}
        container |= {"resources": {"requests": {"cpu": cpu, "memory": memory}}}  # type: ignore[dict-item]
        replicas[name] = {"template": {"spec": {"containers": [container]}}}
    replicas["PS"]["replicas"] = servers
    return made | {"status": {"elastic": {"desired": 1} | status}}


def pod(role: str, index: int, used: Amounts, requested: Amounts, samples: int = 4) -> PodLoad:
    found = PodLoad.unused(role, index, requested, NOW)
    for i in range(samples):
        found = found.with_sample(used, NOW + timedelta(minutes=i), requested)
    return found


WORKER = pod("Worker", 0, amounts(2.4, 4), amounts(8, 16))
SERVER = pod("PS", 0, amounts(0.95, 2), amounts(4, 8))


def measured(*loads: PodLoad, **more: Any) -> Run:
    return run(loads=loads or (WORKER, SERVER), **more)


def test_after_three_minutes_15_cpus_carry_the_articles_four_workers() -> None:
    found = planned(served(), measured(), None, NODE, LATER, WAIT)
    assert found is not None
    assert found.roles["Worker"].replicas == 4
    # 11 CPUs that one server of 4 leaves, for four.
    cpu, memory = found.roles["Worker"].cpu, found.roles["Worker"].memory
    assert cpu == Cpu.cores(2.75) and memory == Bytes.gib(4.8).whole_mebibytes()
    assert found.roles["PS"].cpu == Cpu.cores(4)
    assert found.reason.startswith("measured for 15 min, a worker uses ")
    assert found.reason.endswith("15 CPU carry 4")


def test_a_first_plan_takes_no_worker_away_and_has_memory_for_the_fullest() -> None:
    workers = [pod("Worker", i, amounts(2.4, 4 + i), amounts(8, 16)) for i in range(6)]
    found = planned(served(desired=6), measured(*workers, SERVER), None, NODE, LATER, WAIT)
    assert found is not None and found.roles["Worker"].replicas == 6
    assert found.roles["Worker"].memory == Bytes.gib(9 * 1.2).whole_mebibytes()


@pytest.mark.parametrize(
    ("loads", "at", "size"),
    [
        ((WORKER, SERVER), NOW + timedelta(minutes=2), 1),
        ((WORKER,), LATER, 1),
        ((SERVER,), LATER, 1),
        ((WORKER, SERVER), LATER, 0),
    ],
    ids=["too early", "no server measured", "no worker measured", "no size"],
)
def test_nothing_is_planned_before_all_is_measured(
    loads: tuple[PodLoad, ...], at: Any, size: int
) -> None:
    assert planned(served(desired=size), measured(*loads), None, NODE, at, WAIT) is None


PLAN = {
    "Worker": RolePlan(4, Cpu.cores(2.75), Bytes.gib(5)),
    "PS": RolePlan(None, Cpu.cores(4), Bytes.gib(8)),
}
GREW = {"desired": 4, "lastScaleTime": "2026-01-01T12:05:00Z"}


def tuned(
    server: PodLoad, speeds: Mapping[int, float], status: Mapping[str, Any] = GREW, **more: str
) -> PlannedSize | None:
    workers = [pod("Worker", i, amounts(2.4, 4), amounts(2.75, 5)) for i in range(4)]
    given = served(**status)
    given["metadata"]["annotations"] |= {CPU_LIMIT_ANNOTATION: "64"} | more
    ran = measured(*workers, server, speeds=speeds)
    return planned(given, ran, PLAN, NODE, LATER, WAIT)


def test_workers_come_while_servers_have_cpu_to_spare_and_speed_improves() -> None:
    idle = pod("PS", 0, amounts(2, 2), amounts(4, 8))
    found = tuned(idle, {1: 30.0, 4: 100.0})
    assert found is not None and found.roles["Worker"].replicas == 6
    assert found.roles["PS"] == PLAN["PS"], "nothing else changes"
    assert tuned(idle, {1: 30.0, 4: 31.0}) is None, "the last growth brought nothing"
    assert tuned(idle, {1: 30.0}) is None, "nobody knows what it brought"
    assert tuned(idle, {1: 30.0, 4: 100.0}, **{CPU_LIMIT_ANNOTATION: "15"}) is None, (
        "the limit of CPU"
    )
    just_now = GREW | {"lastScaleTime": "2026-01-01T12:14:00Z"}
    assert tuned(idle, {1: 30.0, 4: 100.0}, just_now) is None, "too early to judge"
    waits = GREW | {"desired": 3}
    assert tuned(idle, {1: 30.0, 3: 90.0, 4: 100.0}, waits) is None, "it has no room for the last"
    busy = pod("PS", 0, amounts(3.5, 2), amounts(4.2, 8), samples=2)
    assert tuned(busy, {1: 30.0, 4: 100.0}) is None


def test_a_hot_server_gets_more_cpu_and_a_full_one_more_memory() -> None:
    hot = pod("PS", 0, amounts(3.6, 7.5), amounts(4, 8))
    found = tuned(hot, {4: 100.0})
    assert found is not None
    assert found.roles["PS"] == RolePlan(None, Cpu.cores(6), Bytes.gib(16))
    assert found.roles["Worker"] == PLAN["Worker"]
    assert found.reason == "PS 0 used 3600m of its 4 CPU; PS 0 held 7680Mi of its 8Gi"
    assert tuned(hot, {4: 100.0}, **{BOUNDS_ANNOTATION: "1-4"}) is None, "the operator adds servers"


def test_servers_that_the_operator_added_share_what_is_needed() -> None:
    two = measured(WORKER, SERVER, pod("PS", 1, amounts(0.95, 4), amounts(4, 8)))
    more = served()
    more["status"]["elastic"]["servers"] = {"replicas": 2, "insteadOf": 1}
    assert planned(more, measured(), None, NODE, LATER, WAIT) is None, "one is not measured"
    found = planned(more, two, None, NODE, LATER, WAIT)
    assert found is not None
    assert found.roles["PS"].replicas is None
    assert found.roles["PS"].memory == Bytes.gib(6 * 1.2 / 2).whole_mebibytes()


def test_a_job_begins_with_what_servers_and_workers_of_jobs_like_it_used() -> None:
    runs = [measured(uid=f"o{i}", name="other") for i in range(4)]
    fresh = replace(measured(), uid="u9", loads=())
    found = {one.role: one for one in advise(served(servers=2), fresh, Past(runs), NODE)}
    # One server did; its load is shared between the two that there are.
    assert found["PS"].wanted.memory == Bytes.gib(1)
    assert found["Worker"].wanted.memory == Bytes.gib(4)
    assert (
        found["PS"].why
        == "totals and greatest of 4 runs by this user with this image on this data set"
    )


def test_without_runs_like_it_only_who_asks_for_nothing_gets_the_articles_defaults() -> None:
    fresh = replace(measured(), uid="u9", loads=())
    assert advise(served(), fresh, Past(), NODE) == []
    silent = served()
    del silent["spec"]["pytorchReplicaSpecs"]["PS"]["template"]["spec"]["containers"][0][
        "resources"
    ]
    (found,) = advise(silent, fresh, Past(), NODE)
    assert (found.role, found.wanted.cpu) == ("PS", Cpu.cores(8))
    assert found.wanted.memory == Bytes.parse("8G").whole_mebibytes()


def test_servers_begin_with_what_their_checkpoint_takes_as_told_or_else_annotated() -> None:
    fresh = replace(measured(), uid="u9", loads=())
    made = served(servers=2, checkpointSize={"PS": "24Gi", "Worker": "1Gi"})
    (found,) = advise(made, fresh, Past(), NODE)
    assert (found.role, found.wanted) == ("PS", amounts(4, 20)), "CPU as it asks for"
    assert found.why == "a checkpoint of 24Gi fills them by 60%"
    said = served(servers=2)
    said["metadata"]["annotations"]["volcano-elastic.io/checkpoint-size"] = "48Gi"
    (found,) = advise(said, fresh, Past(), NODE)
    assert found.wanted.memory == Bytes.gib(40)
    said["status"]["elastic"]["checkpointSize"] = {"PS": "24Gi"}
    (found,) = advise(said, fresh, Past(), NODE)
    assert found.wanted.memory == Bytes.gib(20), "who holds it knows better"
    said["status"]["replicaStatuses"] = {"PS": {"active": 2}}
    (found,) = advise(said, fresh, Past(), NODE)
    assert found.wanted.memory == Bytes.gib(40), "what it has got to is not what it began with"


def test_a_checkpoint_that_the_newest_run_like_it_told_of_is_the_least() -> None:
    told = {"PS": Bytes.gib(6)}
    runs = [measured(uid=f"o{i}", name="other", checkpoint=told) for i in range(4)]
    runs.append(measured(uid="silent", name="other"))
    fresh = replace(measured(), uid="u9", loads=())
    found = {one.role: one for one in advise(served(), fresh, Past(runs), NODE)}
    assert found["PS"].wanted.memory == Bytes.gib(10), "not the 2 GiB that they used at most"
    assert found["PS"].why.endswith("; a checkpoint of 6Gi fills them by 60%")


def test_a_jobs_limit_is_what_its_annotation_says_else_what_it_asks_for_at_most() -> None:
    made = served(servers=2, most=3)
    assert cpu_limit(made) == Cpu.cores(15)
    del made["metadata"]["annotations"]
    assert cpu_limit(made) == Cpu.cores(3 * 8 + 2 * 4)
    assert is_served(made) and not is_served(job("a", 1, 2))


loads = st.builds(
    lambda cpu, memory: Amounts(Cpu(cpu), Bytes(memory)),
    st.integers(0, 64_000),
    st.integers(1, 256 * 2**30),
)


@given(
    worker=loads,
    server=loads,
    asked=loads,
    size=st.integers(1, 10),
    speeds=st.dictionaries(st.integers(1, 10), st.floats(0, 1e6), max_size=3),
    follows=st.booleans(),
)
def test_a_plan_stays_within_the_jobs_range_and_a_node_and_is_never_nothing(
    worker: Amounts,
    server: Amounts,
    asked: Amounts,
    size: int,
    speeds: dict[int, float],
    follows: bool,
) -> None:
    workers = [pod("Worker", i, worker, amounts(8, 16)) for i in range(size)]
    ran = measured(*workers, pod("PS", 0, server, asked), speeds=speeds)
    before = PLAN | {"Worker": replace(PLAN["Worker"], replicas=size)} if follows else None
    found = planned(served(desired=size), ran, before, NODE, LATER, WAIT)
    if found is None:
        assert before is not None
        return
    for role in found.roles.values():
        assert role.cpu is not None and Cpu(0) < role.cpu <= NODE.cpu
        assert role.memory is not None and Bytes(0) < role.memory <= NODE.memory
    replicas = found.roles["Worker"].replicas
    assert replicas is not None and (size if follows else 1) <= replicas <= 10
    made = auto_plan.made(served(), found)
    assert parse(made).roles == found.roles, "it is written as it is meant"


# The object


SIZE = PlannedSize(PLAN, "why")


def plan(phase: str = "Succeeded", **meta: Any) -> dict[str, Any]:
    found = auto_plan.made(served(), SIZE)
    found["metadata"] |= {"creationTimestamp": "2026-01-01T12:00:00Z"} | meta
    return found | {"status": {"phase": phase}}


def test_a_plan_is_its_jobs_and_lapses_unless_it_is_prolonged() -> None:
    kept = auto_plan.kept(served(), plan())
    assert kept is not None and kept.plan.job_key == "default/a" and not kept.plan.manual
    assert kept.plan.expires == NOW + timedelta(hours=1)
    assert auto_plan.patch(kept, None, NOW + timedelta(minutes=29)) is None
    soon = auto_plan.patch(kept, None, NOW + timedelta(minutes=31))
    assert soon == {"spec": {"expireSeconds": 91 * 60}}
    changed = auto_plan.patch(kept, SIZE, NOW)
    assert changed is not None
    assert changed["spec"]["replicaResourceSpecs"]["Worker"]["replicas"] == 4
    assert changed["metadata"]["annotations"] == {auto_plan.REASON_ANNOTATION: "why"}


def test_others_plans_are_left_alone() -> None:
    by_hand = plan(labels={"scale-type": "manual"})
    assert auto_plan.kept(served(), by_hand) is None
    assert auto_plan.kept(served(), plan(ownerReferences=[{"uid": "u2"}])) is None
    assert auto_plan.kept(served(), plan(name="b-brain")) is None
    beaten, over = (auto_plan.kept(served(), plan(p)) for p in ("Superseded", "Expired"))
    assert beaten is not None and beaten.is_beaten
    assert over is not None and over.is_over
