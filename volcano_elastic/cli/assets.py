"""`volcano-elastic crds` and `scheduler-config`: what a cluster is given, without a checkout."""

from __future__ import annotations

import click

from volcano_elastic import assets


@click.command()
@click.option("--volcano", is_flag=True, help="Volcano's too, as the embedded cluster has them.")
def crds(volcano: bool) -> None:
    """Prints the custom resource definitions of this version, as YAML.

    Volcano brings its own PodGroups and Queues; --volcano prints those parts of them that the
    operator reads, for clusters without Volcano.

    \b
    Examples:
      volcano-elastic crds | kubectl apply --server-side -f -
      volcano-elastic crds | kubectl diff -f -
    """
    names = sorted(file.name for file in assets.CRDS.glob("*.yaml"))
    chosen = names if volcano else [name for name in names if name in assets.OURS]
    click.echo("---\n".join((assets.CRDS / name).read_text() for name in chosen), nl=False)


@click.command("scheduler-config")
@click.argument("plugin", type=click.Choice([*assets.SCHEDULER_CONFIGURATIONS]), default="capacity")
def scheduler_config(plugin: str) -> None:
    """Prints what volcano-elastic asks of Volcano's scheduler: volcano-scheduler.conf.

    Queues share by amounts (capacity, the default) or by weights (proportion).

    \b
    Examples:
      volcano-elastic scheduler-config > volcano-scheduler.conf
      volcano-elastic scheduler-config proportion | volcano-elastic check-config -
    """
    click.echo(assets.SCHEDULER_CONFIGURATIONS[plugin].read_text(), nl=False)
