"""Annotations of jobs that are sized: what users write, and what they are told."""

from __future__ import annotations

_PREFIX = "volcano-elastic.io"

MIN = f"{_PREFIX}/min-pods"
"""The fewest pods it works with; default 1."""
MAX = f"{_PREFIX}/max-pods"
"""The most pods it is worth; without it a job is left alone."""
PART = f"{_PREFIX}/replicated-job"
"""Name of the part that is sized, where there are several."""
COMPLETIONS = f"{_PREFIX}/completions"
"""`Follow`: completions are what parallelism is; `Fixed`: they stay. Default: they follow where an
Indexed job has as many of both."""

LAST_SCALE_TIME = f"{_PREFIX}/last-scale-time"
LAST_SCALE_REASON = f"{_PREFIX}/last-scale-reason"
LAST_SCALE_MESSAGE = f"{_PREFIX}/last-scale-message"
