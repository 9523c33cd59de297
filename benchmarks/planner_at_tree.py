"""Plans saved snapshots with the planner of a source tree, for `benchmarks.decisions`.

    PYTHONPATH=TREE python -P benchmarks/planner_at_tree.py TREE < NAMES

Stands alone, since the tree may be older than anything else here. To each line of its input, a
snapshot's file, it answers a line of JSON: the plan as plain values, or "unread", why it can't be
read. The file then holds what was read of it, for another planner. The first line says which fields
the tree's snapshots have, by class.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import msgspec

CODECS = ("volcano_elastic.snapshot.codec", "volcano_elastic.queue_policy.codec")
"""Modules that have read snapshots, the newest first."""
PLANNER = "volcano_elastic.queue_policy.plan"
TOO_OLD = 3
"""Exit code where the tree has no planner, or none that reads snapshots."""


def main() -> int:
    tree = Path(sys.argv[1]).resolve()
    # An editable installation would bring in its own module where the tree lacks one.
    sys.meta_path[:] = [f for f in sys.meta_path if "__editable__" not in f.__module__]
    try:
        codec = _codec()
        planner = importlib.import_module(PLANNER)
    except ImportError as error:
        print(f"it has no planner that reads snapshots: {error}", file=sys.stderr)
        return TOO_OLD
    for module in (codec, planner):
        if not Path(module.__file__ or "").resolve().is_relative_to(tree):
            print(f"expected {module.__name__} of {tree}, found {module.__file__}", file=sys.stderr)
            return 1
    _answer(_fields(codec.Snapshot))
    for line in sys.stdin:
        try:
            path = Path(line.rstrip("\n"))
            observed = _decode(codec, path.read_bytes())
        except codec.SnapshotError as error:
            _answer({"unread": str(error)})
            continue
        path.write_bytes(codec.encode(observed))
        made = planner.plan(observed.snapshot, observed.time)
        plan = msgspec.to_builtins(made, enc_hook=_plain, str_keys=True)
        for queue, figures in made.queues.items():
            if isinstance(figures, tuple):
                plan["queues"][queue] = figures._asdict()
        _answer(plan)
    return 0


def _codec() -> ModuleType:
    for name in CODECS[:-1]:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    return importlib.import_module(CODECS[-1])


def _decode(codec: ModuleType, raw: bytes):  # type: ignore[no-untyped-def]
    try:
        return codec.decode(raw)
    except codec.SnapshotError:
        # A field that may be empty today had to be there, or left out for its default.
        return codec.decode(json.dumps(_filled(json.loads(raw))).encode())


def _filled(value: object) -> object:
    """Return the value without its empty fields."""
    if isinstance(value, dict):
        return {key: _filled(one) for key, one in value.items() if one is not None}
    return [_filled(one) for one in value] if isinstance(value, list) else value


def _fields(snapshot: type) -> Mapping[str, list[str]]:
    """Return the fields of all classes in the modules that a snapshot's values come from."""
    modules = (sys.modules[snapshot.__module__], sys.modules["volcano_elastic.api.queue_policy"])
    return {
        made.__name__: [field.name for field in dataclasses.fields(made)]
        for module in modules
        for made in vars(module).values()
        if isinstance(made, type) and dataclasses.is_dataclass(made)
    }


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError(f"expected a field of a plan, found {value!r}")


def _answer(value: object) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    sys.exit(main())
