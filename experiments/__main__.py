"""Run the experiments and write their tables into the document.

    python -m experiments [SECTION ...] [--traces DIR | --quick] [--processes N] [--doc FILE]

Sections: seed, service, pollux, ablation, sensitivity, philly, philly-ablation, eta, right-sizing,
movielens, clicks; all by default. All are simulated but the last two, which train with real
processes (`make movielens` gets the first one's data). Each of their runs is kept in
build/experiments, and not made again while it lies there.
Without --doc they are only printed.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from experiments import eta, philly, pollux, right_sizing, seed, service
from experiments.source import MOVIELENS, MissingTraces, Source
from experiments.table import MissingMarkers, write_section

Section = Callable[[Source, int, Path | None], str]
SECTIONS: Mapping[str, Section] = {
    "seed": seed.section,
    "service": service.section,
    "pollux": pollux.section,
    "ablation": lambda source, processes, pictures: pollux.ablation(source, processes),
    "sensitivity": lambda source, processes, pictures: pollux.sensitivity(source, processes),
    "philly": philly.section,
    "philly-ablation": lambda source, processes, pictures: philly.ablation(source, processes),
    "eta": lambda source, processes, pictures: eta.section(source),
    "right-sizing": lambda source, processes, pictures: right_sizing.section(source, pictures),
    "movielens": lambda source, processes, pictures: _movielens(source, pictures),
    "clicks": lambda source, processes, pictures: _clicks(source),
}


def _movielens(source: Source, pictures: Path | None) -> str:
    from experiments.movielens.section import section  # imports torch, which takes seconds

    return section(source, pictures)


def _clicks(source: Source) -> str:
    from experiments.clicks.section import section

    return section(source)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments", description="See the module.")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--traces", type=Path, default=Path("../shared/traces"))
    parser.add_argument("--movielens", type=Path, default=MOVIELENS)
    parser.add_argument("--quick", action="store_true", help="small generated workloads instead")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--doc", type=Path, help="write tables and pictures there, too")
    given = parser.parse_args()
    unknown = [name for name in given.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"expected sections of {', '.join(SECTIONS)}, found {', '.join(unknown)}")
    source = Source(None if given.quick else given.traces, given.movielens)
    pictures = None
    if given.doc is not None:
        pictures = given.doc.parent / "pictures"
        pictures.mkdir(exist_ok=True)
    for name in given.sections or SECTIONS:
        begun = time.perf_counter()
        try:
            text = SECTIONS[name](source, given.processes, pictures)
        except MissingTraces as error:
            sys.exit(str(error))
        minutes = (time.perf_counter() - begun) / 60
        print(f"== {name}\n\n{text}", flush=True)
        if given.doc is not None:
            quick = " --quick" if given.quick else ""
            where = f"Python {platform.python_version()}, {given.processes} processes"
            text += f"\n`python -m experiments {name}{quick}` ({minutes:.1f} min, {where})\n"
            try:
                write_section(given.doc, name, text)
            except MissingMarkers as error:
                sys.exit(str(error))


if __name__ == "__main__":
    main()
