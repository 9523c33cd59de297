"""`volcano-elastic tune`: what would make a job's steps shorter, by what was measured of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from volcano_elastic.cli.observation import (
    Trouble,
    ask,
    complete_jobs,
    json_option,
    kubeconfig_option,
    print_json,
)

if TYPE_CHECKING:
    from volcano_elastic.brain.estimate.step_time import BatchTime, Change
    from volcano_elastic.kube.client import Client

_PARTS = ("compute", "input", "network")


@click.command()
@click.argument("job", metavar="[NAMESPACE/]JOB", shell_complete=complete_jobs)
@click.option(
    "--loader-workers",
    type=click.IntRange(min=0),
    metavar="N",
    help="Processes that load data on each rank now (num_workers), which nobody else knows.",
)
@kubeconfig_option
@json_option
def tune(job: str, loader_workers: int | None, kubeconfig: str | None, as_json: bool) -> None:
    """Print how a running job's time for a batch is split, and what would make it shorter.

    Data-loader workers, where ranks wait for data; larger batches, fewer of them a step, where they
    wait for each other and GPUs have memory left: the global batch stays the same. Nothing is
    changed: both are settings of the training script. Exits 0; 2 if nothing was measured yet.

    \b
    JSON: job, world, batchSeconds {compute, input, network}: a rank's medians, batchSamples,
    batchesPerStep, gpuMemoryInUse: share, or null; loaderWorkers, batchSize: null where they should
    stay, else {now, then, factor, speedup}: speedup is the most that it brings.

    \b
    Examples:
      volcano-elastic tune train/bert --loader-workers 2
      volcano-elastic tune bert --json
    """
    found = ask(kubeconfig, lambda client: _tuned(client, job, loader_workers))
    if as_json:
        print_json(found)
    else:
        click.echo(text(found))


async def _tuned(client: Client, name: str, loader_workers: int | None) -> dict[str, Any]:
    from volcano_elastic.cli.describe import status_of_coordinator
    from volcano_elastic.kube.client import NotFound
    from volcano_elastic.kube.resource import PYTORCHJOBS

    namespace, _, short = name.rpartition("/")
    namespace = namespace or client.access.namespace
    try:
        obj = await client.get(PYTORCHJOBS, short, namespace)
    except NotFound as error:
        raise Trouble(
            f"there is no PyTorchJob {namespace}/{short}; kubectl get pytorchjobs -A shows them all"
        ) from error
    told, silent = await status_of_coordinator(client, obj)
    if told is None:
        raise Trouble(f"{namespace}/{short}: nothing is measured: {silent}")
    return tuned(f"{namespace}/{short}", told, loader_workers)


def tuned(job: str, told: Mapping[str, Any], loader_workers: int | None) -> dict[str, Any]:
    """Return the answer as JSON values.

    Args:
        told: the coordinator's /status.

    Raises:
        Trouble: it has measured no batches.
    """
    from volcano_elastic.brain.estimate.step_time import BatchTime, batch_size
    from volcano_elastic.brain.estimate.step_time import loader_workers as more_loaders

    spent = told.get("batch_seconds")
    if not spent or sum(spent[part] for part in _PARTS) <= 0:
        raise Trouble(
            f"{job}: the split of its steps isn't measured yet: its ranks are compared after some "
            "seconds of a round, where they train by ElasticLoop or an integration"
        )
    time = BatchTime(*(float(spent[part]) for part in _PARTS))
    samples = told.get("batch_samples")
    batches, memory = _batches(told, time), _memory(told)
    size = batch_size(time, batches, None if samples is None else round(samples), memory)
    return {
        "job": job,
        "world": told["world"],
        "batchSeconds": {part: spent[part] for part in _PARTS},
        "batchSamples": samples,
        "batchesPerStep": batches,
        "gpuMemoryInUse": memory,
        "loaderWorkers": _change(more_loaders(time, loader_workers)),
        "batchSize": _change(size),
    }


def _batches(told: Mapping[str, Any], time: BatchTime) -> int:
    """Return how many batches of a rank are in a step."""
    steps_per_second = told.get("steps_per_second") or 0.0
    return max(1, round(1 / (steps_per_second * time.total))) if steps_per_second else 1


def _memory(told: Mapping[str, Any]) -> float | None:
    """Return the share of its GPUs' memory that the fullest container uses."""
    loads = (told.get("loads") or {}).values()
    pairs = [(load.get("gpu_memory"), load.get("gpu_memory_total")) for load in loads]
    shares = [held / total for held, total in pairs if held is not None and total]
    return max(shares) if shares else None


def _change(change: Change | None) -> dict[str, Any] | None:
    if change is None:
        return None
    return {
        "now": change.now,
        "then": change.then,
        "factor": round(change.factor, 3),
        "speedup": round(change.speedup, 3),
    }


def text(found: Mapping[str, Any]) -> str:
    """Return the answer as lines."""
    spent = found["batchSeconds"]
    total = sum(spent.values())
    samples = "" if found["batchSamples"] is None else f" of {found['batchSamples']:g} samples"
    lines = [
        f"{found['job']}: a batch{samples} takes a rank {total:.3g} s (medians), "
        f"{found['batchesPerStep']} a step, on {found['world']} nodes"
    ]
    words = {
        "compute": "work on it",
        "input": "waiting for data",
        "network": "waiting for others' gradients",
    }
    for part, seconds in spent.items():
        lines.append(f"{100 * seconds / total:>6.1f} % {seconds:>9.3g} s  {words[part]} ({part})")
    return "\n".join([*lines, _loaders(found), _size(found)])


def _loaders(found: Mapping[str, Any]) -> str:
    change = found["loaderWorkers"]
    if change is None:
        return "Data-loader workers: enough; ranks hardly wait for data"
    if change["then"] is None:
        wanted = f"{change['factor']:.2g} times as many (--loader-workers says how many that is)"
    else:
        wanted = f"{change['now']} -> {change['then']}"
    return (
        f"Data-loader workers: {wanted}: up to {change['speedup']:.2f} times as fast; each wants "
        "a CPU of its own"
    )


def _size(found: Mapping[str, Any]) -> str:
    change = found["batchSize"]
    if change is not None:
        now = "" if change["now"] is None else f" {change['now']} -> {change['then']} samples,"
        return (
            f"Batch of a rank:{now} {change['factor']:g} times as large at the same global batch: "
            f"up to {change['speedup']:.2f} times as fast"
        )
    if found["batchesPerStep"] == 1:
        why = "a step is one batch already"
    elif found["gpuMemoryInUse"] is None:
        why = "nobody knows how much memory its GPUs have left"
    else:
        why = "ranks hardly wait for each other, or their GPUs have no memory for twice as much"
    return f"Batch of a rank: as it is; {why}"
