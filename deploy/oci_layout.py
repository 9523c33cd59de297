"""Puts a packed Helm chart into an OCI image layout, as `helm push` would put it into a registry.

Tools that copy such archives to registries (skopeo, oras) take it without helm and a daemon.
Media types and manifest: https://helm.sh/docs/topics/registries, and the OCI image layout 1.0.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import yaml

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.cncf.helm.config.v1+json"
_CONTENT = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"


def layout(chart: bytes) -> dict[str, bytes]:
    """Return the files of a layout, by name, that holds a chart as `helm package` packs it."""
    metadata = _metadata(chart)
    blobs: dict[str, bytes] = {}

    def blob(kind: str, content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}

    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": blob(_CONFIG, _json(metadata)),
        "layers": [blob(_CONTENT, chart)],
        "annotations": {
            "org.opencontainers.image.title": metadata["name"],
            "org.opencontainers.image.version": metadata["version"],
            "org.opencontainers.image.description": metadata["description"],
        },
    }
    named = blob(MANIFEST, _json(manifest)) | {
        "annotations": {"org.opencontainers.image.ref.name": metadata["version"]}
    }
    index = {"schemaVersion": 2, "manifests": [named]}
    return {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json(index),
        **blobs,
    }


def write(chart: Path, moment: int) -> Path:
    """Write the layout of a packed chart beside it, as a tar that is the same each time.

    Args:
        moment: the time that its files have, in seconds since 1970.
    """
    made = chart.with_suffix(".oci.tar")
    with tarfile.open(made, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in sorted(layout(chart.read_bytes()).items()):
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(content), moment, 0o644
            archive.addfile(member, io.BytesIO(content))
    return made


def _metadata(chart: bytes) -> dict[str, Any]:
    with tarfile.open(fileobj=io.BytesIO(chart)) as archive:
        name = next(one for one in archive.getnames() if one.count("/") == 1 and "Chart.y" in one)
        found: dict[str, Any] = yaml.safe_load(archive.extractfile(name) or b"")
        return found


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
