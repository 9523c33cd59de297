"""GPU use over time, and changes of jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "1"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "gpu_use",
        sa.Column("level", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("begin", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("level", "begin", name="pk_gpu_use"),
    )
    op.create_table(
        "job_changes",
        sa.Column("uid", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("time", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("queue", sa.Text, nullable=False),
        sa.Column("old_size", sa.Integer),
        sa.Column("new_size", sa.Integer),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("uid", "kind", "time", name="pk_job_changes"),
    )
    op.create_index("ix_job_changes_time", "job_changes", ["time"])
    op.create_index("ix_job_changes_job", "job_changes", ["job", "time"])


def downgrade() -> None:
    for table in ("gpu_use", "job_changes"):
        op.drop_table(table)
