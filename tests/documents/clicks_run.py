"""A short training of experiments/clicks, in a process that may be forked: python -m … FILE."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from experiments.clicks.run import EXAMPLE, Plan, run

PLAN = Plan((1, 3, 1), (1, 2), samples=3_840, held_out=1_000, points=3, warm_up=0)

if __name__ == "__main__":
    torch.set_num_threads(1)
    found = run(PLAN, *EXAMPLE.generate(PLAN.samples + PLAN.held_out))
    Path(sys.argv[1]).write_text(json.dumps(asdict(found)))
