"""Pods' use of GPUs, and the sizes of runs' checkpoints; neither is known of earlier runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "2"
down_revision = "1"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("checkpoint", sa.JSON))
    op.add_column("pod_loads", sa.Column("gpu", sa.JSON))


def downgrade() -> None:
    # Not in a batch, which has SQLite make the table anew: what refers to its rows would go.
    op.drop_column("runs", "checkpoint")
    op.drop_column("pod_loads", "gpu")
