"""The operator's work for a job's coordinator: token, dedicated pod, events of failures."""

from __future__ import annotations

import asyncio
import base64
import copy
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from tests.pytorchjob.world import World, job_object
from volcano_elastic.api.pytorchjob import InvalidJob, parse
from volcano_elastic.kube.client import AlreadyExists, Client, NotFound
from volcano_elastic.operator.convert import convert_pod
from volcano_elastic.operator.failure_report import by_round, event_name, message, read
from volcano_elastic.operator.token import BadKey, Tokens, token
from volcano_elastic.pytorchjob.action import CreatePod, CreateSecret, EmitEvent

Object = dict[str, Any]
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
OURS: Object = {"min": 1, "max": 2, "rdzvBackend": "volcano-elastic"}


def world(**elastic: Any) -> World:
    made = World(job_object(elastic=OURS | elastic), NOW)
    made.settle()
    return made


def environment(pod: Mapping[str, Any]) -> dict[str, Any]:
    variables = pod["spec"]["containers"][0]["env"]
    return {v["name"]: v.get("value", v.get("valueFrom")) for v in variables}


def test_pods_get_the_token_of_a_secret_that_goes_with_the_job() -> None:
    found = world()
    (name,) = found.secrets
    secret = found.secrets[name]
    assert name.startswith("a-token-") and secret["immutable"]
    assert secret["metadata"]["ownerReferences"][0]["uid"] == "u1"
    assert "data" not in secret, "a decision needs no token"
    told = environment(found.pods["a-worker-0"])["VOLCANO_ELASTIC_TOKEN"]
    assert told == {"secretKeyRef": {"name": name, "key": "token"}}


def test_the_secret_is_there_before_the_pods() -> None:
    fresh = World(job_object(elastic=OURS), NOW)
    actions = fresh.reconcile()
    stages = {type(action): action.stage for action in actions}
    assert stages[CreateSecret] < stages[CreatePod]


def test_other_backends_need_no_token() -> None:
    made = World(job_object(elastic={"min": 1, "max": 2}), NOW)
    made.settle()
    assert not made.secrets
    assert "VOLCANO_ELASTIC_TOKEN" not in environment(made.pods["a-worker-0"])


def test_a_dedicated_coordinator_has_a_pod_and_a_service() -> None:
    found = world(coordinator="dedicated", nodeUnit=1)
    pod, service = found.pods["a-coordinator"], found.services["a-coordinator"]
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["python", "-m", "elastic_trainer.coordinator"]
    assert {"--min=1", "--max=2", "--job=team/a", "--port=23456"} <= set(container["args"])
    assert container["image"] == found.pods["a-worker-0"]["spec"]["containers"][0]["image"]
    assert "VOLCANO_ELASTIC_TOKEN" in environment(pod)
    assert pod["spec"]["restartPolicy"] == "Always"
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    told = environment(found.pods["a-worker-0"])
    assert told["PET_RDZV_ENDPOINT"] == "a-coordinator:23456"
    assert told["VOLCANO_ELASTIC_COORDINATOR"] == "dedicated"
    assert "VOLCANO_ELASTIC_PEERS" not in told, "it is always there"
    assert found.status["replicaStatuses"]["Worker"].get("active", 0) <= 1, "it is no replica"
    seen, _ = convert_pod(pod)
    assert seen is not None and seen.job is None and seen.gang is None


def peers_of_those_made_for(lost: range, *, nodes: int, pods: int = 20) -> set[int]:
    """Return the workers that pods are told which are made for lost ones.

    Args:
        nodes: that the job is on; each has pods of consecutive indexes.
    """
    found = world(min=pods, max=pods)
    for index in range(pods):
        name = f"a-worker-{index}"
        found.run(name)
        found.pods[name]["spec"]["nodeName"] = f"node-{index * nodes // pods}"
    found.settle()
    for index in lost:
        found.lose(f"a-worker-{index}")
    before = {name: pod["metadata"]["uid"] for name, pod in found.pods.items()}
    found.settle()
    made = [n for n, pod in found.pods.items() if pod["metadata"]["uid"] != before[n]]
    assert len(made) == len(lost)
    (told,) = {environment(found.pods[name])["VOLCANO_ELASTIC_PEERS"] for name in made}
    return {int(one.removeprefix("a-worker-")) for one in told.split(",")}


def test_a_pod_made_for_a_lost_one_knows_pods_that_live_wherever_the_lost_ones_were() -> None:
    assert peers_of_those_made_for(range(10), nodes=2) == set(range(10, 18))


def test_a_pod_knows_pods_of_all_nodes_first_as_any_may_be_lost_next() -> None:
    assert peers_of_those_made_for(range(10, 11), nodes=5) == {0, 1, 4, 5, 8, 9, 12, 16}
    # Where fewer run, those that will: a node's pods are made at once.
    assert peers_of_those_made_for(range(3, 20), nodes=2) == set(range(8))


@pytest.mark.parametrize(
    ("coordinator", "host"), [("dedicated", "coordinator"), (None, "worker-0")]
)
def test_whoever_hosts_the_coordinator_is_told_the_queues_rule_for_slow_ranks(
    coordinator: str | None, host: str
) -> None:
    policy = OURS | ({"coordinator": coordinator} if coordinator else {})
    for rebalances, told in ((False, None), (True, "Rebalance")):
        made = World(job_object(elastic=policy), NOW)
        made.rebalances = rebalances
        made.settle()
        assert environment(made.pods[f"a-{host}"]).get("VOLCANO_ELASTIC_STRAGGLERS") == told


def test_a_lost_dedicated_coordinator_is_made_anew_and_workers_stay() -> None:
    found = world(coordinator="dedicated")
    found.run_all()
    workers = {n: p["metadata"]["uid"] for n, p in found.pods.items() if "worker" in n}
    before = found.pods["a-coordinator"]["metadata"]["uid"]
    found.pods["a-coordinator"]["status"] = {"phase": "Failed"}
    actions = found.step()
    assert any(isinstance(x, EmitEvent) and x.reason == "CoordinatorLost" for x in actions)
    found.pods.pop("a-coordinator", None)  # it has gone
    found.settle()
    assert found.pods["a-coordinator"]["metadata"]["uid"] != before
    now = {n: p["metadata"]["uid"] for n, p in found.pods.items() if "worker" in n}
    assert now == workers


def test_a_job_from_before_there_were_tokens_gets_its_own_with_its_next_pods() -> None:
    found = world()
    found.run_all()
    found.secrets.clear()
    for pod in found.pods.values():
        env = pod["spec"]["containers"][0]["env"]
        env[:] = [v for v in env if v["name"] != "VOLCANO_ELASTIC_TOKEN"]
    old = found.pods["a-worker-0"]["metadata"]["uid"]
    found.grow(2)
    assert found.pods["a-worker-0"]["metadata"]["uid"] == old, "the upgrade touches no pod"
    reference = environment(found.pods["a-worker-1"])["VOLCANO_ELASTIC_TOKEN"]["secretKeyRef"]
    assert reference["name"] in found.secrets


def test_a_coordinator_that_comes_later_finds_its_token() -> None:
    made = World(job_object(elastic={"min": 1, "max": 2}), NOW)
    made.settle()
    made.run_all()
    assert not made.secrets
    made.job["spec"]["runPolicy"] = {"suspend": True}
    made.settle()
    made.collect()
    del made.job["spec"]["runPolicy"]
    made.job["spec"]["elasticPolicy"] |= OURS | {"coordinator": "dedicated"}
    made.settle()
    reference = environment(made.pods["a-coordinator"])["VOLCANO_ELASTIC_TOKEN"]["secretKeyRef"]
    assert reference["name"] in made.secrets


def test_a_master_with_a_scheduler_of_its_own_stops_no_coordinator() -> None:
    job = job_object(elastic=OURS | {"coordinator": "dedicated"}, master=True)
    specs = job["spec"]["pytorchReplicaSpecs"]
    specs["Master"]["template"] = copy.deepcopy(specs["Master"]["template"])
    specs["Master"]["template"]["spec"]["schedulerName"] = "mine"
    made = World(job, NOW)
    made.settle()
    assert "schedulerName" not in made.pods["a-coordinator"]["spec"]
    assert made.pods["a-master-0"]["spec"]["schedulerName"] == "mine"


def test_a_dedicated_coordinator_ends_with_its_job() -> None:
    found = world(coordinator="dedicated")
    found.run_all()
    for name in [name for name in found.pods if "worker" in name]:
        found.finish(name)
    for _ in range(5):
        found.step()
    assert "a-coordinator" not in found.pods or found.pods["a-coordinator"]["metadata"].get(
        "deletionTimestamp"
    )


@pytest.mark.parametrize(
    ("elastic", "expected"),
    [
        ({"coordinator": "dedicated"}, "dedicated needs rdzvBackend: volcano-elastic"),
        (OURS | {"coordinator": "dedicated", "rdzvHost": "h"}, "rdzvHost.*must not be used"),
    ],
)
def test_a_dedicated_coordinator_that_nobody_would_find_is_refused(
    elastic: Object, expected: str
) -> None:
    with pytest.raises(InvalidJob, match=expected):
        parse(job_object(elastic={"min": 1, "max": 2} | elastic))


# Tokens


class Secrets:
    """An API server, as much of it as Tokens needs."""

    def __init__(self) -> None:
        self.access = type("Access", (), {"namespace": "system"})()
        self.kept: Object | None = None

    async def get(self, resource: Any, name: str, namespace: str) -> Object:
        await asyncio.sleep(0)
        if self.kept is None:
            raise NotFound(404, "NotFound", "no such secret")
        return self.kept

    async def create(self, resource: Any, body: Object) -> Object:
        await asyncio.sleep(0)
        if self.kept is not None:
            raise AlreadyExists(409, "AlreadyExists", "it exists")
        self.kept = body
        return body


async def test_all_operators_know_the_same_token_of_a_job() -> None:
    server = Secrets()
    operators = [Tokens(cast(Client, server)) for _ in range(3)]
    found = await asyncio.gather(*(one.of("uid-1") for one in operators))
    assert len(set(found)) == 1 and len(found[0]) == 64
    assert await operators[0].of("uid-2") != found[0]


async def test_a_key_that_is_none_is_named() -> None:
    server = Secrets()
    server.kept = {"data": {"key": base64.b64encode(b"short").decode()}}
    with pytest.raises(BadKey, match="system/volcano-elastic-tokens: expected 32 bytes"):
        await Tokens(cast(Client, server)).of("uid")
    assert token(b"k" * 32, "a") != token(b"l" * 32, "a")


# Failures


def failure(rank: int, time: float, **more: Any) -> Object:
    told = {"round": 7, "worker": rank, "rank": rank, "pid": 100 + rank, "time": time}
    return told | {"exitCode": 1, "message": f"ValueError: {rank}"} | more


def test_a_rounds_failures_are_told_as_one_first_failure_first() -> None:
    told = [failure(2, 1000.25), failure(0, 1000.5), failure(1, 1000.125), failure(3, 9, round=8)]
    first, second = by_round(read({"failures": told}))
    assert message(first) == (
        "Round 7: rank 1 failed first at 00:16:40.125 UTC, exit code 1: ValueError: 1; "
        "then ranks 2, 0"
    )
    assert [one.rank for one in second] == [3]
    assert event_name("p", "u", first[0]) == event_name("p", "u", first[0])
    assert event_name("p", "u", first[0]) != event_name("p", "u", first[1])
    (many,) = by_round(read({"failures": [failure(rank, rank) for rank in range(999)]}))
    assert len(message(many)) < 1024


@pytest.mark.parametrize("told", [None, 7, [None], [{}], [{"round": "x"}], [failure(1, 1e300)]])
def test_what_makes_no_sense_is_no_failure(told: Any) -> None:
    assert read({"failures": told}) == ()
