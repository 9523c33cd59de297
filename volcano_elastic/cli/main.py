"""The entry point: `volcano-elastic`, also `kubectl elastic`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import click

_COMMANDS: Mapping[str, str] = {
    "demo": "demo:demo",
    "local": "local:local",
    "operator": "local:operator",
    "top": "top:top",
    "explain": "explain:explain",
    "describe": "describe:describe",
    "doctor": "doctor:doctor",
    "check-nodes": "check_nodes:check_nodes",
    "history": "history:history",
    "plan": "plan:plan",
    "snapshot": "snapshot:snapshot",
    "replay": "plan:replay",
    "hold": "hold:hold",
    "resume": "hold:resume",
    "simulate": "simulate:simulate",
    "check-config": "check_config:check_config",
    "crds": "assets:crds",
    "scheduler-config": "assets:scheduler_config",
    "completion": "completion:completion",
}
"""By name, where it lives in this package. Imported when asked for: each needs other libraries, and
who presses Tab waits for all that is imported."""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        where = _COMMANDS.get(cmd_name)
        if where is None:
            return None
        module, _, name = where.partition(":")
        command = getattr(importlib.import_module(f"volcano_elastic.cli.{module}"), name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="volcano-elastic")
def main() -> None:
    """PyTorchJobs that grow into a queue's idle GPUs and give them back before anyone waits.

    \b
    Examples:
      volcano-elastic demo                          two jobs share four virtual GPUs
      volcano-elastic local run job.yaml            run a job on this machine
      volcano-elastic local up                      a cluster for kubectl
      volcano-elastic operator --kubeconfig FILE    the operator on a real cluster
      volcano-elastic doctor                        what the cluster lacks, and the repair
      volcano-elastic top                           queues and jobs, live
      volcano-elastic explain JOB                   why not more, why not less
      volcano-elastic describe JOB                  rounds, pauses, and what failed
      volcano-elastic plan --what-if job.yaml       what would be decided then
    """
