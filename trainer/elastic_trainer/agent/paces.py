"""How far, and how fast by themselves, a node's workers are, as they have noted it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from elastic_trainer.link.progress import Progress as Noted
from elastic_trainer.protocol.message import Progress


def furthest(pages: Sequence[Noted]) -> Noted:
    """Return what the worker noted that is furthest."""
    return max(pages, key=lambda noted: noted.step, default=Noted())


def with_paces(told: Progress, pages: Sequence[Noted]) -> Progress:
    """Return what is to be told, with how fast each worker, by local rank, is by itself."""
    if not all(page.batches for page in pages):
        return told
    return replace(
        told,
        compute=tuple(page.compute // 1_000_000 for page in pages),
        waited=tuple(page.input // 1_000_000 for page in pages),
        network=tuple(page.network // 1_000_000 for page in pages),
        batches=tuple(page.batches for page in pages),
        batch_samples=tuple(page.batch_samples for page in pages),
    )
