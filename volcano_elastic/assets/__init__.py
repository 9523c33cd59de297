"""Files that clusters are given.

They lie at the root of a checkout, where the links beside this module lead; a wheel holds the files
themselves, so that nobody needs a checkout.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

_FOLDER = Path(__file__).parent
CRDS = _FOLDER / "crds"
"""Custom resource definitions, a file each."""
EXAMPLES = _FOLDER / "examples"
"""The demo's training script, and a PyTorchJob of it."""
SCHEDULER_CONFIGURATIONS = {
    "capacity": _FOLDER / "manifests" / "volcano-scheduler.conf",
    "proportion": _FOLDER / "manifests" / "volcano-scheduler-proportion.conf",
}
"""Configurations of Volcano's scheduler, by the plugin that divides among queues."""

OPERATOR_RIGHTS = _FOLDER / "manifests" / "base" / "rbac.yaml"
"""The roles that the operator needs."""

PYTORCHJOBS = "kubeflow.org_pytorchjobs.yaml"
QUEUEPOLICIES = "policy.volcano-elastic.io_queuepolicies.yaml"
SCALEPLANS = "policy.volcano-elastic.io_scaleplans.yaml"
OURS = (PYTORCHJOBS, QUEUEPOLICIES, SCALEPLANS)
"""The CRDs that the operator brings; the others are Volcano's, for the embedded cluster."""

# libyaml's takes a tenth of the time, where PyYAML was built with it.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@functools.cache
def schema(crd: str, part: str) -> Mapping[str, Any]:
    """Return the OpenAPI schema that a CRD of `OURS` has for `part` of its objects, spec or status:
    what validation goes by, too."""
    (version,) = yaml.load((CRDS / crd).read_text(), _LOADER)["spec"]["versions"]
    found: Mapping[str, Any] = version["schema"]["openAPIV3Schema"]["properties"][part]
    return found
