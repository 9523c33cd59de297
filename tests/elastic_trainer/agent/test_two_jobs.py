"""Jobs without a name at one endpoint: what is one job, and what is another."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from elastic_trainer.identity import Identity
from elastic_trainer.protocol.encoding import decode, encode_agent
from elastic_trainer.protocol.message import Hello
from elastic_trainer.rendezvous.command_line import (
    PROGRAM_BYTES,
    count_processes,
    program_of,
    torchrun_options,
)

from tests.elastic_trainer.torchrun_job import STEPPING, Job

UNNAMED = {"VOLCANO_ELASTIC_JOB": "", "VOLCANO_ELASTIC_POD_INDEX": ""}
IMPATIENT = """
from elastic_trainer.agent import stream
stream.REFUSED_SECONDS = 4.0
"""


def program(*words: str) -> str:
    return program_of(torchrun_options(["--nnodes", "1:4", *words]))


@pytest.mark.process
def test_another_script_at_the_endpoint_is_refused_and_the_first_trains_on(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    first, second = (Job(folder, STEPPING) for folder in folders)
    second.port = first.port
    unnamed = ("--rdzv-id", "none")
    try:
        first.start(0, environment=UNNAMED, options=unnamed)
        told = first.stepping(world=1)
        second.start(0, environment=UNNAMED, options=unnamed, before=IMPATIENT)
        assert second.wait(0) == 1
        log = (second.folder / "agent-0.log").read_text()
        after = first.stepping(world=1)
        assert (after["round"], after["pids"]) == (told["round"], told["pids"])
        assert after["step"] > told["step"]
    finally:
        first.close()
        second.close()
    here, other = (f"{job.script} {job.folder}" for job in (first, second))
    said = f"expected the training that runs here, {here}, found {other}"
    assert f"volcano-elastic: {said}" in log
    # Once, before the first answer: again and again it would serve where the first begins anew.
    assert log.count("cannot serve") <= 1, log


def test_a_program_is_a_script_by_its_path_or_a_module_with_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    path = f"{tmp_path}/train.py"
    assert program("train.py", "--name", "a b") == program(path, "--name", "a b")
    assert program("train.py", "--name", "a b") == f"{path} --name 'a b'"
    assert program("-m", "pkg.train", "--lr=1") == "-m pkg.train --lr=1"
    for letter in "xé":
        long = [program("train.py", letter * PROGRAM_BYTES, end) for end in "ab"]
        assert long[0] != long[1]
        assert all(len(one.encode()) < PROGRAM_BYTES + 30 for one in long)


def test_a_program_with_bytes_that_are_no_text_can_be_told() -> None:
    told = [program("-m", "train", os.fsdecode(b"caf" + end)) for end in (b"\xe9", b"\xe8")]
    assert told[0] != told[1]
    for one in told:
        assert decode(encode_agent(Hello("a", 0, "", program=one))).program == one


def test_another_launchers_arguments_which_may_differ_by_node_are_no_program() -> None:
    assert program("launch", "--machine_rank", "1", "train.py") == ""
    assert torchrun_options(["--machine-rank-of-a-launcher"]) is None
    assert program_of(None) == "" and count_processes(None) == 0


def test_only_a_job_without_a_name_is_known_by_its_program() -> None:
    def read(run_id: str, environment: dict[str, str]) -> str:
        return Identity.read("h:1", 1, 2, run_id, None, None, environment, [], 1, "a.py").program

    assert read("none", {}) == "a.py"
    assert read("mine", {}) == "" and read("none", {"VOLCANO_ELASTIC_JOB": "ns/job"}) == ""
