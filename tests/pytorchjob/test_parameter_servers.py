"""Role PS: parameter servers, which an elastic job can't do without, and which neither train nor
count in the size."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pytorchjob.world import NOW, World, copied, job_object, values
from volcano_elastic.api.pytorchjob import parse
from volcano_elastic.api.pytorchjob_validation import validate
from volcano_elastic.api.scale_plan import RolePlan, ScalePlan, servers_named
from volcano_elastic.api.server_count import ServerCount
from volcano_elastic.cluster_state.grouping import cluster_state
from volcano_elastic.operator.snapshot_builder import SnapshotBuilder
from volcano_elastic.pytorchjob import action as a
from volcano_elastic.pytorchjob import servers
from volcano_elastic.pytorchjob.server_scaling import Capacity


def world(*, master: bool = False, servers: int = 2, **spec: Any) -> World:
    elastic = spec.pop("elastic", {"min": 2, "max": 4})
    obj = job_object(elastic=elastic, master=master, **spec)
    replica = obj["spec"]["pytorchReplicaSpecs"]["Worker"]
    obj["spec"]["pytorchReplicaSpecs"]["PS"] = replica | {"replicas": servers}
    found = World(obj, NOW)
    found.settle()
    return found


def test_its_pods_and_services_come_with_names_labels_and_priority() -> None:
    w = world()
    names = {"a-ps-0", "a-ps-1", "a-worker-0", "a-worker-1"}
    assert w.pods.keys() == w.services.keys() == names
    meta = w.pods["a-ps-1"]["metadata"]
    assert meta["labels"]["training.kubeflow.org/replica-type"] == "ps"
    assert meta["annotations"]["volcano.sh/task-spec"] == "ps"
    assert meta["annotations"]["volcano.sh/task-priority"] == "1999999"
    assert w.services["a-ps-1"]["spec"]["selector"] == {
        name: meta["labels"][name] for name in w.services["a-ps-1"]["spec"]["selector"]
    }


def test_it_joins_the_gang_and_may_not_be_evicted() -> None:
    w = world(master=True)
    assert w.podgroup is not None
    assert w.podgroup["spec"]["minMember"] == 2 + 1 + 2
    assert w.podgroup["spec"]["minResources"]["nvidia.com/gpu"] == "5"
    w.grow(4)
    assert [n for n in sorted(w.pods) if w.protected(n)] == [
        "a-master-0",
        "a-ps-0",
        "a-ps-1",
        "a-worker-0",
        "a-worker-1",
    ]


def test_a_role_that_does_not_train_is_no_node_of_torchruns_world() -> None:
    w = world(master=True)
    assert values(w, "a-worker-1")["PET_NNODES"] == "3:5"
    assert values(w, "a-worker-1")["RANK"] == "2"
    assert "RANK" not in values(w, "a-ps-0")
    fixed = world(master=True, elastic=None)
    assert values(fixed, "a-worker-0")["PET_NNODES"] == "3"
    assert values(fixed, "a-worker-0")["WORLD_SIZE"] == "3"
    waits = [name for name in fixed.pods if "initContainers" in fixed.pods[name]["spec"]]
    assert waits == ["a-worker-0", "a-worker-1"]


def test_its_pods_are_counted_in_the_status_and_not_in_the_size() -> None:
    w = world()
    w.run_all()
    assert w.status["replicaStatuses"]["PS"]["active"] == 2
    assert "replica-type=ps" in w.status["replicaStatuses"]["PS"]["selector"]
    assert (w.status["elastic"]["desired"], w.status["elastic"]["ready"]) == (2, 2)


def test_the_job_runs_only_while_all_of_a_vital_role_do() -> None:
    w = world()
    for name in ("a-worker-0", "a-worker-1", "a-ps-0"):
        w.run(name)
    w.settle()
    assert w.state == "Created"
    w.run("a-ps-1")
    w.settle()
    assert w.state == "Running"


@pytest.mark.parametrize("elastic", [{"min": 2, "max": 4}, None])
def test_one_that_fails_for_good_fails_the_job(elastic: dict[str, Any] | None) -> None:
    w = world(elastic=elastic, restartPolicy="Never")
    w.run_all()
    w.fail("a-ps-1")
    w.settle()
    assert w.state == "Failed"
    (message,) = [c["message"] for c in w.status["conditions"] if c["type"] == "Failed"]
    assert "1 PS replica(s) failed. a-ps-1 (exit code 1)" in message


def test_one_that_may_restart_is_made_again_at_its_index() -> None:
    w = world()
    w.run_all()
    w.fail("a-ps-1")
    actions = w.step()
    assert w.created(actions) == ["a-ps-1"]
    assert w.state == "Restarting"


@pytest.mark.parametrize("elastic", [{"min": 2, "max": 4}, None])
def test_the_job_succeeds_without_it(elastic: dict[str, Any] | None) -> None:
    w = world(elastic=elastic)
    w.run_all()
    w.finish("a-ps-0")
    w.finish("a-ps-1")
    w.settle()
    assert not w.ended
    w.finish("a-worker-0")
    w.finish("a-worker-1")
    w.settle()
    assert w.state == "Succeeded"


def test_its_replicas_have_the_tables_default_and_bounds() -> None:
    obj = job_object(elastic={"min": 1, "max": 2})
    replicas = obj["spec"]["pytorchReplicaSpecs"]
    replicas["PS"] = {"template": replicas["Worker"]["template"]}
    found = World(obj, NOW)
    found.settle()
    assert "a-ps-0" in found.pods and "a-ps-1" not in found.pods
    replicas["PS"]["replicas"] = 0
    (problem,) = validate(obj)
    assert str(problem).startswith("spec.pytorchReplicaSpecs[PS].replicas")
    replicas["Chief"] = replicas.pop("PS")
    (problem,) = validate(obj)
    assert '"PS", "Master", "Worker"' in str(problem)


def test_the_planner_sizes_the_job_while_all_of_them_have_a_node() -> None:
    w = world()
    builder = SnapshotBuilder()
    builder.change(None, w.job)

    def unmodelled() -> str:
        job = builder.job("team/a")
        assert job is not None
        return job.unmodelled

    def at(name: str, node: str | None, **more: Any) -> dict[str, Any]:
        pod = copied(w.pods[name]) | {"kind": "Pod"}
        pod["spec"]["nodeName"] = node
        pod["metadata"] |= more
        return pod

    assert unmodelled() == "PS pods"
    assert builder.change(None, at("a-ps-0", "n1")) and unmodelled() == "PS pods"
    builder.change(None, at("a-worker-0", "n1"))
    assert unmodelled() == "PS pods"
    assert builder.change(None, at("a-ps-1", "n2")) and unmodelled() == ""
    leaves = at("a-ps-1", "n2", deletionTimestamp="2026-01-01T12:00:00Z")
    assert builder.change(at("a-ps-1", "n2"), leaves) and unmodelled() == "PS pods"
    builder.change(leaves, None)
    builder.change(None, at("a-ps-1", None))
    assert unmodelled() == "PS pods"
    builder.change(at("a-ps-1", None), at("a-ps-1", "n1"))
    assert unmodelled() == ""


def test_a_server_on_a_node_is_no_master_that_has_its_place() -> None:
    w = world(master=True)
    builder = SnapshotBuilder()
    builder.change(None, w.job)
    for name in ("a-ps-0", "a-ps-1", "a-worker-0", "a-worker-1"):
        pod = copied(w.pods[name]) | {"kind": "Pod"}
        pod["spec"]["nodeName"] = "n1"
        builder.change(None, pod)
    job = cluster_state(builder.snapshot()).jobs["team/a"]
    assert not job.by_role.master_bound and not job.settled


@pytest.mark.parametrize("elastic", [{"min": 2, "max": 4}, None])
def test_all_pods_are_told_where_they_are_and_each_server_which_it_is(
    elastic: dict[str, Any] | None,
) -> None:
    w = world(elastic=elastic)
    for name in w.pods:
        told = values(w, name)
        assert told["VOLCANO_ELASTIC_PARAMETER_SERVERS"] == "a-ps-0:23456,a-ps-1:23456"
        env = w.pods[name]["spec"]["containers"][0]["env"]
        assert [one["name"] for one in env if "valueFrom" in one].count(
            "VOLCANO_ELASTIC_TOKEN"
        ) == 1
    assert values(w, "a-ps-1")["VOLCANO_ELASTIC_POD_INDEX"] == "1"
    assert w.services["a-ps-1"]["spec"]["ports"][0]["port"] == 23456
    assert len(w.secrets) == 1


@pytest.mark.parametrize("elastic", [{"min": 2, "max": 4}, None])
@pytest.mark.parametrize("policy", ["None", "Running"])
def test_servers_end_with_the_job(elastic: dict[str, Any] | None, policy: str) -> None:
    w = world(elastic=elastic, runPolicy={"cleanPodPolicy": policy})
    w.run_all()
    w.finish("a-worker-0")
    w.finish("a-worker-1")
    going = [x.name for x in w.step() if isinstance(x, a.DeletePod)]
    assert going == ["a-ps-0", "a-ps-1"]


def test_a_job_of_servers_alone_is_refused() -> None:
    obj = job_object()
    replicas = obj["spec"]["pytorchReplicaSpecs"]
    replicas["PS"] = replicas.pop("Worker")
    (problem,) = validate(obj)
    assert "must have a role that trains (Master or Worker)" in str(problem)


def test_taking_the_role_out_takes_its_pods_away() -> None:
    w = world()
    w.run_all()
    del w.job["spec"]["pytorchReplicaSpecs"]["PS"]
    going = [x.name for x in w.step() if isinstance(x, a.DeletePod)]
    assert going == ["a-ps-0", "a-ps-1"]


def planned(**roles: int) -> ScalePlan:
    return ScalePlan(
        "p", "team", "a", roles={name: RolePlan(count) for name, count in roles.items()}
    )


@pytest.mark.parametrize("elastic", [{"min": 2, "max": 4}, None])
def test_an_edit_of_its_replicas_brings_servers_and_takes_them_away(
    elastic: dict[str, Any] | None,
) -> None:
    w = world(elastic=elastic)
    w.run_all()
    before = set(w.pods)
    w.job["spec"]["pytorchReplicaSpecs"]["PS"]["replicas"] = 4
    assert w.created(w.settle()) == ["a-ps-2", "a-ps-3"]
    assert w.state == "Running", "workers train on while servers come"
    assert values(w, "a-ps-3")["VOLCANO_ELASTIC_PARAMETER_SERVERS"].count(",") == 3
    assert before | {"a-ps-2", "a-ps-3"} == w.pods.keys() == w.services.keys()
    w.run_all()
    assert w.state == "Running"
    w.job["spec"]["pytorchReplicaSpecs"]["PS"]["replicas"] = 1
    going = [x for x in w.settle() if isinstance(x, a.DeletePod)]
    assert [x.name for x in going] == ["a-ps-1", "a-ps-2", "a-ps-3"]
    assert all(x.grace is None for x in going), "they have their own time to give rows away"
    assert w.pods["a-ps-1"]["spec"]["terminationGracePeriodSeconds"] == 600
    assert "a-ps-1" in w.services, "workers speak to it until it has gone"
    for name in ("a-ps-1", "a-ps-2", "a-ps-3"):
        del w.pods[name]
    w.settle()
    assert w.services.keys() == before - {"a-ps-1"}
    assert w.podgroup is not None and w.podgroup["spec"]["minMember"] == 3


def test_a_template_says_how_long_a_server_has_to_end() -> None:
    w = world()
    w.job["spec"]["pytorchReplicaSpecs"]["PS"]["template"]["spec"][
        "terminationGracePeriodSeconds"
    ] = 9
    w.pods.clear()
    w.settle()
    assert w.pods["a-ps-0"]["spec"]["terminationGracePeriodSeconds"] == 9
    assert "terminationGracePeriodSeconds" not in world().pods["a-worker-0"]["spec"]


@pytest.mark.parametrize("elastic", [{"min": 2, "max": 4}, None])
def test_a_plan_sets_their_number_while_it_counts(elastic: dict[str, Any] | None) -> None:
    w = world(elastic=elastic)
    w.run_all()
    w.plan = planned(PS=3)
    done = w.settle()
    assert w.created(done) == ["a-ps-2"]
    said = [x.message for x in done if isinstance(x, a.EmitEvent) and x.reason == "ServersScaled"]
    assert said == ["from 2 to 3 parameter servers: ScalePlan p"]
    assert w.status["elastic"]["servers"] == {
        "replicas": 3,
        "insteadOf": 2,
        "message": "ScalePlan p",
    }
    w.run_all()
    w.plan = planned(Worker=2)
    done = w.settle()
    assert [x.name for x in done if isinstance(x, a.DeletePod)] == ["a-ps-2"]
    assert "servers" not in (w.status.get("elastic") or {})


def test_a_plans_hosts_are_the_first_servers_of_the_job() -> None:
    assert servers_named("a", ["a-ps-1:23456", "a-ps-0.team.svc:23456"]) == 2
    assert servers_named("a", ["a-ps-1:23456"]) is None
    assert servers_named("a", ["b-ps-0"]) is None
    assert servers_named("a", []) is None
    w = world()
    w.run_all()
    w.plan = ScalePlan("p", "team", "a", named_servers=1)
    assert [x.name for x in w.settle() if isinstance(x, a.DeletePod)] == ["a-ps-1"]
    w.plan = planned(PS=0)
    w.settle()
    assert w.status["elastic"]["servers"]["replicas"] == 1, "a job has one at least"


def test_their_number_by_load_stays_until_the_spec_is_edited() -> None:
    w = world()
    w.run_all()
    w.servers_by_load = ServerCount(4, 2, "memory")
    w.status["elastic"]["speeds"] = {"2": 100.0}
    assert w.created(w.settle()) == ["a-ps-2", "a-ps-3"]
    assert "speeds" not in w.status["elastic"], "they were those with two servers"
    w.servers_by_load = None
    assert not w.settle()
    w.run_all()
    w.plan = planned(PS=3)
    assert [x.name for x in w.settle() if isinstance(x, a.DeletePod)] == ["a-ps-3"]
    w.plan = None
    del w.pods["a-ps-3"]
    assert [x.name for x in w.settle() if isinstance(x, a.DeletePod)] == ["a-ps-2"]
    del w.pods["a-ps-2"]
    w.servers_by_load = ServerCount(5, 2, "memory")
    w.job["spec"]["pytorchReplicaSpecs"]["PS"]["replicas"] = 3
    assert w.created(w.settle()) == ["a-ps-2"], "what was decided for another number is over"
    assert "servers" not in w.status["elastic"]


def test_speeds_with_another_number_of_servers_are_forgotten_when_the_spec_is_edited() -> None:
    w = world()
    w.run_all()
    w.status["elastic"]["speeds"] = {"2": 100.0}
    w.settle()
    assert w.status["elastic"]["speeds"] == {"2": 100.0}
    w.job["spec"]["pytorchReplicaSpecs"]["PS"]["replicas"] = 3
    assert w.created(w.settle()) == ["a-ps-2"]
    assert "speeds" not in w.status["elastic"], "they were those with two servers"
    w.status["elastic"]["speeds"] = {"2": 120.0}
    w.settle()
    assert w.status["elastic"]["speeds"] == {"2": 120.0}, "they are those with three"


def test_a_server_that_is_lost_while_others_come_is_missed() -> None:
    w = world()
    w.run_all()
    w.job["spec"]["pytorchReplicaSpecs"]["PS"]["replicas"] = 3
    w.settle()
    assert w.state == "Running"
    w.fail("a-ps-1")
    w.step()
    assert w.state == "Restarting"


@given(
    st.integers(1, 6),
    st.none() | st.integers(0, 2000),
    st.none() | st.integers(1, 9),
    st.none() | st.integers(1, 9),
)
def test_who_counts_decides_at_once_and_is_done_then(
    asked: int, plan: int | None, by_load: int | None, before: int | None
) -> None:
    obj = job_object(elastic={"min": 2, "max": 4})
    replicas = obj["spec"]["pytorchReplicaSpecs"]
    replicas["PS"] = replicas["Worker"] | {"replicas": asked}
    if before is not None:
        obj["status"] = {"elastic": {"servers": ServerCount(before, asked, "load").as_status()}}
    told = None if plan is None else planned(PS=plan)
    loads = None if by_load is None else ServerCount(by_load, asked, "load")
    found = servers.decide(parse(obj), told, loads, pods=True)
    counts = asked if found.count is None else found.count.replicas
    expected = [min(max(plan, 1), 1024)] if plan is not None else []
    assert counts == [*expected, *filter(None, (by_load, before)), asked][0]
    assert bool(found.events) == (counts != parse(obj).replicas["PS"].replicas)
    written = None if found.count is None else found.count.as_status()
    obj["status"] = {"elastic": {"servers": written} if written else {}}
    again = servers.decide(parse(obj), told, loads, pods=True)
    assert again == servers.Servers(found.count)


def test_a_checkpoints_size_says_how_many_there_are_at_the_beginning() -> None:
    obj = job_object(elastic={"min": 1, "max": 2})
    replicas = obj["spec"]["pytorchReplicaSpecs"]
    replicas["PS"] = copied(replicas["Worker"]) | {"replicas": 1}
    (container,) = replicas["PS"]["template"]["spec"]["containers"]
    container["resources"] = {"limits": {"memory": "10Gi", "cpu": "4"}}
    obj["metadata"]["annotations"] = {
        "volcano-elastic.io/parameter-servers": "1-8",
        "volcano-elastic.io/checkpoint-size": "24Gi",
    }
    w = World(obj, NOW)
    done = w.settle()
    assert [name for name in sorted(w.pods) if "-ps-" in name] == [f"a-ps-{i}" for i in range(4)]
    said = [x.message for x in done if isinstance(x, a.EmitEvent) and x.reason == "ServersScaled"]
    assert said == ["from 1 to 4 parameter servers: a checkpoint of 24Gi fills so many by 60%"]
    w.run_all()
    assert not w.settle(), "that is the number from now on"
    assert servers.capacity(parse(w.job).replicas["PS"]) == Capacity(4.0, 10 << 30)


def test_servers_that_a_plan_has_made_by_name_come_and_none_leaves_for_them() -> None:
    obj = world(servers=2).job
    plan = ScalePlan("p", "team", "a", made={"PS": 3})
    for has, count in ((None, 3), (4, 4)):
        in_force = {} if has is None else {"servers": {"replicas": has, "insteadOf": 2}}
        obj["status"] = {"elastic": in_force}
        found = servers.decide(parse(obj), plan, None, pods=True)
        assert found.count is not None and found.count.replicas == count


def test_what_the_servers_told_of_their_rows_counts_before_the_annotation() -> None:
    obj = job_object(elastic={"min": 1, "max": 2})
    replicas = obj["spec"]["pytorchReplicaSpecs"]
    replicas["PS"] = copied(replicas["Worker"]) | {"replicas": 1}
    (container,) = replicas["PS"]["template"]["spec"]["containers"]
    container["resources"] = {"limits": {"memory": "10Gi", "cpu": "4"}}
    obj["metadata"]["annotations"] = {
        "volcano-elastic.io/parameter-servers": "1-8",
        "volcano-elastic.io/checkpoint-size": "24Gi",
    }
    obj["status"] = {"elastic": {"checkpointSize": {"PS": "12Gi", "Worker": "100Gi"}}}
    found = servers.decide(parse(obj), None, None, pods=False)
    assert found.count is not None and found.count.replicas == 2
    assert found.count.message == "a checkpoint of 12Gi fills so many by 60%"


def test_a_slow_server_is_made_anew_elsewhere() -> None:
    w = world(servers=3)
    w.run_all()
    w.servers_to_move = frozenset({"a-ps-2"})
    assert [x.name for x in w.settle() if isinstance(x, a.DeletePod)] == ["a-ps-2"]
    w.servers_to_move = frozenset()
    del w.pods["a-ps-2"]
    assert w.created(w.settle()) == ["a-ps-2"]


@pytest.mark.parametrize("given", ["0-2", "3-2", "2", "1-2000", "a-b"])
def test_bounds_that_can_not_be_are_refused(given: str) -> None:
    obj = job_object()
    obj["metadata"]["annotations"] = {"volcano-elastic.io/parameter-servers": given}
    (problem,) = validate(obj)
    assert "must be LEAST-MOST, 1 to 1024, such as 2-8" in str(problem)
