"""`local up` and `local run`: they come up, say why not, and leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from embedded_cluster.cluster import LocalCluster
from embedded_cluster.component import dying_with_us
from embedded_cluster.job_run import cannot_start, misconfigured, outcome
from embedded_cluster.job_wait import waits_for
from embedded_cluster.manifest import ManifestError, read
from embedded_cluster.pod_logs import PodLogs

pytestmark = pytest.mark.process

_COMMAND = [sys.executable, "-m", "volcano_elastic.cli"]
_SECONDS = 120


class Program:
    """A `volcano-elastic` command and the processes it started, found by a mark of this test."""

    def __init__(self, mark: Path, *arguments: str) -> None:
        self._mark = mark
        # The mark is the folder for temporary files: every descendant inherits it.
        mark.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [*_COMMAND, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"TMPDIR": str(mark)},
            start_new_session=True,
            preexec_fn=dying_with_us(),
        )

    def ready(self) -> Path:
        """The kubeconfig, once the line that begins with `ready` is there."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("ready"):
            pytest.fail(f"expected a line beginning with ready, found {line!r}\n{self.end()}")
        return Path(line.strip().rsplit("=", 1)[1])

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=_SECONDS)
        return self.process.returncode, out, err

    def left(self) -> list[int]:
        """Live processes other than the command itself."""
        wanted = b"TMPDIR=" + bytes(self._mark)
        found = []
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                variables = Path(f"/proc/{int(entry)}/environ").read_bytes().split(b"\0")
                state = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()[0]
                if wanted in variables and state != "Z" and int(entry) != self.process.pid:
                    found.append(int(entry))
        return found

    def assert_nothing_left(self, seconds: float = 0) -> None:
        deadline = time.monotonic() + seconds
        while left := self.left():
            if time.monotonic() > deadline:
                commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left]
                pytest.fail(f"still running: {commands}")
            time.sleep(0.05)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    programs: list[Program] = []

    def start(*arguments: str) -> Program:
        programs.append(Program(tmp_path / f"tmp-{len(programs)}", *arguments))
        return programs[-1]

    yield start
    for program in programs:
        if program.process.poll() is None:
            program.process.kill()
        for pid in program.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        program.process.communicate(timeout=60)


# Pure


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "is not YAML"),
        ("- 1", "expected an object"),
        ("kind: Pod", "apiVersion: expected a string, found None"),
        ("{apiVersion: v1, kind: Pod}", "metadata.name: expected a string"),
        ("{apiVersion: v1, kind: Pod, metadata: {name: 7}}", "metadata.name: expected a string"),
    ],
)
def test_a_file_without_objects_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(ManifestError, match=re.escape(str(file)) + ".*" + re.escape(message)):
        read([file])


def test_files_may_hold_several_objects(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("---\n{apiVersion: v1, kind: Pod, metadata: {name: a}}\n---\n---\n" * 2)
    assert [manifest.name for manifest in read([file])] == ["a", "a"]


def test_a_jobs_outcome_is_its_last_true_condition() -> None:
    job: dict[str, Any] = {"metadata": {"name": "j", "namespace": "n"}}
    assert outcome(job) is None
    job["status"] = {"conditions": [{"type": "Running", "status": "True"}]}
    assert outcome(job) is None
    job["status"]["conditions"].append({"type": "Failed", "status": "True", "message": "why"})
    end = outcome(job)
    assert end is not None and (end.job, end.result, end.message) == ("n/j", "Failed", "why")


def test_a_container_that_never_can_run_is_told_from_one_that_crashes() -> None:
    def pod(**state: Any) -> dict[str, Any]:
        return {"status": {"containerStatuses": [{"name": "c", **state}]}}

    missing = {"terminated": {"reason": "StartError", "message": "no such program"}}
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    assert cannot_start(pod(state=waiting, lastState=missing)) == "container c: no such program"
    assert cannot_start(pod(state={"terminated": {"reason": "Error"}})) is None
    assert cannot_start({}) is None
    lacking = {"waiting": {"reason": "CreateContainerConfigError", "message": "no ConfigMap"}}
    assert misconfigured(pod(state=lacking)) == "container c: no ConfigMap"
    assert misconfigured(pod(state=waiting)) is None


def test_what_a_job_waits_for_is_told_by_its_conditions_and_its_pods() -> None:
    created = {"type": "Created", "status": "True", "message": "Job a is created."}
    job = {"status": {"conditions": [created]}}
    assert waits_for({}, []) == "it has no pods yet: the operator has not seen it"
    assert waits_for(job, []) == "it has no pods yet: Job a is created."
    blocked = {"status": {**job["status"], "elastic": {"message": "no room for 2 pods"}}}
    assert waits_for(blocked, []) == "it has no pods yet: no room for 2 pods"
    unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    status = {"phase": "Pending", "conditions": [{**unplaced, "message": "too few GPUs"}]}
    pending: dict[str, Any] = {"metadata": {}, "status": status}
    running: dict[str, Any] = {"metadata": {}, "status": {"phase": "Running"}}
    told = waits_for(job, [pending, pending, running])
    assert told == "2 of 3 pods: Unschedulable: too few GPUs"
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    pending = {"metadata": {}, "status": {"containerStatuses": [waiting]}}
    assert waits_for(job, [pending]) == "1 of 1 pods: ImagePullBackOff: no such image"
    assert waits_for(job, [running]) == ""
    restarting = {"type": "Restarting", "status": "True", "message": "1 Worker replica(s) failed."}
    failing = {"status": {"conditions": [created, restarting]}}
    assert waits_for(failing, [running]) == "1 Worker replica(s) failed."


def test_run_tells_of_a_job_that_is_suspended_and_of_one_without_room(
    start: Any, tmp_path: Path
) -> None:
    suspended = Path(_job(tmp_path, ["true"], name="later"))
    obj = yaml.safe_load(suspended.read_text())
    obj["spec"]["runPolicy"] = {"suspend": True}
    large = yaml.safe_load(Path(_job(tmp_path, ["true"], name="large")).read_text())
    container = large["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container["resources"] = {"limits": {"nvidia.com/gpu": 9}}
    suspended.write_text(yaml.safe_dump_all([obj, large]))
    program = start("local", "run", "--timeout", "100", str(suspended))
    assert program.process.stderr is not None
    said: set[str] = set()
    for line in program.process.stderr:
        said |= {name for name in ("later", "large") if f"default/{name} waits: " in line}
        if said == {"later", "large"}:
            break
    program.process.send_signal(signal.SIGTERM)
    _, _, rest = program.end()
    assert said == {"later", "large"}, rest


def test_logs_of_pods_become_prefixed_lines(tmp_path: Path) -> None:
    logs = PodLogs(tmp_path)
    pod = tmp_path / "default_job-worker-0_uid"
    assert list(logs.new_lines()) == []
    pod.mkdir()
    file = pod / "main.log"
    file.write_text("one\ntw")
    assert list(logs.new_lines()) == ["[job-worker-0] one"]
    with file.open("a") as more:
        more.write("o\nlast")
    assert list(logs.new_lines()) == ["[job-worker-0] two"]
    assert list(logs.new_lines(last=True)) == ["[job-worker-0] last"]
    assert list(logs.new_lines(last=True)) == []
    logs.close()


# Real processes


def test_up_is_ready_private_and_gone_after_sigterm(start: Any, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    program = start("local", "up", "--kubeconfig", str(kubeconfig), "--nodes", "3")
    assert program.ready() == kubeconfig
    assert stat.S_IMODE(kubeconfig.stat().st_mode) == 0o600
    server = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    assert server.startswith("http://127.0.0.1:")
    assert len(program.left()) >= 4
    program.process.send_signal(signal.SIGTERM)
    assert program.end()[0] == 0
    program.assert_nothing_left()
    assert not kubeconfig.exists(), "its token is worth nothing any more"


def test_nothing_is_left_after_up_is_killed(start: Any) -> None:
    program = start("local", "up", "--no-operator")
    program.ready()
    program.process.kill()
    program.process.wait(120)
    program.assert_nothing_left(seconds=60)


def test_a_used_port_is_a_clear_error(start: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        program = start("local", "up", "--port", str(port))
        code, out, err = program.end()
    assert code == 1 and out == ""
    assert f"port {port} on 127.0.0.1 is in use" in err and "--port" in err
    program.assert_nothing_left()


def test_a_program_that_dies_at_start_is_told_with_its_last_lines(
    start: Any, tmp_path: Path
) -> None:
    conf = tmp_path / "scheduler.conf"
    conf.write_text('actions: "no-such-action"\n')
    program = start("local", "up", "--no-operator", "--scheduler-conf", str(conf))
    code, out, err = program.end()
    assert code == 1 and out == ""
    assert "the scheduler died" in err and "no-such-action" in err
    program.assert_nothing_left()


def test_somebody_elses_kubeconfig_is_not_overwritten(start: Any, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text("current-context: production\nclusters: []\n")
    program = start("local", "up", "--kubeconfig", str(kubeconfig))
    code, _, err = program.end()
    assert code == 1 and "another cluster's" in err
    assert "production" in kubeconfig.read_text()
    program.assert_nothing_left()


async def test_killed_programs_run_again_and_the_api_servers_death_is_told() -> None:
    said: list[str] = []
    async with LocalCluster(nodes=1, kubelet="fake", operator=False, say=said.append) as cluster:
        before = cluster.processes
        for name in ("scheduler", "kubelet"):
            os.kill(before[name], signal.SIGKILL)
        deadline = time.monotonic() + 120
        while any(cluster.processes[name] == before[name] for name in ("scheduler", "kubelet")):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        assert any("the scheduler died (SIGKILL)" in line for line in said)
        os.kill(before["apiserver"], signal.SIGKILL)
        assert "the apiserver died (SIGKILL)" in await asyncio.wait_for(cluster.failed, 120)


_JOB = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {{name: {name}}}
spec:
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      restartPolicy: {policy}
      template:
        spec:
          containers:
          - name: pytorch
            image: any
            command: {command}
            resources: {{limits: {{nvidia.com/gpu: 1}}}}
"""


def _job(folder: Path, command: list[str], policy: str = "Never", name: str = "job") -> str:
    file = folder / f"{name}.yaml"
    file.write_text(_JOB.format(name=name, command=command, policy=policy))
    return str(file)


def test_run_follows_the_logs_and_exits_0_on_success(start: Any, tmp_path: Path) -> None:
    program = start("local", "run", _job(tmp_path, ["sh", "-c", "echo hello; sleep 0.2"]))
    code, out, err = program.end()
    assert code == 0, err
    assert {"[job-worker-0] hello", "[job-worker-1] hello"} <= set(out.splitlines())
    assert "default/job: Succeeded" in err
    program.assert_nothing_left()


def test_run_exits_1_when_a_job_fails(start: Any, tmp_path: Path) -> None:
    good = _job(tmp_path, ["true"], name="good")
    bad = _job(tmp_path, ["sh", "-c", "echo bad news; exit 3"], name="bad")
    program = start("local", "run", good, bad)
    code, out, err = program.end()
    assert code == 1, err
    assert "bad news" in out and "default/bad: Failed" in err and "default/good: Succeeded" in err
    program.assert_nothing_left()


def test_run_tells_of_a_command_that_does_not_exist(start: Any, tmp_path: Path) -> None:
    job = _job(tmp_path, ["no-such-program"], policy="OnFailure")
    program = start("local", "run", job)
    code, _, err = program.end()
    assert code == 1
    assert "no-such-program" in err and "not found" in err
    program.assert_nothing_left()


def test_run_gives_up_after_its_timeout(start: Any, tmp_path: Path) -> None:
    program = start("local", "run", "--timeout", "1", _job(tmp_path, ["sleep", "60"]))
    code, _, err = program.end()
    assert code == 1 and "after 1 s" in err
    program.assert_nothing_left()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file"),
        ("a: [", "is not YAML"),
        ("{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}", "expected a PyTorchJob"),
        (
            "{apiVersion: kubeflow.org/v1, kind: PyTorchJob, metadata: {name: j},"
            " spec: {runPolicy: {schedulingPolicy: {queue: visoin}}}}",
            "is in queue visoin, which neither this cluster nor these files have",
        ),
    ],
)
def test_run_refuses_what_can_not_run_before_starting_anything(
    start: Any, tmp_path: Path, text: str | None, message: str
) -> None:
    file = tmp_path / "job.yaml"
    if text is not None:
        file.write_text(text)
    program = start("local", "run", str(file))
    code, _, err = program.end()
    assert code == 1 and message in err and str(file) in err
    program.assert_nothing_left()


def test_run_tells_why_a_job_was_refused(start: Any, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "{apiVersion: kubeflow.org/v1, kind: PyTorchJob, metadata: {name: j},"
        " spec: {pytorchReplicaSpecs: 7}}"
    )
    program = start("local", "run", str(file))
    code, _, err = program.end()
    assert code == 1 and "was refused" in err and "pytorchReplicaSpecs" in err
    program.assert_nothing_left()


def test_the_command_line_explains_itself() -> None:
    for arguments in (["--help"], ["local", "--help"], ["local", "run", "--help"]):
        answer = subprocess.run(
            [*_COMMAND, *arguments], capture_output=True, text=True, timeout=_SECONDS, check=True
        )
        assert "Example" in answer.stdout


@pytest.mark.parametrize("program", ["apiserver", "scheduler", "kubelet"])
def test_each_part_can_be_started_alone(program: str) -> None:
    command = [*_COMMAND, "local", program, "--help"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    assert f"usage: volcano-elastic local {program}" in answer.stdout
