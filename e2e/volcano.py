"""The real Volcano in place of our scheduler, where VOLCANO_BIN names a folder that holds it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from embedded_cluster.conformance.control_plane import ROOT, ControlPlane, ControlPlaneError
from volcano_elastic.kube.client import AlreadyExists, Client
from volcano_elastic.kube.resource import CRDS, Resource

# Kinds that its informers list before it schedules anything; releases after 1.15 wait a minute for
# those that aren't served.
_ITS_OWN = (
    (Resource("bus.volcano.sh", "v1alpha1", "commands", "Command"), "Namespaced"),
    (Resource("nodeinfo.volcano.sh", "v1alpha1", "numatopologies", "Numatopology"), "Cluster"),
    (Resource("topology.volcano.sh", "v1alpha1", "hypernodes", "HyperNode"), "Cluster"),
)
_CONFIGURATION = ROOT / "manifests" / "volcano-scheduler.conf"


def folder() -> Path | None:
    """$VOLCANO_BIN, if set.

    Raises:
        ControlPlaneError: it lacks one of Volcano's programs.
    """
    named = os.environ.get("VOLCANO_BIN")
    if not named:
        return None
    for program in ("vc-scheduler", "vc-controller-manager"):
        if not os.access(Path(named) / program, os.X_OK):
            raise ControlPlaneError(
                f"VOLCANO_BIN={named}: expected the program {program} in it, found none; "
                "build Volcano, or unset VOLCANO_BIN to use our own scheduler"
            )
    return Path(named)


async def serve_its_kinds(client: Client) -> None:
    """Have the API server serve the kinds that Volcano needs and nobody here writes, where it is
    used."""
    for kind, scope in _ITS_OWN if folder() else ():
        group, version = kind.group, kind.version
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        served = {"name": version, "served": True, "storage": True}
        body = {
            "metadata": {"name": f"{kind.plural}.{group}"},
            "spec": {
                "group": group,
                "scope": scope,
                "names": {"plural": kind.plural, "kind": kind.kind},
                "versions": [served | {"schema": {"openAPIV3Schema": schema}}],
            },
        }
        with suppress(AlreadyExists):
            await client.create(CRDS, body)


def commands(
    plane: ControlPlane, configuration: Path = _CONFIGURATION, *options: str
) -> Mapping[str, Sequence[str]]:
    """Return what to run, by the name under which LocalCluster knows the scheduler.

    Args:
        options: for the scheduler, beside what is needed.
    """
    programs = folder()
    if programs is None:
        return {}
    if plane.name == "embedded":
        # It serves the kinds that this project needs; Volcano watches many more.
        raise ControlPlaneError(
            "VOLCANO_BIN: the real Volcano needs a real API server: "
            "give --control-plane real, or unset VOLCANO_BIN"
        )
    access = ("--kubeconfig", str(plane.kubeconfig), "--leader-elect=false")
    return {
        "scheduler": [
            *(str(programs / "vc-scheduler"), *access),
            *("--scheduler-conf", str(configuration), "--disable-default-scheduler-config"),
            *("--cache-dumper=false", *options),
        ],
        "vc-controller-manager": [
            *(str(programs / "vc-controller-manager"), *access),
            *("--controllers", "+queue-controller,+pg-controller"),
        ],
    }
