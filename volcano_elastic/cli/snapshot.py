"""`volcano-elastic snapshot`."""

from __future__ import annotations

import click

from volcano_elastic.cli.observation import kubeconfig_option, observation, plugin_option


@click.command()
@kubeconfig_option
@plugin_option
@click.option("--json", is_flag=True, expose_value=False, help="As ever: it has no other form.")
def snapshot(kubeconfig: str | None, plugin: str | None) -> None:
    """Writes all that the planner looks at, as JSON, to standard output.

    Jobs, pods, gangs, nodes, queues and policies, with the time. No pod's environment, command or
    image is in it, and nothing of any Secret; names, labels, requests and sizes are.

    Exits 0, or 2 if the cluster could not be read.

    \b
    Examples:
      volcano-elastic snapshot > now.json
      volcano-elastic plan --snapshot now.json
      volcano-elastic snapshot | volcano-elastic explain --snapshot - train/bert
    """
    from volcano_elastic.snapshot.codec import encode

    click.echo(encode(observation(kubeconfig, plugin)))
