"""The kubeconfig of a cluster on this machine."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import yaml

from embedded_cluster.component import ClusterError

_CLUSTER_NAME = "volcano-elastic-local"


def write(path: Path, server: str, token: str) -> None:
    """Access to `server`, readable by us only.

    Raises:
        ClusterError: it can't be written.
    """
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        # client-go sends a token only over TLS, so kubectl needs it in the URL.
        "clusters": [{"name": _CLUSTER_NAME, "cluster": {"server": f"{server}/token/{token}"}}],
        "users": [{"name": _CLUSTER_NAME, "user": {"token": token}}],
        "contexts": [
            {
                "name": _CLUSTER_NAME,
                "context": {
                    "cluster": _CLUSTER_NAME,
                    "user": _CLUSTER_NAME,
                    "namespace": "default",
                },
            }
        ],
        "current-context": _CLUSTER_NAME,
    }
    write_private(path, yaml.safe_dump(config))


def write_private(path: Path, text: str) -> None:
    """For our eyes only from its first byte on.

    Raises:
        ClusterError: it can't be written.
    """
    try:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
    except OSError as error:
        raise ClusterError(f"{path} can't be written: {error.strerror}") from error


def refuse_foreign(path: Path) -> None:
    """Raises ClusterError if `path` is a kubeconfig that someone else may need."""
    try:
        existing = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        return
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ClusterError(f"--kubeconfig {path}: it exists and can't be read: {error}") from error
    if existing and (
        not isinstance(existing, dict)
        or existing.get("current-context") != _CLUSTER_NAME
        or len(existing.get("clusters") or []) != 1
    ):
        raise ClusterError(
            f"--kubeconfig {path}: it exists and is another cluster's; give a new file's name"
        )
