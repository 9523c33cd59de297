"""`python -m embedded_cluster.conformance [NOUN...]`: play the cases, print differences."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json

from embedded_cluster.conformance.comparison import compare
from embedded_cluster.conformance.control_plane import EmbeddedControlPlane
from embedded_cluster.conformance.real_control_plane import RealControlPlane


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m embedded_cluster.conformance", description=__doc__
    )
    parser.add_argument(
        "nouns", nargs="*", help="files of cases/, without .yaml, or sdk; default: all"
    )
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        real = stack.enter_context(RealControlPlane())
        ours = stack.enter_context(EmbeddedControlPlane())
        found = asyncio.run(compare(real, ours, tuple(arguments.nouns)))
    for difference in found:
        print(difference.where)
        print(f"    real      {json.dumps(difference.real)}")
        print(f"    embedded  {json.dumps(difference.embedded)}")
    print(f"{len(found)} differences")


if __name__ == "__main__":
    main()
