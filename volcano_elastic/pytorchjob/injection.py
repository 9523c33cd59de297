"""Puts the trainer into pods whose image does not have it: an init container copies it into a
volume, and Python finds it there.

What the image suits is known only in it. So the pods also carry what torchrun would be told without
the trainer, and whoever starts there goes by that where the image doesn't suit
(`elastic_trainer.inject.start`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from volcano_elastic.api.pytorchjob import CONTAINER, INJECT_ANNOTATION, TORCHRUN, PyTorchJob
from volcano_elastic.pytorchjob.settings import Settings

NAME = "inject-trainer"
FOLDER = "/volcano-elastic"
"""Where the trainer lies in the pods."""
INSTEAD = "VOLCANO_ELASTIC_INSTEAD"
_VOLUME = "volcano-elastic-trainer"
_PATH = "PYTHONPATH"
_RESOURCES = {"cpu": "100m", "memory": "128Mi"}

Object = dict[str, Any]


def inject(spec: Object, job: PyTorchJob, settings: Settings) -> None:
    """Add the trainer to a pod's spec, for the container that trains."""
    named = job.annotations.get(INJECT_ANNOTATION, "")
    image = settings.trainer_image if named == "true" else named
    mount = {"name": _VOLUME, "mountPath": FOLDER}
    copies: Object = {
        "name": NAME,
        "image": image,
        "command": ["cp", "-r", f"{settings.trainer_folder}/.", FOLDER],
        "volumeMounts": [mount],
        "resources": {"limits": _RESOURCES, "requests": _RESOURCES},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    spec["initContainers"] = [*(spec.get("initContainers") or ()), copies]
    spec["volumes"] = [*(spec.get("volumes") or ()), {"name": _VOLUME, "emptyDir": {}}]
    spec["containers"] = [
        _with_path(c, mount) if c["name"] == CONTAINER else c for c in spec["containers"]
    ]


def _with_path(container: Mapping[str, Any], mount: Mapping[str, Any]) -> Object:
    env = list(container.get("env") or ())
    own = any(variable["name"] == _PATH for variable in env)
    # A variable of the same name refers to the one before it.
    value = f"{FOLDER}/start:$({_PATH})" if own else f"{FOLDER}/start"
    return {
        **container,
        "env": [*env, {"name": _PATH, "value": value}],
        "volumeMounts": [*(container.get("volumeMounts") or ()), {**mount, "readOnly": True}],
    }


def without(job: PyTorchJob) -> PyTorchJob:
    """Return the job as it was before the trainer was asked for: torchrun meets by itself."""
    assert job.elastic is not None
    plain = replace(job.elastic, rdzv_backend=TORCHRUN, injected=False)
    return replace(job, elastic=plain)


def difference(with_trainer: Mapping[str, str], plain: Mapping[str, str]) -> str:
    """Return the text of `INSTEAD`: variables without the trainer, where they differ."""
    names = sorted({*with_trainer, *plain})
    changed = {n: plain.get(n) for n in names if plain.get(n) != with_trainer.get(n)}
    return json.dumps(changed, separators=(",", ":"))
