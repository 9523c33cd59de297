"""Rows of CSV files, each with the place that an error about it names."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


class RowError(ValueError):
    """Not CSV, or a row with too few or too many values; names the line."""


@dataclass(frozen=True, slots=True)
class Row:
    where: str
    """`FILE, line N`: where it begins."""
    line: int
    values: dict[str, str]
    """By column."""


def columns(lines: Sequence[str]) -> list[str]:
    """Return the names in the first line; none of an empty file."""
    return next(csv.reader(lines), [])


def rows(lines: Sequence[str], name: str) -> Iterator[Row]:
    """Those below the first line; blank ones count, and say nothing.

    Raises:
        RowError: while they are read.
    """
    reader = csv.reader(lines, strict=True)
    names = next(reader, [])
    while True:
        # A quote that nobody closes runs on to the end of the file.
        line = reader.line_num + 1
        where = f"{name}, line {line}"
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise RowError(f"{where}: {error}") from None
        if not values:
            continue
        if len(values) != len(names):
            raise RowError(f"{where}: expected {len(names)} values, found {len(values)}")
        yield Row(where, line, dict(zip(names, values, strict=True)))
