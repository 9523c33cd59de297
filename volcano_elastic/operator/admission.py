"""Answers to the API server's admission reviews (admission.k8s.io/v1). Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from volcano_elastic.api import json_patch, queue_policy, scale_plan
from volcano_elastic.api.problem import Problem, aggregate
from volcano_elastic.api.pytorchjob import parse
from volcano_elastic.api.pytorchjob_defaults import defaulted
from volcano_elastic.api.pytorchjob_validation import validate, validate_update
from volcano_elastic.api.pytorchjob_warning import warn
from volcano_elastic.kube.resource import PYTORCHJOBS, QUEUEPOLICIES, SCALEPLANS, Object, Resource
from volcano_elastic.pytorchjob import rendezvous

API_VERSION = "admission.k8s.io/v1"
# The API server cuts longer ones.
_LONGEST_WARNING = 256


class BadReview(ValueError):
    """The body is no admission review; says what was expected, and what was found."""


@dataclass(frozen=True, slots=True)
class Response:
    problems: tuple[Problem, ...] = ()
    """The object is refused if there are any."""
    warnings: tuple[str, ...] = ()
    patch: tuple[json_patch.Operation, ...] = ()


@dataclass(frozen=True, slots=True)
class Webhook:
    """One path of the server: the kind that it is asked about, and what decides."""

    resource: Resource
    decide: Callable[[Mapping[str, Any], Mapping[str, Any] | None], Response]
    """Takes the object and, at an update, what it was before."""


def decide_pytorchjob(obj: Mapping[str, Any], old: Mapping[str, Any] | None) -> Response:
    if old is not None and _same(obj, old):
        # What was once accepted must not keep its owner from labelling or deleting it.
        return Response()
    problems, warnings = validate(obj), []
    if not problems and old is not None and not validate(old):
        before, after = parse(old), parse(obj)
        problems = [*validate_update(old, obj), *rendezvous.problems(before, after)]
        warnings = rendezvous.warnings(before, after)
    return Response(tuple(problems), () if problems else (*warn(obj), *warnings))


def default_pytorchjob(obj: Mapping[str, Any], old: Mapping[str, Any] | None) -> Response:
    return Response(patch=tuple(json_patch.difference(obj, defaulted(obj))))


def decide_queue_policy(obj: Mapping[str, Any], old: Mapping[str, Any] | None) -> Response:
    try:
        queue_policy.parse(obj)
    except queue_policy.InvalidPolicy as error:
        return Response(tuple(error.problems))
    return Response()


def decide_scale_plan(obj: Mapping[str, Any], old: Mapping[str, Any] | None) -> Response:
    try:
        plan = scale_plan.parse(obj)
    except scale_plan.InvalidPlan as error:
        return Response(tuple(error.problems))
    warnings = (
        f"spec.{name} is not carried out: {why}" for name, why in plan.not_carried_out.items()
    )
    return Response(warnings=tuple(warnings))


# Kubeflow's path for the first, so that its webhook configuration would do.
WEBHOOKS = {
    "/validate-kubeflow-org-v1-pytorchjob": Webhook(PYTORCHJOBS, decide_pytorchjob),
    "/mutate-kubeflow-org-v1-pytorchjob": Webhook(PYTORCHJOBS, default_pytorchjob),
    "/validate-policy-volcano-elastic-io-v1alpha1-queuepolicy": Webhook(
        QUEUEPOLICIES, decide_queue_policy
    ),
    "/validate-policy-volcano-elastic-io-v1alpha1-scaleplan": Webhook(
        SCALEPLANS, decide_scale_plan
    ),
}


def answer(webhook: Webhook, review: object) -> Object:
    """Return the AdmissionReview with its response. The objects in `review` may be any JSON.

    Raises:
        BadReview: there is no request to answer.
    """
    request = _request(review)
    response: Object = {"uid": request["uid"], "allowed": True}
    obj, old = request.get("object"), request.get("oldObject")
    if request.get("operation") in ("CREATE", "UPDATE") and not request.get("subResource"):
        wanted = webhook.resource
        if not _is(obj, wanted) or not (old is None or _is(old, wanted)):
            why = f"expected a {wanted.kind} of {wanted.api_version}"
            response |= _refusal(400, "BadRequest", why)
        else:
            decided = webhook.decide(obj, old)
            if decided.problems:
                response |= _refusal(403, "Forbidden", aggregate(decided.problems))
            if decided.warnings:
                response["warnings"] = [text[:_LONGEST_WARNING] for text in decided.warnings]
            if decided.patch:
                patch = base64.b64encode(json.dumps(decided.patch).encode()).decode()
                response |= {"patchType": "JSONPatch", "patch": patch}
    return _review(response)


def unchecked(review: object) -> Object:
    """Return a response that admits an object, with a warning, since checking it has failed with a
    defect of ours. The operator checks it again.

    Raises:
        BadReview: there is no request to answer.
    """
    warning = "volcano-elastic could not check this object; the operator's log says why"
    return _review({"uid": _request(review)["uid"], "allowed": True, "warnings": [warning]})


def _review(response: Object) -> Object:
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}


def _request(review: object) -> Mapping[str, Any]:
    if not isinstance(review, Mapping) or review.get("kind") != "AdmissionReview":
        raise BadReview("expected an AdmissionReview object")
    if review.get("apiVersion") != API_VERSION:
        raise BadReview(f"apiVersion: expected {API_VERSION}, found {review.get('apiVersion')!r}")
    request = review.get("request")
    if not isinstance(request, Mapping) or not isinstance(request.get("uid"), str):
        raise BadReview("request: expected an object with a uid")
    return request


def _is(obj: object, resource: Resource) -> TypeGuard[Mapping[str, Any]]:
    return (
        isinstance(obj, Mapping)
        and isinstance(obj.get("metadata"), Mapping)
        and (obj.get("apiVersion"), obj.get("kind")) == (resource.api_version, resource.kind)
    )


def _same(obj: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    """True if nothing that is checked has changed, or the object is being deleted."""
    meta, before = obj["metadata"], old["metadata"]
    return bool(meta.get("deletionTimestamp")) or (
        obj.get("spec") == old.get("spec") and meta.get("annotations") == before.get("annotations")
    )


def _refusal(code: int, reason: str, message: str) -> Object:
    status = {"status": "Failure", "code": code, "reason": reason, "message": message}
    return {"allowed": False, "status": status}
