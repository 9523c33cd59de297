"""A kind that the server serves, built in or from a CRD."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from volcano_elastic.kube.resource import Object

# Where objects of a kind are kept, whatever version they are asked for in: group and plural.
ResourceKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a Table, as of a CRD's additionalPrinterColumns.

    `cell` is a JSON path, or for built-in kinds makes it of an object and now; `empty` is shown
    where the path leads to nothing.
    """

    name: str
    type: str
    cell: str | Callable[[Object, datetime], Any]
    format: str = ""
    description: str = ""
    priority: int = 0
    empty: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """One version of one kind.

    `subresources` are those beside status and scale. `generation` says whether the kind counts
    changes of its spec. `scale`: the CRD's paths of that subresource. `storage_version` is the one
    its objects are kept in.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    singular: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    status: bool = False
    scale: Object | None = None
    subresources: tuple[str, ...] = ()
    generation: bool = False
    custom: bool = False
    schema: Object | None = None
    columns: tuple[Column, ...] | None = None
    storage_version: str = ""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def storage_api_version(self) -> str:
        version = self.storage_version or self.version
        return f"{self.group}/{version}" if self.group else version

    @property
    def conditional(self) -> bool:
        """True if a PUT must say which resourceVersion it replaces."""
        return self.custom or self.key == ("coordination.k8s.io", "leases")

    @property
    def put_creates(self) -> bool:
        """True if a PUT of an object that isn't there creates it."""
        return self.key in (("", "events"), ("", "services"), ("coordination.k8s.io", "leases"))

    @property
    def key(self) -> ResourceKey:
        return self.group, self.plural

    @property
    def qualified(self) -> str:
        """`plural.group`, as messages name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def has(self, subresource: str) -> bool:
        if subresource == "status":
            return self.status
        if subresource == "scale":
            return self.scale is not None
        return subresource in self.subresources
