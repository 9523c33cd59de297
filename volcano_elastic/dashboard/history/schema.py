"""The database's tables. Times are milliseconds since 1970.

A change here needs a migration; a test holds the two to each other.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, Table, Text

METADATA = MetaData(
    naming_convention={"pk": "pk_%(table_name)s", "ix": "ix_%(table_name)s_%(column_0_name)s"}
)
VERSION_TABLE = "dashboard_version"
"""Alembic's, of its own: Brain may keep its runs in the same database."""

BUCKETS = Table(
    "gpu_use",
    METADATA,
    Column("level", BigInteger, primary_key=True, autoincrement=False),
    Column("begin", BigInteger, primary_key=True, autoincrement=False),
    Column("content", Text, nullable=False),
)
"""`level`: a bucket's length; `content`: JSON, as it is sent."""

CHANGES = Table(
    "job_changes",
    METADATA,
    Column("uid", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("time", BigInteger, primary_key=True, autoincrement=False),
    Column("job", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("old_size", Integer),
    Column("new_size", Integer),
    Column("reason", Text, nullable=False),
    Column("message", Text, nullable=False),
    Index("ix_job_changes_time", "time"),
    Index("ix_job_changes_job", "job", "time"),
)
