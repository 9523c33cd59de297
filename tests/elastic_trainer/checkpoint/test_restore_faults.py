"""A restart that can't read the newest commit: it stops, and neither goes on from an older one nor
begins anew, nor removes anything."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from elastic_trainer.store.errors import StorageError
from elastic_trainer.store.folder import MARKER
from elastic_trainer.store.ownership import TRAINING
from elastic_trainer.store.storage import Storage

from tests.elastic_trainer.checkpoint.test_checkpoint import Script
from tests.elastic_trainer.store.faulty_store import ERRORS, FaultyStore

BUCKET = "faulty://bucket/restore"


@pytest.fixture(autouse=True)
def bucket() -> Iterator[None]:
    FaultyStore.forget()
    yield
    FaultyStore.forget()


@pytest.mark.parametrize("error", sorted(ERRORS))
@pytest.mark.parametrize(
    ("operation", "name"),
    [("list", ""), ("read", TRAINING), ("read", f"NEWEST/{MARKER}"), ("read", "NEWEST/state.pt")],
)
def test_commits_that_cannot_be_read_stop_a_restart_and_stay(
    tmp_path: Path, operation: str, name: str, error: str
) -> None:
    Script(tmp_path, to=BUCKET, every=2).train(8)
    before = Storage(BUCKET).commits()
    assert before[0].step == 8
    FaultyStore.fail(operation, error, name=name.replace("NEWEST", before[0].place))
    why = r"can't be (read|used).*(Input/output|Forbidden|Slow Down)"
    with pytest.raises(StorageError, match=why):
        Script(tmp_path, to=BUCKET, storage_patience=timedelta(0))
    FaultyStore.fault = staticmethod(lambda *_: None)
    assert Storage(BUCKET).commits() == before
    assert Script(tmp_path, to=BUCKET).data.steps == 8
