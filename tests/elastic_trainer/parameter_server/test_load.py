"""A server's word on its work, and what is made of that for people and programs."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from elastic_trainer.embeddings.hashing import BUCKETS, buckets
from elastic_trainer.embeddings.row_optimizer import SGD
from elastic_trainer.embeddings.table import Table, TableSettings
from elastic_trainer.metrics.exposition import exposition
from elastic_trainer.metrics.http import Request
from elastic_trainer.parameter_server import gazer
from elastic_trainer.parameter_server.__main__ import parse
from elastic_trainer.parameter_server.gazer import Observations, Times
from elastic_trainer.parameter_server.load import (
    SAMPLED,
    WINDOW_SECONDS,
    Meter,
    ServerLoad,
    Usage,
    read_load,
    skew,
)
from elastic_trainer.parameter_server.machine import usage
from elastic_trainer.parameter_server.page import Page
from elastic_trainer.protocol.auth import HEADER


def measured(hot: int = 7, rows: int = 20, steps: int = 100) -> tuple[Meter, ServerLoad]:
    meter = Meter(0.0, Usage(3.0, machine_cpu_seconds=2.0))
    table = Table(TableSettings("items", 2, SGD(lr=0.1)))
    table.update(np.arange(rows), np.ones(rows, dtype=np.int64), torch.ones(rows, 2), 0.1)
    assert meter.load(1.0, Usage(), {"items": table}, 0) is None
    draw = np.random.default_rng(0)
    for _ in range(steps):
        ids = np.unique(np.append(draw.integers(0, 10**6, 30), hot))
        seen = np.where(ids == hot, 50, 1)
        meter.took("pull", len(ids), 0.002)
        meter.asked("items", ids)
        meter.took("update", len(ids), 0.004)
        meter.asked("items", ids, seen)
    used = Usage(8.0, 1 << 20, 8.0, 4, 1 << 34, 1 << 33)
    found = meter.load(WINDOW_SECONDS, used, {"items": table}, steps)
    assert found is not None
    return meter, found


def test_rates_times_rows_and_hot_ids_are_of_a_window() -> None:
    meter, found = measured()
    assert found.steps_per_second == pytest.approx(10.0)
    assert found.cpus == pytest.approx(0.5), "what it took to start is none of its load"
    assert found.machine_cpus_used == pytest.approx(0.6)
    assert found.memory == 1 << 20 and found.machine_memory_free == 1 << 33
    pull = found.operations["pull"]
    assert (pull.calls, pull.calls_per_second) == (100, pytest.approx(10.0))
    assert pull.p50_seconds == pull.p99_seconds == pytest.approx(0.002)
    items = found.tables["items"]
    assert (items.rows, items.admitted, items.updated) == (20, 20, 20) and items.bytes > 0
    assert items.hot_ids[0] == 7 and items.hot_share[0] == pytest.approx(50 / 80, abs=0.02)
    rates = meter.bucket_rates
    assert rates[buckets(np.array([7]))[0]] >= 10.0
    rows = 2 * 31 * 100 / WINDOW_SECONDS
    assert rates.sum() == pytest.approx(rows, rel=2 * SAMPLED / 100)
    assert len(rates) == BUCKETS
    calm = meter.load(2 * WINDOW_SECONDS, Usage(8.0), {}, 100)
    assert calm is not None and calm.cpus == calm.steps_per_second == 0.0
    assert calm.operations["pull"].calls == 100 and not calm.operations["pull"].calls_per_second
    assert meter.bucket_rates.sum() == pytest.approx(rates.sum() / 2)


def test_a_load_is_read_as_it_was_written_and_nonsense_is_refused() -> None:
    _, found = measured()
    assert read_load(found.as_text()) == found
    for text in ("{}", "[]", "x", '{"operations": {}, "tables": {}, "more": 1}'):
        with pytest.raises(ValueError, match=r"no load of a server|Expecting value"):
            read_load(text)


def test_busiest_server_is_told_in_means_of_all() -> None:
    _, busy = measured(steps=300)
    _, other = measured(steps=100)
    assert skew({"a": busy, "b": other}) == pytest.approx(1.5)
    assert skew({}) == skew({"a": ServerLoad()}) == 1.0


def test_one_answer_has_servers_workers_and_what_scripts_tell() -> None:
    _, found = measured()
    observed = Observations()
    observed.take("w0", {"auc": 0.7}, 0.0)
    observed.take("w1", {"auc": 0.8, "loss": 0.5}, 0.0)
    observed.take("w1", {"loss": 0.4}, 1.0)
    told = gazer.status("team/clicks", {"a:1": found}, {"a:1": 1000, "b:1": 24}, observed, "")
    assert json.loads(json.dumps(told)) == json.loads(json.dumps(told | {"job": "team/clicks"}))
    assert told["observed"] == {"auc": pytest.approx(0.75), "loss": pytest.approx(0.4)}
    assert told["servers"]["b:1"] == {"buckets": 24} and told["rows"] == 20
    scalars = gazer.scalars(told)
    assert scalars["observed/auc"] == pytest.approx(0.75)
    assert scalars["gazer/a_1/pull/p99_seconds"] == pytest.approx(0.002)
    assert scalars["gazer/a_1/cpus"] == pytest.approx(0.5)
    text = exposition(
        [*gazer.metrics("a:1", found, 1000, 1), *gazer.job_metrics(told)], {"job": "j"}
    )
    assert 'ps_request_rows_total{job="j",server="a:1",operation="update"} ' in text
    assert 'observed{job="j",name="auc"} 0.75' in text
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names)), "each metric's samples follow one another"


def test_metrics_of_scripts_are_bounded_and_finite() -> None:
    observed = Observations()
    for bad in ({"": 1.0}, {"x": math.nan}, {str(n): 0.0 for n in range(65)}, {"x" * 101: 1.0}):
        with pytest.raises(ValueError, match=r"metric .* is|64 at most"):
            observed.take("w", bad, 0.0)
    for number in range(100):
        observed.take("w", {str(number): 0.0}, float(number))
    assert len(observed.values["w"]) == 64
    observed.take("v", {"a": 1.0}, 10_000.0)
    assert observed.values.keys() == {"v"}, "a worker that is silent is forgotten"


def test_times_are_means_since_they_were_last_asked_for() -> None:
    times = Times()
    times.add("pull_seconds", 1.0)
    times.add("pull_seconds", 3.0)
    assert times.means() == {"pull_seconds": 2.0} and times.means() == {}


def test_a_process_reads_what_it_uses(tmp_path: Path) -> None:
    found = usage()
    assert found.memory > 1 << 20 and found.machine_memory > found.machine_memory_free > 0
    assert found.machine_cpus == os.cpu_count() and found.machine_cpu_seconds > 0
    assert usage(tmp_path).memory == usage(tmp_path).machine_memory == 0, "nothing to read"


@pytest.mark.parametrize("seconds", ["-3", "nan", "inf", "often"])
def test_a_time_between_copies_that_cannot_be_is_refused_in_words(
    seconds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse([f"--copy-every={seconds}"])
    assert f"expected seconds, 0 for never, found '{seconds}'" in capsys.readouterr().err


def test_numbers_are_for_anybody_and_all_of_it_for_who_has_the_token() -> None:
    _, found = measured()
    told = gazer.status("j", {"a:1": found}, {"a:1": BUCKETS}, Observations(), "")
    first = Page("j", "secret", lambda: gazer.metrics("a:1", found, BUCKETS, 0), lambda: told)
    assert b"ps_buckets" in first.respond(Request("GET", "/metrics")).body
    assert first.respond(Request("GET", "/status")).code.startswith("401")
    answer = first.respond(Request("GET", "/status", {HEADER: "secret"}))
    assert json.loads(answer.body)["servers"]["a:1"]["buckets"] == BUCKETS
    other = Page("j", "", list, None)
    assert b"the first server knows" in other.respond(Request("GET", "/status")).body
    assert other.respond(Request("PUT", "/metrics")).code.startswith("405")
