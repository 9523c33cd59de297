"""Refusals, as Kubernetes words them: the Status object with its exact reasons and causes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from embedded_cluster.apiserver.kind import Kind
from volcano_elastic.kube.resource import Object


@dataclass(frozen=True, slots=True)
class Cause:
    """One field that is wrong: where, which sort of wrong, and in words."""

    field: str
    reason: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"

    def body(self) -> Object:
        return {"reason": self.reason, "message": self.message, "field": self.field}


def invalid_value(field: str, value: Any, why: str) -> Cause:
    return Cause(field, "FieldValueInvalid", f"Invalid value: {shown(value)}: {why}")


def invalid_type(field: str, value: Any, why: str) -> Cause:
    return Cause(field, "FieldValueTypeInvalid", f"Invalid value: {shown(value)}: {why}")


def required(field: str, why: str = "") -> Cause:
    return Cause(field, "FieldValueRequired", "Required value" + (f": {why}" if why else ""))


def unsupported(field: str, value: Any, allowed: Sequence[Any]) -> Cause:
    choices = ", ".join(shown(choice) for choice in allowed)
    why = f"Unsupported value: {shown(value)}: supported values: {choices}"
    return Cause(field, "FieldValueNotSupported", why)


def forbidden_field(field: str, why: str) -> Cause:
    return Cause(field, "FieldValueForbidden", f"Forbidden: {why}")


def duplicate(field: str, value: Any) -> Cause:
    return Cause(field, "FieldValueDuplicate", f"Duplicate value: {shown(value)}")


def shown(value: Any) -> str:
    """The value as JSON, cut where it would drown the message."""
    text = orjson.dumps(value, default=str).decode()
    return text if len(text) <= 200 else text[:200] + "…"


class StatusError(Exception):
    """A request that is answered with a Status of failure."""

    def __init__(self, code: int, reason: str, message: str, details: Object | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details

    def body(self) -> Object:
        more = {} if self.details is None else {"details": self.details}
        said = {"message": self.message, "reason": self.reason, "code": self.code}
        return _status("Failure", **said, **more)


def no_such_resource() -> StatusError:
    return StatusError(404, "NotFound", "the server could not find the requested resource", {})


def not_served(subresource: str) -> StatusError:
    """Return NotFound for pods, of which clients know that there are more."""
    if subresource not in ("exec", "attach", "portforward"):
        return no_such_resource()
    why = (
        f"pods/{subresource} is not served here: containers are processes of this machine, "
        "listening on their pod's address (status.podIP)"
    )
    return StatusError(501, "NotImplemented", why, {})


def not_found(kind: Kind, name: str) -> StatusError:
    why = f'{kind.qualified} "{name}" not found'
    return StatusError(404, "NotFound", why, _details(kind, name))


def already_exists(kind: Kind, name: str) -> StatusError:
    why = f'{kind.qualified} "{name}" already exists'
    return StatusError(409, "AlreadyExists", why, _details(kind, name))


def conflict(kind: Kind, name: str, why: str, as_kind: str = "") -> StatusError:
    """`as_kind`: what the details name as the kind; else the resource."""
    words = f'Operation cannot be fulfilled on {kind.qualified} "{name}": {why}'
    return StatusError(
        409, "Conflict", words, {**_details(kind, name), **({"kind": as_kind} if as_kind else {})}
    )


def modified(kind: Kind, name: str) -> StatusError:
    why = "the object has been modified; apply your changes to the latest version and try again"
    return conflict(kind, name, why)


def invalid(kind: Kind, name: str, causes: Sequence[Cause]) -> StatusError:
    qualified = f"{kind.kind}.{kind.group}" if kind.group else kind.kind
    return _invalid(qualified, name, causes, group=kind.group, kind=kind.kind)


def _invalid(what: str, name: str, causes: Sequence[Cause], **about: str) -> StatusError:
    words = str(causes[0]) if len(causes) == 1 else f"[{', '.join(map(str, causes))}]"
    details: Object = {field: value for field, value in {"name": name, **about}.items() if value}
    details["causes"] = [cause.body() for cause in causes]
    return StatusError(422, "Invalid", f'{what} "{name}" is invalid: {words}', details)


def forbidden(kind: Kind, name: str, why: str, *causes: Cause) -> StatusError:
    details = _details(kind, name)
    if causes:
        details["causes"] = [cause.body() for cause in causes]
    return StatusError(403, "Forbidden", f'{kind.qualified} "{name}" is forbidden: {why}', details)


def bad_request(why: str) -> StatusError:
    return StatusError(400, "BadRequest", why)


def patch_refused(why: str) -> StatusError:
    """A patch whose outcome is no object of its kind."""
    return _invalid("", "", [invalid_value("patch", "the patched object", why)])


def options_invalid(options: str, *causes: Cause) -> StatusError:
    """Return the error for options beside the body (CreateOptions, ...) that cannot be had."""
    return _invalid(f"{options}.meta.k8s.io", "", causes, group="meta.k8s.io", kind=options)


def log_options_invalid(pod: str, causes: Sequence[Cause]) -> StatusError:
    return _invalid("PodLogOptions", pod, causes, kind="PodLogOptions")


def too_new(asked: int, found: int) -> StatusError:
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    why = f"Too large resource version: {asked}, current: {found}"
    return StatusError(504, "Timeout", why, {"causes": [cause], "retryAfterSeconds": 1})


def expired(why: str) -> StatusError:
    return StatusError(410, "Expired", why)


def unsupported_media_type(found: str, expected: str) -> StatusError:
    why = f"a body of type {found!r} is not read here; expected {expected}"
    return StatusError(415, "UnsupportedMediaType", why)


def success_of(code: int) -> Object:
    """Return the answer to a request that had no object to answer with."""
    return _status("Success", code=code)


def success(kind: Kind, name: str, uid: str) -> Object:
    return _status("Success", details={**_details(kind, name), "uid": uid})


def _status(status: str, **more: Any) -> Object:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": status, **more}


def _details(kind: Kind, name: str) -> Object:
    details: Object = {"name": name, "kind": kind.plural}
    return {**details, "group": kind.group} if kind.group else details
