"""Parameter servers' loads: what the operator hears of them, and what it makes of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest

from tests.pytorchjob.world import job_object
from volcano_elastic.api.amount import Bytes, Cpu
from volcano_elastic.api.pytorchjob import PyTorchJob, parse
from volcano_elastic.api.server_count import ServerCount
from volcano_elastic.operator import coordinator_client, server_report
from volcano_elastic.operator.load_report import PodUse
from volcano_elastic.operator.server_loads import AVOID_SECONDS, SLOW_SECONDS, ServerLoads
from volcano_elastic.operator.server_report import ServersReport, endpoint, read

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
NONE = frozenset[str]()


def served(servers: int = 2, bounds: str | None = "1-8") -> tuple[dict[str, Any], PyTorchJob]:
    obj = job_object(elastic={"min": 1, "max": 4})
    replicas = obj["spec"]["pytorchReplicaSpecs"]
    replicas["PS"] = json.loads(json.dumps(replicas["Worker"])) | {"replicas": servers}
    (container,) = replicas["PS"]["template"]["spec"]["containers"]
    container["resources"] = {"limits": {"memory": "1Gi", "cpu": "2"}}
    if bounds is not None:
        obj["metadata"]["annotations"] = {"volcano-elastic.io/parameter-servers": bounds}
    return obj, parse(obj)


def answer(**more: Any) -> bytes:
    servers = {
        f"a-ps-{index}:23456": {"buckets": 512, "cpus": 1.5, "memory": 900 << 20}
        for index in range(2)
    }
    return json.dumps(
        {"job": "team/a", "servers": servers, "steps_per_second": 7.0, "slow": []} | more
    ).encode()


def test_loads_are_read_and_nonsense_is_left_out() -> None:
    _, job = served()
    found = read(answer(slow=["a-ps-1:23456", "a-ps-0:23456", "b-ps-1:23456", 3]), job)
    uses = {f"a-ps-{index}": PodUse(Cpu(1500), Bytes(900 << 20)) for index in range(2)}
    slow = frozenset({"a-ps-0", "a-ps-1"})
    assert found == ServersReport((1.5, 1.5), (900 << 20,) * 2, 7.0, slow, uses)
    told = read(answer(bytes=5 << 30), job)
    assert told is not None and told.tables == Bytes.gib(5)
    unheard = {"a-ps-0:1": {"cpus": 1, "memory": 1}, "a-ps-1:1": {"buckets": 3}}
    told = read(answer(bytes=5 << 30, servers=unheard), job)
    assert told is not None and told.tables is None, "one of them has not told yet"
    assert server_report.first_server(job) == "a-ps-0"
    for body in (b"", b"[]", answer(job="team/b"), answer(servers=3), answer(steps_per_second=-1)):
        assert read(body, job) is None
    idle = read(answer(steps_per_second=0.0, job=""), job)
    assert idle is not None and idle.steps_per_second == 0.0
    more = {"a-ps-0:1": {"buckets": 3}, "x": {"cpus": True, "memory": 1}, "y": {"cpus": 1e300}}
    told = read(answer(servers=more), job)
    assert told is not None and told.cpus == ()


def test_the_first_server_is_asked_once_it_runs() -> None:
    _, job = served()
    running = {"status": {"phase": "Running", "podIP": "fd00::1"}}
    assert endpoint(job, running) == "http://[fd00::1]:23457"
    assert endpoint(job, {"status": {"phase": "Pending", "podIP": "10.0.0.1"}}) is None
    assert endpoint(job, None) is None


class Loads:
    """ServerLoads over one job whose pods are all there."""

    def __init__(self, *, servers: int = 3, replaces: bool = False, bounds: str | None) -> None:
        obj, self.job = served(servers, bounds)
        self.now = NOW
        self.news: list[str] = []
        owners = [{"controller": True, "uid": "u1", "kind": "PyTorchJob", "name": "a"}]
        self.pods = {
            f"team/a-ps-{i}": {
                "metadata": {"name": f"a-ps-{i}", "uid": f"p{i}", "ownerReferences": owners},
                "spec": {"nodeName": f"n{i}"},
            }
            for i in range(servers)
        }
        cluster: Any = SimpleNamespace(jobs={"team/a": obj}, pods=self.pods)

        async def token(uid: str) -> str:
            return "t"

        self.loads = ServerLoads(
            cluster, lambda: [self.job], lambda job: replaces, token, lambda: self.now
        )
        self.loads.on_news(self.news.append)

    def hear(self, seconds: float, share: float, slow: frozenset[str] = NONE) -> None:
        self.now = NOW + timedelta(seconds=seconds)
        count = len(self.pods)
        memory = int(share * (1 << 30))
        self.loads.hear(self.job, ServersReport((0.1,) * count, (memory,) * count, 1.0, slow))


def test_full_servers_are_joined_by_others_where_the_job_lets_it() -> None:
    lets = Loads(servers=2, bounds="1-8")
    lets.hear(0.0, 0.9)
    assert lets.loads.count(lets.job) == ServerCount(
        3,
        2,
        "memory: 90% of 2 servers' is in use, 90% of the fullest one's; so many are 60% full",
    )
    assert lets.news == ["team/a"]
    lets.hear(10.0, 0.9)
    assert lets.loads.count(lets.job) is None, "a minute is waited for what comes of it"
    fixed = Loads(servers=2, bounds=None)
    fixed.hear(0.0, 0.99)
    assert fixed.loads.count(fixed.job) is None


async def test_loads_that_change_nothing_are_asked_for_once_a_minute_and_are_told_while_fresh(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float] = []

    async def ask(session: Any, url: str, job: PyTorchJob, token: str) -> bytes:
        asked.append((one.now - NOW).total_seconds())
        return answer(bytes=5 << 30)

    monkeypatch.setattr(coordinator_client, "ask_for", ask)
    one = Loads(servers=2, bounds=None)
    one.pods["team/a-ps-0"]["status"] = {"phase": "Running", "podIP": "10.0.0.1"}
    for seconds in range(0, 130, 10):
        one.now = NOW + timedelta(seconds=seconds)
        await one.loads.look(cast(aiohttp.ClientSession, None))
    assert asked == [0, 60, 120]
    assert one.loads.uses(one.job).keys() == {"a-ps-0", "a-ps-1"}
    assert one.loads.tables(one.job) == Bytes.gib(5)
    one.now = NOW + timedelta(seconds=120 + 181)
    assert not one.loads.uses(one.job) and one.loads.tables(one.job) is None


@pytest.mark.parametrize("replaces", [True, False])
def test_a_server_that_stays_slow_is_made_anew_on_another_node(replaces: bool) -> None:
    world = Loads(replaces=replaces, bounds=None)
    slow = frozenset({"a-ps-1", "a-ps-2"})
    world.hear(0.0, 0.5, slow)
    world.hear(SLOW_SECONDS - 1, 0.5, slow)
    assert not world.loads.to_move(world.job)
    world.hear(SLOW_SECONDS, 0.5, slow)
    if not replaces:
        assert not world.loads.to_move(world.job) and not world.news
        return
    assert world.loads.to_move(world.job) == {"a-ps-1"}, "one at a time gives its rows away"
    assert world.loads.to_avoid(world.job) == {"n1": "a parameter server was slow there"}
    world.pods["team/a-ps-1"]["metadata"]["uid"] = "another"
    assert not world.loads.to_move(world.job), "its successor is not meant"
    world.hear(SLOW_SECONDS + 10, 0.5)
    world.now = NOW + timedelta(seconds=SLOW_SECONDS + AVOID_SECONDS)
    assert not world.loads.to_avoid(world.job)
