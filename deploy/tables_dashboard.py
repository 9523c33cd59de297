"""Grafana's dashboard of embedding tables, whether workers hold them or parameter servers."""

from __future__ import annotations

from collections.abc import Mapping

from deploy.panel import Dashboard, Panel
from deploy.promql import TRAINER as _T

_JOB = '{job=~"$job"}'
_ALL = "{{job}} {{table}}"
_WORKERS, _SERVERS = f"{_ALL} worker {{{{worker}}}}", f"{_ALL} {{{{server}}}}"


def _of_table(expression: str) -> str:
    """Return a table's figure from its parts, of which each server tells its own."""
    return f"sum by (job, table) ({expression})"


def _whole(figure: str) -> Mapping[str, str]:
    """Return queries of a figure of whole tables, which workers' coordinator tells, or servers."""
    return {
        _ALL: f"max by (job, table) ({_T}all_table_{figure}{_JOB})",
        f"{_ALL}, on servers": _of_table(f"{_T}ps_{figure}{_JOB}"),
    }


def _parts(figure: str) -> Mapping[str, str]:
    """Return queries of what each worker or server has of them."""
    return {
        _WORKERS: f"{_T}table_{figure}{_JOB}",
        _SERVERS: f"{_T}ps_{figure}{_JOB}",
    }


def _rates(figure: str, note: str = "") -> dict[str, str]:
    return {
        _ALL + note: f"max by (job, table) (rate({_T}all_table_{figure}{_JOB}[5m]))",
        f"{_ALL}{note}, on servers": _of_table(f"rate({_T}ps_{figure}{_JOB}[5m])"),
    }


def _rates_of_parts(figure: str, note: str = "") -> dict[str, str]:
    return {
        f"{_WORKERS}{note}": f"rate({_T}table_{figure}{_JOB}[5m])",
        f"{_SERVERS}{note}": f"rate({_T}ps_{figure}{_JOB}[5m])",
    }


_SERVER = "{{job}} {{server}}"
TABLES = Dashboard(
    "tables",
    "volcano-elastic / embedding tables",
    [
        Panel("Rows", "Of each table.", _whole("rows")),
        Panel(
            "Memory of rows", "With their optimizer's state and ids.", _whole("row_bytes"), "bytes"
        ),
        Panel("Updates of rows", "A second.", _rates("updated_total"), "ops"),
        Panel(
            "Ids that come and go",
            "A second: admitted, which get a row, and evicted.",
            _rates("admitted_total", " admitted") | _rates("evicted_total", " evicted"),
            "ops",
        ),
        Panel(
            "Skew",
            "Rows a second of the busiest holder, in means of all; 1 is even.",
            {
                _ALL: f"max by (job, table) ({_T}all_table_skew{_JOB})",
                "{{job}} servers": f"max by (job) ({_T}ps_skew{_JOB})",
            },
        ),
        Panel(
            "The hottest id",
            "Its part of a table's samples: of all, and where it is held.",
            {
                _ALL: f"max by (job, table) ({_T}all_table_hottest_share{_JOB})",
                **_parts("hottest_share"),
            },
            "percentunit",
        ),
        Panel("Rows by holder", "Uneven: some have more buckets.", _parts("rows")),
        Panel("Memory of rows by holder", "Likewise.", _parts("row_bytes"), "bytes"),
        Panel(
            "Updates by holder",
            "Rows a second, and how many of them come and go.",
            _rates_of_parts("updated_total")
            | _rates_of_parts("admitted_total", " admitted")
            | _rates_of_parts("evicted_total", " evicted"),
            "ops",
        ),
        Panel(
            "Servers",
            "How many; slow ones; those of whose rows a copy is kept; rows lost for good.",
            {
                "{{job}} servers": f"max by (job) ({_T}ps_servers{_JOB})",
                "{{job}} slow": f"max by (job) ({_T}ps_slow_servers{_JOB})",
                "{{job}} copied": f"sum by (job) ({_T}ps_copies{_JOB})",
                "{{job}} rows lost": f"max by (job) ({_T}ps_rows_lost{_JOB})",
            },
        ),
        Panel("Buckets", "Of 1,024, by server.", {_SERVER: f"{_T}ps_buckets{_JOB}"}),
        Panel("Steps", "A second, of all workers.", {_SERVER: f"{_T}ps_steps_per_second{_JOB}"}),
        Panel(
            "Servers' CPUs",
            "In use by each, and by its machine.",
            {
                _SERVER: f"{_T}ps_cpus{_JOB}",
                f"{_SERVER} machine": f"{_T}ps_machine_cpus{_JOB}",
            },
        ),
        Panel(
            "Servers' memory",
            "Of each, and what is free on its machine.",
            {
                _SERVER: f"{_T}ps_memory_bytes{_JOB}",
                f"{_SERVER} free on the machine": f"{_T}ps_machine_memory_free_bytes{_JOB}",
            },
            "bytes",
        ),
        Panel(
            "Requests",
            "A second, and rows in them.",
            {
                "{{job}} {{operation}}": (
                    f"sum by (job, operation) (rate({_T}ps_requests_total{_JOB}[5m]))"
                ),
                "{{job}} {{operation}} rows": (
                    f"sum by (job, operation) (rate({_T}ps_request_rows_total{_JOB}[5m]))"
                ),
            },
            "ops",
        ),
        Panel(
            "A request",
            "Of the slowest server: half of them take less, and 99 of 100.",
            {
                "{{job}} {{operation}} median": (
                    f"max by (job, operation) ({_T}ps_request_p50_seconds{_JOB})"
                ),
                "{{job}} {{operation}} 99 %": (
                    f"max by (job, operation) ({_T}ps_request_p99_seconds{_JOB})"
                ),
            },
            "s",
        ),
        Panel(
            "Training's own",
            "Metrics that scripts tell by `observe`, mean of all workers.",
            {"{{job}} {{name}}": f"max by (job, name) ({_T}observed{_JOB})"},
        ),
    ],
    "job",
    f"{_T}all_table_rows|{_T}ps_servers",
)
