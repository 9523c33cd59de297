"""Reads an object of any adapter's kind as a job with a size between a minimum and a maximum."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from volcano_elastic.adapters import annotation, kueue
from volcano_elastic.adapters.adapter import PART, Adapter, Path
from volcano_elastic.api import moment
from volcano_elastic.api.pytorchjob import QUEUE_ANNOTATION

Object = dict[str, Any]
MOST = 100_000
"""Sizes beyond are taken for mistakes."""
SCHEDULERS = frozenset({"", "default-scheduler", "volcano"})
_OVER = frozenset({"Complete", "Completed", "Failed", "FailureTarget", "SuccessCriteriaMet"})


class InvalidOtherJob(ValueError):
    """A job that asks to be sized and can't be; says what was expected and found."""


@dataclass(frozen=True, slots=True)
class OtherJob:
    """A job that is neither finished nor suspended nor being deleted, and asks to be sized."""

    adapter: Adapter
    key: str
    """namespace/kind/name: other kinds may have jobs of the same name."""
    uid: str
    generation: int
    created: datetime
    queue: str
    part: str
    """The element that is sized, of kinds with parts."""
    min: int
    max: int
    size: int
    follows: bool
    """Its completions are what its size is."""
    succeeded: int
    """Pods that have succeeded, hold nothing, and count in the size."""
    template: Object | None
    """Its pods' template; None where the object has none."""
    local_queue: str | None
    """Key of the LocalQueue by which Kueue admits it; None: Kueue leaves it alone."""
    last_scale: datetime | None
    last_reason: str | None
    obj: Object
    """The object as it was read."""


def key_of(adapter: Adapter, namespace: str, name: str) -> str:
    """The planner's key of a job of this kind."""
    return f"{namespace}/{adapter.kind.lower()}/{name}"


def read(adapter: Adapter, obj: Object) -> OtherJob | None:
    """Return the job; None if it doesn't ask to be sized, or wants no pods.

    Raises:
        InvalidOtherJob: it asks to be sized, and can't be.
    """
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    notes = meta.get("annotations") or {}
    if annotation.MAX not in notes and annotation.MIN not in notes:
        return None
    if meta.get("deletionTimestamp") or spec.get("suspend") or _is_over(status):
        return None
    local_queue = (meta.get("labels") or {}).get(kueue.QUEUE_LABEL)
    if local_queue is not None:
        _check_kueue(adapter, meta)
    most = _count(notes, annotation.MAX)
    least = _count(notes, annotation.MIN) if annotation.MIN in notes else 1
    if most is None:
        raise InvalidOtherJob(f"annotation {annotation.MAX}: expected beside {annotation.MIN}")
    assert least is not None
    if least > most:
        raise InvalidOtherJob(
            f"annotation {annotation.MIN}: expected at most {annotation.MAX}, {most}; found {least}"
        )
    part = _part(adapter, obj, notes)
    template = _at(obj, adapter.template, part) if adapter.template else None
    scheduler = ((template or {}).get("spec") or {}).get("schedulerName") or ""
    if scheduler not in SCHEDULERS:
        raise InvalidOtherJob(
            f"schedulerName: expected volcano or default-scheduler, found {scheduler}; where "
            "others place pods can't be foreseen"
        )
    size = _size(adapter, obj, part)
    follows, left = _completions(adapter, obj, part, size, notes)
    if left is not None and left < 1:
        return None  # what runs is all that is left to do
    done = _integer(_at(obj, adapter.succeeded, part)) or 0
    queues = (((template or {}).get("metadata") or {}).get("annotations") or {}, notes)
    named = next((q[QUEUE_ANNOTATION] for q in queues if q.get(QUEUE_ANNOTATION)), None)
    if left is not None:
        least, most, size = min(least, left), min(most, left), min(size, left)
    namespace = meta.get("namespace", "default")
    if local_queue is not None:
        local_queue = f"{namespace}/{local_queue}"
    return OtherJob(
        adapter=adapter,
        key=key_of(adapter, namespace, meta["name"]),
        uid=meta.get("uid", ""),
        generation=int(meta.get("generation") or 0),
        created=moment.parse(meta["creationTimestamp"]),
        queue=str(named or (meta.get("labels") or {}).get(QUEUE_ANNOTATION) or "default"),
        part=part,
        min=least,
        max=most,
        size=size,
        follows=follows,
        succeeded=done if follows else 0,
        template=template,
        local_queue=local_queue,
        last_scale=moment.parse_optional(notes.get(annotation.LAST_SCALE_TIME)),
        last_reason=notes.get(annotation.LAST_SCALE_REASON),
        obj=obj,
    )


def _check_kueue(adapter: Adapter, meta: Object) -> None:
    if adapter.kind != "Job":
        raise InvalidOtherJob(
            f"label {kueue.QUEUE_LABEL}: expected none on a {adapter.kind}, since Kueue evicts one "
            "that changes its size; found one: the job stays as it is"
        )
    if not kueue.may_change(meta):
        raise InvalidOtherJob(
            f'annotation {kueue.ELASTIC}: expected "true" beside label {kueue.QUEUE_LABEL}, since '
            "Kueue evicts other jobs that change their size: the job stays as it is"
        )


def _is_over(status: Object) -> bool:
    conditions = status.get("conditions") or ()
    return any(c.get("type") in _OVER and c.get("status") == "True" for c in conditions)


def _count(notes: Object, name: str) -> int | None:
    text = notes.get(name)
    if text is None:
        return None
    if str(text).isdecimal() and 0 < int(text) <= MOST:
        return int(text)
    raise InvalidOtherJob(f"annotation {name}: expected a number from 1 to {MOST}, found {text!r}")


def _part(adapter: Adapter, obj: Object, notes: Object) -> str:
    if not adapter.parts:
        return adapter.part
    listed = list(_at(obj, adapter.parts, "") or ())
    names = [str(part.get("name")) for part in listed]
    wanted = notes.get(annotation.PART)
    if wanted is None and len(names) != 1:
        found = ", ".join(names) or "none"
        raise InvalidOtherJob(
            f"annotation {annotation.PART}: expected the name of one of {found}; found none"
        )
    if wanted is not None and wanted not in names:
        raise InvalidOtherJob(
            f"annotation {annotation.PART}: expected one of {', '.join(names)}, found {wanted!r}"
        )
    part = listed[names.index(wanted) if wanted is not None else 0]
    copies = part.get(adapter.copies, 1) if adapter.copies else 1
    if copies != 1:
        raise InvalidOtherJob(
            f"{adapter.copies} of {part.get('name')}: expected 1, since the pods of one are the "
            f"size; found {copies}"
        )
    return str(part.get("name"))


def _size(adapter: Adapter, obj: Object, part: str) -> int:
    raw = _at(obj, adapter.size, part)
    size = adapter.default_size if raw is None else _integer(raw)
    if size is None:
        path = ".".join(adapter.size).replace(PART, part)
        raise InvalidOtherJob(f"{path}: expected a number, found {raw!r}")
    return size


def _completions(
    adapter: Adapter, obj: Object, part: str, size: int, notes: Object
) -> tuple[bool, int | None]:
    """Return whether completions follow the size, and how many pods may still run; None: any."""
    if not adapter.completions:
        return False, None
    mode = _at(obj, (*adapter.completions[:-1], "completionMode"), part)
    wanted = _integer(_at(obj, adapter.completions, part))
    done = _integer(_at(obj, adapter.succeeded, part)) or 0
    asked = notes.get(annotation.COMPLETIONS)
    if asked not in (None, "Follow", "Fixed"):
        raise InvalidOtherJob(
            f"annotation {annotation.COMPLETIONS}: expected Follow or Fixed, found {asked!r}"
        )
    equal = mode == "Indexed" and wanted == size
    if asked == "Follow" and not equal:
        raise InvalidOtherJob(
            f"annotation {annotation.COMPLETIONS}: Follow expects completionMode Indexed and as "
            f"many completions as parallelism, found {mode or 'NonIndexed'}, {wanted} and {size}"
        )
    if equal and asked != "Fixed":
        return True, None
    if wanted is None:
        # Pods share a queue of work: once one found it empty, no more are made.
        return False, 0 if done else None
    return False, wanted - done


def _at(obj: Any, path: Path, part: str) -> Any:
    """Return what is there; None if nothing is."""
    found = obj
    for field in path:
        if found is None:
            return None
        if field == PART:
            found = next((item for item in found if item.get("name") == part), None)
        else:
            found = found.get(field)
    return found if path else None


def _integer(raw: Any) -> int | None:
    return raw if isinstance(raw, int) and not isinstance(raw, bool) else None
