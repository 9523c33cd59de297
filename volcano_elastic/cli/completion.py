"""`volcano-elastic completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_PROGRAM = "volcano-elastic"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Prints a script that completes commands, options, and the cluster's jobs and queues.

    \b
    Examples:
      source <(volcano-elastic completion bash)          in ~/.bashrc
      source <(volcano-elastic completion zsh)           in ~/.zshrc
      volcano-elastic completion fish > ~/.config/fish/completions/volcano-elastic.fish
    """
    made = get_completion_class(shell)
    assert made is not None, "click knows the shells of the choice"
    variable = f"_{_PROGRAM}_complete".replace("-", "_").upper()
    click.echo(made(context.find_root().command, {}, _PROGRAM, variable).source())
