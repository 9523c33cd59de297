"""Files that commands read."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.queue_policy.world import NOW
from volcano_elastic.snapshot.codec import Observation, encode
from volcano_elastic.snapshot.snapshot import Snapshot


@pytest.fixture
def saved(tmp_path: Path) -> Any:
    def save(snapshot: Snapshot, name: str = "s.json", at: timedelta = timedelta(0)) -> Path:
        file = tmp_path / name
        file.write_bytes(encode(Observation(NOW + at, snapshot)))
        return file

    return save


@pytest.fixture
def manifest(tmp_path: Path) -> Any:
    def write(*objects: dict[str, Any]) -> Path:
        file = tmp_path / "what-if.yaml"
        file.write_text(yaml.safe_dump_all(objects))
        return file

    return write
