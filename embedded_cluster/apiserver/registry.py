"""Lists the kinds that are served now."""

from __future__ import annotations

from collections.abc import Iterator

from embedded_cluster.apiserver.builtin import BUILTIN
from embedded_cluster.apiserver.custom_resource import kinds_of
from embedded_cluster.apiserver.kind import Kind, ResourceKey
from volcano_elastic.kube.resource import Object


class Registry:
    """Built-in kinds, and those of the CRDs in the store. `version` grows with each change."""

    def __init__(self) -> None:
        self.version = 0
        self._kinds: dict[tuple[str, str, str], Kind] = {
            (kind.group, kind.version, kind.plural): kind for kind in BUILTIN
        }

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._kinds.values())

    def get(self, group: str, version: str, plural: str) -> Kind | None:
        return self._kinds.get((group, version, plural))

    def serves_built_in(self, group: str, version: str) -> bool:
        return any(
            key[:2] == (group, version) and not kind.custom for key, kind in self._kinds.items()
        )

    def of_resource(self, resource: ResourceKey) -> Kind | None:
        """Any served version of a resource; the storage version if that is served."""
        kinds = [kind for kind in self if kind.key == resource]
        stored = [kind for kind in kinds if kind.api_version == kind.storage_api_version]
        return next(iter([*stored, *kinds]), None)

    def serve(self, crd: Object) -> list[Kind]:
        """Serve what the CRD says, instead of what an earlier form of it said."""
        self.remove(crd)
        kinds = kinds_of(crd)
        for kind in kinds:
            self._kinds[(kind.group, kind.version, kind.plural)] = kind
        return kinds

    def remove(self, crd: Object) -> None:
        self.version += 1
        group, plural = crd["spec"]["group"], crd["spec"]["names"]["plural"]
        for key in [key for key in self._kinds if key[0] == group and key[2] == plural]:
            if self._kinds[key].custom:
                del self._kinds[key]
