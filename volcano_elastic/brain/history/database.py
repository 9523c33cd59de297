"""Keeps runs in a database: SQLite in a file by default, PostgreSQL for a cluster.

Whatever goes wrong there is a DatabaseError. Who advises then does without history; jobs know
nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from volcano_elastic.api.amount import Bytes, Cpu, Percent
from volcano_elastic.brain.estimate.amounts import Amounts
from volcano_elastic.brain.estimate.histogram import Histogram
from volcano_elastic.brain.history.gpu_load import GpuLoad
from volcano_elastic.brain.history.run import PodLoad, Run
from volcano_elastic.brain.history.schema import POD_LOADS, RUNS, SPEEDS
from volcano_elastic.database.database import Database, in_hundreds, milliseconds, time_of

_MIGRATIONS = "volcano_elastic.brain.history:migrations"
_MOST_RUNS = 10_000
_PARTS = (SPEEDS, POD_LOADS)


class History:
    """Runs in the database at `url`, as `Database` takes it. Not for several threads at once.

    Raises:
        DatabaseError: the URL makes no sense. All methods raise it where the database fails.
    """

    def __init__(self, url: str) -> None:
        self.database = Database(url, _MIGRATIONS)

    @property
    def name(self) -> str:
        """The URL without its password."""
        return self.database.name

    def migrate(self) -> None:
        """Makes the tables, or brings them to this version; keeps what is in them."""
        self.database.migrate()

    def close(self) -> None:
        """Closes all connections; the next call makes new ones."""
        self.database.close()

    def write(self, run: Run) -> None:
        """Keeps the run as it is now, in place of what was known of it."""
        with self.database.transaction() as connection:
            _forget(connection, [run.uid])
            connection.execute(sa.insert(RUNS), _row(run))
            for table, rows in ((SPEEDS, _speed_rows(run)), (POD_LOADS, _load_rows(run))):
                if rows:
                    connection.execute(sa.insert(table), rows)

    def run(self, uid: str) -> Run | None:
        """Return one run; None: nothing is known of it."""
        return next(iter(self._runs(RUNS.c.uid == uid, 1)), None)

    def runs(
        self,
        *,
        namespace: str | None = None,
        name: str | None = None,
        user: str | None = None,
        queue: str | None = None,
        most: int = _MOST_RUNS,
    ) -> list[Run]:
        """Return the newest runs for which all that is given holds, newest first."""
        asked = (
            (RUNS.c.namespace, namespace),
            (RUNS.c.name, name),
            (RUNS.c.user_name, user),
            (RUNS.c.queue, queue),
        )
        wanted = [column == value for column, value in asked if value is not None]
        return self._runs(sa.and_(sa.true(), *wanted), most)

    def forget(self, before: datetime) -> int:
        """Removes runs that were last seen before that time; return how many."""
        with self.database.transaction() as connection:
            old = sa.select(RUNS.c.uid).where(RUNS.c.seen < milliseconds(before))
            found = [str(row[0]) for row in connection.execute(old)]
            _forget(connection, found)
            return len(found)

    def _runs(self, wanted: Any, most: int) -> list[Run]:
        newest = sa.select(RUNS).where(wanted).order_by(RUNS.c.created.desc(), RUNS.c.uid)
        with self.database.transaction() as connection:
            rows = list(connection.execute(newest.limit(most)).mappings())
            uids = [str(row["uid"]) for row in rows]
            speeds, loads = (_by_run(connection, table, uids) for table in _PARTS)
        return [_run(row, speeds.get(row["uid"], ()), loads.get(row["uid"], ())) for row in rows]


def _forget(connection: Connection, uids: Sequence[str]) -> None:
    for few in in_hundreds(uids):
        connection.execute(sa.delete(RUNS).where(RUNS.c.uid.in_(few)))


def _by_run(
    connection: Connection, table: sa.Table, uids: Sequence[str]
) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for few in in_hundreds(uids):
        rows = connection.execute(sa.select(table).where(table.c.run.in_(few))).mappings()
        for row in rows:
            found.setdefault(row["run"], []).append(dict(row))
    return found


def _row(run: Run) -> dict[str, Any]:
    return {
        "uid": run.uid,
        "namespace": run.namespace,
        "name": run.name,
        "user_name": run.user,
        "queue": run.queue,
        "image": run.image,
        "data_set": run.data_set,
        "labels": dict(run.labels),
        "created": milliseconds(run.created),
        "seen": milliseconds(run.seen),
        "ended": None if run.ended is None else milliseconds(run.ended),
        "outcome": run.outcome,
        "restarts": run.restarts,
        "out_of_memory": run.out_of_memory,
        "checkpoint": {role: size.count for role, size in run.checkpoint.items()},
    }


def _speed_rows(run: Run) -> list[dict[str, Any]]:
    return [
        {"run": run.uid, "workers": workers, "samples_per_second": speed}
        for workers, speed in run.speeds.items()
    ]


def _load_rows(run: Run) -> list[dict[str, Any]]:
    return [
        {
            "run": run.uid,
            "role": load.role,
            "pod_index": load.index,
            "requested_cpu": load.requested.cpu.count,
            "requested_memory": load.requested.memory.count,
            "peak_cpu": load.peak.cpu.count,
            "peak_memory": load.peak.memory.count,
            "since": milliseconds(load.cpu.since),
            "cpu": _texts(load.cpu),
            "memory": _texts(load.memory),
            "gpu": None if load.gpu is None else _gpu_row(load.gpu),
        }
        for load in run.loads
    ]


def _gpu_row(gpu: GpuLoad) -> dict[str, Any]:
    return {
        "peak": gpu.peak.count,
        "since": milliseconds(gpu.memory.since),
        "memory": _texts(gpu.memory),
        "busy_since": milliseconds(gpu.busy.since),
        "busy": _texts(gpu.busy),
    }


def _texts(histogram: Histogram[Any]) -> dict[str, float]:
    return {str(bucket): weight for bucket, weight in histogram.weights.items()}


def _weights(found: Mapping[str, Any]) -> dict[int, float]:
    return {int(bucket): float(weight) for bucket, weight in found.items()}


def _run(
    row: Mapping[Any, Any],
    speeds: Sequence[Mapping[str, Any]],
    loads: Sequence[Mapping[str, Any]],
) -> Run:
    ordered = sorted(loads, key=lambda load: (load["role"], load["pod_index"]))
    return Run(
        uid=row["uid"],
        namespace=row["namespace"],
        name=row["name"],
        user=row["user_name"],
        queue=row["queue"],
        image=row["image"],
        data_set=row["data_set"],
        labels=row["labels"],
        created=time_of(row["created"]),
        seen=time_of(row["seen"]),
        ended=None if row["ended"] is None else time_of(row["ended"]),
        outcome=row["outcome"],
        restarts=row["restarts"],
        out_of_memory=row["out_of_memory"],
        speeds={one["workers"]: one["samples_per_second"] for one in speeds},
        loads=tuple(_load(load) for load in ordered),
        checkpoint={role: Bytes(size) for role, size in (row["checkpoint"] or {}).items()},
    )


def _load(row: Mapping[str, Any]) -> PodLoad:
    since = time_of(row["since"])
    return PodLoad(
        role=row["role"],
        index=row["pod_index"],
        requested=Amounts(Cpu(row["requested_cpu"]), Bytes(row["requested_memory"])),
        peak=Amounts(Cpu(row["peak_cpu"]), Bytes(row["peak_memory"])),
        cpu=Histogram(Cpu, since, _weights(row["cpu"])),
        memory=Histogram(Bytes, since, _weights(row["memory"])),
        gpu=None if row["gpu"] is None else _gpu(row["gpu"]),
    )


def _gpu(row: Mapping[str, Any]) -> GpuLoad:
    return GpuLoad(
        Bytes(row["peak"]),
        Histogram(Bytes, time_of(row["since"]), _weights(row["memory"])),
        Histogram(Percent, time_of(row["busy_since"]), _weights(row["busy"])),
    )
