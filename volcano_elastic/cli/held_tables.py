"""Embedding tables that a job's workers hold, as `describe` and the page show them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_MOST = 64


def held(told: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the tables of a coordinator's /status, those of most rows, by name.

    Ids are text, as they have 64 bits.
    """
    most = sorted((told or {}).items(), key=lambda item: -item[1]["rows"])[:_MOST]
    return [
        {
            "name": name,
            "holders": one["holders"],
            "rows": one["rows"],
            "bytes": one["bytes"],
            "admitted": one["admitted"],
            "evicted": one["evicted"],
            "updatedPerSecond": one["updated_per_second"],
            "skew": one["skew"],
            "hot": [
                {"id": str(number), "share": share}
                for number, share in zip(one["hot_ids"], one["hot_share"], strict=True)
            ],
        }
        for name, one in sorted(most)
    ]


def lines(tables: list[dict[str, Any]]) -> Iterator[str]:
    for one in tables:
        hottest = ", ".join(f"{hot['id']} {hot['share']:.1%}" for hot in one["hot"][:3])
        yield (
            f"Table {one['name']}: {one['rows']:,} rows ({one['bytes'] / 1e6:,.1f} MB) on "
            f"{one['holders']} workers, {one['admitted']:,} admitted, {one['evicted']:,} evicted, "
            f"{one['updatedPerSecond']:,.0f} updates a second, skew {one['skew']:.2f}"
            + (f"; hottest ids: {hottest}" if hottest else "")
        )
