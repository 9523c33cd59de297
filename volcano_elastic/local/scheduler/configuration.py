"""volcano-scheduler.conf: which actions run, and which plugins say what in which tier."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from volcano_elastic.queue_policy.volcano_vocabulary import SWITCHES

DEFAULT = Path(__file__).parents[3] / "manifests" / "volcano-scheduler.conf"
"""Read from the checkout, so that there is one copy of it."""

ENABLE_KEYS = {
    "job_order": "enableJobOrder",
    "job_ready": "enableJobReady",
    "job_pipelined": "enableJobPipelined",
    "job_starving": "enableJobStarving",
    "job_enqueueable": "enableJobEnqueued",
    "task_order": "enableTaskOrder",
    "queue_order": "enableQueueOrder",
    "predicate": "enablePredicate",
    "node_order": "enableNodeOrder",
    "preemptable": "enablePreemptable",
    "reclaimable": "enableReclaimable",
    "preemptive": "enablePreemptive",
    "overused": "enabledOverused",
    "allocatable": "enabledAllocatable",
}
"""Volcano's switch for each of a plugin's functions, in Volcano's mixed spelling."""

_HIERARCHY = "enableHierarchy"


class ConfigurationError(Exception):
    """The scheduler's configuration can't be used; says where and what would be right."""


@dataclass(frozen=True, slots=True)
class PluginOption:
    name: str
    disabled: frozenset[str] = frozenset()
    """Names of functions (keys of ENABLE_KEYS) that are switched off."""
    hierarchy: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def number(self, argument: str, default: float) -> float:
        return float(self.arguments.get(argument, default))


@dataclass(frozen=True, slots=True)
class Configuration:
    actions: tuple[str, ...]
    tiers: tuple[tuple[PluginOption, ...], ...]


def load(
    path: Path, *, actions: Iterable[str], plugins: Mapping[str, Iterable[str]]
) -> Configuration:
    """Reads `path`; `actions` and `plugins` (with their arguments) are what there is.

    Raises:
        ConfigurationError: unreadable, or something unknown in it.
    """
    try:
        document = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigurationError(
            f"{path}: {error.strerror}; give --scheduler-conf a readable file"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not YAML: {error}") from error
    try:
        return parse(document, actions=actions, plugins=plugins)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def parse(
    document: Any, *, actions: Iterable[str], plugins: Mapping[str, Iterable[str]]
) -> Configuration:
    top = _mapping("the document", document)
    _known("key", top, ("actions", "tiers"), where="the document")
    listed = top.get("actions")
    if not isinstance(listed, str) or not listed.strip():
        raise ConfigurationError(
            f'actions: expected a text such as "enqueue, allocate, backfill", found {listed!r}'
        )
    names = tuple(name.strip() for name in listed.split(",") if name.strip())
    _known("action", names, actions, where="actions")
    tiers = []
    for number, tier in enumerate(_list("tiers", top.get("tiers"))):
        where = f"tiers[{number}]"
        tier = _mapping(where, tier)
        _known("key", tier, ("plugins",), where=where)
        options = [
            _option(f"{where}.plugins[{i}]", plugin, plugins)
            for i, plugin in enumerate(_list(f"{where}.plugins", tier.get("plugins")))
        ]
        tiers.append(tuple(options))
    used = [option.name for tier in tiers for option in tier]
    for name in used:
        if used.count(name) > 1:
            raise ConfigurationError(f"tiers: plugin {name} is named more than once; name it once")
    if {"capacity", "proportion"} <= set(used):
        raise ConfigurationError("tiers: capacity and proportion contradict each other; keep one")
    return Configuration(names, tuple(tiers))


def _option(where: str, entry: Any, plugins: Mapping[str, Iterable[str]]) -> PluginOption:
    entry = _mapping(where, entry)
    name = entry.get("name")
    _known("plugin", [name], plugins, where=f"{where}.name")
    # Those of what this scheduler doesn't have are harmless, so a real cluster's file can be read.
    _known("key", entry, {"name", "arguments", *SWITCHES}, where=where)
    for key in SWITCHES & set(entry):
        if not isinstance(entry[key], bool):
            raise ConfigurationError(f"{where}.{key}: expected true or false, found {entry[key]!r}")
    arguments = _mapping(f"{where}.arguments", entry.get("arguments") or {})
    for argument, value in arguments.items():
        known = tuple(plugins[name])
        if not any(k.endswith("*") and str(argument).startswith(k[:-1]) for k in known):
            _known(f"argument of {name}", [argument], known, where=f"{where}.arguments")
        if not argument.endswith(".resources"):
            try:
                float(value)
            except (TypeError, ValueError) as error:
                raise ConfigurationError(
                    f"{where}.arguments.{argument}: expected a number, found {value!r}"
                ) from error
    return PluginOption(
        name,
        frozenset(function for function, key in ENABLE_KEYS.items() if entry.get(key) is False),
        bool(entry.get(_HIERARCHY, False)),
        arguments,
    )


def _known(what: str, found: Iterable[Any], known: Iterable[str], *, where: str) -> None:
    choices = sorted(known)
    for name in found:
        if name not in choices:
            near = difflib.get_close_matches(str(name), choices, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ConfigurationError(
                f"{where}: unknown {what} {name!r}; {hint}"
                f"there {'is' if len(choices) == 1 else 'are'}: {', '.join(choices) or 'none'}"
            )


def _mapping(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{where}: expected a mapping, found {value!r}")
    return value


def _list(where: str, value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise ConfigurationError(f"{where}: expected a list that is not empty, found {value!r}")
    return value
