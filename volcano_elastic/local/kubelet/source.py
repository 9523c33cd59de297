"""ConfigMaps and Secrets, as containers and volumes refer to them; what else may be wrong there."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from volcano_elastic.kube.resource import Object

Sources = Mapping[tuple[str, str], Object]
"""Those that exist, by kind and name."""


class ConfigError(Exception):
    """The container can't be made as things are; becomes CreateContainerConfigError."""


class StartError(Exception):
    """The command can't be run, which counts as its end; the message says which and why."""


def content(
    kind: str, reference: Object, sources: Sources, *, binary: bool = False
) -> dict[str, bytes] | None:
    """By key; None if there is none and it is optional.

    Args:
        reference: has `name` and perhaps `optional`.
        binary: a ConfigMap's binaryData too, which only files can hold.

    Raises:
        ConfigError: there is none.
    """
    name = str(reference.get("name", ""))
    source = sources.get((kind, name))
    if source is None:
        if reference.get("optional"):
            return None
        raise ConfigError(f"{kind} {name!r} not found")
    text, encoded = source.get("data") or {}, source.get("binaryData") or {} if binary else {}
    if kind == "Secret":
        text, encoded = {}, text
    found = {key: str(value).encode() for key, value in text.items()}
    return found | {key: base64.b64decode(value) for key, value in encoded.items()}
