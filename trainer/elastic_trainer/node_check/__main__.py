"""`python -m elastic_trainer.node_check`: this machine's part in a node check, without a training.

The coordinator is a process of its own (`python -m elastic_trainer.coordinator`), which has the
verdicts in its /status. Pod index, address, node and token are read from the variables that pods of
a job are given, too.
"""

from __future__ import annotations

import argparse
import os
import sys

from elastic_trainer.identity import Identity
from elastic_trainer.launch.cuda import cuda_is_initialised
from elastic_trainer.launch.zygote import Zygote

SECONDS = 900.0
PRELOADED = ("torch", "torch.distributed")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m elastic_trainer.node_check", description=__doc__
    )
    parser.add_argument("--endpoint", required=True, help="HOST:PORT of the coordinator")
    parser.add_argument(
        "--gpus", type=int, default=0, help="that it has, and all are checked; 0: the CPU is"
    )
    parser.add_argument(
        "--timeout", type=float, default=SECONDS, help="seconds, then it goes without a verdict"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        identity = Identity.read(options.endpoint, 1, 1, "", None, None, os.environ, ())
    except ValueError as error:
        print(f"node check: {error}", file=sys.stderr)
        return 2
    # Imports torch, which takes seconds of CPU: once, for this process and what is forked.
    from elastic_trainer.node_check.member import Member, launch_cold

    # Forked while this process has no threads and no CUDA; where it has, processes start cold.
    zygote = None if cuda_is_initialised() else Zygote.start(PRELOADED)
    warm = zygote is not None and zygote.wait_ready(options.timeout)
    member = Member.of_agent(
        identity,
        processes=options.gpus,
        gpu=options.gpus > 0,
        launch=zygote.launch if zygote is not None and warm else launch_cold,
    )
    over = member.run(options.timeout)
    if zygote is not None:
        zygote.close()
    print(f"{identity.node} is {over.verdict}: {over.reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
