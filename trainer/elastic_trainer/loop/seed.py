"""Seeding torch's generators at each step, at the price of a microsecond."""

from __future__ import annotations

import torch


def seed_generators(seed: int, *, first: bool) -> None:
    """Seed torch's generators of the CPU and of the GPUs in use.

    `torch.manual_seed` costs 100 to 450 µs where CUDA is built in and not initialised, as it keeps
    the caller's stack until then.

    Args:
        seed: any whole number.
        first: whether the GPUs may still be initialised before the next call, which then must find
            this seed.
    """
    if first:
        torch.manual_seed(seed)
        return
    torch.default_generator.manual_seed(seed)
    for devices in (torch.cuda, torch.xpu):
        if devices.is_initialized():
            for generator in devices.default_generators:
                generator.manual_seed(seed)
