"""Judges what was installed: CRDs, Volcano, the operator, its webhooks and its rights."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import yaml

from volcano_elastic.api import moment
from volcano_elastic.doctor.diagnosis import Diagnosis, Status, ok, unknown, untold
from volcano_elastic.doctor.facts import Facts, Object, Right, Trial, Untold
from volcano_elastic.scheduler_conf.check_config import check
from volcano_elastic.scheduler_conf.configuration import UnreadableConfiguration
from volcano_elastic.scheduler_conf.finding import Severity

OLDEST_VOLCANO = (1, 12)
VOLCANOS_CRDS = ("podgroups.scheduling.volcano.sh", "queues.scheduling.volcano.sh")
_APPLY = "volcano-elastic crds | kubectl apply --server-side --force-conflicts -f -"
_INSTALL = (
    "helm upgrade --install volcano-elastic deploy/chart, or kubectl apply -k manifests/default"
)
_NAMED = 3
"""So many of what is missing are named."""
_STALE = timedelta(seconds=60)
_SEVERITIES = {
    Severity.ERROR: Status.ERROR,
    Severity.WARNING: Status.WARNING,
    Severity.INFO: Status.OK,
}


def crds(facts: Facts) -> Iterator[Diagnosis]:
    if isinstance(facts.crds, Untold):
        yield untold("crds", facts.crds, "run this as one who may list CRDs")
        return
    for name, ours in facts.our_crds.items():
        served = facts.crds.get(name)
        if served is None:
            why = (
                "no job can be created" if name.startswith("pytorchjobs") else "queues get defaults"
            )
            yield Diagnosis("crds", Status.ERROR, f"{name} is not there", why, _APPLY)
            continue
        lacking = sorted(fields(ours) - fields(served))
        if lacking:
            yield Diagnosis(
                "crds",
                Status.ERROR,
                f"{name} lacks {_listed(lacking)}: it is another version's, or another project's",
                "the API server drops these fields; the operator writes nothing without its own",
                _APPLY,
            )
        else:
            yield ok("crds", f"{name} has all fields of {facts.version}")
    for name in VOLCANOS_CRDS:
        if name not in facts.crds:
            yield Diagnosis(
                "crds",
                Status.ERROR,
                f"{name} is not there",
                "no gang can be scheduled",
                "install Volcano, which brings it",
            )


def fields(crd: Object) -> set[str]:
    """Return the paths of all fields that the CRD's served versions declare."""

    def below(schema: Mapping[str, Any], path: str) -> Iterator[str]:
        for name, child in (schema.get("properties") or {}).items():
            yield f"{path}.{name}"
            yield from below(child, f"{path}.{name}")
        items = schema.get("items") or schema.get("additionalProperties")
        if isinstance(items, Mapping):
            yield from below(items, f"{path}[]")

    versions = [one for one in crd["spec"].get("versions") or () if one.get("served")]
    return {
        path
        for version in versions
        for path in below(
            (version.get("schema") or {}).get("openAPIV3Schema") or {}, version["name"]
        )
    }


def volcano(facts: Facts) -> Iterator[Diagnosis]:
    if isinstance(facts.deployments, Untold):
        yield untold("volcano", facts.deployments, "run this as one who may list deployments")
        return
    schedulers = [one for one in facts.deployments if _image(one, "vc-scheduler")]
    if not schedulers:
        yield Diagnosis(
            "volcano",
            Status.ERROR,
            "no Deployment runs Volcano's scheduler (image vc-scheduler)",
            "pods of jobs stay Pending, unless a scheduler of another name takes Volcano's gangs",
            f"install Volcano {_version_text(OLDEST_VOLCANO)} or later",
        )
    for scheduler in schedulers:
        name, tag = _name(scheduler), _tag(_image(scheduler, "vc-scheduler"))
        version = release(tag)
        if not _ready(scheduler):
            yield Diagnosis(
                "volcano",
                Status.ERROR,
                f"{name} has no ready pod",
                "nothing is scheduled",
                f"kubectl -n {scheduler['metadata']['namespace']} describe pods, and read its logs",
            )
        if version is None:
            yield unknown(
                "volcano",
                f"{name} runs image tag {tag!r}, which names no release",
                f"see for yourself that it is {_version_text(OLDEST_VOLCANO)} or later",
            )
        elif version < OLDEST_VOLCANO:
            yield Diagnosis(
                "volcano",
                Status.ERROR,
                f"{name} runs Volcano {_version_text(version)}",
                "what the operator relies on is not there, or works otherwise",
                f"upgrade Volcano to {_version_text(OLDEST_VOLCANO)} or later",
            )
        elif _ready(scheduler):
            yield ok("volcano", f"{name} runs Volcano {_version_text(version)}")
    yield from _scheduler_configuration(facts, schedulers)


def _scheduler_configuration(facts: Facts, schedulers: Sequence[Object]) -> Iterator[Diagnosis]:
    code, repair = "scheduler-config", "volcano-elastic scheduler-config prints what it should be"
    configmap = facts.scheduler_configmap
    if isinstance(configmap, Untold):
        yield untold(code, configmap, "volcano-elastic check-config FILE, where you have it")
        return
    if configmap is None:
        yield Diagnosis(
            code,
            Status.WARNING,
            "volcano-system has no ConfigMap volcano-scheduler-configmap",
            "Volcano runs by its own defaults, or by a file that can't be seen from here",
            repair,
        )
        return
    queues = () if isinstance(facts.queues, Untold) else facts.queues
    versions = [release(_tag(_image(one, "vc-scheduler"))) for one in schedulers]
    text = yaml.safe_dump_all([dict(one) for one in (configmap, *schedulers, *queues)])
    try:
        found = check(text, "the cluster", next((v for v in versions if v), None))
    except UnreadableConfiguration as error:
        why = "Volcano logs this, and keeps what it had"
        yield Diagnosis(code, Status.ERROR, str(error), why, repair)
        return
    judged = [one for one in found if _SEVERITIES[one.severity] is not Status.OK]
    for one in judged:
        status = _SEVERITIES[one.severity]
        yield Diagnosis(code, status, f"{one.code}: {one.finding}", one.consequence, one.repair)
    if not judged:
        yield ok(code, "no pitfall found in volcano-scheduler-configmap and queues")


def operator(facts: Facts) -> Iterator[Diagnosis]:
    if isinstance(facts.deployments, Untold):
        yield untold("operator", facts.deployments, "run this as one who may list deployments")
        return
    found = [one for one in facts.deployments if _image(one, "volcano-elastic-operator")]
    if not found:
        yield Diagnosis(
            "operator",
            Status.WARNING,
            "no Deployment runs the operator (image volcano-elastic-operator)",
            "jobs are done nothing for, unless it runs outside of the cluster",
            _INSTALL,
        )
    for one in found:
        tag = _tag(_image(one, "volcano-elastic-operator"))
        if not _ready(one):
            yield Diagnosis(
                "operator",
                Status.ERROR,
                f"{_name(one)} has no ready pod",
                "jobs are done nothing for",
                f"kubectl -n {one['metadata']['namespace']} logs deploy/{one['metadata']['name']}",
            )
        elif release(tag) and tag.removeprefix("v") != facts.version:
            yield Diagnosis(
                "operator",
                Status.WARNING,
                f"{_name(one)} runs {tag}, this tool is {facts.version}",
                "plan and explain may say other things than the operator does",
                f"install volcano-elastic {tag.removeprefix('v')} here, or upgrade the operator",
            )
        else:
            yield ok("operator", f"{_name(one)} is ready")
    if found:
        yield from _leader(facts)


def _leader(facts: Facts) -> Iterator[Diagnosis]:
    if isinstance(facts.lease, Untold):
        yield untold("leader", facts.lease, "run this as one who may get leases")
        return
    spec = (facts.lease or {}).get("spec") or {}
    holder, renewed = spec.get("holderIdentity"), moment.parse_optional(spec.get("renewTime"))
    repair = "read the operator's logs: it says what it waits for"
    if not holder or renewed is None:
        yield Diagnosis("leader", Status.ERROR, "no operator leads", "nobody writes", repair)
        return
    if isinstance(facts.trial, Untold):
        yield ok("leader", f"{holder} leads")
        return
    created = moment.parse_optional(facts.trial.answer["metadata"].get("creationTimestamp"))
    age = (created or facts.trial.answered) - renewed
    if age > _STALE:
        said = f"{holder} has not renewed its lease for {age.total_seconds():.0f} s"
        yield Diagnosis("leader", Status.ERROR, said, "nobody writes", repair)
    else:
        yield ok("leader", f"{holder} leads")


def webhooks(facts: Facts) -> Iterator[Diagnosis]:
    if isinstance(facts.webhooks, Untold):
        yield untold("webhooks", facts.webhooks, "run this as one who may get them")
        return
    if len(facts.webhooks) < 2:
        yield Diagnosis(
            "webhooks",
            Status.WARNING,
            "not both webhook configurations named volcano-elastic-webhook are there",
            "an impossible job fails a moment later, instead of being refused at kubectl apply",
            "kubectl apply -k manifests/webhook, or the chart's webhooks.enabled",
        )
        return
    bare = [
        hook["name"]
        for configuration in facts.webhooks
        for hook in configuration.get("webhooks") or ()
        if not (hook.get("clientConfig") or {}).get("caBundle")
    ]
    if bare:
        yield Diagnosis(
            "webhooks",
            Status.ERROR,
            f"{_listed(bare)} has no caBundle",
            "the API server can't trust the operator, and admits everything",
            "the leading operator enters it: see `leader` and `rights`; a GitOps tool that takes "
            "it out again must be told to ignore it",
        )
    elif isinstance(facts.trial, Untold):
        yield untold("webhooks", facts.trial, "run this as one who may create PyTorchJobs")
    elif not _was_defaulted(facts.trial):
        yield Diagnosis(
            "webhooks",
            Status.ERROR,
            "the API server created a PyTorchJob (dry run) without having the operator fill it in",
            "each write of a job waits for the webhooks' timeout, 5 s, and is not checked",
            "let the API server reach port 9443 of the operator's pods: see docs/operations.md, "
            "Ports",
        )
    else:
        yield ok("webhooks", "the API server reaches them")


def _was_defaulted(trial: Trial) -> bool:
    return bool((trial.answer["spec"].get("runPolicy") or {}).get("cleanPodPolicy"))


def rights(facts: Facts) -> Iterator[Diagnosis]:
    yield from _rights(
        "rights",
        facts.operator_lacks,
        "the operator's service account",
        "what needs it is tried again and again, and never done",
        "apply manifests/base/rbac.yaml of this version, or the chart",
    )
    yield from _rights(
        "tools-rights",
        facts.tools_lack,
        "you",
        "top, explain, describe and plan can't say all",
        "ask for the verbs get and list on them in all namespaces",
    )


def _rights(
    code: str, lacks: Sequence[Right] | Untold, who: str, consequence: str, repair: str
) -> Iterator[Diagnosis]:
    if isinstance(lacks, Untold):
        yield untold(code, lacks, "run this as a cluster's admin")
    elif lacks:
        found = f"{who} may not {_listed([str(right) for right in lacks])}"
        yield Diagnosis(code, Status.ERROR, found, consequence, repair)
    else:
        yield ok(code, f"{who} may do all that is needed")


def needed_rights(rbac: Sequence[Object]) -> list[Right]:
    """Return each right that these Roles and ClusterRoles grant."""
    return [
        Right(verb, group, resource, role["metadata"].get("namespace", ""), name)
        for role in rbac
        if role["kind"] in ("Role", "ClusterRole")
        for rule in role["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames") or ("",)
    ]


def release(tag: str) -> tuple[int, int] | None:
    """Return what a tag such as v1.12.1 says; None where it names no release."""
    match = re.fullmatch(r"v?(\d+)\.(\d+)(?:[.-].*)?", tag)
    return (int(match[1]), int(match[2])) if match else None


def _image(deployment: Object, word: str) -> str:
    """Return the image whose last part is `word`; empty where there is none."""
    pod = deployment["spec"]["template"]["spec"]
    images = (str(container.get("image", "")) for container in pod.get("containers") or ())
    return next((i for i in images if re.fullmatch(rf"(.*/)?{word}([:@].*)?", i)), "")


def _tag(image: str) -> str:
    last = image.partition("@")[0].rpartition("/")[2]
    return last.partition(":")[2]


def _name(deployment: Object) -> str:
    meta = deployment["metadata"]
    return f"{meta['namespace']}/{meta['name']}"


def _ready(deployment: Object) -> bool:
    return bool((deployment.get("status") or {}).get("readyReplicas"))


def _version_text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
