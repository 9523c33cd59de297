"""Writes Grafana's dashboards and Prometheus' rules: `make monitoring`.

    python -m deploy.monitoring

Panels are in dashboards.py, alerts in alerts.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from deploy.alerts import ALERTS
from deploy.dashboards import BOARDS, Dashboard, Panel

ROOT = Path(__file__).resolve().parents[1]
DASHBOARDS = ROOT / "manifests" / "dashboards"
RULES = ROOT / "manifests" / "monitoring" / "rules.yaml"
RUNBOOKS = "docs/runbooks.md"
_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 3
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def dashboard_json(board: Dashboard) -> dict[str, Any]:
    return {
        "uid": f"volcano-elastic-{board.name}",
        "title": board.title,
        "tags": ["volcano-elastic"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": list(_variables(board))},
        "panels": [_panel(number, panel) for number, panel in enumerate(board.panels)],
    }


def _variables(board: Dashboard) -> Sequence[dict[str, Any]]:
    source = {"name": "datasource", "label": "Source", "type": "datasource", "query": "prometheus"}
    if not board.variable:
        return [source]
    several = f'{{__name__=~"{board.values}"}}'
    metric = several if "|" in board.values else board.values
    query = f"label_values({metric}, {board.variable})"
    choice = {
        "name": board.variable,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": board.variable},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }
    return [source, choice]


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    custom = {"fillOpacity": 20 if panel.stacked else 0, "showPoints": "never"}
    stacking = {"mode": "normal" if panel.stacked else "none"}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.help,
        "datasource": _SOURCE,
        "gridPos": {
            "x": number % _COLUMNS * _WIDTH,
            "y": number // _COLUMNS * _HEIGHT,
            "w": _WIDTH,
            "h": _HEIGHT,
        },
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "custom": custom | {"stacking": stacking}},
            "overrides": [],
        },
        "options": {
            "tooltip": {"mode": "multi", "sort": "desc"},
            "legend": {"displayMode": "list", "placement": "bottom"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": _SOURCE,
                "expr": query,
                "legendFormat": legend,
            }
            for at, (legend, query) in enumerate(panel.queries.items())
        ],
    }


def rules() -> dict[str, Any]:
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "volcano-elastic", "namespace": "volcano-elastic-system"},
        "spec": {
            "groups": [
                {
                    "name": "volcano-elastic",
                    "rules": [
                        {
                            "alert": alert.name,
                            "expr": alert.expression,
                            "for": alert.lasting,
                            "labels": {"severity": alert.severity},
                            "annotations": {
                                "summary": alert.summary,
                                "runbook": f"{RUNBOOKS}#{alert.name.lower()}",
                            },
                        }
                        for alert in ALERTS
                    ],
                }
            ]
        },
    }


def files() -> dict[Path, str]:
    """Return what is to be written, by place."""
    written = {
        DASHBOARDS / f"{board.name}.json": json.dumps(dashboard_json(board), indent=2) + "\n"
        for board in BOARDS
    }
    head = "# Written by `make monitoring`.\n"
    written[RULES] = head + yaml.safe_dump(rules(), sort_keys=False, width=100)
    return written


if __name__ == "__main__":
    for place, text in files().items():
        place.write_text(text)
