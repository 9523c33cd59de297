"""docs/other-jobs.md: its job is one that is sized, and its table is that of the adapters."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from tests.adapters.world import JOB
from volcano_elastic.adapters import annotation
from volcano_elastic.adapters.adapter import ADAPTERS
from volcano_elastic.adapters.other_job import read

TEXT = (Path(__file__).parents[2] / "docs" / "other-jobs.md").read_text()


def test_the_job_that_is_shown_is_sized() -> None:
    shown = re.findall(r"```yaml[^\n]*\n(.*?)```", TEXT, re.DOTALL)
    (obj,) = [o for o in map(yaml.safe_load, shown) if o.get("kind") == "Job"]
    obj["metadata"]["creationTimestamp"] = "2026-01-01T12:00:00Z"
    found = read(JOB, obj)
    assert found is not None
    assert (found.min, found.max, found.size, found.queue) == (1, 8, 1, "batch")


def test_every_kind_and_annotation_is_told() -> None:
    for adapter in ADAPTERS:
        assert f"| {adapter.kind} | `" in TEXT and f"--other-jobs={adapter.kind}" in TEXT
        assert adapter.size[-1] in TEXT and f"`{adapter.name_label}`" in TEXT
    for name in (annotation.MIN, annotation.MAX, annotation.PART, annotation.COMPLETIONS):
        assert f"| `{name}` |" in TEXT
    for name in (annotation.LAST_SCALE_REASON, annotation.LAST_SCALE_MESSAGE):
        assert f"`{name.partition('/')[2]}`" in TEXT
