"""The init container in which pods of a job with a leader wait for the leader's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from volcano_elastic.api.pytorchjob import PyTorchJob
from volcano_elastic.api.role import Role
from volcano_elastic.pytorchjob.label import replica_name
from volcano_elastic.pytorchjob.settings import Settings

NAME = "init-pytorch"
_HOST = "MASTER_ADDR"
_RESOURCES = {"cpu": "100m", "memory": "20Mi"}
# getent speaks for glibc, nslookup for busybox; `ahosts` takes an address too, `hosts` is older.
_WAIT = """\
tries=0
until {
  getent ahosts "$MASTER_ADDR" || getent hosts "$MASTER_ADDR" || nslookup "$MASTER_ADDR"
} >/dev/null 2>&1
do
  tries=$((tries + 1))
  if [ "$tries" -ge %d ]; then
    echo "$MASTER_ADDR has no address after $tries tries, 2 s apart: is the %s's pod ready?" >&2
    exit 1
  fi
  sleep 2
done
"""


def init_container(
    job: PyTorchJob, leader: Role, container: Mapping[str, Any], settings: Settings
) -> dict[str, Any]:
    """Return the init container for a pod of the job; `container` is the one that trains."""
    made: dict[str, Any] = {
        "name": NAME,
        "image": settings.init_container_image or container["image"],
        "command": ["sh", "-c", _WAIT % (settings.init_container_max_tries, leader.name)],
        "env": [{"name": _HOST, "value": replica_name(job.name, leader, 0)}],
        # As training-operator's limits, but asked for too: a Guaranteed pod stays one.
        "resources": {"limits": _RESOURCES, "requests": _RESOURCES},
        # What namespaces that enforce the restricted Pod Security Standard ask of a container.
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    if settings.init_container_image is None and container.get("imagePullPolicy"):
        made["imagePullPolicy"] = container["imagePullPolicy"]
    return made
