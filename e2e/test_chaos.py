"""Kills, restarts and faults leave no trace: chaos.py's short form; its long one is a command."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e import chaos


@pytest.mark.e2e
async def test_forty_jobs_end_as_undisturbed_whatever_breaks_meanwhile(tmp_path: Path) -> None:
    outcome = await chaos.run(tmp_path, seconds=10, seed=7)
    assert outcome.differences() == [], (tmp_path / "disturbed" / "operator.log").read_text()[
        -9000:
    ]
    # It was no quiet time.
    assert outcome.kills >= 3 and outcome.restarts >= 1
    assert {"410", "watch cut"} <= outcome.faults.keys()
    assert sum(outcome.faults.get(kind, 0) for kind in ("409", "429", "500", "after")) >= 3
