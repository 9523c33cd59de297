"""Applies the objects of a YAML file to a snapshot, for `--what-if`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path

from embedded_cluster.manifest import Manifest, ManifestError, read
from volcano_elastic.api import moment, pytorchjob_warning, shape
from volcano_elastic.api.cluster_shape import METADATA, NODE, PRIORITY_CLASS, QUEUE
from volcano_elastic.api.problem import Problem, listed
from volcano_elastic.api.pytorchjob import InvalidJob
from volcano_elastic.api.pytorchjob import parse as parse_job
from volcano_elastic.api.queue_policy import InvalidPolicy, effective
from volcano_elastic.api.queue_policy import parse as parse_policy
from volcano_elastic.api.shape import Fields
from volcano_elastic.cli.observation import Trouble
from volcano_elastic.kube import resource
from volcano_elastic.kube.resource import Object, key_of
from volcano_elastic.operator.snapshot_builder import snapshot_of
from volcano_elastic.scheduler_conf.check_queue import check_queue
from volcano_elastic.scheduler_conf.finding import Severity
from volcano_elastic.snapshot.changes import Changes, changed
from volcano_elastic.snapshot.codec import Observation
from volcano_elastic.snapshot.snapshot import Node, Queue, Snapshot

_JOB, _POLICY, _QUEUE, _NODE = "PyTorchJob", "QueuePolicy", "Queue", "Node"
_KINDS = {
    kind.kind: kind.api_version
    for kind in (
        resource.PYTORCHJOBS,
        resource.QUEUES,
        resource.QUEUEPOLICIES,
        resource.NODES,
        resource.PRIORITYCLASSES,
    )
}
_ANY_KIND = Fields({"metadata": METADATA}, open=True)
_SHAPES = {_QUEUE: QUEUE, _NODE: NODE, "PriorityClass": PRIORITY_CLASS}


def apply(file: Path, observed: Observation, warn: Callable[[str], None]) -> Snapshot:
    """The observed picture after the file's PyTorchJobs, Queues, QueuePolicies, Nodes and
    PriorityClasses were added or changed.

    Args:
        warn: told what in the file has no effect, a sentence at a time.

    Raises:
        Trouble: unreadable, another kind, or an object that the API server or the operator would
            refuse; names the file, the document and the fields.
    """
    try:
        manifests = read([file])
    except ManifestError as error:
        raise Trouble(str(error)) from error
    stamp = moment.timestamp(observed.time)
    there = {node.name for node in observed.snapshot.nodes}
    for manifest in manifests:
        _check(manifest, stamp, there, warn)
    seen = snapshot_of(manifest.obj for manifest in manifests)
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


def jobs_of(file: Path) -> set[str]:
    """Keys of the PyTorchJobs in a file that `apply` has taken."""
    found = (manifest.obj for manifest in read([file]))
    return {
        f"{obj['metadata'].get('namespace') or 'default'}/{obj['metadata']['name']}"
        for obj in found
        if obj["kind"] == _JOB
    }


def _unpriced(manifests: list[Manifest]) -> dict[str, str]:
    """Jobs whose priority the file doesn't tell, and the PriorityClass they name, if any."""
    given = {m.name for m in manifests if m.obj["kind"] == "PriorityClass"}
    named = {
        key_of(m.obj): parse_job(m.obj).run_policy.scheduling.priority_class or ""
        for m in manifests
        if m.obj["kind"] == _JOB
    }
    return {key: name for key, name in named.items() if name not in given}


def _check(
    manifest: Manifest, stamp: str, nodes: Collection[str], warn: Callable[[str], None]
) -> None:
    """Refuses what would be refused, and fills in what the API server would.

    Args:
        nodes: names of those that are there.
    """
    obj = manifest.obj
    kind, meta = obj["kind"], obj["metadata"]
    if kind not in _KINDS:
        raise Trouble(f"{manifest}: expected one of {', '.join(_KINDS)}")
    if obj["apiVersion"] != _KINDS[kind]:
        raise Trouble(f"{manifest}: apiVersion: expected {_KINDS[kind]}, found {obj['apiVersion']}")
    if meta.get("creationTimestamp") is None:
        meta["creationTimestamp"] = stamp
    if kind == _JOB and not meta.get("namespace"):
        meta["namespace"] = "default"
    found = list(_problems(manifest, nodes))
    if found:
        raise Trouble(f"{manifest}: {listed(found)}")
    if kind == _JOB:
        odd = pytorchjob_warning.warn(obj)
    elif kind in _SHAPES:
        odd = [line.replace(" .", " ", 1) for line in shape.unknown(_SHAPES[kind], obj, "")]
    else:
        odd = []
    for line in odd:
        warn(f"{manifest}: {line}")


def _problems(manifest: Manifest, nodes: Collection[str]) -> Iterator[Problem]:
    obj, kind = manifest.obj, manifest.obj["kind"]
    found = list(shape.problems(_SHAPES.get(kind, _ANY_KIND), obj, ""))
    if found:
        yield from (replace(one, path=one.path.removeprefix(".")) for one in found)
        return
    created = obj["metadata"]["creationTimestamp"]
    if moment.parse_optional(created) is None:
        wanted = f"must be a time such as 2026-01-31T12:00:00Z, found {created!r}"
        yield Problem("metadata.creationTimestamp", wanted)
    try:
        if kind == _JOB:
            parse_job(obj)
        elif kind == _POLICY:
            parse_policy(obj, strict=True)
    except (InvalidJob, InvalidPolicy) as error:
        yield from error.problems
    if kind == _NODE and manifest.name not in nodes and not _allocatable(obj):
        wanted = "a new node needs some, e.g. {nvidia.com/gpu: 8, cpu: 64, memory: 512Gi}"
        yield Problem("status.allocatable", f"{wanted}; found none")
    if kind == _QUEUE:
        for finding in check_queue(obj, set(), True, {}):
            if finding.severity is Severity.ERROR:
                yield Problem(finding.where, finding.finding)


def _allocatable(obj: Object) -> bool:
    return bool((obj.get("status") or {}).get("allocatable"))


def _queue(new: Queue, old: Queue | None) -> Queue:
    """Manifests have no status: who was closed stays closed."""
    return new if old is None else replace(new, open=new.open and old.open)


def _node(new: Node, old: Node | None) -> Node:
    """Return the changed node; fields that the manifest leaves out stay."""
    if old is None:
        return new
    labels = {**old.labels, **new.labels}
    return replace(new, allocatable=new.allocatable or old.allocatable, labels=labels)


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
