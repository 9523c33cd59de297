"""Judges what is around: clocks, other controllers of the same jobs, and what pods share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from volcano_elastic.api import moment
from volcano_elastic.api.pytorchjob_shape import SHARED_MEMORY_ANNOTATION
from volcano_elastic.api.role import elastic
from volcano_elastic.doctor.diagnosis import Diagnosis, Status, ok, unknown, untold
from volcano_elastic.doctor.facts import Facts, Object, Untold

_SKEW = timedelta(seconds=5)
_BACKEND = "volcano-elastic"
_ENDED = ("Succeeded", "Failed")
_NTP = "start a time daemon (chrony, systemd-timesyncd) there"


def clocks(facts: Facts) -> Iterator[Diagnosis]:
    """A node's lease that was renewed in the future has a clock that is ahead. One that is behind
    can't be told from a node that is silent."""
    if isinstance(facts.trial, Untold):
        yield untold("clocks", facts.trial, "compare `date` here and on the nodes")
        return
    server = moment.parse_optional(facts.trial.answer["metadata"].get("creationTimestamp"))
    if server is None:
        yield unknown("clocks", "the API server's time was not told", "compare `date` by hand")
        return
    # The server's time is told in whole seconds, and was so between these two.
    ahead = max(facts.trial.sent - (server + timedelta(seconds=1)), timedelta())
    behind = max(server - facts.trial.answered, timedelta())
    if max(ahead, behind) > _SKEW:
        word = "ahead of" if ahead > behind else "behind"
        yield Diagnosis(
            "clocks",
            Status.WARNING,
            f"this machine is {max(ahead, behind).total_seconds():.0f} s {word} the API server",
            "ages and waits that the tools show are wrong; an operator here could not lead",
            _NTP.replace("there", "here"),
        )
    if isinstance(facts.node_leases, Untold):
        yield untold("clocks", facts.node_leases, "compare `date` on the nodes")
        return
    early = {
        lease["metadata"]["name"]: renewed - server
        for lease in facts.node_leases
        if (renewed := _renewed(lease)) is not None and renewed - server > _SKEW
    }
    for node, by in sorted(early.items()):
        yield Diagnosis(
            "clocks",
            Status.WARNING,
            f"node {node} is {by.total_seconds():.0f} s ahead of the API server",
            "certificates and tokens may be refused there, and times in logs don't match",
            _NTP,
        )
    if not early and max(ahead, behind) <= _SKEW:
        yield ok("clocks", "none is ahead by over 5 s")


def _renewed(lease: Object) -> datetime | None:
    return moment.parse_optional((lease.get("spec") or {}).get("renewTime"))


def neighbours(facts: Facts) -> Iterator[Diagnosis]:
    """Other controllers that write PyTorchJobs."""
    if isinstance(facts.deployments, Untold):
        yield untold("neighbours", facts.deployments, "run this as one who may list them")
        return
    meeting = False
    for one in facts.deployments:
        containers = one["spec"]["template"]["spec"].get("containers") or ()
        name = f"{one['metadata']['namespace']}/{one['metadata']['name']}"
        if not one["spec"].get("replicas", 1):
            continue
        if any("training-operator" in str(c.get("image")) for c in containers) and _takes(
            containers
        ):
            meeting = True
            yield Diagnosis(
                "neighbours",
                Status.WARNING,
                f"training-operator ({name}) takes PyTorchJobs, too",
                "our operator leaves alone each job that training-operator writes",
                f"kubectl -n {one['metadata']['namespace']} scale deploy "
                f"{one['metadata']['name']} --replicas 0, or give it --enable-scheme without "
                "pytorchjob",
            )
    crds = {} if isinstance(facts.crds, Untold) else facts.crds
    if "clusterqueues.kueue.x-k8s.io" in crds:
        meeting = True
        sizes = any(
            "--kueue" in (container.get("args") or ())
            for one in facts.deployments
            for container in one["spec"]["template"]["spec"].get("containers") or ()
        )
        yield Diagnosis(
            "neighbours",
            Status.WARNING,
            "Kueue is there" + (", and its elastic Jobs are sized (--kueue)" if sizes else ""),
            "PyTorchJobs with its label kueue.x-k8s.io/queue-name are admitted by Kueue and by "
            "Volcano, and keep the size that Kueue has admitted",
            "take kubeflow.org/pytorchjob out of Kueue's integrations.frameworks, or don't label "
            "elastic PyTorchJobs"
            + (
                ""
                if sizes
                else "; elastic Jobs of its queues can be sized: manifests/kueue, and Kueue's "
                "feature gate ElasticJobsViaWorkloadSlices"
            ),
        )
    if not meeting:
        yield ok("neighbours", "no other controller of PyTorchJobs is there")


def _takes(containers: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether training-operator's arguments leave PyTorchJobs to it; none means all
    kinds."""
    words = [
        str(w) for c in containers for w in (*(c.get("command") or ()), *(c.get("args") or ()))
    ]
    schemes = [w for w in words if "enable-scheme" in w]
    return not schemes or any("pytorchjob" in w.lower() for w in words)


def storage(facts: Facts) -> Iterator[Diagnosis]:
    """Folder and memory of each elastic job that has not ended, as its template tells."""
    if isinstance(facts.jobs, Untold):
        yield untold("shared-folder", facts.jobs, "run this as one who may list PyTorchJobs")
        return
    jobs = [job for job in facts.jobs if _is_elastic(job)]
    found = [one for job in jobs for one in (*_folder(job, facts), *_memory(job))]
    yield from found
    for code in ("shared-folder", "shared-memory"):
        if jobs and all(one.code != code for one in found):
            yield ok(code, f"of {len(jobs)} elastic jobs none lacks it")


def _is_elastic(job: Object) -> bool:
    policy = job["spec"].get("elasticPolicy") or {}
    conditions = (job.get("status") or {}).get("conditions") or ()
    ended = any(c.get("type") in _ENDED and c.get("status") == "True" for c in conditions)
    return policy.get("rdzvBackend") == _BACKEND and not ended


def _folder(job: Object, facts: Facts) -> Iterator[Diagnosis]:
    meta = job["metadata"]
    name, namespace = f"{meta['namespace']}/{meta['name']}", meta["namespace"]
    volumes = _worker(job).get("volumes") or ()
    kinds = {kind for volume in volumes for kind in volume if kind != "name"}
    local = {"emptyDir", "configMap", "secret", "downwardAPI", "projected", "hostPath"}
    if not kinds - local:
        only = "only a hostPath" if "hostPath" in kinds else "no volume"
        yield Diagnosis(
            "shared-folder",
            Status.WARNING,
            f"{name} has {only} that its pods could share",
            "commits are lost with their node, unless they go to an object store (a URL), or the "
            "hostPath is a file system that all nodes mount",
            "mount a ReadWriteMany claim where the script keeps its commits",
        )
    if isinstance(facts.claims, Untold):
        return
    for volume in volumes:
        claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
        known = facts.claims.get((namespace, claim)) if claim else None
        if claim and known is None:
            yield Diagnosis(
                "shared-folder",
                Status.ERROR,
                f"{name}: the claim {claim} is not there",
                "its pods stay Pending",
                f"create the PersistentVolumeClaim {claim} in {namespace}",
            )
        elif known and "ReadWriteMany" not in (known["spec"].get("accessModes") or ()):
            modes = ", ".join(known["spec"].get("accessModes") or ()) or "none"
            yield Diagnosis(
                "shared-folder",
                Status.WARNING,
                f"{name}: the claim {claim} has access modes {modes}",
                "pods on a second node can't mount it, and the job stays on one",
                "use a claim with ReadWriteMany for commits",
            )


def _memory(job: Object) -> Iterator[Diagnosis]:
    template = job["spec"]["pytorchReplicaSpecs"].get(elastic().name, {}).get("template") or {}
    annotations = {
        **(job["metadata"].get("annotations") or {}),
        **((template.get("metadata") or {}).get("annotations") or {}),
    }
    spec = _worker(job)
    mounted = {
        str(mount.get("mountPath", "")).rstrip("/")
        for container in spec.get("containers") or ()
        for mount in container.get("volumeMounts") or ()
    }
    if SHARED_MEMORY_ANNOTATION not in annotations and "/dev/shm" not in mounted:
        yield Diagnosis(
            "shared-memory",
            Status.WARNING,
            f"{job['metadata']['namespace']}/{job['metadata']['name']} has the runtime's /dev/shm, "
            "64 MiB mostly",
            "checkpoints of a larger state go to storage each time, and loaders may be killed",
            f"annotate the job with {SHARED_MEMORY_ANNOTATION}: SIZE, four times its state",
        )


def _worker(job: Object) -> Mapping[str, Any]:
    """Return the spec of the workers' pods."""
    worker = job["spec"]["pytorchReplicaSpecs"].get(elastic().name) or {}
    spec: Mapping[str, Any] = (worker.get("template") or {}).get("spec") or {}
    return spec
