"""Grafana's dashboards: a panel is a line or two.

The metrics that panels ask for are held to what the code exports by
tests/documents/test_monitoring.py.
"""

from __future__ import annotations

from deploy.panel import Dashboard, Panel
from deploy.promql import OPERATOR as _O
from deploy.promql import TRAINER as _T
from deploy.promql import p99, per_job
from deploy.tables_dashboard import TABLES


def _amount(figure: str) -> str:
    """Return the query of each chosen queue's amount, as the leading operator tells it; one that
    led before may still tell an old one."""
    metric = f'{_O}queue_amount{{queue=~"$queue", figure="{figure}"}}'
    return f"max by (queue) ({metric} and on (instance) ({_O}leader == 1))"


OPERATOR = Dashboard(
    "operator",
    "volcano-elastic / operator",
    [
        Panel(
            "Leaders",
            "Exactly one replica writes.",
            {
                "leaders": f"sum({_O}leader)",
                "CRD has our fields": f"min({_O}schema_complete)",
            },
        ),
        Panel(
            "Jobs by state",
            "Their latest condition.",
            {"{{state}}": f"max by (state) (sum by (state, instance) ({_O}jobs))"},
            stacked=True,
        ),
        Panel(
            "Decisions",
            "Sizes that the planner changed, a minute, by reason.",
            {"{{reason}}": f"60 * sum by (reason) (rate({_O}decisions_total[5m]))"},
            stacked=True,
        ),
        Panel(
            "Jobs that are due",
            "Not taken up yet.",
            {"due": f"max({_O}work_queue_depth)"},
        ),
        Panel(
            "Wait in the queue, 99 %",
            "From being due to being taken up.",
            {"wait": p99("work_queue_wait_seconds")},
            "s",
        ),
        Panel(
            "A pass over a job, 99 %",
            "Its writes included.",
            {"{{outcome}}": p99("reconcile_seconds", "outcome")},
            "s",
        ),
        Panel(
            "Passes",
            "A second, by outcome; conflicts are tried again at once.",
            {"{{outcome}}": f"sum by (outcome) (rate({_O}reconcile_seconds_count[5m]))"},
            "ops",
        ),
        Panel(
            "Plan, 99 %",
            "From the informers to a plan.",
            {"plan": p99("plan_seconds")},
            "s",
        ),
        Panel(
            "Actions",
            "Done for jobs, a second.",
            {"{{action}}": f"sum by (action) (rate({_O}actions_total[5m]))"},
            "ops",
        ),
        Panel(
            "Requests to the API server",
            "A second, by code; 0 is no answer.",
            {"{{code}}": f"sum by (code) (rate({_O}api_requests_total[5m]))"},
            "ops",
        ),
        Panel(
            "Answers of the API server, 99 %",
            "By verb; a watch's until it began.",
            {"{{verb}}": p99("api_request_seconds", "verb")},
            "s",
        ),
        Panel(
            "Own writes come back",
            "How long the latest took, by watch.",
            {"{{resource}}": f"max by (resource) ({_O}informer_lag_seconds)"},
            "s",
        ),
        Panel(
            "Objects held",
            "By informers.",
            {"{{resource}}": f"max by (resource) ({_O}informer_objects)"},
        ),
        Panel(
            "Watches",
            "Events a second, and full lists an hour: a list means that a watch was lost.",
            {
                "events {{resource}}": f"sum by (resource) (rate({_O}informer_events_total[5m]))",
                "lists an hour": f"sum(increase({_O}informer_lists_total[1h]))",
            },
        ),
        Panel(
            "Processor and memory",
            "Of each replica; cores, and GiB.",
            {
                "cores {{instance}}": "rate(process_cpu_seconds_total[5m]) "
                f"and on (instance) {_O}leader",
                "GiB {{instance}}": "process_resident_memory_bytes / 2^30 "
                f"and on (instance) {_O}leader",
            },
        ),
    ],
)

_QUEUE = '{queue=~"$queue"'
QUEUES = Dashboard(
    "queues",
    "volcano-elastic / queues",
    [
        Panel(
            "What a queue holds",
            "In the policy's resource: minimums can't be taken, surplus gives way.",
            {
                "{{queue}} minimums": _amount("guaranteed"),
                "{{queue}} surplus": _amount("surplus"),
            },
            stacked=True,
        ),
        Panel(
            "Free",
            "What the queue could still use.",
            {"{{queue}}": _amount("free")},
        ),
        Panel(
            "Owed to minimums",
            "Wanted by minimums that wait.",
            {"{{queue}}": _amount("owed_to_minimums")},
        ),
        Panel(
            "Borrowed",
            "Beyond what the queue deserves.",
            {"{{queue}}": _amount("borrowed")},
        ),
        Panel(
            "Workers",
            "Sums of the unfinished elastic jobs; ready below desired: pods are on their way.",
            {
                "{{queue}} {{size}}": f"max by (queue, size) ({_O}workers{_QUEUE}}})",
            },
        ),
        Panel(
            "Jobs by state",
            "Their latest condition.",
            {"{{queue}} {{state}}": f"max by (queue, state) ({_O}jobs{_QUEUE}}})"},
            stacked=True,
        ),
        Panel(
            "Goodput",
            "Training that counts, of all the processes' time of the jobs that are there.",
            {
                "{{queue}}": f"max by (queue) ({_O}gpu_seconds{_QUEUE}, "
                f'use="productive_training"}}) / '
                f"sum by (queue) (max by (queue, use) ({_O}gpu_seconds{_QUEUE}}}))",
            },
            "percentunit",
        ),
        Panel(
            "Minimums that can't start",
            "Of all queues, though all surplus left.",
            {"blocked": f"max({_O}plan_blocked_claims)"},
        ),
        Panel(
            "Share of max",
            "How much of what jobs could use they have.",
            {
                "{{queue}}": f'max by (queue) ({_O}workers{_QUEUE}, size="ready"}}) / '
                f'max by (queue) ({_O}workers{_QUEUE}, size="max"}})',
            },
            "percentunit",
        ),
        Panel(
            "Scheduling goodput",
            "Workers' time that jobs were granted, of what they could have used, of the jobs that "
            "are there.",
            {
                "{{queue}}": f"max by (queue) ({_O}worker_seconds{_QUEUE}, "
                f'figure="granted"}}) / '
                f'max by (queue) ({_O}worker_seconds{_QUEUE}, figure="wanted"}})',
            },
            "percentunit",
        ),
        Panel(
            "Resizes",
            "Of all queues, an hour, by reason.",
            {"{{reason}}": f"sum by (reason) (increase({_O}decisions_total[1h]))"},
            stacked=True,
        ),
    ],
    "queue",
    f"{_O}jobs",
)

_JOB = '{job=~"$job"}'
JOB = Dashboard(
    "job",
    "volcano-elastic / job",
    [
        Panel(
            "Size",
            "Nodes and workers of the round.",
            {
                "{{job}} nodes": f"max by (job) ({_T}world_nodes{_JOB})",
                "{{job}} workers": f"max by (job) ({_T}world_size{_JOB})",
            },
        ),
        Panel(
            "Speed",
            "Steps a second, lately.",
            {"{{job}}": f"max by (job) ({_T}steps_per_second{_JOB})"},
        ),
        Panel(
            "Samples",
            "A second, of all ranks.",
            {"{{job}}": f"max by (job) ({_T}samples_per_second{_JOB})"},
        ),
        Panel(
            "A step",
            "Mean of the last five minutes, by node; one above the others is slow.",
            {
                "{{job}} {{worker}}": f"rate({_T}step_seconds_total{_JOB}[5m]) / "
                f"rate({_T}steps_total{_JOB}[5m])"
            },
            "s",
        ),
        Panel(
            "Pauses",
            "Of the newest change of rounds, and from step to step.",
            {
                "{{job}} round": f"max by (job) ({_T}pause_seconds{_JOB})",
                "{{job}} recovery": f"max by (job) ({_T}recovery_seconds{_JOB})",
            },
            "s",
        ),
        Panel(
            "Time lost",
            "Share of time in recoveries, and in commits.",
            {
                "{{job}} recoveries": per_job(f"rate({_T}recovery_seconds_total{_JOB}[1h])"),
                "{{job}} commits": per_job(f"rate({_T}checkpoint_stall_seconds_total{_JOB}[1h])"),
            },
            "percentunit",
        ),
        Panel(
            "Processes' time",
            "By what it was used for; training that counts is the goodput.",
            {
                "{{job}} {{use}}": f"max by (job, use) (delta({_T}gpu_seconds{_JOB}[1h])) / 3600",
            },
            stacked=True,
        ),
        Panel(
            "Rounds and restarts",
            "An hour; a restart starts processes anew, a round need not.",
            {
                "{{job}} rounds": f"max by (job) (delta({_T}round{_JOB}[1h]))",
                "{{job}} restarts": f"sum by (job) (increase({_T}restarts_total{_JOB}[1h]))",
                "{{job}} recoveries": f"max by (job) (increase({_T}recoveries_total{_JOB}[1h]))",
            },
        ),
        Panel(
            "Failures",
            "Of workers, an hour; nodes that are left out; rounds that hung, an hour; slow ranks, "
            "now and found in an hour; ranks whose state differs from the others', likewise.",
            {
                "{{job}} found to differ": (
                    f"max by (job) (increase({_T}diverged_ranks_total{_JOB}[1h]))"
                ),
                "{{job}} differs": f"max by (job) ({_T}diverged_ranks{_JOB})",
                "{{job}} found slow": f"max by (job) (increase({_T}stragglers_total{_JOB}[1h]))",
                "{{job}} slow": f"max by (job) ({_T}stragglers{_JOB})",
                "{{job}} hangs": f"max by (job) (increase({_T}hangs_total{_JOB}[1h]))",
                "{{job}} failures": f"max by (job) (increase({_T}failures_total{_JOB}[1h]))",
                "{{job}} excluded": f"max by (job) ({_T}excluded_nodes{_JOB})",
            },
        ),
        Panel(
            "Steps not committed",
            "They would be done again if all nodes were lost now.",
            {
                "{{job}}": per_job(f"{_T}step{_JOB}")
                + " - "
                + per_job(f"{_T}committed_step{_JOB}"),
            },
        ),
    ],
    "job",
    f"{_T}round",
)

COORDINATOR = Dashboard(
    "coordinator",
    "volcano-elastic / coordinators",
    [
        Panel(
            "Agents that are connected",
            "More than nodes of the round: some wait to be let in.",
            {
                "{{job}} agents": f"max by (job) ({_T}agents)",
                "{{job}} nodes": f"max by (job) ({_T}world_nodes)",
            },
        ),
        Panel(
            "Worker's round behind the newest",
            "For long: an agent doesn't follow.",
            {"{{job}}": f"max by (job) ({_T}round) - min by (job) ({_T}worker_round)"},
        ),
        Panel(
            "Longest pauses",
            "The ten jobs that paused longest at their newest change.",
            {"{{job}}": f"topk(10, max by (job) ({_T}pause_seconds))"},
            "s",
        ),
        Panel(
            "Most failures",
            "Of workers, an hour.",
            {"{{job}}": f"topk(10, max by (job) (increase({_T}failures_total[1h])))"},
        ),
        Panel(
            "Nodes left out",
            "By job.",
            {"{{job}}": f"max by (job) ({_T}excluded_nodes) > 0"},
        ),
        Panel(
            "Rounds",
            "An hour; the ten jobs with most.",
            {"{{job}}": f"topk(10, max by (job) (delta({_T}round[1h])))"},
        ),
    ],
)

BOARDS = (OPERATOR, QUEUES, JOB, TABLES, COORDINATOR)
