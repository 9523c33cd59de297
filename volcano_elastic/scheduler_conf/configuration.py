"""volcano-scheduler.conf read leniently: what it means to a scheduler, and what that one would not
understand, as findings. Consequences are Volcano's; the embedded scheduler refuses instead.

Understood are the bare file and Kubernetes objects: ConfigMaps that hold it, and beside them the
Queues and the scheduler's Deployment, since some pitfalls lie there. A file with other Deployments
alone holds nothing to check: that no pitfall was found in it would say too much.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from volcano_elastic.api import shape
from volcano_elastic.api.cluster_shape import CONFIG_MAP, DEPLOYMENT, LIST, METADATA
from volcano_elastic.api.shape import Fields
from volcano_elastic.scheduler_conf.finding import Finding, Path, Severity
from volcano_elastic.scheduler_conf.vocabulary import ACTIONS, PLUGINS, SWITCHES

INVALID = (
    "Volcano only logs an invalid configuration, and goes on with the previous one or its own "
    "default (enqueue, allocate, backfill), which never evicts"
)
_SILENT = f"{INVALID}, unless it was started with --disable-default-scheduler-config"
_NAMED = Fields({"metadata": METADATA}, open=True)
_SHAPES = {"ConfigMap": CONFIG_MAP, "Deployment": DEPLOYMENT}
_IGNORED = "Volcano ignores it without a word"


class UnreadableConfiguration(ValueError):
    """Not YAML, or nothing in it to check; says what was expected."""


@dataclass(frozen=True, slots=True)
class PluginOption:
    name: str
    path: Path
    switches: Mapping[str, bool] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def on(self, switch: str) -> bool:
        """Volcano's default is on, but for the hierarchy."""
        return self.switches.get(switch, switch != "enableHierarchy")


@dataclass(frozen=True, slots=True)
class Action:
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Configuration:
    actions: tuple[Action, ...]
    tiers: tuple[tuple[PluginOption, ...], ...]

    @property
    def plugins(self) -> list[PluginOption]:
        """In the order that Volcano asks them."""
        return [option for tier in self.tiers for option in tier]

    def plugin(self, name: str) -> PluginOption | None:
        return next((option for option in self.plugins if option.name == name), None)

    def action(self, name: str) -> Action | None:
        return next((action for action in self.actions if action.name == name), None)


@dataclass(frozen=True, slots=True)
class Source:
    """One thing to check, and how to find a path of it in the file."""

    kind: str
    """Configuration, Queue or Deployment."""
    name: str
    document: Any
    line_of: Callable[[Path], int | None]

    def located(self, findings: Iterable[Finding]) -> list[Finding]:
        return [
            replace(found, source=self.name, line=self.line_of(found.path)) for found in findings
        ]


def sources(text: str, file: str) -> list[Source]:
    """Return the configurations and objects to be checked in a file's text.

    Raises:
        UnreadableConfiguration: not YAML (with the line), or nothing of these kinds in it.
    """
    found: list[Source] = []
    kinds: list[str] = []
    loader = yaml.SafeLoader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            document = loader.construct_document(node)
            _gather(document, node, file, found, kinds)
    except UnreadableConfiguration:
        raise
    except (yaml.YAMLError, ValueError) as error:  # ValueError: e.g. a 13th month
        raise UnreadableConfiguration(_not_yaml(file, error)) from error
    finally:
        loader.dispose()
    if not found:
        raise UnreadableConfiguration(
            f"{file}: expected a scheduler configuration (actions, tiers), a ConfigMap that holds "
            f"one, or Queues; found {', '.join(kinds) or 'nothing'}"
        )
    return found


def _gather(
    document: Any, node: yaml.Node | None, file: str, found: list[Source], kinds: list[str]
) -> None:
    if document is None:
        return
    if not isinstance(document, Mapping):
        kinds.append(type(document).__name__)
        return
    if "kind" not in document:
        if document.keys() & {"actions", "tiers"}:
            found.append(Source("Configuration", file, document, _finder(node)))
        else:
            kinds.append("keys " + ", ".join(map(str, document)))
        return
    kind = str(document["kind"])
    listed = kind.endswith("List")
    broken = list(shape.problems(LIST if listed else _SHAPES.get(kind, _NAMED), document, ""))
    if broken:
        # A Queue's own fields are findings.
        problems = (replace(one, path=one.path.removeprefix(".")) for one in broken)
        raise UnreadableConfiguration(f"{file}: {kind}: {'; '.join(map(str, problems))}")
    kinds.append(kind)
    name = f"{file}: {kind} {(document.get('metadata') or {}).get('name')}"
    if kind == "ConfigMap":
        for key, text in (document.get("data") or {}).items():
            if str(key).endswith(".conf"):
                inner = _child(node, ("data", key))
                found.append(_embedded(f"{name}, {key}", str(text), inner))
    elif kind == "Queue" or (kind == "Deployment" and any(map(scheduler_conf, words(document)))):
        found.append(Source(kind, name, document, _finder(node)))
    elif listed:
        for number, item in enumerate(document.get("items") or ()):
            _gather(item, _child(node, ("items", number)), file, found, kinds)


def words(deployment: Mapping[str, Any]) -> list[list[str]]:
    """Return the command and arguments of each container."""
    spec = (((deployment.get("spec") or {}).get("template") or {}).get("spec")) or {}
    return [
        [*map(str, container.get("command") or ()), *map(str, container.get("args") or ())]
        for container in spec.get("containers") or ()
    ]


def scheduler_conf(started_with: Iterable[str]) -> bool:
    """Return whether it is a scheduler of Volcano's that reads a configuration."""
    return "--scheduler-conf" in " ".join(started_with)


def _embedded(name: str, text: str, outer: yaml.Node | None) -> Source:
    """A configuration inside a string; only a literal block keeps its lines apart."""
    try:
        node, document = yaml.compose(text, yaml.SafeLoader), yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise UnreadableConfiguration(_not_yaml(name, error)) from error
    literal = isinstance(outer, yaml.ScalarNode) and outer.style == "|"
    offset = outer.start_mark.line + 1 if outer is not None and literal else None
    return Source("Configuration", name, document, _finder(node, offset))


def _not_yaml(name: str, error: yaml.YAMLError | ValueError) -> str:
    mark = getattr(error, "problem_mark", None)
    line = f", line {mark.line + 1}" if mark else ""
    return f"{name}{line}: not YAML: {getattr(error, 'problem', None) or error}"


def _finder(node: yaml.Node | None, offset: int | None = 0) -> Callable[[Path], int | None]:
    def line_of(path: Path) -> int | None:
        found = None
        for length in range(len(path) + 1):
            found = _child(node, path[:length], of_key=True) or found
        return None if found is None or offset is None else found.start_mark.line + 1 + offset

    return line_of


def _child(node: yaml.Node | None, path: Path, *, of_key: bool = False) -> yaml.Node | None:
    """The node at a path; with `of_key`, of its key where it is a mapping's."""
    for depth, key in enumerate(path):
        if isinstance(node, yaml.MappingNode):
            pair = next((pair for pair in node.value if pair[0].value == str(key)), None)
            last = depth == len(path) - 1
            node = None if pair is None else pair[0] if of_key and last else pair[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
            node = node.value[key]
        else:
            return None
    return node


def parse(
    document: Any,
    actions: Mapping[str, Iterable[str]] = ACTIONS,
    plugins: Mapping[str, Iterable[str]] = PLUGINS,
) -> tuple[Configuration, list[Finding]]:
    """Return the document as a scheduler reads it, and findings about what one can't or won't read.

    Args:
        actions: that it has, with their arguments.
        plugins: likewise.
    """
    reader = _Reader(actions, plugins)
    top = reader.mapping((), document)
    reader.known("key", (), top, ("actions", "tiers", "configurations", "metrics"))
    given: dict[str, Mapping[str, Any]] = {}
    for n, entry in enumerate(reader.mappings(("configurations",), top.get("configurations"))):
        name, where = str(entry.get("name")), ("configurations", n, "arguments")
        given[name] = reader.mapping(where, entry.get("arguments"))
        if name in actions:
            reader.known(f"argument of {name}", where, given[name], actions[name])
        else:
            reader.known("action", ("configurations", n, "name"), [name], actions)
    named = reader.actions(top.get("actions"), given)
    tiers = []
    for n, tier in enumerate(reader.mappings(("tiers",), top.get("tiers"))):
        reader.known("key", ("tiers", n), tier, ("plugins",))
        where = ("tiers", n, "plugins")
        listed = reader.mappings(where, tier.get("plugins"))
        tiers.append(tuple(reader.option((*where, m), entry) for m, entry in enumerate(listed)))
    if not any(tiers):
        reader.invalid(("tiers",), "no plugin is named", "name plugins under tiers")
    return Configuration(named, tuple(tiers)), reader.findings


class _Reader:
    def __init__(
        self, actions: Mapping[str, Iterable[str]], plugins: Mapping[str, Iterable[str]]
    ) -> None:
        self._actions, self._plugins = actions, plugins
        self.findings: list[Finding] = []

    def actions(self, text: Any, given: Mapping[str, Mapping[str, Any]]) -> tuple[Action, ...]:
        if not isinstance(text, str):
            wanted = 'write one text, such as "enqueue, allocate, backfill, preempt, reclaim"'
            self.invalid(("actions",), f"actions is {text!r}, not a text", wanted)
            return ()
        names = [name.strip() for name in text.split(",")]
        for name in names:
            if name not in self._actions:
                fix = f"remove it; there are {', '.join(self._actions)}"
                if name.lower() in self._actions:
                    fix = f"write {name.lower()}, in lower case"
                elif near := _near(name, self._actions):
                    fix = f"did you mean {near}?"
                elif not name:
                    fix = "remove the comma without an action beside it"
                self._add(
                    "UnknownAction",
                    Severity.ERROR,
                    ("actions",),
                    f"there is no action {name!r}, so the whole file is invalid",
                    _SILENT,
                    fix,
                )
        return tuple(Action(name, given.get(name, {})) for name in names if name in self._actions)

    def option(self, path: Path, entry: Mapping[str, Any]) -> PluginOption:
        name = str(entry.get("name"))
        if name not in self._plugins:
            near = _near(name, self._plugins)
            self._add(
                "UnknownPlugin",
                Severity.ERROR,
                (*path, "name"),
                f"there is no plugin {name!r}",
                "Volcano logs it and goes on without the plugin",
                f"did you mean {near}?"
                if near
                else f"remove it; there are {', '.join(self._plugins)}",
            )
        self.known("key", path, entry, {"name", "arguments", *SWITCHES})
        switches = {}
        for key in sorted(SWITCHES & entry.keys()):
            if isinstance(entry[key], bool):
                switches[key] = entry[key]
            else:
                found = f"{key} is {entry[key]!r}, not a boolean"
                self.invalid((*path, key), found, "write true or false, without quotes")
        arguments = self.mapping((*path, "arguments"), entry.get("arguments"))
        if name in self._plugins:
            self.known(f"argument of {name}", (*path, "arguments"), arguments, self._plugins[name])
        return PluginOption(name, path, switches, arguments)

    def known(self, what: str, path: Path, names: Iterable[Any], known: Iterable[str]) -> None:
        choices = sorted(known)
        for name in map(str, names):
            if any(
                name == choice or (choice.endswith("*") and name.startswith(choice[:-1]))
                for choice in choices
            ):
                continue
            near = _near(name, choices)
            there = ", ".join(choices) or "none"
            self._add(
                f"Unknown{what.split()[0].capitalize()}",
                Severity.ERROR if near else Severity.WARNING,
                (*path, name),
                f"there is no {what} {name!r}",
                _IGNORED + (f", so {near} keeps its default" if near else ""),
                f"write {near}" if near else f"remove it; there are: {there}",
            )

    def mapping(self, path: Path, value: Any) -> Mapping[str, Any]:
        if value is None:
            return {}
        if isinstance(value, Mapping):
            return value
        self.invalid(path, f"expected a mapping, found {value!r}", "write `key: value` pairs")
        return {}

    def mappings(self, path: Path, value: Any) -> list[Mapping[str, Any]]:
        if value is None:
            return []
        if isinstance(value, list):
            return [self.mapping((*path, n), item) for n, item in enumerate(value)]
        self.invalid(path, f"expected a list, found {value!r}", "begin each item with a dash")
        return []

    def invalid(self, path: Path, found: str, repair: str) -> None:
        self._add("InvalidConfiguration", Severity.ERROR, path, found, _SILENT, repair)

    def _add(self, code: str, severity: Severity, path: Path, *words: str) -> None:
        finding, consequence, repair = words
        self.findings.append(Finding(code, severity, path, finding, consequence, repair))


def _near(name: str, choices: Iterable[str]) -> str | None:
    plain = {choice.lower(): choice for choice in choices if not choice.endswith("*")}
    found = difflib.get_close_matches(name.lower(), plain, n=1, cutoff=0.75)
    return plain[found[0]] if found else None
