"""Files that clusters are given.

They lie at the root of a checkout, where the links beside this module lead; a wheel holds the files
themselves, so that nobody needs a checkout.
"""

from __future__ import annotations

from pathlib import Path

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

OURS = (
    "kubeflow.org_pytorchjobs.yaml",
    "policy.volcano-elastic.io_queuepolicies.yaml",
    "policy.volcano-elastic.io_scaleplans.yaml",
)
"""The CRDs that the operator brings; the others are Volcano's, for the embedded cluster."""
