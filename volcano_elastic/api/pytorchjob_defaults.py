"""The defaults of a PyTorchJob.

Those that follow from no other field are filled in by `defaulted`, in the same words at admission
(where they are stored) and before every reading of a job. Those that do follow from other fields
are worked out anew at each reading and never stored: a stored copy would outlive the edit of what
it was copied from. These are the ends of the range, the scaler, nprocPerNode and the port. The
port has a second reason: it lives in a list, and tools that compare lists with a manifest would
see a difference for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from volcano_elastic import assets
from volcano_elastic.api import role
from volcano_elastic.api.shape import defaults

_SPEC = assets.schema(assets.PYTORCHJOBS, "spec")["properties"]
# The CRD leaves cleanPodPolicy open, as Kubeflow's does.
_RUN_POLICY = {"cleanPodPolicy": "None"} | defaults(_SPEC["runPolicy"])
_ELASTIC_POLICY = defaults(_SPEC["elasticPolicy"])


def defaulted(obj: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job with its defaults; shares what it does not change with `obj`. A value that is
    no object where one belongs is left for validation to name."""
    spec = obj.get("spec")
    if not isinstance(spec, Mapping):
        return dict(obj)
    new = dict(spec)
    new["runPolicy"] = _filled(
        {} if spec.get("runPolicy") is None else spec["runPolicy"], _RUN_POLICY
    )
    if spec.get("elasticPolicy") is not None:
        new["elasticPolicy"] = _filled(spec["elasticPolicy"], _ELASTIC_POLICY)
    replicas = spec.get("pytorchReplicaSpecs")
    if isinstance(replicas, Mapping):
        new["pytorchReplicaSpecs"] = {
            name: _filled(replica, _of_role(role.named(name))) for name, replica in replicas.items()
        }
    return dict(obj) | {"spec": new}


def _of_role(found: role.Role | None) -> dict[str, Any]:
    if found is None:
        return {}
    replicas = {} if found.default_replicas is None else {"replicas": found.default_replicas}
    return {"restartPolicy": found.default_restart_policy} | replicas


def bounds(elastic: Mapping[str, Any], replicas: int) -> tuple[int, int]:
    """Return least and most size. A missing end copies the other one, both missing copy
    `replicas`."""
    low, high = end(elastic, "min"), end(elastic, "max")
    if low is None:
        low = replicas if high is None else high
    return low, low if high is None else high


def end(elastic: Mapping[str, Any], short: str) -> int | None:
    """`min` or `max` under either of its names; None where neither is given."""
    found = elastic.get(short)
    return elastic.get(f"{short}Replicas") if found is None else found


def scaler(elastic: Mapping[str, Any]) -> str:
    return elastic.get("scaler") or ("hpa" if elastic.get("metrics") else "volcano")


def _filled(raw: Any, defaults: Mapping[str, Any]) -> Any:
    if not isinstance(raw, Mapping):
        return raw
    # Kubeflow takes an empty word for none.
    absent = {name: value for name, value in defaults.items() if raw.get(name) in (None, "")}
    return dict(raw) | absent
