"""`volcano-elastic demo`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import click
from rich.console import Console

from volcano_elastic.cli.local import foreground

_MARK = ".volcano-elastic-demo"


@click.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo-out"),
    show_default=True,
    help="Folder for checkpoints, the picture and report.json; emptied first.",
)
def demo(out: Path) -> None:
    """Two elastic jobs share four virtual GPUs, on this machine, in about a minute and a half.

    Exits 1 and says which promise broke, if one did.

    Example: volcano-elastic demo --out demo-out
    """
    try:
        from volcano_elastic.cli.dashboard import describe
        from volcano_elastic.demo.story import PAGE_DATABASE, play
        from volcano_elastic.demo.training import BrokenPromise
    except ImportError as error:
        raise click.ClickException(
            f"the demo needs volcano-elastic[local,trainer], and {error.name} is missing"
        ) from error
    out = out.resolve()
    _empty(out, PAGE_DATABASE)
    console = Console()

    async def show() -> int:
        try:
            await play(out, console, describe)
        except BrokenPromise as promise:
            console.print(f"promise broken: {promise}", style="bold red", soft_wrap=True)
            return 1
        return 0

    sys.exit(foreground(show(), stopped=130))


def _empty(out: Path, database: str) -> None:
    """Old checkpoints would be resumed; removes only what an earlier demo wrote."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()) and not (out / _MARK).exists():
            raise click.ClickException(
                f"--out {out}: expected an empty folder or an earlier demo's, found other files; "
                "give another folder"
            )
        (out / _MARK).touch()
        for name in ("job-a", "job-b", "alone-a", "alone-b"):
            if (out / name).exists():
                shutil.rmtree(out / name)
        for name in ("report.json", "gpus.png", database):
            (out / name).unlink(missing_ok=True)
    except OSError as error:
        raise click.ClickException(
            f"--out {out}: {error.strerror}; give a folder to write to"
        ) from error
