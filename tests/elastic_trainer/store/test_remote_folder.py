"""A bucket whose client raises: waited for, then said, never taken for empty or for older."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tenacity
from elastic_trainer.store.errors import UnavailableError
from elastic_trainer.store.folder import MARKER, HashedFile
from elastic_trainer.store.storage import Storage, Survey

from tests.elastic_trainer.store.faulty_store import ERRORS, FaultyStore

FOLDER = "faulty://bucket/run"
ERROR = pytest.mark.parametrize("error", sorted(ERRORS))
READ = pytest.mark.parametrize(
    ("operation", "name"), [("list", ""), ("read", MARKER), ("read", "state.pt")]
)
WRITE = pytest.mark.parametrize(
    ("operation", "name"), [("write", "state.pt"), ("write", MARKER), ("create", "")]
)


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FaultyStore]]:
    monkeypatch.setattr(tenacity.wait_random_exponential, "__call__", lambda *_: 0.0)
    FaultyStore.forget()
    yield FaultyStore
    FaultyStore.forget()


def commit(storage: Storage, step: int) -> None:
    def write(file: HashedFile) -> None:
        file.write(b"%d" % step * 100)

    storage.write(step=step, run=1, cursor={"step": step}, files={"state.pt": write})


def steps() -> list[int]:
    FaultyStore.fault = staticmethod(lambda *_: None)
    return [found.step for found in Storage(FOLDER).commits()]


@pytest.fixture
def storage() -> Storage:
    storage = Storage(FOLDER, retry_seconds=0.05)
    storage.open()
    storage.take_over(0, "token")
    commit(storage, 1)
    commit(storage, 2)
    return storage


@ERROR
@READ
def test_a_bucket_that_cannot_be_read_is_never_taken_for_an_older_one_or_none(
    storage: Storage, error: str, operation: str, name: str
) -> None:
    FaultyStore.fail(operation, error, name=name)
    with pytest.raises(
        UnavailableError, match=r"can't be read.*(Input/output|Forbidden|Slow Down)"
    ):
        storage.newest()
    assert FaultyStore.raised > 1  # tried again
    assert steps() == [2, 1]


@ERROR
@READ
def test_a_buckets_hiccup_while_reading_is_waited_for(
    storage: Storage, error: str, operation: str, name: str
) -> None:
    FaultyStore.fail(operation, error, name=name, times=3)
    found = Storage(FOLDER).newest()
    assert found is not None and found.step == 2
    assert FaultyStore.raised == 3


@ERROR
@WRITE
def test_a_bucket_that_cannot_be_written_refuses_the_commit_and_keeps_the_others(
    storage: Storage, error: str, operation: str, name: str
) -> None:
    FaultyStore.fail(operation, error, name=name)
    if operation == "create":  # a claim, not a commit
        with pytest.raises(UnavailableError, match=r"Input/output|Forbidden|Slow Down"):
            storage.take_over(1, "later")
    else:
        with pytest.raises(UnavailableError, match="step 3 can't be committed"):
            commit(storage, 3)
    assert FaultyStore.raised > 1
    assert steps() == [2, 1]


@ERROR
@WRITE
def test_a_buckets_hiccup_while_writing_costs_no_commit(
    storage: Storage, error: str, operation: str, name: str
) -> None:
    storage = Storage(FOLDER)
    FaultyStore.fail(operation, error, name=name, times=3)
    storage.open()
    storage.take_over(1, "later")
    commit(storage, 3)
    assert FaultyStore.raised == 3
    assert steps() == [3, 2, 1]


@ERROR
@pytest.mark.parametrize("name", ["state.pt", MARKER])
def test_a_buckets_first_commit_that_is_interrupted_is_none(
    error: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage(FOLDER, retry_seconds=0.0)
    monkeypatch.setattr(storage, "abandon", lambda _: None)  # as where the process ends
    FaultyStore.fail("write", error, name=name)
    with pytest.raises(UnavailableError):
        commit(storage, 1)
    FaultyStore.fault = staticmethod(lambda *_: None)
    assert storage.survey() == Survey()


def test_a_buckets_commit_that_has_lost_its_marker_is_told_from_none_and_stays(
    storage: Storage,
) -> None:
    for found in storage.commits():
        storage._files.remove(f"{found.place}/{MARKER}")
    again = Storage(FOLDER, keep=2)
    survey = again.survey()
    assert not survey.commits and len(survey.damaged) == 2
    assert all("COMMITTED is missing: found state.pt" in reason for reason in survey.damaged)
    again.take_over(1, "later")
    for step in (3, 4, 5):
        commit(again, step)
    assert [found.step for found in again.commits()] == [5, 4]
    assert again.survey().damaged == survey.damaged


def test_what_a_bucket_removes_is_never_taken_for_what_lost_its_marker(storage: Storage) -> None:
    (newest, _) = storage.commits()
    FaultyStore.fail("delete", "EIO", name="state.pt")
    with pytest.raises(OSError, match="Input/output"):
        storage._files.remove(newest.place)
    assert steps() == [1]
    assert Storage(FOLDER).survey().damaged == ()
