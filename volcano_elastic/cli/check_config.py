"""`volcano-elastic check-config`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click
from rich.markup import escape

from volcano_elastic.cli.observation import FOUND, Trouble, json_option, print_json
from volcano_elastic.cli.plan import console
from volcano_elastic.scheduler_conf.check_config import check
from volcano_elastic.scheduler_conf.configuration import UnreadableConfiguration
from volcano_elastic.scheduler_conf.finding import Finding, Severity

_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


def _release(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[int, int] | None:
    if value is None:
        return None
    match = re.fullmatch(r"v?(\d+)\.(\d+)(?:[.-].*)?", value)
    if match is None:
        raise click.BadParameter(f"expected a release such as 1.15, found {value!r}")
    return int(match[1]), int(match[2])


@click.command("check-config")
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path)
)
@click.option(
    "--volcano-version",
    callback=_release,
    metavar="X.Y",
    help="Also say what this release lacks.",
)
@click.option(
    "--fail-on",
    type=click.Choice([str(severity) for severity in Severity], case_sensitive=False),
    default=str(Severity.WARNING),
    show_default=True,
    help="The least severity that exits with 1.",
)
@json_option
def check_config(
    files: tuple[Path, ...],
    volcano_version: tuple[int, int] | None,
    fail_on: str,
    as_json: bool,
) -> None:
    """Find Volcano's pitfalls in a scheduler configuration: the finding, its consequence, the
    repair.

    A FILE is volcano-scheduler.conf, or YAML with a ConfigMap that holds it, Queues, and the
    scheduler's Deployment; - is standard input.

    Exits 0; 1 if something was found; 2 if a file could not be read.

    \b
    JSON: findings [{code, severity, file, line, where, finding, consequence, repair}];
    code is stable; line is null where it could not be told.

    \b
    Examples:
      volcano-elastic check-config volcano-scheduler.conf
      volcano-elastic check-config --fail-on error configmap.yaml queues.yaml
      kubectl -n volcano-system get configmap,deployment -o yaml | volcano-elastic check-config -
    """
    found = [finding for file in files for finding in _check(file, volcano_version)]
    if as_json:
        print_json({"findings": [_json(finding) for finding in found]})
    else:
        for finding in found:
            _show(finding)
        if not found:
            click.echo(f"{', '.join(map(str, files))}: no pitfall found")
    ranks = list(Severity)
    least = next(rank for rank in ranks if str(rank).lower() == fail_on.lower())
    grave = [f for f in found if ranks.index(f.severity) <= ranks.index(least)]
    sys.exit(FOUND if grave else 0)


def _check(file: Path, version: tuple[int, int] | None) -> list[Finding]:
    try:
        if str(file) == "-":
            return check(sys.stdin.read(), "standard input", version)
        return check(file.read_text(), str(file), version)
    except OSError as error:
        raise Trouble(f"{file}: {error.strerror}; give a readable file, or -") from error
    except UnicodeDecodeError as error:
        raise Trouble(f"{file}: expected text in UTF-8: {error}") from error
    except UnreadableConfiguration as error:
        raise Trouble(str(error)) from error


def _json(finding: Finding) -> dict[str, object]:
    return {
        "code": finding.code,
        "severity": str(finding.severity),
        "file": finding.source,
        "line": finding.line,
        "where": finding.where,
        "finding": finding.finding,
        "consequence": finding.consequence,
        "repair": finding.repair,
    }


def _show(finding: Finding) -> None:
    line = f", line {finding.line}" if finding.line else ""
    screen = console()
    colour = _COLOURS[finding.severity]
    screen.print(
        f"[{colour} bold]{finding.severity}[/] {finding.code}: {escape(finding.finding)} "
        f"[dim]({escape(finding.source)}{line})",
        f"  so:     {escape(finding.consequence)}",
        f"  repair: {escape(finding.repair)}",
        sep="\n",
        soft_wrap=True,
    )
