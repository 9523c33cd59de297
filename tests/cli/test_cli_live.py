"""The tools on a live (embedded) cluster, as people start them."""

from __future__ import annotations

import json
import os
import pty
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
import yaml

from tests.embedded_cluster.apiserver.process import ApiServerProcess
from tests.embedded_cluster.process import ROOT, eventually, local_cluster
from volcano_elastic.cli.observation import Trouble, ask
from volcano_elastic.cluster_state.reason import WORDS, Reason
from volcano_elastic.dashboard.history.history import History
from volcano_elastic.kube.client import ApiError, Client
from volcano_elastic.pytorchjob.goodput import USES, Goodput, kept

pytestmark = pytest.mark.process

SECRET = "only-for-the-pod"
AT_MAX = f"why not more: {WORDS[Reason.AT_MAX]}"
JOB = f"""
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {{name: bert, namespace: default}}
spec:
  elasticPolicy: {{min: 1, max: 6}}
  pytorchReplicaSpecs:
    Worker:
      template:
        spec:
          containers:
          - name: pytorch
            image: private/image:1
            command: [train, --token={SECRET}]
            env: [{{name: PASSWORD, value: {SECRET}}}]
            resources: {{limits: {{nvidia.com/gpu: 1}}}}
"""


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with local_cluster(tmp_path_factory.mktemp("cluster")) as kubeconfig:
        kubectl(kubeconfig, "apply", "-f", "-", text=JOB)

        def grown() -> bool:
            said = tool(kubeconfig, "top", "--json")
            return [job["running"] for job in json.loads(said.stdout)["jobs"]] == [6]

        eventually(grown, "the job has grown to its max")
        yield kubeconfig


def tool(kubeconfig: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "volcano_elastic.cli", *arguments],
        stdin=subprocess.DEVNULL,
        env=os.environ | {"KUBECONFIG": str(kubeconfig)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


def kubectl(kubeconfig: Path, *arguments: str, text: str | None = None) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["kubectl", *arguments],
        input=text,
        env=os.environ | {"KUBECONFIG": str(kubeconfig), "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_goodput_is_shown_of_a_job_and_of_its_queue(kubeconfig: Path) -> None:
    spent = dict.fromkeys(USES, 0) | {"productive_training": 3_000, "hang": 1_000}
    known = {"status": {"elastic": {"goodput": kept(None, Goodput("x", spent))}}}
    patch = ("patch", "pytorchjob", "bert", "--subresource=status", "--type=merge", "-p")
    kubectl(kubeconfig, *patch, json.dumps(known))
    shown = tool(kubeconfig, "goodput", "default/bert").stdout
    assert shown.startswith("default/bert: goodput 75.0 % of 0.00 process hours"), shown
    queue = json.loads(tool(kubeconfig, "goodput", "default", "--json").stdout)
    assert (queue["queue"], queue["jobs"], queue["held"]) == ("default", 1, 4_000)
    nobody = tool(kubeconfig, "goodput", "nobody")
    assert nobody.returncode == 2 and "none in a queue of that name" in nobody.stderr


def test_eta_of_a_live_job_is_kept(kubeconfig: Path, tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'page.db'}"
    for _ in range(2):
        said = tool(kubeconfig, "eta", "bert", "--database", database, "--json")
        assert (said.returncode, said.stderr) == (0, "")
        (found,) = json.loads(said.stdout)["jobs"]
        assert (found["job"], found["start"]) == ("default/bert", None)
    history = History(database)
    (record,) = history.records.since(datetime.now(UTC))
    assert (record.job, record.each, record.max) == ("default/bert", 1000, 6)
    assert record.started is not None and record.ended is None
    history.close()


def test_what_is_live_and_what_is_saved_are_explained_alike(
    kubeconfig: Path, tmp_path: Path
) -> None:
    taken = tool(kubeconfig, "snapshot")
    assert (taken.returncode, taken.stderr) == (0, "")
    file = tmp_path / "now.json"
    file.write_text(taken.stdout)
    live = tool(kubeconfig, "explain", "bert")
    saved = tool(kubeconfig, "explain", "bert", "--snapshot", str(file))
    passing = re.compile(r"\d+ \w+ ago.*")
    assert passing.sub("", live.stdout) == passing.sub("", saved.stdout)
    assert AT_MAX in live.stdout


def test_a_snapshot_has_no_environment_command_or_image(kubeconfig: Path) -> None:
    taken = tool(kubeconfig, "snapshot", "--json").stdout
    assert '"default/bert"' in taken
    for hidden in (SECRET, "PASSWORD", "private/image"):
        assert hidden not in taken


def test_a_newcomer_is_planned_for_before_it_comes(kubeconfig: Path, tmp_path: Path) -> None:
    file = tmp_path / "new.yaml"
    file.write_text(JOB.replace("bert", "new").replace("min: 1", "min: 4"))
    said = tool(kubeconfig, "plan", "--json", "--what-if", str(file))
    (decision,) = json.loads(said.stdout)["decisions"]
    assert (decision["job"], decision["from"], decision["to"]) == ("default/bert", 6, 4)
    assert tool(kubeconfig, "explain", "new").returncode == 2


def test_top_has_one_look_in_a_pipe_and_lives_on_a_terminal(kubeconfig: Path) -> None:
    piped = tool(kubeconfig, "top").stdout
    assert "default/bert" in piped and "6/6" in piped and "\x1b" not in piped
    outer, inner = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "volcano_elastic.cli", "top", "--interval", "0.2"],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        cwd=ROOT,
        env=os.environ | {"KUBECONFIG": str(kubeconfig), "TERM": "xterm", "COLUMNS": "120"},
        start_new_session=True,
        # Who runs these tests in the background of a shell script ignores Ctrl-C, and so would it.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    os.close(inner)
    seen, deadline = b"", time.monotonic() + 120
    # Not select.select, which knows no descriptor beyond 1,023.
    readable = selectors.DefaultSelector()
    readable.register(outer, selectors.EVENT_READ)
    try:
        while seen.count(b"default/bert") < 3:
            assert time.monotonic() < deadline, seen
            if readable.select(1):
                seen += os.read(outer, 65536)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(outer)
    assert b"\x1b[" in seen


def test_shells_complete_jobs_and_queues(kubeconfig: Path) -> None:
    def completed(*words: str) -> list[str]:
        said = subprocess.run(
            [Path(sys.executable).parent / "volcano-elastic"],
            env=os.environ
            | {
                "KUBECONFIG": str(kubeconfig),
                "_VOLCANO_ELASTIC_COMPLETE": "bash_complete",
                "COMP_WORDS": " ".join(("volcano-elastic", *words)),
                "COMP_CWORD": str(len(words)),
            },
            capture_output=True,
            text=True,
            timeout=120,
        )
        return [entry.partition(",")[2] for entry in said.stdout.splitlines()]

    # Its patience is one second; a busy machine may need another Tab.
    eventually(lambda: completed("explain", "b") == ["bert"], "the job is offered")
    eventually(lambda: completed("explain", "default/") == ["default/bert"], "with its namespace")
    eventually(lambda: "default" in completed("hold", "def"), "the queue is offered")
    assert "explain" in completed("ex")


def test_it_is_a_kubectl_plugin(kubeconfig: Path) -> None:
    assert AT_MAX in kubectl(kubeconfig, "elastic", "explain", "bert")


def test_credentials_that_are_not_known_are_told_apart_from_no_answer(
    kubeconfig: Path, tmp_path: Path
) -> None:
    config = yaml.safe_load(kubeconfig.read_text())
    server = config["clusters"][0]["cluster"]["server"].partition("/token/")[0]
    other = tmp_path / "kubeconfig"
    config["clusters"][0]["cluster"]["server"] = server
    config["users"][0]["user"] = {"token": "wrong"}
    other.write_text(yaml.safe_dump(config))
    refused = tool(other, "plan")
    assert (refused.returncode, "does not know you (401)" in refused.stderr) == (2, True)
    config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:1"
    other.write_text(yaml.safe_dump(config))
    silent = tool(other, "plan")
    assert (silent.returncode, "is the cluster up" in silent.stderr) == (2, True)


def test_a_cluster_without_the_crds_is_told_apart(tmp_path: Path) -> None:
    with ApiServerProcess(tmp_path) as bare:
        said = tool(bare.kubeconfig(), "plan")
    assert (said.returncode, "serves no PyTorchJobs; install the CRDs" in said.stderr) == (2, True)


def test_what_is_forbidden_is_said_with_what_to_ask_for(kubeconfig: Path) -> None:
    async def question(client: Client) -> None:
        raise ApiError(403, "Forbidden", 'pods is forbidden: User "eve" cannot list resource')

    with pytest.raises(Trouble, match=r"eve.*ask for the verbs get and list on pytorchjobs, pods"):
        ask(str(kubeconfig), question)
