"""Real processes multiply and gather; broken nodes are found, and hold up nobody for good."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from elastic_trainer.coordinator.__main__ import CHECK_VARIABLE

from benchmarks.endpoint import free_endpoint
from tests.elastic_trainer.torch_process import TorchProcess
from tests.elastic_trainer.torchrun_job import PATIENCE

MEMBERS = Path(__file__).with_name("members.py").read_text()
pytestmark = pytest.mark.process


@contextlib.contextmanager
def coordinator(nodes: int, seconds: str) -> Iterator[int]:
    port = free_endpoint()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "elastic_trainer.coordinator", "--port", str(port)),
            *("--min", str(nodes), "--max", str(nodes), "--parent", str(os.getpid())),
        ],
        env={**os.environ, CHECK_VARIABLE: seconds},
        stderr=subprocess.DEVNULL,
    )
    try:
        yield port + 1
    finally:
        process.kill()
        process.wait(120)


def check(
    nodes: int, *faults: str, seconds: str = str(PATIENCE)
) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """Return what nodes were told, and the coordinator's summary."""
    with coordinator(nodes, seconds) as port:
        members = TorchProcess(MEMBERS, port, nodes, *faults)
        try:
            told, errors = members.communicate(timeout=2 * PATIENCE)
        finally:
            members.kill()
        assert members.wait() == 0, errors
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=60) as answer:
            status = json.load(answer)
    return json.loads(told), status["check"]


def test_two_sound_nodes_are_proven() -> None:
    told, status = check(2)
    assert (told["0"][0], told["1"][0]) == ("proven", "proven")
    assert status["rounds"] == 1
    assert status["over"]


def test_of_sixteen_nodes_those_that_crash_or_compute_wrongly_are_faulty() -> None:
    told, status = check(16, "3=crash", "4=wrong", "9=crash")
    broken = {"3", "4", "9"}
    for index in map(str, range(16)):
        assert told[index][0] == ("faulty" if index in broken else "proven"), told[index]
    assert "multiplied matrices wrongly" in told["4"][1]
    assert [node["node"] for node in status["nodes"] if node["verdict"] == "faulty"] == [
        "node-3",
        "node-4",
        "node-9",
    ]


def test_a_node_that_hangs_ends_with_its_trial_and_is_not_proven() -> None:
    # Too short a limit may fail sound nodes on a busy machine, so nothing is said of them.
    told, status = check(4, "2=hang", seconds="3")
    assert set(told) == {"0", "1", "2", "3", "left behind"}
    assert told["2"][0] != "proven"
    assert told["left behind"] == []
    assert status["over"]
