"""Says where a container's termination message goes, which Kubernetes keeps in its pod's status."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "VOLCANO_ELASTIC_TERMINATION_LOG"
"""Where its file is, if not at Kubernetes' default."""
TERMINATION_LOG = Path(os.environ.get(VARIABLE) or "/dev/termination-log")
TERMINATION_BYTES = 4096
"""Kubernetes keeps no more of it."""
