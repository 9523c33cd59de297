"""Counts code: lines, files and classes of packages, and imports that climb.

    python -m benchmarks.code [FOLDER ...] [--except PATTERN ...] [--root ROOT]

Lines are those that `wc -l` counts, blank ones and docstrings included. An import climbs where two
modules, or two packages beside each other, each import the other, over others too: one of the ways
must lead up. Imports for type checkers count, and those inside functions.
"""

from __future__ import annotations

import argparse
import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path

PLANNER = tuple(f"volcano_elastic/{name}" for name in ("snapshot", "cluster_state", "queue_policy"))
SERVER = "elastic_trainer.parameter_server"
"""The package of whose parts `service` answers workers, in the program `__main__`."""
# The last is where the trainer was before it became a distribution.
HOUSES = ("volcano_elastic", "embedded_cluster", "trainer/elastic_trainer", "trainer")


def count(sources: list[str]) -> tuple[int, int, int]:
    """Return lines, files and classes."""
    nodes = (node for source in sources for node in ast.walk(ast.parse(source)))
    classes = sum(isinstance(node, ast.ClassDef) for node in nodes)
    return sum(source.count("\n") for source in sources), len(sources), classes


def imports(house: Path) -> dict[str, set[str]]:
    """Return the modules of the house that each of its modules imports, by dotted name."""
    names = {}
    for path in house.rglob("*.py"):
        parts = path.relative_to(house.parent).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return {name: set(_imported(path, names)) - {name} for name, path in names.items()}


def _imported(path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield from {whole if whole in known else node.module} & known.keys()
        elif isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & known.keys()


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of names that reach each other."""
    reached = {name: reach(graph, name) for name in graph}
    groups = {
        frozenset({one for one in reached[name] if name in reached.get(one, ())} | {name})
        for name in graph
    }
    return sorted(sorted(group) for group in groups if len(group) > 1)


def reach(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """Return the names to which there is a way from this one."""
    found, open_names = set[str](), [start]
    while open_names:
        new = graph.get(open_names.pop(), set()) - found
        found |= new
        open_names += new
    return found


def of_packages(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the same graph between the packages of a house."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, imported in graph.items():
        own = name.split(".")[1:2]
        for other in (one.split(".")[1:2] for one in imported):
            if own and other and own != other:
                found[own[0]].add(other[0])
    return dict(found)


def thin_service(house: Path) -> list[Path]:
    """Return the files that a reader of the service to workers reads: itself, what it imports of
    its package, over others too, and the program."""
    found = {f"{SERVER}.service", f"{SERVER}.__main__"} | reach(imports(house), f"{SERVER}.service")
    mine = sorted(name for name in found if name.startswith(f"{SERVER}."))
    return [house.parent.joinpath(*name.split(".")).with_suffix(".py") for name in mine]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folders", nargs="*", default=PLANNER, help="default: the planner's")
    parser.add_argument("--except", dest="left_out", nargs="*", default=[], help="names of files")
    parser.add_argument("--root", type=Path, default=Path(), help="of a working tree; default: .")
    given = parser.parse_args()
    for folder in given.folders:
        paths = sorted((given.root / folder).glob("*.py"))
        kept = [p for p in paths if not any(fnmatch(p.name, x) for x in given.left_out)]
        lines, files, classes = count([path.read_text() for path in kept])
        print(f"{folder:32}{lines:>6} lines{files:>4} files{classes:>4} classes")
    trainer = given.root / "trainer/elastic_trainer"
    if (trainer / "parameter_server").exists():
        lines, files, classes = count([path.read_text() for path in thin_service(trainer)])
        text = "parameter server's service"
        print(f"{text:32}{lines:>6} lines{files:>4} files{classes:>4} classes")
    for house in (given.root / name for name in HOUSES):
        if (house / "__init__.py").exists():
            graph = imports(house)
            print(f"{house.name}: circles of modules {circles(graph) or 'none'}")
            print(f"{house.name}: circles of packages {circles(of_packages(graph)) or 'none'}")


if __name__ == "__main__":
    main()
