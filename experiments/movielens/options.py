"""The options that both trainings have on their command lines."""

from __future__ import annotations

import argparse
from pathlib import Path


def parse(*roles: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    if roles:
        parser.add_argument("role", choices=roles)
        parser.add_argument("--endpoint", required=True, help="host:port of the coordinator")
        parser.add_argument(
            "--warm-up", type=int, default=0, help="samples in whose course the rate rises"
        )
    parser.add_argument("ratings", type=Path, help="folder with ml-100k.inter, .user and .item")
    parser.add_argument("folder", type=Path, help="of this run; shared by all processes")
    parser.add_argument("--seed", type=int, default=0, help="of the first model and the order")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=256, help="samples of a step, or of a lease")
    parser.add_argument("--rate", type=float, default=0.03, help="Adagrad's learning rate")
    parser.add_argument("--every", type=int, default=5000, help="samples between evaluations")
    parser.add_argument("--double", action="store_true", help="train in float64")
    return parser.parse_args()
