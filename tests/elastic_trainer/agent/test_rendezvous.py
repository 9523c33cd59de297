"""Real torchrun agents on loopback: what happens to a running job's workers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from elastic_trainer.identity import Identity, parse_endpoint
from elastic_trainer.link.order import Order
from elastic_trainer.link.worker_link import WorkerLink
from elastic_trainer.protocol.message import NewestCommit

from tests.elastic_trainer.torchrun_job import PATIENCE, Job, children, gone

pytestmark = pytest.mark.process

SCRIPT = """
import os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from elastic_trainer import Order, WorkerLink

folder = Path(sys.argv[1])
link = WorkerLink.from_environment()
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
commit = folder / "commit"
step = int(commit.read_text()) if commit.exists() else 0
dist.barrier()
log = open(folder / f"round-{link.round}-rank-{rank}-of-{world}", "a", buffering=1)

def save():
    if rank == 0:
        commit.with_suffix(".tmp").write_text(str(step))
        commit.with_suffix(".tmp").rename(commit)
        link.committed(step)

while not (folder / "enough").exists() or step % 50:
    one = torch.ones(1)
    dist.all_reduce(one)
    assert one.item() == world
    time.sleep(0.01)
    step += 1
    log.write(f"{step}\\n")
    order = link.boundary(step)
    if order is not Order.GO:
        save()
        link.fenced(step, order)
    if step % 50 == 0:
        save()
        dist.barrier()  # all ranks see the same file, or not, at the loop's condition
link.finished()
dist.destroy_process_group()
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path, SCRIPT)
    yield job
    job.close()


def test_a_job_survives_what_can_happen_to_it(job: Job) -> None:
    """One job lives through it all, since starting torch takes longer than every change."""
    job.start(0, 1)
    told = job.stepping(world=2)
    assert told["ranks"] == {"0": 0, "1": 1}

    # A third agent joins: one fence, no step lost or made twice.
    job.start(2)
    joined = job.stepping(world=3, after_round=told["round"])
    assert joined["round"] == told["round"] + 1
    assert joined["rounds"][-1]["reason"] == "worker 2 joined"
    assert joined["rounds"][-1]["first_step"] == joined["rounds"][-2]["last_step"] + 1
    warm = children(job.agents[1].pid)
    assert "ve-zygote" in warm and warm["ve-worker-1"] == joined["pids"]["1"][0]

    # A worker is killed: everybody restarts, uncharged but for the one, and the world is whole.
    os.kill(joined["pids"]["1"][0], signal.SIGKILL)
    whole = job.stepping(world=3, after_round=joined["round"])
    assert whole["round"] == joined["round"] + 1
    assert whole["rounds"][-1]["reason"] == "workers of worker 1 failed"
    assert whole["rounds"][-1]["pause_seconds"] > 0

    # The coordinator is killed: workers don't notice, and it finds them again.
    coordinator = children(job.agents[0].pid)["coordinator"]
    os.kill(coordinator, signal.SIGKILL)
    job.until("another coordinator", lambda now: now.get("pid", whole["pid"]) != whole["pid"])
    adopted = job.stepping(world=3)
    assert adopted["round"] == whole["round"] and adopted["pids"] == whole["pids"]
    assert adopted["step"] > whole["step"]

    # An agent is told to leave: at a fence, with exit code 0.
    job.agents[2].send_signal(signal.SIGTERM)
    assert job.wait(2) == 0, job.logs()
    left = job.stepping(world=2, after_round=adopted["round"])
    assert left["rounds"][-1]["reason"] == "worker 2 left"
    assert left["rounds"][-1]["first_step"] == left["rounds"][-2]["last_step"] + 1

    # An agent is killed: its worker goes with it, the rest go on.
    family = children(job.agents[1].pid)
    job.agents[1].send_signal(signal.SIGKILL)
    alone = job.stepping(world=1, after_round=left["round"])
    assert alone["ranks"] == {"0": 0}
    assert all(gone(pid) for pid in family.values())

    everyone = children(job.agents[0].pid)
    (job.folder / "enough").touch()
    assert job.wait(0) == 0, job.logs()
    deadline = time.monotonic() + PATIENCE
    while not all(gone(pid) for pid in everyone.values()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert all(gone(pid) for pid in everyone.values()), "something outlived its agent"
    assert "Traceback" not in (job.folder / "agent-0.log").read_text().split("Connection")[0]

    rounds = job.steps()
    for number, ranks in rounds.items():
        longest = max(ranks.values(), key=len)
        assert longest == list(range(longest[0], longest[0] + len(longest)))
        for rank, steps in ranks.items():
            assert steps == longest[: len(steps)], f"round {number}, rank {rank}"
            assert len(longest) - len(steps) <= 1, "ranks of a round are never far apart"
    made = {step for ranks in rounds.values() for steps in ranks.values() for step in steps}
    assert made == set(range(1, max(made) + 1))


NO_ELECTIONS = {"VOLCANO_ELASTIC_SUCCESSION": "0"}
"""A coordinator whose host is lost comes back with worker 0 alone."""


def test_without_elections_worker_0_and_the_coordinator_with_it_are_replaced(job: Job) -> None:
    job.start(
        0, 1, restarts=0, environment=NO_ELECTIONS
    )  # survivors of a lost node are charged nothing
    told = job.stepping(world=2)
    os.killpg(job.agents[0].pid, signal.SIGKILL)
    job.until("the coordinator is gone", lambda told: told["phase"] == "unreachable")
    job.start(0, restarts=0, environment=NO_ELECTIONS)
    again = job.stepping(world=2, after_round=told["round"])
    assert again["ranks"] == {"0": 0, "1": 1}
    # The job is deleted: everybody is told to leave at once, and does, at a fence.
    for agent in job.agents.values():
        agent.send_signal(signal.SIGTERM)
    assert [job.wait(0), job.wait(1)] == [0, 0], job.logs()
    *_, final = job.steps().values()
    assert final[0] == final[1]
    assert int((job.folder / "commit").read_text()) == final[0][-1], "no step was lost"


def test_without_elections_worker_0_is_replaced_though_its_coordinator_was_restarted_before(
    job: Job,
) -> None:
    job.start(0, 1, restarts=0, environment=NO_ELECTIONS)
    told = job.stepping(world=2)
    os.kill(children(job.agents[0].pid)["coordinator"], signal.SIGKILL)
    job.until("another coordinator", lambda now: now.get("pid", told["pid"]) != told["pid"])
    told = job.stepping(world=2)
    os.killpg(job.agents[0].pid, signal.SIGKILL)
    job.until("the coordinator is gone", lambda now: now["phase"] == "unreachable")
    job.start(0, restarts=0, environment=NO_ELECTIONS)
    job.stepping(world=2, after_round=told["round"])


def test_where_the_warm_process_is_lost_a_worker_starts_cold_from_the_commit(job: Job) -> None:
    job.start(0)
    told = job.stepping(world=1)
    os.kill(children(job.agents[0].pid)["ve-zygote"], signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(told["pids"]["0"][0], signal.SIGKILL)  # it dies with its parent, too
    cold = job.stepping(world=1, after_round=told["round"])
    assert "ve-worker-0" not in children(job.agents[0].pid)
    assert "starting a worker cold" in (job.folder / "agent-0.log").read_text()
    (job.folder / "enough").touch()
    assert job.wait(0) == 0, job.logs()
    steps = [ranks[0] for ranks in job.steps().values()]
    assert steps[-1][0] in (1, *(step + 1 for step in steps[0])), "from the last commit"
    assert cold["round"] > told["round"] and steps[-1][-1] % 50 == 0


VANISHING = """
import os, signal, sys, time
from pathlib import Path
from elastic_trainer import WorkerLink
who = Path(sys.argv[1]) / "vanishes"

def is_there(pid):  # as more than what its agent has yet to collect
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False

signal.signal(signal.SIGTERM, lambda *_: None)  # as scripts have that finish their step first
link = WorkerLink.from_environment()
if link.round == 1:
    if os.environ["RANK"] == "1":
        (part := who.with_suffix(".part")).write_text(str(os.getpid()))
        time.sleep(0.5)
        part.rename(who)
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ["RANK"] == "2":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        time.sleep(3600)  # as in a collective that hangs, where no handler runs
    while not who.exists() or is_there(int(who.read_text())):
        time.sleep(0.001)
    raise RuntimeError("Connection closed by peer")
link.finished()
"""

ENDLESS_PATIENCE = """
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
shutdown = LocalElasticAgent._shutdown
def shut_down(*given, **named):
    shutdown(*given[:2], **{**named, "timeout": 10**6})
LocalElasticAgent._shutdown = shut_down
"""
"""Has torchrun wait for its workers' end for ever, not for 30 s."""


def test_survivors_of_a_vanished_peer_are_not_charged_a_restart_nor_waited_for(
    tmp_path: Path,
) -> None:
    job = Job(tmp_path, VANISHING, nodes="3")
    try:
        job.start(0, 2, restarts=0, before=ENDLESS_PATIENCE)
        job.start(1, restarts=1, before=ENDLESS_PATIENCE)
        assert [job.wait(index) for index in range(3)] == [0, 0, 0], job.logs()
    finally:
        job.close()


PLAIN = """
import os, sys, time
from pathlib import Path
import torch.distributed as dist
dist.init_process_group("gloo")
Path(sys.argv[1], f"ran-{dist.get_rank()}-of-{dist.get_world_size()}").touch()
print("argv", sys.argv[1:], __name__, os.path.basename(__file__))
dist.barrier()
dist.destroy_process_group()
"""


def test_a_plain_script_runs_as_under_any_backend(tmp_path: Path) -> None:
    job = Job(tmp_path, PLAIN, nodes="2")
    try:
        job.start(1, 0)
        assert job.wait(0) == 0, job.logs()
        assert job.wait(1) == 0, job.logs()
        assert {path.name for path in tmp_path.glob("ran-*")} == {"ran-0-of-2", "ran-1-of-2"}
        assert "__main__ train.py" in (tmp_path / "agent-0.log").read_text()
    finally:
        job.close()


def test_a_script_that_fails_ends_the_job_with_its_error(tmp_path: Path) -> None:
    job = Job(tmp_path, "raise ValueError('no such luck')\n", nodes="1")
    try:
        job.start(0)
        assert job.wait(0) == 1
        log = (tmp_path / "agent-0.log").read_text()
        assert log.count("ValueError: no such luck") == 5, "each try, and torchrun in the end"
        assert "zygote.py" not in log.split("ValueError")[0]
    finally:
        job.close()


def test_without_an_agent_a_link_says_go_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VOLCANO_ELASTIC_AGENT_SOCKET", raising=False)
    link = WorkerLink.from_environment()
    assert link.round == 0
    assert {link.boundary(step) for step in range(1, 100)} == {Order.GO}
    link.committed(99)
    link.finished()


@pytest.mark.parametrize("endpoint", ["", ":1", "host:port", "host:70000", "host:0"])
def test_endpoints_that_cannot_be_are_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="expected HOST:PORT"):
        parse_endpoint(endpoint)


def identity(environment: dict[str, str], arguments: list[str] | None = None) -> Identity:
    return Identity.read("h:1", 1, 2, "run", None, None, environment, arguments or [])


def test_the_wish_for_a_rank_comes_from_the_pod_or_from_torchruns_node_rank() -> None:
    assert identity({"VOLCANO_ELASTIC_POD_INDEX": "3"}, ["--node-rank", "1"]).pod_index == 3
    assert identity({}, ["--node-rank", "1"]).pod_index == 1
    assert identity({}, ["--node_rank=2"]).pod_index == 2
    assert identity({"PET_NODE_RANK": "4"}).pod_index == 4
    assert identity({}).pod_index == -1


def test_a_pod_hears_of_the_jobs_commits_when_it_is_made() -> None:
    told = identity({"VOLCANO_ELASTIC_COMMITS": "ab12=40 ab12=60 ef=0 =9 junk x=-1 y=2.5"}).commits
    assert told == (NewestCommit("ab12", 60), NewestCommit("ef", 0))
    assert identity({}).commits == ()


def test_an_unreadable_pod_index_is_refused() -> None:
    with pytest.raises(ValueError, match="POD_INDEX: expected a number, found 'x'"):
        identity({"VOLCANO_ELASTIC_POD_INDEX": "x"})
