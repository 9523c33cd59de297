"""Checks that the fields of a kubeconfig file hold what the official client takes for granted."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from pathlib import Path

import yaml

from volcano_elastic.api.shape import Fields, Flag, Items, Shape, Text

_TEXT, _DATA = Text(), "-data"


def _texts(*names: str) -> dict[str, Shape]:
    return dict.fromkeys(names, _TEXT)


_EXEC = Fields(
    {
        **_texts("apiVersion", "command", "interactiveMode", "installHint"),
        "args": Items(_TEXT),
        "env": Items(Fields(_texts("name", "value"), required=("name", "value"))),
        "provideClusterInfo": Flag(),
    },
    required=("apiVersion", "command"),
)
_USER = Fields(
    {
        **_texts("token", "tokenFile", "username", "password"),
        **_texts("client-certificate", "client-certificate-data", "client-key", "client-key-data"),
        "exec": _EXEC,
        "auth-provider": Fields({"name": _TEXT, "config": Fields({})}, required=("name",)),
    }
)
_CLUSTER = Fields(
    {
        **_texts("server", "certificate-authority", "certificate-authority-data"),
        **_texts("proxy-url", "tls-server-name"),
        "insecure-skip-tls-verify": Flag(),
    },
    required=("server",),
)
_CONTEXT = Fields(_texts("cluster", "user", "namespace"), required=("cluster", "user"))


def _named(name: str, inner: Fields) -> Items:
    return Items(Fields({"name": _TEXT, name: inner}, required=("name",)))


_KUBECONFIG = Fields(
    {
        "current-context": _TEXT,
        "contexts": _named("context", _CONTEXT),
        "clusters": _named("cluster", _CLUSTER),
        "users": _named("user", _USER),
    }
)


def complaints(file: Path) -> Iterator[str]:
    """Yield a sentence for each field of another type; no value is in it, as it may be secret.

    Raises:
        OSError: the file can't be read.
        yaml.YAMLError: it is no YAML.
        UnicodeDecodeError: it is no text.
    """
    content = yaml.safe_load(file.read_text())
    if content is not None:  # an empty file is none
        for path, expected, found in _differences(_KUBECONFIG, content, ""):
            at = path.removeprefix(".") or "its top"
            yield f"expected {expected}, found {found}, in {file} at {at}"


def _differences(shape: Shape, value: object, path: str) -> Iterator[tuple[str, str, str]]:
    match shape:
        case Fields(fields, _, needed):
            if not isinstance(value, dict):
                yield path, "an object", _kind(value)
                return
            for name, inner in fields.items():
                if value.get(name) is not None:
                    yield from _differences(inner, value[name], f"{path}.{name}")
                elif name in needed:
                    yield f"{path}.{name}", "a value", "none"
        case Items(item):
            if not isinstance(value, list):
                yield path, "a list", _kind(value)
                return
            for i, one in enumerate(value):
                yield from _differences(item, one, f"{path}[{i}]")
        case Flag():
            if not isinstance(value, bool):
                yield path, "true or false", _kind(value)
        case _:
            if not isinstance(value, str):
                yield path, "a string", _kind(value)
            elif path.endswith(_DATA) and not _is_base64(value):
                yield path, "base64", "a string that is none"


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _kind(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case dict():
            return "an object"
    return "a time"
