"""Dashboards and alerts ask for what is exported, and each alert has a runbook."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from elastic_trainer.agent.metrics import WorkerMetrics
from elastic_trainer.coordinator import status
from elastic_trainer.coordinator.agents import Agent
from elastic_trainer.coordinator.model import Settings, State
from elastic_trainer.metrics import table_load
from elastic_trainer.metrics.exposition import exposition
from elastic_trainer.metrics.table_load import TableLoad
from elastic_trainer.parameter_server import gazer
from elastic_trainer.parameter_server.load import OperationLoad, ServerLoad
from prometheus_client.parser import text_string_to_metric_families

from deploy.alerts import ALERTS
from deploy.dashboards import BOARDS
from deploy.monitoring import DASHBOARDS, RUNBOOKS, dashboard_json, files
from volcano_elastic.kube.client import Client
from volcano_elastic.kube.informer import Informer
from volcano_elastic.kube.kubeconfig import Access
from volcano_elastic.kube.resource import PYTORCHJOBS
from volcano_elastic.operator.metrics import Metrics
from volcano_elastic.operator.state_metrics import StateMetrics

ROOT = Path(__file__).parents[2]
OBSERVED = gazer.Observations(values={"a": {"auc": 0.7}}, heard={"a": 0.0})
# What Prometheus itself adds to each sample, and to a histogram's.
_ADDED = {"instance", "le"}
_WORDS = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_NOT_METRICS = {
    *("sum", "max", "min", "by", "and", "or", "on", "rate", "increase", "delta", "changes", "topk"),
    *("histogram_quantile", "vector", "offset"),
}


def operator_metrics() -> dict[str, set[str]]:
    """Names of samples, with the labels that they have."""
    found: dict[str, set[str]] = {}
    registry = Metrics().registry
    # A family without a sample doesn't tell its labels otherwise.
    for name, collector in registry._names_to_collectors.items():
        found[name] = set(getattr(collector, "_labelnames", ()))
    # The process's own are made when they are asked for.
    for family in registry.collect():
        for sample in family.samples:
            found.setdefault(sample.name, set(sample.labels))
    jobs = Informer(Client(Access("http://127.0.0.1", {}, None)), PYTORCHJOBS)
    for family in StateMetrics([jobs], jobs, lambda: 0).collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = set(family._labelnames)
    return found


def trainer_metrics() -> dict[str, set[str]]:
    state = State(Settings(1, 2), started=0.0)
    tables = {"items": TableLoad()}
    holder = replace(Agent("a", "v", "id", 0, 1), attached=True, tables=(tables,))
    held = table_load.metrics("table_", [((("table", name),), one) for name, one in tables.items()])
    load = ServerLoad(operations={"pull": OperationLoad()}, tables=tables)
    told = gazer.status("j", {"s:1": load}, {"s:1": 1024}, OBSERVED, "")
    servers = gazer.metrics("s:1", load, 1024, 1) + gazer.job_metrics(told)
    parts = [
        exposition(status.metrics(replace(state, agents={"a": holder}), 1.0), {"job": "j"}),
        exposition([*WorkerMetrics().metrics(), *held], {"job": "j", "worker": "0"}),
        exposition(servers, {"job": "j"}),
    ]
    return {
        sample.name: set(sample.labels)
        for text in parts
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def expressions() -> Iterator[tuple[str, str]]:
    for board in BOARDS:
        for panel in board.panels:
            for query in panel.queries.values():
                yield f"{board.name}: {panel.title}", query
    for alert in ALERTS:
        yield alert.name, alert.expression


EXPRESSIONS = list(expressions())


def names(expression: str) -> set[str]:
    """The metrics that it asks for."""
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]|\b(by|on) ?\([^)]*\)|\b\d\w*', " ", expression)
    return set(_WORDS.findall(bare)) - _NOT_METRICS


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    return operator_metrics() | trainer_metrics()


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS, ids=[w for w, _ in EXPRESSIONS])
def test_what_is_asked_for_is_exported(
    where: str, expression: str, exported: dict[str, set[str]]
) -> None:
    asked = names(expression)
    assert asked
    assert asked - exported.keys() == set(), where
    labels = set().union(*(exported[name] for name in asked)) | _ADDED
    used = set(re.findall(r'([a-z_]+)(?:=~|!=|=)"', expression))
    for listed in re.findall(r"\b(?:by|on) ?\(([^)]*)\)", expression):
        used |= set(re.split(r", *", listed))
    assert used <= labels, where
    for opening, closing in ("()", "{}", "[]"):
        assert expression.count(opening) == expression.count(closing), where


def test_an_expressions_metrics_are_told_from_its_functions_and_labels() -> None:
    text = 'histogram_quantile(0.99, sum by (le) (rate(a_bucket{code=~"x"}[5m]))) > 5 and on (i) b'
    assert names(text) == {"a_bucket", "b"}


def test_every_metric_of_ours_is_on_a_dashboard(exported: dict[str, set[str]]) -> None:
    asked = set().union(
        *(names(query) for board in BOARDS for p in board.panels for query in p.queries.values())
    )
    ours = {name for name in exported if name.startswith("volcano_elastic_")}
    bases = {re.sub(r"_(bucket|count|sum|created|total)$", "", name) for name in asked}
    missing = {n for n in ours if re.sub(r"_(bucket|count|sum|created|total)$", "", n) not in bases}
    assert missing <= {"volcano_elastic_trainer_step_seconds"}, "the panel has its rate instead"


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_legends_and_variables_name_labels_that_are_there(
    board: object, exported: dict[str, set[str]]
) -> None:
    for panel in board.panels:  # type: ignore[attr-defined]
        for legend, query in panel.queries.items():
            labels = set().union(*(exported[name] for name in names(query))) | _ADDED
            assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= labels, panel.title
    made = dashboard_json(board)  # type: ignore[arg-type]
    text = json.dumps(made)
    declared = {one["name"] for one in made["templating"]["list"]} | {"__all"}
    assert set(re.findall(r"\$\{?(\w+)", text)) <= declared
    if board.variable:  # type: ignore[attr-defined]
        for metric in board.values.split("|"):  # type: ignore[attr-defined]
            assert board.variable in exported[metric]  # type: ignore[attr-defined]


def test_dashboards_and_rules_are_written_as_they_are_described() -> None:
    for place, text in files().items():
        assert place.read_text() == text, f"{place.name}: run `make monitoring`"
    assert {file.stem for file in DASHBOARDS.glob("*.json")} == {board.name for board in BOARDS}


def test_panels_do_not_overlap() -> None:
    for board in BOARDS:
        places = [p["gridPos"] for p in dashboard_json(board)["panels"]]
        assert len({(p["x"], p["y"]) for p in places}) == len(places)
        assert all(p["x"] + p["w"] <= 24 for p in places)


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    titles = re.findall(r"(?m)^## (.*)$", (ROOT / RUNBOOKS).read_text())
    assert titles == [alert.name for alert in ALERTS]
