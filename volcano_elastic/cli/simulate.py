"""`volcano-elastic simulate`: what the policy would make of a trace."""

from __future__ import annotations

import gzip
import json
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import yaml
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from volcano_elastic.api.queue_policy import GPU, InvalidPolicy, QueuePolicy, parse
from volcano_elastic.cli.dashboard import database_option
from volcano_elastic.cli.observation import Trouble, json_option, since_option
from volcano_elastic.cli.plan import console
from volcano_elastic.cli.recorded_jobs import recorded
from volcano_elastic.cli.simulation_report import jobs_csv, report, rows, show
from volcano_elastic.queue_policy.plan import Planner
from volcano_elastic.simulator.comparison import Comparison, compare
from volcano_elastic.simulator.config import SimulationConfig, Speeds
from volcano_elastic.simulator.curve import (
    CurveError,
    CurveTable,
    parse_model,
    read_table,
)
from volcano_elastic.simulator.elasticity import (
    DEFAULT,
    Elasticity,
    ElasticityError,
)
from volcano_elastic.simulator.outcome import Stuck
from volcano_elastic.simulator.queue import QueueError, read_queues
from volcano_elastic.simulator.row import RowError
from volcano_elastic.simulator.trace import (
    DEFAULT_SERIAL,
    TraceError,
    read_trace,
)
from volcano_elastic.snapshot.snapshot import Queue

_file = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option("--trace", type=_file, help="Jobs, as CSV or CSV.gz.")
@click.option(
    "--history",
    is_flag=True,
    help="In place of --trace: the jobs that a dashboard kept in its database (needs "
    "volcano-elastic[dashboard]).",
)
@since_option
@database_option
@click.option("--nodes", type=click.IntRange(1, 100_000), help="With --history: as there were.")
@click.option("--gpus-per-node", type=click.IntRange(1, 100_000))
@click.option("--queues", type=_file, help="CSV: queue, deserved (or deserved_of_<GPUs>), ...")
@click.option("--policy", type=_file, help="QueuePolicies; one without queue is for all others.")
@click.option("--speed", type=_file, help="CSV of measured speeds: app, gpus, step_s.")
@click.option("--speed-model", metavar="amdahl:S", help=f"Default: amdahl:{DEFAULT_SERIAL}.")
@click.option("--elastic", default=DEFAULT, show_default=True, help="How far each job stretches.")
@click.option("--rigid", is_flag=True, help="No job is elastic: gangs in order, with backfill.")
@click.option("--pause", type=click.FloatRange(0), default=30.0, show_default=True, help="Seconds.")
@click.option(
    "--grace",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="Seconds that a removed pod still holds its GPU.",
)
@click.option(
    "--curves",
    type=click.Choice([str(word) for word in Speeds]),
    default=str(Speeds.KNOWN),
    show_default=True,
    help="What the planner is told of the jobs' speeds.",
)
@click.option("--learn", is_flag=True, help="Short for --curves learnt.")
@click.option("--resource", default=GPU, show_default=True, help="What a worker holds one of.")
@click.option("--workload", help="Only this one, of a trace with a column workload.")
@click.option(
    "--window",
    type=click.FloatRange(0, min_open=True),
    help="Seconds from the first submission over which utilisation counts; default: the bound on "
    "the makespan.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for pictures, jobs.csv, result.json and index.html.",
)
@json_option
def simulate(
    trace: Path | None,
    history: bool,
    since: timedelta,
    database: str | None,
    nodes: int | None,
    gpus_per_node: int | None,
    queues: Path | None,
    policy: Path | None,
    speed: Path | None,
    speed_model: str | None,
    elastic: str,
    rigid: bool,
    pause: float,
    grace: float,
    curves: str,
    learn: bool,
    resource: str,
    workload: str | None,
    window: float | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Simulate a queue policy on a trace of jobs, beside rigid scheduling and beside bounds that no
    scheduling can beat.

    The trace has the columns submit_s; gpus (or tuned_gpus); duration_s, or iterations with app and
    a table of speeds; and perhaps job, queue, workload, min, max. The planner that decides is the
    operator's own; each worker is a pod that holds one GPU.

    With --history the jobs are those of the cluster itself, each with its own range and the work
    that it did since; --elastic, --speed and --workload are of no use then.

    Exits 0, or 2 if a file cannot be used.

    \b
    Examples:
      volcano-elastic simulate --trace week.csv --nodes 64 --gpus-per-node 8
      volcano-elastic simulate --trace week.csv.gz --nodes 64 --gpus-per-node 8 \\
        --queues queues.csv --policy policy.yaml --out result
      volcano-elastic simulate --trace jobs.csv --speed speed.csv --nodes 16 --gpus-per-node 4 \\
        --elastic 'min=1,max=efficient(0.5)' --json
      volcano-elastic simulate --history --since 7d --policy policy.yaml
    """
    if speed is not None and speed_model is not None:
        raise click.UsageError("--speed and --speed-model say the same thing; give one")
    if (trace is not None) == history:
        raise click.UsageError("expected either --trace or --history")
    kept = recorded(database, since) if history else None
    if kept is not None:
        if speed or speed_model or workload or elastic != DEFAULT:
            raise click.UsageError(
                "--speed, --speed-model, --workload and --elastic say things that jobs of the "
                "history bring; leave them out"
            )
        elastic = "as each job says"
        nodes, gpus_per_node = kept.cluster(nodes, gpus_per_node)
    if nodes is None or gpus_per_node is None:
        raise click.UsageError("--trace needs --nodes and --gpus-per-node")
    config = SimulationConfig(
        nodes=nodes,
        per_node=gpus_per_node,
        resource=resource,
        pause=pause,
        grace=grace,
        speeds=Speeds.LEARNT if learn else Speeds(curves),
    )
    try:
        workloads = (
            read_trace(
                _lines(trace),
                str(trace),
                cluster=config.total,
                elasticity=Elasticity(elastic),
                table=_table(speed),
                serial=DEFAULT_SERIAL if speed_model is None else parse_model(speed_model),
            )
            if trace is not None
            else {"": kept.jobs(config.total) if kept is not None else []}
        )
        listed = _queues(queues, resource, config.total)
    except (TraceError, ElasticityError, CurveError, QueueError, RowError) as error:
        raise Trouble(str(error)) from error
    if workload is not None:
        if workload not in workloads:
            raise Trouble(
                f"--workload: expected one of {', '.join(sorted(workloads))}, found {workload}"
            )
        workloads = {workload: workloads[workload]}
    used = {job.queue for jobs in workloads.values() for job in jobs}
    if listed and not used <= {queue.name for queue in listed}:
        strange = min(used - {queue.name for queue in listed})
        raise Trouble(f"{queues}: expected every queue of the trace, found no {strange}; add it")
    config = replace(config, queues=listed, policies=_policies(policy, used))
    if out is not None:
        _prepare(out)
    comparisons: dict[str, Comparison] = {}
    begun = time.perf_counter()
    try:
        with _progress(sum(map(len, workloads.values())), quiet=as_json) as advance:
            for name, jobs in workloads.items():
                made = compare(
                    jobs,
                    config,
                    None if rigid else Planner(reports=False).plan,
                    window=window,
                    progress=advance(name),
                )
                comparisons[name] = made
    except Stuck as stuck:
        raise Trouble(str(stuck)) from stuck
    seconds = time.perf_counter() - begun
    result = report(workloads, comparisons, config, elastic, seconds)
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        show(console(), result)
    if out is not None:
        _write(out, comparisons, result)
        Console(stderr=True).print(f"written: {out / 'index.html'}", soft_wrap=True)


# Reading


def _lines(path: Path) -> list[str]:
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode().splitlines()
    except (OSError, EOFError, zlib.error) as error:
        raise Trouble(f"{path}: {error}; give a readable file") from error
    except UnicodeDecodeError as error:
        raise Trouble(
            f"{path}: expected UTF-8 text, found byte {error.start} that is none"
        ) from None


def _table(path: Path | None) -> CurveTable | None:
    return None if path is None else read_table(_lines(path), str(path))


def _queues(path: Path | None, resource: str, total: int) -> tuple[Queue, ...]:
    if path is None:
        return ()
    return read_queues(_lines(path), str(path), resource=resource, total=total)


def _policies(path: Path | None, queues: set[str]) -> tuple[QueuePolicy, ...]:
    """The file's policies; the one without `spec.queue` for every queue that has none."""
    if path is None:
        return ()
    found: dict[str, QueuePolicy] = {}
    for_all: tuple[str, dict[str, Any]] | None = None
    try:
        documents = list(yaml.safe_load_all("\n".join(_lines(path))))
    except yaml.YAMLError as error:
        raise Trouble(f"{path} is not YAML: {error}") from error
    for number, document in enumerate(documents, start=1):
        where = f"{path}, document {number}"
        if document is None:
            continue
        spec = _policy_spec(document, where)
        if not spec.get("queue"):
            if for_all is not None:
                raise Trouble(f"{where}: spec.queue: expected a queue, since {for_all[0]} has none")
            for_all = (where, document)
            continue
        policy = _policy(document, spec, where)
        if policy.queue in found:
            raise Trouble(f"{where}: spec.queue: {policy.queue} has a policy in this file already")
        if policy.queue not in queues:
            click.echo(
                f"Warning: {where}: no job of the trace is in queue {policy.queue}", err=True
            )
        found[policy.queue] = policy
    if for_all is not None:
        where, document = for_all
        spec = _policy_spec(document, where)
        for queue in sorted(queues - found.keys()):
            found[queue] = _policy(document, {**spec, "queue": queue}, where)
    return tuple(found.values())


def _policy_spec(document: object, where: str) -> dict[str, Any]:
    """Return the spec of a QueuePolicy, or of a document that is nothing but such a spec."""
    known = {"apiVersion", "kind", "metadata", "spec"}
    if not isinstance(document, dict) or not isinstance(document.get("spec"), dict):
        raise Trouble(f"{where}: expected a QueuePolicy with a spec, found {str(document)[:60]!r}")
    if document.get("kind", "QueuePolicy") != "QueuePolicy":
        raise Trouble(f"{where}: kind: expected QueuePolicy, found {document['kind']!r}")
    if strange := sorted(map(str, document.keys() - known)):
        raise Trouble(f"{where}: {strange[0]} is not a field; there are {', '.join(sorted(known))}")
    return dict(document["spec"])


def _policy(document: dict[str, Any], spec: dict[str, Any], where: str) -> QueuePolicy:
    try:
        policy = parse({**document, "spec": spec}, strict=True)
    except InvalidPolicy as error:
        raise Trouble(f"{where}: {error}") from error
    # Without a name it would count as the built-in one.
    return policy if policy.name else replace(policy, name=policy.queue)


@contextmanager
def _progress(total: int, *, quiet: bool) -> Iterator[Any]:
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} jobs"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    ) as bar:
        task = bar.add_task("simulating", total=total)

        def advance(name: str) -> Any:
            before = int(bar.tasks[0].completed)
            if name:
                bar.update(task, description=f"workload {name}")
            return lambda finished: bar.update(task, completed=before + finished)

        yield advance


def _prepare(out: Path) -> None:
    """Make the output folder: a simulation takes long, and must not fail at its end for that."""
    try:
        import volcano_elastic.cli.simulation_page  # noqa: F401
    except ImportError as error:
        raise Trouble(f"--out needs volcano-elastic[local], and {error.name} is missing") from error
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _no_folder(out, error) from error


def _no_folder(out: Path, error: OSError) -> Trouble:
    return Trouble(f"--out {out}: {error.strerror}; give a folder to write to")


def _write(out: Path, comparisons: Mapping[str, Comparison], result: Mapping[str, Any]) -> None:
    from volcano_elastic.cli.simulation_page import page

    try:
        (out / "result.json").write_text(json.dumps(result, indent=2) + "\n")
        (out / "jobs.csv").write_text(jobs_csv(comparisons))
        page(out, comparisons, rows(result), " ".join(sys.argv[1:]))
    except OSError as error:
        raise _no_folder(out, error) from error
