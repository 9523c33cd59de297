"""Says in CycloneDX what an image holds of others' packages, from the file that pins them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from packaging.markers import Marker
from packaging.utils import canonicalize_name

_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)\s*(?:;\s*([^\\]+?))?\s*\\?$")
_THERE = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "python_full_version": "3.11.0",
    "python_version": "3.11",
    "sys_platform": "linux",
}
"""The images' own Python and system, by which markers are judged."""


def pinned(requirements: str) -> Iterator[tuple[str, str]]:
    """Yield name and version of each package that an image gets.

    Raises:
        ValueError: a line pins nothing.
    """
    for line in requirements.splitlines():
        if not line.strip() or line.lstrip().startswith(("#", "--hash")):
            continue
        found = _PINNED.match(line)
        if found is None:
            raise ValueError(f"expected NAME==VERSION, found {line!r}")
        name, version, marker = found.groups()
        if marker is None or Marker(marker).evaluate(_THERE):
            yield canonicalize_name(name), version


def bill(name: str, version: str, requirements: str, moment: int) -> str:
    """Return the bill of materials of a distribution of ours as CycloneDX 1.6 in JSON.

    Args:
        requirements: the file that pins what is installed beside it.
        moment: seconds of the epoch that are told as its time.
    """
    ours = f"pkg:pypi/{name}@{version}"
    parts = [_component(*one) for one in sorted(set(pinned(requirements)))]
    made = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(moment, UTC).isoformat(),
            "component": {**_component(name, version), "type": "application"},
        },
        "components": parts,
        "dependencies": [{"ref": ours, "dependsOn": [part["bom-ref"] for part in parts]}],
    }
    return json.dumps(made, indent=2) + "\n"


def _component(name: str, version: str) -> dict[str, Any]:
    url = f"pkg:pypi/{name}@{version}"
    return {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}
