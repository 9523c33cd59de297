"""ConfigMaps and Secrets, as containers and volumes refer to them; what else may be wrong there."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from volcano_elastic.kube.resource import Object

Sources = Mapping[tuple[str, str], Object]
"""Those that exist, by kind and name."""


class ConfigError(Exception):
    """The container can't be made as things are; becomes CreateContainerConfigError."""


class StartError(Exception):
    """The command can't be run, which counts as its end; the message says which and why."""


_KINDS = {
    **{"configMapRef": "ConfigMap", "configMapKeyRef": "ConfigMap", "configMap": "ConfigMap"},
    **{"secretRef": "Secret", "secretKeyRef": "Secret", "secret": "Secret"},
}


@dataclass(frozen=True, slots=True)
class Reference:
    """From an entry of `envFrom`, a `valueFrom` or a volume."""

    kind: str
    name: str
    fields: Object

    @classmethod
    def of(cls, entry: Object) -> Reference | None:
        """None if it takes nothing from elsewhere."""
        for field in _KINDS.keys() & entry.keys():
            fields = entry[field]
            # A volume's secret has a word of its own for it.
            name = fields.get("secretName", fields.get("name", ""))
            return cls(_KINDS[field], str(name), fields)
        return None

    @property
    def optional(self) -> bool:
        return bool(self.fields.get("optional"))

    def content(self, sources: Sources, *, binary: bool = False) -> dict[str, bytes]:
        """By key; empty if there is none and it is optional.

        Args:
            binary: a ConfigMap's binaryData too, which only files can hold.

        Raises:
            ConfigError: there is none.
        """
        source = sources.get((self.kind, self.name))
        if source is None:
            if self.optional:
                return {}
            raise ConfigError(f"{self.kind} {self.name!r} not found")
        text, encoded = source.get("data") or {}, source.get("binaryData") or {} if binary else {}
        if self.kind == "Secret":
            text, encoded = {}, text
        found = {key: str(value).encode() for key, value in text.items()}
        return found | {key: base64.b64decode(value) for key, value in encoded.items()}

    def lacks(self, key: str) -> str:
        return f"{self.kind} {self.name!r} has no key {key!r}"


def references(entries: Iterable[Object]) -> set[tuple[str, str]]:
    """The (kind, name) of every ConfigMap and Secret that one of them takes something from."""
    return {(found.kind, found.name) for entry in entries if (found := Reference.of(entry))}
