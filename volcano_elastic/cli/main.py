"""The entry point: `volcano-elastic`, also `kubectl elastic`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from volcano_elastic.cli.command_group import CommandGroup
from volcano_elastic.cli.observation import Trouble

_COMMANDS: Mapping[str, str] = {
    "demo": "demo:demo",
    "local": "local:local",
    "operator": "local:operator",
    "top": "top:top",
    "dashboard": "dashboard:dashboard",
    "report": "report:report",
    "explain": "explain:explain",
    "describe": "describe:describe",
    "goodput": "goodput:goodput",
    "tune": "tune:tune",
    "doctor": "doctor:doctor",
    "check-nodes": "check_nodes:check_nodes",
    "brain": "brain:brain",
    "history": "history:history",
    "plan": "plan:plan",
    "eta": "eta:eta",
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

_EXTRAS = {
    "demo": "'volcano-elastic[local]' volcano-elastic-trainer",
    "local": "'volcano-elastic[local]'",
    "history": "'volcano-elastic[brain]'",
    "dashboard": "'volcano-elastic[dashboard]'",
    "eta": "'volcano-elastic[dashboard]'",
    "report": "'volcano-elastic[dashboard]'",
}
"""The extra to install for a command, where it isn't the operator's."""
_OURS = ("volcano_elastic", "embedded_cluster")


def _install(command: str, error: ModuleNotFoundError) -> str:
    """Return what to do about a library that is not installed; raises a module of ours that isn't
    there, which is a defect."""
    if error.name is None or error.name.partition(".")[0] in _OURS:
        raise error
    wanted = _EXTRAS.get(command, "'volcano-elastic[operator]'")
    return f"{command} needs {error.name}, which is not installed; run: pip install {wanted}"


def _stand_in(command: str, error: ModuleNotFoundError) -> click.Command:
    """Return a command that only says what to install for the one that can't be imported."""
    message = _install(command, error)
    wanted = message.rpartition("run: ")[2]

    def refuse(arguments: tuple[str, ...]) -> None:
        raise Trouble(message)

    settings = {"ignore_unknown_options": True, "help_option_names": []}
    rest = click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)
    return click.Command(
        command,
        settings,
        refuse,
        [rest],
        help=message,
        short_help=f"({wanted})",
        add_help_option=False,
    )


class _Commands(CommandGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        where = _COMMANDS.get(cmd_name)
        if where is None:
            return None
        module, _, name = where.partition(":")
        try:
            command = getattr(importlib.import_module(f"volcano_elastic.cli.{module}"), name)
        except ModuleNotFoundError as error:
            return _stand_in(cmd_name, error)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            raise Trouble(_install(str(ctx.invoked_subcommand), error)) from error


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
      volcano-elastic dashboard                     the same and more, in a browser
      volcano-elastic explain JOB                   why not more, why not less
      volcano-elastic describe JOB                  rounds, pauses, and what failed
      volcano-elastic goodput JOB                   what its GPUs' time was used for
      volcano-elastic tune JOB                      what would make its steps shorter
      volcano-elastic plan --what-if job.yaml       what would be decided then
      volcano-elastic eta JOB                       when it will start, and end
    """
