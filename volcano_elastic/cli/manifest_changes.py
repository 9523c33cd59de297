"""What a YAML file would change in the planner's picture, for `--what-if`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from volcano_elastic.api import moment
from volcano_elastic.api.pytorchjob import InvalidJob
from volcano_elastic.api.pytorchjob import parse as parse_job
from volcano_elastic.api.queue_policy import effective
from volcano_elastic.api.queue_policy import parse as parse_policy
from volcano_elastic.cli.observation import Trouble
from volcano_elastic.kube.resource import key_of
from volcano_elastic.local.manifest import Manifest, ManifestError, read
from volcano_elastic.operator.snapshot import picture
from volcano_elastic.queue_policy.codec import Observation
from volcano_elastic.queue_policy.snapshot import Node, Queue, Snapshot
from volcano_elastic.queue_policy.what_if import Changes, changed

_JOB, _POLICY = "PyTorchJob", "QueuePolicy"
_KINDS = (_JOB, "Queue", _POLICY, "Node", "PriorityClass")


def apply(file: Path, observed: Observation, warn: Callable[[str], None]) -> Snapshot:
    """The observed picture after the file's PyTorchJobs, Queues, QueuePolicies, Nodes and
    PriorityClasses were added or changed.

    Args:
        warn: told what in the file has no effect, a sentence at a time.

    Raises:
        Trouble: unreadable, another kind, or an object that the operator would refuse.
    """
    try:
        manifests = read([file])
    except ManifestError as error:
        raise Trouble(str(error)) from error
    stamp = moment.timestamp(observed.time)
    for manifest in manifests:
        _check(manifest, stamp)
    seen = picture(manifest.obj for manifest in manifests)
    known = observed.snapshot
    jobs = {key_of(m.obj) for m in manifests if m.obj["kind"] == _JOB}
    nodes = {node.name: node for node in known.nodes}
    queues = {queue.name: queue for queue in known.queues}
    old_jobs = {job.key: job for job in known.jobs}
    unpriced = _unpriced(manifests)
    priced = [
        replace(job, priority=old_jobs[job.key].priority)
        if job.key in old_jobs and job.key in unpriced
        else job
        for job in seen.jobs
    ]
    for key in sorted(unpriced.keys() - old_jobs.keys()):
        if unpriced[key]:
            warn(
                f"{key} counts as of priority 0: add its PriorityClass {unpriced[key]} to the file"
            )
    after = changed(
        known,
        Changes(
            jobs=tuple(priced),
            ended=frozenset(jobs - {job.key for job in seen.jobs}),
            queues=tuple(_queue(queue, queues.get(queue.name)) for queue in seen.queues),
            policies=seen.policies,
            nodes=tuple(_node(node, nodes.get(node.name)) for node in seen.nodes),
        ),
    )
    _warn(after, seen, warn)
    return after


def _unpriced(manifests: list[Manifest]) -> dict[str, str]:
    """Jobs whose priority the file doesn't tell, and the PriorityClass they name, if any."""
    given = {m.name for m in manifests if m.obj["kind"] == "PriorityClass"}
    named = {
        key_of(m.obj): parse_job(m.obj).run_policy.scheduling.priority_class or ""
        for m in manifests
        if m.obj["kind"] == _JOB
    }
    return {key: name for key, name in named.items() if name not in given}


def _check(manifest: Manifest, stamp: str) -> None:
    """Refuses what the operator would refuse, and fills in what the API server would."""
    obj = manifest.obj
    kind, meta = obj["kind"], obj["metadata"]
    if kind not in _KINDS:
        raise Trouble(f"{manifest}: expected one of {', '.join(_KINDS)}")
    meta.setdefault("creationTimestamp", stamp)
    try:
        if kind == _JOB:
            meta.setdefault("namespace", "default")
            parse_job(obj)
        elif kind == _POLICY:
            parse_policy(obj, strict=True)
    except (InvalidJob, ValueError) as error:
        raise Trouble(f"{manifest}: {error}") from error


def _queue(new: Queue, old: Queue | None) -> Queue:
    """Manifests have no status: who was closed stays closed."""
    return new if old is None else replace(new, open=new.open and old.open)


def _node(new: Node, old: Node | None) -> Node:
    """What the manifest leaves out stays as it is."""
    if old is not None:
        labels = {**old.labels, **new.labels}
        return replace(new, allocatable=new.allocatable or old.allocatable, labels=labels)
    if not new.allocatable:
        raise Trouble(
            f"Node {new.name}: a new node needs status.allocatable, e.g. "
            "{nvidia.com/gpu: 8, cpu: 64, memory: 512Gi, pods: 110}; found none"
        )
    return new


def _warn(after: Snapshot, seen: Snapshot, warn: Callable[[str], None]) -> None:
    winners = effective(after.policies)
    for policy in seen.policies:
        winner = winners[policy.queue]
        if winner.name != policy.name:
            warn(
                f"QueuePolicy {policy.name} has no effect: {winner.name} is the older one for "
                f"queue {policy.queue}; give yours that name to try it"
            )
    queues = {queue.name for queue in after.queues}
    wanted = {job.queue for job in seen.jobs} | {policy.queue for policy in seen.policies}
    for missing in sorted(wanted - queues if queues else ()):
        warn(f"there is no queue {missing}; add it to the file, or name one that exists")
