"""Runs, their speeds and their pods' loads."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "1"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "runs",
        sa.Column("uid", sa.Text, nullable=False),
        sa.Column("namespace", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("user_name", sa.Text, nullable=False),
        sa.Column("queue", sa.Text, nullable=False),
        sa.Column("image", sa.Text, nullable=False),
        sa.Column("data_set", sa.Text, nullable=False),
        sa.Column("labels", sa.JSON, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("seen", sa.BigInteger, nullable=False),
        sa.Column("ended", sa.BigInteger),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("restarts", sa.Integer, nullable=False),
        sa.Column("out_of_memory", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("uid", name="pk_runs"),
    )
    for column in ("user_name", "queue", "image", "seen"):
        op.create_index(f"ix_runs_{column}", "runs", [column])
    op.create_table(
        "speeds",
        sa.Column("run", sa.Text, nullable=False),
        sa.Column("workers", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("samples_per_second", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("run", "workers", name="pk_speeds"),
        sa.ForeignKeyConstraint(["run"], ["runs.uid"], name="fk_speeds_runs", ondelete="CASCADE"),
    )
    op.create_table(
        "pod_loads",
        sa.Column("run", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("pod_index", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("requested_cpu", sa.BigInteger, nullable=False),
        sa.Column("requested_memory", sa.BigInteger, nullable=False),
        sa.Column("peak_cpu", sa.BigInteger, nullable=False),
        sa.Column("peak_memory", sa.BigInteger, nullable=False),
        sa.Column("since", sa.BigInteger, nullable=False),
        sa.Column("cpu", sa.JSON, nullable=False),
        sa.Column("memory", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("run", "role", "pod_index", name="pk_pod_loads"),
        sa.ForeignKeyConstraint(
            ["run"], ["runs.uid"], name="fk_pod_loads_runs", ondelete="CASCADE"
        ),
    )


def downgrade() -> None:
    for table in ("pod_loads", "speeds", "runs"):
        op.drop_table(table)
