"""The database's tables. Times are milliseconds since 1970, CPU thousandths, memory bytes.

A change here needs a migration; a test holds the two to each other.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
)

METADATA = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
        "ix": "ix_%(table_name)s_%(column_0_name)s",
    }
)

RUNS = Table(
    "runs",
    METADATA,
    Column("uid", Text, primary_key=True),
    Column("namespace", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("user_name", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("image", Text, nullable=False),
    Column("data_set", Text, nullable=False),
    Column("labels", JSON, nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("seen", BigInteger, nullable=False),
    Column("ended", BigInteger),
    Column("outcome", Text, nullable=False),
    Column("restarts", Integer, nullable=False),
    Column("out_of_memory", Integer, nullable=False),
    Column("checkpoint", JSON),
    Index("ix_runs_user_name", "user_name"),
    Index("ix_runs_queue", "queue"),
    Index("ix_runs_image", "image"),
    Index("ix_runs_seen", "seen"),
)

SPEEDS = Table(
    "speeds",
    METADATA,
    Column("run", Text, ForeignKey("runs.uid", ondelete="CASCADE"), primary_key=True),
    Column("workers", Integer, primary_key=True, autoincrement=False),
    Column("samples_per_second", Float, nullable=False),
)

POD_LOADS = Table(
    "pod_loads",
    METADATA,
    Column("run", Text, ForeignKey("runs.uid", ondelete="CASCADE"), primary_key=True),
    Column("role", Text, primary_key=True),
    Column("pod_index", Integer, primary_key=True, autoincrement=False),
    Column("requested_cpu", BigInteger, nullable=False),
    Column("requested_memory", BigInteger, nullable=False),
    Column("peak_cpu", BigInteger, nullable=False),
    Column("peak_memory", BigInteger, nullable=False),
    Column("since", BigInteger, nullable=False),
    Column("cpu", JSON, nullable=False),
    Column("memory", JSON, nullable=False),
    Column("gpu", JSON),
)
