"""When Prometheus alerts: an expression, for how long it must hold, and what is said.

The metrics that alerts ask for are held to what the code exports, and their runbooks to
docs/runbooks.md, by tests/documents/test_monitoring.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from deploy.promql import OPERATOR as _O
from deploy.promql import TRAINER as _T
from deploy.promql import p99, per_job


@dataclass(frozen=True)
class Alert:
    name: str
    expression: str
    lasting: str
    severity: str
    summary: str


ALERTS = (
    Alert(
        "VolcanoElasticNoLeader",
        f"(sum({_O}leader) or vector(0)) < 1",
        "2m",
        "critical",
        "No operator leads: no job is created, resized or finished.",
    ),
    Alert(
        "VolcanoElasticTwoLeaders",
        f"sum({_O}leader) > 1",
        "1m",
        "critical",
        "More than one operator believes that it leads.",
    ),
    Alert(
        "VolcanoElasticSchemaIncomplete",
        f"min({_O}schema_complete) == 0",
        "1m",
        "critical",
        "The served CRD lacks our fields: no PyTorchJob is written.",
    ),
    Alert(
        "VolcanoElasticReconcileFails",
        f'sum(rate({_O}reconcile_seconds_count{{outcome="failed"}}[10m])) > 0',
        "15m",
        "warning",
        "Passes over some job fail again and again.",
    ),
    Alert(
        "VolcanoElasticApiRefuses",
        f'sum by (verb, resource) (rate({_O}api_requests_total{{code=~"401|403"}}[10m])) > 0',
        "10m",
        "warning",
        "The API server refuses {{ $labels.verb }} on {{ $labels.resource }}.",
    ),
    Alert(
        "VolcanoElasticQueueSlow",
        f"{p99('work_queue_wait_seconds')} > 5",
        "15m",
        "warning",
        "Jobs wait for over 5 s until the operator takes them up.",
    ),
    Alert(
        "VolcanoElasticPlanSlow",
        f"{p99('plan_seconds')} > 5",
        "15m",
        "warning",
        "A plan takes over 5 s.",
    ),
    Alert(
        "VolcanoElasticWatchesLost",
        f"sum by (resource) (increase({_O}informer_lists_total[1h])) > 20",
        "5m",
        "warning",
        "Watches of {{ $labels.resource }} can't be resumed.",
    ),
    Alert(
        "VolcanoElasticMinimumsWait",
        f'max by (queue) ({_O}queue_amount{{figure="owed_to_minimums"}} '
        f"and on (instance) ({_O}leader == 1)) > 0",
        "1h",
        "info",
        "Minimums of queue {{ $labels.queue }} have waited for an hour.",
    ),
    Alert(
        "VolcanoElasticClaimsBlocked",
        f"max({_O}plan_blocked_claims and on (instance) ({_O}leader == 1)) > 0",
        "1h",
        "info",
        "Some job could not start even if all surplus left.",
    ),
    Alert(
        "VolcanoElasticTrainingStands",
        f"{per_job(f'{_T}world_nodes')} > 0 and {per_job(f'changes({_T}step[30m])')} == 0 "
        f"and {per_job(f'{_T}step offset 30m')} >= 0",
        "5m",
        "warning",
        "Job {{ $labels.job }} has applied no step for half an hour.",
    ),
    Alert(
        "VolcanoElasticCommitsStand",
        f"{per_job(f'changes({_T}committed_step[2h])')} == 0 "
        f"and {per_job(f'changes({_T}step[2h])')} > 0 and {per_job(f'{_T}step offset 2h')} >= 0",
        "10m",
        "warning",
        "Job {{ $labels.job }} trains, and has committed nothing for two hours.",
    ),
    Alert(
        "VolcanoElasticWorkersFail",
        f"max by (job) (increase({_T}failures_total[1h])) > 10",
        "5m",
        "warning",
        "Workers of job {{ $labels.job }} fail again and again.",
    ),
    Alert(
        "VolcanoElasticNodesExcluded",
        f"max by (job) ({_T}excluded_nodes) > 0",
        "5m",
        "warning",
        "Job {{ $labels.job }} leaves {{ $value }} nodes out.",
    ),
    Alert(
        "VolcanoElasticStateDiverged",
        f"max by (job) (increase({_T}diverged_ranks_total[1h])) > 0 "
        f"or max by (job) ({_T}diverged_ranks) > 0",
        "0m",
        "warning",
        "Ranks of job {{ $labels.job }} had another state than the others.",
    ),
)
