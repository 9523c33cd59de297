"""Runs as `sitecustomize` in every Python process of a container that the trainer was put into.

Where this Python and its torch suit the trainer, its folders come last on the path, so that the
image's own packages win. Where they don't, torchrun is told to meet as it would have without the
trainer, and the reason is said once. It stands alone, imports next to nothing, and must never fail:
the image's program has not begun.
"""

from __future__ import annotations

import glob
import json
import os
import re
import sys

TYPE_CHECKING = False  # typing takes longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping, Sequence

_TOLD = "VOLCANO_ELASTIC_INJECTED"
"""The decision: `yes`, or why not. Child processes know it, and don't say it again."""
_INSTEAD = "VOLCANO_ELASTIC_INSTEAD"
"""JSON: torchrun's variables by name, without the trainer; null removes one."""
_NEEDED = (("torch", (2, 14)), ("numpy", (2, 0)))
"""The image's own, with their least versions."""
_CARRIED = (
    ("grpcio", (1, 70)),
    ("protobuf", (5, 0)),
    ("tenacity", (9, 0)),
    ("xxhash", (3, 5)),
)
"""Brought along; where the image has them, its own must suit, since they come first."""


def suits(
    folder: str,
    path: Sequence[str],
    version: tuple[int, int],
    machine: str,
    implementation: str = "cpython",
) -> tuple[list[str], str]:
    """Return the folders to add, and an empty text; or none, and why not.

    Args:
        folder: what was carried: `any`, and one `cpXY` a Python version.
        path: in which Python finds packages.
        version: Python's, (3, 11), say.
    """
    name = f"cp{version[0]}{version[1]}"
    carried = sorted(os.path.basename(one) for one in glob.glob(os.path.join(folder, "cp*")))
    if implementation != "cpython" or name not in carried:
        return (
            [],
            f"expected CPython of {', '.join(carried) or 'no version'}, "
            f"found {implementation} {version[0]}.{version[1]}",
        )
    mine = os.path.join(folder, name)
    try:
        with open(os.path.join(mine, "machine")) as file:
            built = file.read().strip()
    except OSError as error:
        return [], f"what was carried is damaged: {error}"
    if built != machine:
        return [], f"expected a machine of {built}, found {machine}"
    for wanted, least in _NEEDED:
        found = _version(wanted, path)
        if found is None or found < least:
            return [], f"expected {_said(wanted, least)}, found {_said(wanted, found)}"
    for wanted, least in _CARRIED:
        found = _version(wanted, path)
        if found is not None and found < least:
            return [], f"the image's own {_said(wanted, found)} is older than {_said('', least)}"
    return [os.path.join(folder, "any"), mine], ""


def _version(name: str, path: Sequence[str]) -> tuple[int, int] | None:
    """Return the first two numbers of a distribution's version; None where it isn't installed."""
    for place in path:
        for found in glob.glob(os.path.join(glob.escape(place), f"{name}-*.dist-info")):
            numbers = re.match(r".*-(\d+)\.(\d+)[^/]*\.dist-info$", found)
            if numbers:
                return int(numbers[1]), int(numbers[2])
    return None


def _said(name: str, version: tuple[int, int] | None) -> str:
    return f"no {name}" if version is None else f"{name} {'.'.join(map(str, version))}".strip()


def decide(
    environment: MutableMapping[str, str], path: list[str], say: Callable[[str], None]
) -> None:
    """Change the environment and the path as this process needs them."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    before = environment.get(_TOLD)
    more, why = suits(
        folder, path, sys.version_info[:2], os.uname().machine, sys.implementation.name
    )
    if not why:
        path.extend(one for one in more if one not in path)
        environment.setdefault(_TOLD, "yes")
        return
    if before is not None or _version("torch", path) is None:
        # The process that starts torchrun has decided; or this is no Python that trains.
        return
    environment[_TOLD] = why
    for name, value in json.loads(environment.get(_INSTEAD) or "{}").items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    say(f"volcano-elastic: the trainer is left out, and torchrun meets by itself: {why}")


def _next_sitecustomize() -> None:
    """Run the image's own, which ours hides."""
    here = os.path.dirname(os.path.abspath(__file__))
    for place in sys.path:
        file = os.path.join(place, "sitecustomize.py")
        if os.path.abspath(place) != here and os.path.isfile(file):
            with open(file, "rb") as source:
                code = compile(source.read(), file, "exec")
            exec(code, {"__name__": "sitecustomize", "__file__": file})
            return


def _main() -> None:
    try:
        decide(os.environ, sys.path, lambda text: print(text, file=sys.stderr, flush=True))
    except Exception as error:  # whatever it is, the image's program goes on
        print(f"volcano-elastic: the trainer is left out: {error!r}", file=sys.stderr, flush=True)
    _next_sitecustomize()


if __name__ == "sitecustomize":
    _main()
