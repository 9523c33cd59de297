"""A persistent map is what a dict would be, and each version stays as it was made."""

from __future__ import annotations

import pytest
from elastic_trainer.coordinator.persistent_map import PersistentMap
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples

CHANGES = st.lists(
    st.tuples(st.sampled_from(["set", "remove", "read"]), st.integers(0, 200)), max_size=300
)


@settings(max_examples=examples(100), deadline=None)
@given(CHANGES)
def test_each_version_is_the_dict_that_was_changed_so_far(changes: list[tuple[str, int]]) -> None:
    entries: dict[int, int] = {}
    version: PersistentMap[int, int] = PersistentMap()
    versions = []
    for count, (change, key) in enumerate(changes):
        if change == "set":
            entries[key] = count
            version = version.with_entry(key, count)
        elif change == "remove" and key in entries:
            del entries[key]
            version = version.without(key)
        elif change == "read":
            assert list(version.as_dict().items()) == list(entries.items())
        versions.append((version, dict(entries)))
    for made, expected in versions:
        assert made == expected and len(made) == len(expected)
        assert list(made) == list(expected)
        assert all(made[key] == value and key in made for key, value in expected.items())


def test_what_is_not_there_is_a_key_error() -> None:
    version = PersistentMap({"a": 1}).with_entry("b", 2)
    with pytest.raises(KeyError):
        version["c"]
    with pytest.raises(KeyError):
        version.without("c")
