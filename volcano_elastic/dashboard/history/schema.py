"""The database's tables. Times are milliseconds since 1970.

A change here needs a migration; a test holds the two to each other.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, Index, Integer, MetaData, Table, Text

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

RECORDS = Table(
    "job_records",
    METADATA,
    Column("uid", Text, primary_key=True),
    Column("job", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("user_name", Text, nullable=False),
    Column("each", BigInteger, nullable=False),
    Column("least", Integer, nullable=False),
    Column("most", Integer, nullable=False),
    Column("asked", Integer, nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("started", BigInteger),
    Column("ended", BigInteger),
    Column("outcome", Text, nullable=False),
    Column("hours", Float, nullable=False),
    Column("spent", Text, nullable=False),
    Column("seen", BigInteger, nullable=False),
    Index("ix_job_records_seen", "seen"),
)
"""One row a job, as `JobRecord`; `spent`: JSON; `seen`: when it was last written."""

ANSWERS = Table(
    "eta_answers",
    METADATA,
    Column("uid", Text, primary_key=True),
    Column("asked", BigInteger, primary_key=True, autoincrement=False),
    Column("what", Text, primary_key=True),
    Column("low", BigInteger),
    Column("middle", BigInteger),
    Column("high", BigInteger),
    Index("ix_eta_answers_asked", "asked"),
)
"""Answers of `volcano-elastic eta`; `what`: start or end. No `high`: later than it looked."""
