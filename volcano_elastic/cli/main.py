"""The entry point: `volcano-elastic`, also `kubectl elastic`."""

from __future__ import annotations

import click

from volcano_elastic.cli.demo import demo
from volcano_elastic.cli.local import local, operator


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="volcano-elastic")
def main() -> None:
    """PyTorchJobs that grow into a queue's idle GPUs and give them back before anyone waits.

    \b
    Examples:
      volcano-elastic demo                          two jobs share four virtual GPUs
      volcano-elastic local run job.yaml            run a job on this machine
      volcano-elastic local up                      a cluster for kubectl
      volcano-elastic operator --kubeconfig FILE    the operator on a real cluster
    """


for command in (demo, local, operator):
    main.add_command(command)
