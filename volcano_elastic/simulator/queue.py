"""The queues of a trace, as the scheduler and the planner see them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from volcano_elastic.simulator.row import columns, rows
from volcano_elastic.snapshot.snapshot import Queue


class QueueError(ValueError):
    """A table of queues that cannot be read; names the line."""


def read_queues(lines: Sequence[str], name: str, *, resource: str, total: int) -> tuple[Queue, ...]:
    """Queues from CSV with the column queue and any of deserved (or deserved_of_<total>),
    guarantee, capability (in units of `resource`), weight and priority.

    Raises:
        QueueError, RowError: name the line.
    """
    names = columns(lines)
    if "queue" not in names:
        raise QueueError(
            f"{name}, line 1: expected a column queue, found {', '.join(names) or 'nothing'}"
        )
    own = f"deserved_of_{total}"
    share = own if own in names else "deserved"
    others = [column for column in names if column.startswith("deserved_of_")]
    if share not in names and others:
        raise QueueError(
            f"{name}, line 1: expected a column {own} or deserved for {total} units, found "
            f"{', '.join(others)}"
        )
    found: dict[str, Queue] = {}
    for each in rows(lines, name):
        row, where = each.values, each.where
        if row["queue"] in found:
            raise QueueError(f"{where}: queue {row['queue']} is there twice")
        amounts = {
            column: _whole(row.get(column), column, where)
            for column in (share, "guarantee", "capability", "weight", "priority")
        }
        limits = {
            column: None if units is None else {resource: 1000 * units}
            for column, units in amounts.items()
        }
        found[row["queue"]] = Queue(
            row["queue"],
            deserved=limits[share],
            guarantee=limits["guarantee"],
            capability=limits["capability"],
            weight=amounts["weight"] or 1,
            priority=amounts["priority"] or 0,
        )
    return tuple(found.values())


def _whole(text: str | None, column: str, where: str) -> int | None:
    if not text:
        return None
    if not text.isdecimal():
        raise QueueError(f"{where}: expected {column} to be a whole number, found {text!r}")
    return int(text)


def partitioned(queues: Iterable[Queue]) -> tuple[Queue, ...]:
    """The same queues, none of which may have more than it deserves."""
    return tuple(replace(queue, capability=queue.deserved) for queue in queues)
