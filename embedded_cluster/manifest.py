"""YAML files of objects, read and sent to an API server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from volcano_elastic.kube.client import AlreadyExists, ApiError, Client
from volcano_elastic.kube.resource import Object, Resource


class _Loader(yaml.SafeLoader):
    """Reads YAML as kubectl does: a time is text, with or without quotes."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, shape) for tag, shape in found if tag != "tag:yaml.org,2002:timestamp"]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class ManifestError(Exception):
    """A file can't be used, or an object in it was refused; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object and where it was written."""

    file: Path
    number: int
    obj: Object

    def __str__(self) -> str:
        return f"{self.file}, document {self.number} ({self.obj['kind']} {self.name})"

    @property
    def name(self) -> str:
        return str(self.obj["metadata"]["name"])


def read(files: list[Path]) -> list[Manifest]:
    """Every object of every file, in order.

    Raises:
        ManifestError: a file is unreadable, isn't YAML, or holds something other than objects.
    """
    found = []
    for file in files:
        try:
            documents = list(yaml.load_all(file.read_text(), Loader=_Loader))
        except OSError as error:
            raise ManifestError(f"{file}: {error.strerror}") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ManifestError(f"{file} is not YAML: {error}") from error
        for number, document in enumerate(documents, start=1):
            for obj in _objects(document):
                _check(obj, f"{file}, document {number}")
                found.append(Manifest(file, number, obj))
    return found


def _objects(document: object) -> list[Any]:
    """Those of a list, as `kubectl get -o yaml` writes several; none of an empty document."""
    if isinstance(document, dict) and document.get("kind") == "List":
        items = document.get("items")
        return items if isinstance(items, list) else [items]
    return [] if document is None else [document]


def _check(document: object, where: str) -> None:
    if not isinstance(document, dict):
        raise ManifestError(
            f"{where}: expected an object with apiVersion, kind and metadata, "
            f"found {type(document).__name__} {str(document)[:60]!r}"
        )
    for field in ("apiVersion", "kind"):
        if not isinstance(document.get(field), str):
            raise ManifestError(
                f"{where}: {field}: expected a string, found {document.get(field)!r}"
            )
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name:
        raise ManifestError(f"{where}: metadata.name: expected a string, found {name!r}")


async def apply(client: Client, manifests: list[Manifest]) -> None:
    """Creates each object, or merges it into the one that exists.

    Raises:
        ManifestError: its kind is unknown, or the API server refused it.
    """
    kinds: dict[str, dict[str, Resource]] = {}
    for manifest in manifests:
        obj = manifest.obj
        version = obj["apiVersion"]
        if version not in kinds:
            kinds[version] = await _kinds(client, version)
        resource = kinds[version].get(obj["kind"])
        if resource is None:
            raise ManifestError(f"{manifest}: the API server serves no {obj['kind']} in {version}")
        if resource.namespaced:
            obj["metadata"].setdefault("namespace", client.access.namespace)
        try:
            try:
                await client.create(resource, obj)
            except AlreadyExists:
                namespace = obj["metadata"].get("namespace")
                await client.patch(resource, manifest.name, namespace, obj)
        except ApiError as error:
            raise ManifestError(f"{manifest} was refused: {error.message}") from error


async def _kinds(client: Client, version: str) -> dict[str, Resource]:
    group, _, short = version.rpartition("/")
    path = f"/apis/{version}" if group else f"/api/{version}"
    try:
        answer = await client.request("GET", path)
    except ApiError as error:
        if error.code == 404:
            return {}
        raise
    return {
        entry["kind"]: Resource(group, short, entry["name"], entry["kind"], entry["namespaced"])
        for entry in answer["resources"]
        if "/" not in entry["name"]
    }
