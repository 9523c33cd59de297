"""Words for a job's description: what `describe` prints."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from volcano_elastic.cli import held_tables


def text(found: Mapping[str, Any]) -> str:
    """Return a job's description as people read it; `found` is `describe.description`'s."""
    lines = [f"{found['job']}: {found['condition'] or 'not begun'}"]
    lines += [*_size(found["elastic"] or {}), *_training(found), *_rounds(found), *_ranks(found)]
    if found["nodeCheck"]:
        lines += ["", *_node_check(found["nodeCheck"])]
    for one in found["hangs"]:
        lines += ["", *_hang(one)]
    lines += ["", *_failures_head(found)]
    for one in found["failures"]:
        lines += _failure(one)
    lines += ["", "Pods:"]
    for pod in found["pods"]:
        where = f" on {pod['node']}" if pod["node"] else ""
        phase = f"{pod['phase']} ({pod['halted']})" if pod["halted"] else pod["phase"]
        silent = ", not heard by the coordinator" if pod["heard"] is False else ""
        lines.append(f"  {pod['name']}: {phase}{where}, {pod['restarts']} restarts{silent}")
        if pod["lastWords"]:
            lines += [f"    | {line}" for line in pod["lastWords"].splitlines()]
    lines += ["", "Look at:", *(f"  {command}" for command in found["look"])]
    return "\n".join(lines)


def _size(elastic: Mapping[str, Any]) -> list[str]:
    if not elastic:
        return []
    lines = [
        f"Size: {elastic.get('ready', 0)} ready of {elastic.get('desired', '?')}, between "
        f"{elastic.get('min', '?')} and {elastic.get('max', '?')}; restarts: "
        f"{elastic.get('restarts', 0)}"
    ]
    if elastic.get("lastScaleReason"):
        when = elastic.get("lastScaleTime", "")
        lines.append(f"Last change of size: {elastic['lastScaleReason']} {when}".rstrip())
    if elastic.get("message"):
        lines.append(elastic["message"])
    for one in elastic.get("excludedNodes") or ():
        lines.append(f"Keeps away from {one['node']} until {one['until']}: {one['reason']}")
    return lines


def _training(found: Mapping[str, Any]) -> list[str]:
    lines = []
    coordinator = found["coordinator"]
    if coordinator is not None:
        lines.append(
            f"Training: {coordinator['phase']}, round {coordinator['round']} of "
            f"{coordinator['world']} nodes, step {coordinator['step']} "
            f"({coordinator['stepsPerSecond']:g} a second), committed: "
            f"{coordinator['committedStep']}"
        )
        if progress := coordinator["progress"]:
            left = progress["remainingSeconds"]
            rest = "" if left is None else f", {timedelta(seconds=round(left))} left at this size"
            lines.append(
                f"Progress: {progress['samples'] / progress['total']:.1%}, "
                f"{progress['samples']} of {progress['total']} samples{rest}"
            )
        if metrics := coordinator["metrics"]:
            figures = ", ".join(f"{name} {value}" for name, value in sorted(metrics.items()))
            lines.append(f"Metrics: {figures}")
        lines += held_tables.lines(coordinator["tables"])
        if coordinator["verdict"]:
            lines.append(f"Given up: {coordinator['verdict']}")
    elif found["condition"] in ("Succeeded", "Failed"):
        lines.append(
            f"Training: over; `volcano-elastic goodput {found['job']}` says what its time went into"
        )
    else:
        lines.append(f"Training: not known: {found['coordinatorSilent']}")
    return lines


def _rounds(found: Mapping[str, Any]) -> list[str]:
    lines = []
    if found["rounds"]:
        lines += ["", f"{'ROUND':>5} {'NODES':>5} {'PAUSE':>9}  {'STEPS':<17} REASON"]
    for one in found["rounds"]:
        pause = "" if one["pauseSeconds"] is None else f"{one['pauseSeconds']:.3f} s"
        steps = "" if one["firstStep"] is None else f"{one['firstStep']}..{one['lastStep']}"
        lines.append(f"{one['round']:>5} {one['world']:>5} {pause:>9}  {steps:<17} {one['reason']}")
    if found["excluded"]:
        lines += ["", "Nodes that are in no further round:"]
    for one in found["excluded"]:
        workers = ", ".join(str(index) for index in one["workers"])
        lines.append(f"  {one['node']} (workers {workers}): {one['reason']}")
    return lines


def _ranks(found: Mapping[str, Any]) -> list[str]:
    """Return what is known of ranks that are slow, or whose state differs."""
    lines = []
    if spent := found["batchSeconds"]:
        parts = ", ".join(f"{seconds:.3g} s {part}" for part, seconds in spent.items())
        lines += ["", f"A batch takes a rank {parts} (medians)"]
    for one in found["stragglers"]:
        lines.append(
            f"  rank {one['rank']} (worker {one['worker']}, {one['node']}) slows it down since "
            f"{_clock(one['since'])}Z: {one['batchSeconds']:.3g} s by itself, others "
            f"{one['othersBatchSeconds']:.3g} s, by {one['cause']}"
        )
    if found["diverged"]:
        lines += ["", "Ranks whose state was another than others', though all have the same:"]
    for one in found["diverged"]:
        lines.append(f"  {_clock(one['since'])}Z  {_divergence(one)}")
    return lines


def _failures_head(found: Mapping[str, Any]) -> list[str]:
    """Return the heading of the failures, or what is known of restarts whose errors nobody has."""
    if found["failures"]:
        return ["Failures, first one first:"]
    restarts = int((found["elastic"] or {}).get("restarts") or 0)
    ended = [pod for pod in found["pods"] if pod["restarts"]]
    lost = [one for one in found["rounds"] if one["lost"]]
    if not (restarts or ended) and lost:
        workers = sum(one["lost"] for one in lost)
        whose = "1 worker was lost with its node or pod"
        if workers > 1:
            whose = f"{workers} workers were lost with their nodes or pods"
        rounds = ", ".join(str(one["round"]) for one in lost)
        which = f"round {rounds}" if len(lost) == 1 else f"rounds {rounds}"
        return [f"Failures: no worker's own; {whose}, which ended {which}"]
    if not (restarts or ended):
        return ["Failures: none known"]
    if not restarts:
        said = "containers began anew, which counted as no restart of the job"
    else:
        said = f"the job restarted {'once' if restarts == 1 else f'{restarts} times'}"
    lines = [f"Failures: {said}; no worker's error is known, as in a pod that is gone, or killed"]
    for pod in ended:
        if pod["ended"]:
            lines.append(f"  {pod['name']}: its container ended with {pod['ended']}")
    if not any(pod["ended"] for pod in ended):
        lines.append(
            "  its pods say nothing of it; `kubectl get events` may, for an hour, and the logs"
        )
    return lines


def _divergence(one: Mapping[str, Any]) -> str:
    agreed = f"all agreed at {one['agreedStep']}" if one["agreedStep"] >= 0 else "they never agreed"
    if one["until"] is not None:
        end = f"over at {_clock(one['until'])}Z"
    elif one["outvoted"]:
        end = "it takes the others' in the next round"
    else:
        end = "any of these may be wrong"
    where = f"rank {one['rank']} (worker {one['worker']}, {one['node']})"
    return f"{where} at step {one['step']}; {agreed}; {end}"


def _node_check(check: Mapping[str, Any]) -> list[str]:
    nodes = check["nodes"]
    proven = sum(one["verdict"] == "proven" for one in nodes)
    state = "" if check["over"] else ", under way"
    lines = [
        f"Node check: {proven} of {len(nodes)} nodes are proven sound after {check['rounds']} "
        f"rounds{state}"
    ]
    for one in nodes:
        if one["verdict"] != "proven" or one["straggler"]:
            found = "a straggler" if one["straggler"] else one["verdict"]
            note = f": {one['note']}" if one["note"] else ""
            lines.append(f"  {one['node']} (worker {one['worker']}) is {found}{note}")
    return lines


def _hang(one: Mapping[str, Any]) -> list[str]:
    after = f"after step {one['step']}" if one["step"] >= 0 else "since it began"
    ended = "it was ended" if one["broken"] else "it goes on"
    lines = [
        f"Hang: {_clock(one['time'])}Z  round {one['round']}, no step for {one['seconds']:.0f} s "
        f"{after}: {one['words']}; {ended}"
    ]
    for group in one["stacks"]:
        lines.append(f"  ranks {', '.join(map(str, group['ranks']))}:")
        lines += [f"    | {line}" for line in group["stack"].splitlines()]
    for told in one["flights"]:
        lines.append(f"  rank {told['rank']}, collectives as torch recorded them:")
        lines += [f"    | {line}" for line in told["record"].splitlines()]
    return lines


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(float(seconds), UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _failure(one: Mapping[str, Any]) -> list[str]:
    code = one["signal"] or (f"exit code {one['exitCode']}" if one["exitCode"] else "gave way")
    head = (
        f"  {_clock(one['time'])}Z  round {one['round']}, rank {one['rank']} (worker "
        f"{one['worker']}, pid {one['pid']}), {code}: {one['message']}"
    )
    return [head, *(f"    | {line}" for line in (one["stack"] or "").splitlines())]
