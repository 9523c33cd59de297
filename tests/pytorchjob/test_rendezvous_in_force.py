"""A running job's pods go on meeting where they do, whatever becomes of its spec."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.pytorchjob.world import NOW, World, active, job_object, merged
from volcano_elastic.api.problem import Problem
from volcano_elastic.api.pytorchjob import parse
from volcano_elastic.operator.admission import decide_pytorchjob
from volcano_elastic.operator.convert import read_job
from volcano_elastic.pytorchjob import action as a
from volcano_elastic.pytorchjob import rendezvous
from volcano_elastic.pytorchjob.environment import shared

Object = dict[str, Any]
OURS: Object = {"rdzvBackend": "volcano-elastic"}
PORT: Object = {"name": "pytorchjob-port", "containerPort": 4000}


def job(elastic: Object | None, ports: list[Object] | None = None, **spec: Any) -> Object:
    policy = None if elastic is None else {"min": 1, "max": 4} | elastic
    obj = job_object(elastic=policy, **spec)
    obj["kind"] = "PyTorchJob"
    if ports is not None:
        container(obj)["ports"] = ports
    return obj


def container(obj: Object) -> Object:
    template = obj["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    found: Object = template["spec"]["containers"][0]
    return found


def running(obj: Object) -> World:
    world = World(obj, NOW)
    world.settle()
    world.run_all()
    return world


def variables(pod: Object) -> dict[str, str]:
    return {v["name"]: v.get("value") for v in pod["spec"]["containers"][0]["env"]}


def meeting(pod: Object) -> Object:
    """All that says where a pod meets the others, but for who serves torchrun's store."""
    names = ("PET_RDZV_", "PET_STANDALONE", "PET_NNODES", "VOLCANO_ELASTIC_COORDINATOR")
    told = {n: v for n, v in variables(pod).items() if n.startswith(names)}
    conf = told.pop("PET_RDZV_CONF", "").split(",")
    if shared := ",".join(one for one in conf if not one.startswith("is_host=")):
        told["PET_RDZV_CONF"] = shared
    return told


SPLITTING: list[tuple[Object, Object, list[str]]] = [
    ({}, OURS, ["rdzvBackend"]),
    (OURS, {"coordinator": "dedicated"}, ["coordinator"]),
    ({}, {"rdzvHost": "elsewhere"}, ["rdzvHost"]),
    ({}, {"rdzvPort": 1234}, ["rdzvPort"]),
    ({}, {"rdzvId": "x"}, ["rdzvId"]),
    ({}, {"rdzvConf": [{"key": "store_type", "value": "file"}]}, ["rdzvConf"]),
    ({}, {"standalone": True}, ["standalone"]),
    ({"rdzvConf": [{"key": "a", "value": "b=c"}]}, {"rdzvConf": None}, ["rdzvConf"]),
    (OURS | {"coordinator": "dedicated"}, {"coordinator": "worker0"}, ["coordinator"]),
    (OURS | {"min": 2}, {"nodeUnit": 2}, ["nodeUnit"]),
]


def edits() -> list[Any]:
    return [
        pytest.param(elastic, change, fields, id=f"{elastic} {change}")
        for elastic, change, fields in SPLITTING
    ]


@pytest.mark.parametrize(("elastic", "change", "fields"), edits())
def test_an_edit_that_splits_a_running_job_is_refused(
    elastic: Object, change: Object, fields: list[str]
) -> None:
    old = job(elastic)
    new = merged(copy.deepcopy(old), {"spec": {"elasticPolicy": change}})
    problems = decide_pytorchjob(new, old).problems
    refused = [p.path for p in problems if "immutable while the job is not suspended" in p.message]
    assert refused == [f"spec.elasticPolicy.{field}" for field in fields]
    for suspended in (old, new):
        free = merged(suspended, {"spec": {"runPolicy": {"suspend": True}}})
        both = (free, old) if suspended is new else (new, free)
        assert decide_pytorchjob(*both).problems == (), "no pod stays that knows the old one"
    over = old | {"status": {"conditions": [{"type": "Succeeded", "status": "True"}]}}
    assert decide_pytorchjob(new, over).problems == ()


def test_processes_a_pod_are_free_where_torchrun_copes_with_differing_ones() -> None:
    def said(elastic: Object) -> tuple[Problem, ...]:
        return decide_pytorchjob(job(elastic, nprocPerNode="2"), job(elastic)).problems

    assert said({}) == ()
    (problem,) = said(OURS)
    assert problem.path == "spec.nprocPerNode", "our coordinator refuses pods that differ"


@pytest.mark.parametrize("elastic", [OURS, {}], ids=["ours", "c10d"])
def test_the_workers_port_is_the_rendezvous_unless_it_has_its_own(elastic: Object) -> None:
    (problem,) = decide_pytorchjob(job(elastic, [PORT]), job(elastic)).problems
    assert problem.path == "spec.elasticPolicy.rdzvPort" and "4000" in problem.message
    own = elastic | {"rdzvPort": 999}
    assert decide_pytorchjob(job(own, [PORT]), job(own)).problems == ()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"rdzvBackend": "c10d"}),
        ({}, {"rdzvHost": "a-worker-0", "rdzvPort": 23456}),
        ({"rdzvBackend": ""}, {"rdzvConf": [], "standalone": False, "rdzvId": ""}),
        (OURS, OURS | {"rdzvId": "u1", "coordinator": "worker0"}),
        ({}, {"maxRestarts": 3, "scaler": "none", "cooldownSeconds": 1, "max": 2}),
    ],
)
def test_the_same_said_otherwise_and_what_splits_nobody_is_let_pass(
    one: Object, other: Object
) -> None:
    assert decide_pytorchjob(job(one), job(other)).problems == ()
    assert decide_pytorchjob(job(other), job(one)).problems == ()


def test_a_job_becomes_elastic_or_stops_being_it_only_while_it_is_suspended() -> None:
    for old, new in ((None, OURS), (OURS, None)):
        (problem,) = decide_pytorchjob(job(new), job(old)).problems
        assert problem.path == "spec.elasticPolicy"
        assert "must not be added or removed while the job is not suspended" in problem.message
        resumed = job(old, runPolicy={"suspend": True})
        assert decide_pytorchjob(job(new), resumed).problems == ()


def test_a_range_that_running_pods_do_not_know_of_is_accepted_with_a_warning() -> None:
    for change in ({"max": 8}, {"min": 1}):
        response = decide_pytorchjob(job({"min": 2} | change), job({"min": 2}))
        assert response.problems == ()
        (warning,) = response.warnings
        assert "running pods were told 2 to 4" in warning and len(warning) <= 256
    assert decide_pytorchjob(job({"min": 2, "max": 3}), job({"min": 2})).warnings == ()
    elsewhere = OURS | {"min": 2, "rdzvHost": "elsewhere"}
    (warning,) = decide_pytorchjob(job(elsewhere | {"max": 8}), job(elsewhere)).warnings
    assert "running pods were told" in warning, "nobody tells a coordinator that we don't know"


def test_a_range_that_the_coordinator_is_told_needs_no_warning() -> None:
    for one in (OURS, OURS | {"coordinator": "dedicated"}, OURS | {"rdzvHost": "a-worker-0"}):
        response = decide_pytorchjob(job(one | {"min": 1, "max": 8}), job(one | {"min": 2}))
        assert (response.problems, response.warnings) == ((), ())
        world = running(job(one | {"min": 2}))
        world.job["spec"]["elasticPolicy"] |= {"min": 1, "max": 8}
        assert "RendezvousUnchanged" not in world.events(world.settle())
        world.grow(8)
        assert len([name for name in world.live() if "worker" in name]) == 8


# What came past admission


@pytest.mark.parametrize(("elastic", "change", "fields"), edits())
def test_later_pods_meet_those_that_run(elastic: Object, change: Object, fields: list[str]) -> None:
    world = running(job(elastic))
    before, others = meeting(world.pods["a-worker-0"]), set(world.pods)
    world.job = merged(world.job, {"spec": {"elasticPolicy": change}})
    actions = world.step()
    (event,) = [x for x in actions if isinstance(x, a.EmitEvent) and x.deduplicated]
    assert (event.reason, event.warning) == ("RendezvousUnchanged", True)
    assert all(f"spec.elasticPolicy.{field}: " in event.message for field in fields)
    assert event.message.count(" in force") == len(fields), "what its author did, no more"
    assert "suspend the job and resume it" in event.message
    world.grow(2)
    assert meeting(world.pods["a-worker-1"]) == before
    assert set(world.pods) == others | {"a-worker-1"}, "no coordinator comes or goes"
    # Nor does it count who was lost, as long as somebody is there.
    world.remove("a-worker-0")
    world.settle()
    assert meeting(world.pods["a-worker-0"]) == before
    assert not active(world.reconcile())


@pytest.mark.parametrize(("elastic", "change", "fields"), edits())
def test_once_no_pod_is_left_the_edit_is_in_force(
    elastic: Object, change: Object, fields: list[str]
) -> None:
    world = running(job(elastic))
    world.job = merged(world.job, {"spec": {"elasticPolicy": change}})
    world.settle()
    world.job["spec"]["runPolicy"] = {"suspend": True}
    world.settle()
    world.collect()
    world.settle()
    world.job["spec"]["runPolicy"] = {"suspend": False}
    actions = world.settle()
    wanted = {v["name"]: v.get("value") for v in shared(parse(world.job))}
    found = meeting(world.pods["a-worker-0"])
    assert found == {name: wanted[name] for name in found}
    assert "RendezvousUnchanged" not in world.events(actions)


def test_pods_that_are_leaving_already_hold_nobody() -> None:
    world = running(job({}))
    world.job["spec"]["elasticPolicy"] |= OURS
    world.leaving("a-worker-0")
    world.settle()
    world.collect()
    world.settle()
    assert meeting(world.pods["a-worker-0"])["PET_RDZV_BACKEND"] == "volcano-elastic"


def test_a_range_that_running_pods_do_not_know_of_is_followed_and_said() -> None:
    world = running(job({"min": 2}))
    world.job["spec"]["elasticPolicy"] |= {"min": 1, "max": 8}
    event = world.events(world.step())["RendezvousUnchanged"]
    assert "1 to 8 Workers are asked for, and rounds of the running pods have 2 to 4" in event
    world.grow(8)
    assert len(world.live()) == 8
    # Within what they know, there is nothing to say.
    world.job["spec"]["elasticPolicy"] |= {"min": 3, "max": 3}
    assert "RendezvousUnchanged" not in world.events(world.settle())
    assert len(world.live()) == 3


@pytest.mark.parametrize(("old", "new"), [(None, OURS), (OURS, None)], ids=["added", "removed"])
def test_a_job_edited_into_elastic_or_out_of_it_goes_on_as_it_is(
    old: Object | None, new: Object | None
) -> None:
    world = running(job(old))
    pods = set(world.pods)
    world.job["spec"].pop("elasticPolicy", None)
    world.job["spec"] |= {k: v for k, v in job(new)["spec"].items() if k == "elasticPolicy"}
    event = world.events(world.step())["PyTorchJobInvalid"]
    assert "spec.elasticPolicy: must not be added or removed" in event
    assert world.status["elastic"]["message"] == event
    assert set(world.pods) == pods and not world.reconcile()
    obj = world.job | {"kind": "PyTorchJob"}
    assert read_job(obj) is None, "nothing is planned for it"
    # Put right, it goes on.
    world.job["spec"].pop("elasticPolicy", None)
    world.job["spec"] |= {k: v for k, v in job(old)["spec"].items() if k == "elasticPolicy"}
    world.settle()
    assert "message" not in (world.status.get("elastic") or {})
    assert read_job(world.job) is not None


def test_pods_without_our_environment_say_nothing() -> None:
    world = running(job({}))
    for pod in world.pods.values():
        pod["spec"]["containers"][0]["env"] = []
    world.job["spec"]["elasticPolicy"] |= {"max": 8} | OURS
    world.settle()
    world.grow(5)
    assert len(world.live()) == 5


@pytest.mark.parametrize("elastic", [None, {}, OURS], ids=["fixed", "c10d", "ours"])
def test_what_a_template_says_of_the_rendezvous_is_no_edit(elastic: Object | None) -> None:
    obj = job(elastic)
    container(obj)["env"] = [
        {"name": name, "value": value}
        for name, value in (
            ("PYTHONUNBUFFERED", "0"),
            ("PET_NNODES", "7"),
            ("PET_RDZV_BACKEND", "etcd"),
            ("PET_RDZV_ENDPOINT", "etcd:2379"),
            ("PET_RDZV_ID", "mine"),
            ("PET_RDZV_CONF", "timeout=9"),
            ("PET_STANDALONE", "1"),
            ("VOLCANO_ELASTIC_NODE_UNIT", "3"),
        )
    ]
    world = running(obj)
    assert world.reconcile() == []
    assert world.status["conditions"][-1]["type"] == "Running"


def test_torchruns_own_rendezvous_gets_short_time_outs_unless_the_job_names_them() -> None:
    policy = {"min": 1, "max": 2, "rdzvConf": [{"key": "last_call_timeout", "value": "9"}]}
    world = World(job_object(elastic=policy), NOW)
    world.settle()
    told = variables(world.pods["a-worker-0"])
    conf = dict(pair.split("=") for pair in told["PET_RDZV_CONF"].split(","))
    given = dict(rendezvous.TORCHRUN_CONF) | {"last_call_timeout": "9"}
    assert conf == given | {"is_host": "1"}
    assert told["PET_MAX_RESTARTS"] == "10"


@pytest.mark.parametrize("backend", ["c10d", "volcano-elastic", "etcd"])
@pytest.mark.parametrize("host", [None, "a-worker-0", "elsewhere"])
def test_worker_0_alone_serves_torchruns_store_and_that_is_no_edit(
    backend: str, host: str | None
) -> None:
    policy = {"min": 2, "max": 3, "rdzvBackend": backend, "rdzvHost": host}
    world = running(job_object(elastic=policy))
    world.grow(3)
    told = [variables(world.pods[f"a-worker-{i}"]).get("PET_RDZV_CONF", "") for i in range(3)]
    serving = [dict(pair.split("=") for pair in one.split(",") if pair) for one in told]
    ours = backend == "c10d" and host != "elsewhere"
    expected = ["1", "0", "0"] if ours else [None] * 3
    assert [one.get("is_host") for one in serving] == expected
    assert "RendezvousUnchanged" not in world.events(world.step())


def test_pods_that_know_none_of_them_go_on_so_and_nobody_is_told_of_an_edit() -> None:
    world = World(job_object(elastic={"min": 1, "max": 2}), NOW)
    world.settle()
    env = world.pods["a-worker-0"]["spec"]["containers"][0]["env"]
    env[:] = [v for v in env if v["name"] != "PET_RDZV_CONF"]
    world.run_all()
    world.grow(2)
    assert variables(world.pods["a-worker-1"])["PET_RDZV_CONF"] == "is_host=0"
    assert "RendezvousUnchanged" not in world.events(world.step())
