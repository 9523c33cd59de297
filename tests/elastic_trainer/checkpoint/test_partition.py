"""Two sides of a partition, each with a coordinator of its own and agents, in one folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from elastic_trainer.store.storage import Storage

from tests.elastic_trainer.checkpoint.test_ownership import ALONE
from tests.elastic_trainer.torchrun_job import Job

pytestmark = pytest.mark.process


def side(folder: Path, name: str, epochs: int) -> Job:
    (folder / name).mkdir()
    arguments = f"import sys\nsys.argv = [sys.argv[0], {str(folder)!r}, '{epochs}', '{{}}']\n"
    return Job(folder / name, arguments + ALONE, nodes="1:1")


def test_of_two_sides_with_coordinators_the_later_ones_commits_survive(tmp_path: Path) -> None:
    cut_off, later = side(tmp_path, "a", 10**6), side(tmp_path, "b", 10**6)
    storage = Storage(tmp_path / "commits")
    try:
        cut_off.start(0)
        cut_off.until("it has committed", lambda _: bool(storage.commits()))
        before = storage.commits()[0]
        later.start(0)
        assert cut_off.wait(0) != 0
        assert "taken over by run" in cut_off.logs()
        ended = storage.commits()[0].step
        later.until("it goes on", lambda _: storage.commits()[-1].step > ended)
        runs = {commit.run for commit in storage.commits()}
        assert len(runs) == 1 and min(runs) > before.run
    finally:
        cut_off.close()
        later.close()
