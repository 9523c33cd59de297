"""One record a job, and what was said of its start and end."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "2"
down_revision = "1"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "job_records",
        sa.Column("uid", sa.Text, nullable=False),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("queue", sa.Text, nullable=False),
        sa.Column("user_name", sa.Text, nullable=False),
        sa.Column("each", sa.BigInteger, nullable=False),
        sa.Column("least", sa.Integer, nullable=False),
        sa.Column("most", sa.Integer, nullable=False),
        sa.Column("asked", sa.Integer, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("started", sa.BigInteger),
        sa.Column("ended", sa.BigInteger),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("hours", sa.Float, nullable=False),
        sa.Column("spent", sa.Text, nullable=False),
        sa.Column("seen", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("uid", name="pk_job_records"),
    )
    op.create_index("ix_job_records_seen", "job_records", ["seen"])
    op.create_table(
        "eta_answers",
        sa.Column("uid", sa.Text, nullable=False),
        sa.Column("asked", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("what", sa.Text, nullable=False),
        sa.Column("low", sa.BigInteger),
        sa.Column("middle", sa.BigInteger),
        sa.Column("high", sa.BigInteger),
        sa.PrimaryKeyConstraint("uid", "asked", "what", name="pk_eta_answers"),
    )
    op.create_index("ix_eta_answers_asked", "eta_answers", ["asked"])


def downgrade() -> None:
    for table in ("job_records", "eta_answers"):
        op.drop_table(table)
