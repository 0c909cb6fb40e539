"""Savings experiments and their paired windows.

Revision: 0007.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

RowId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
COUNTS = ("early_busy_ns", "early_tokens", "draft_tokens", "requests", "failed", "prompt_tokens", "completion_tokens")


def upgrade() -> None:
    op.create_table(
        "experiment",
        sa.Column("experiment", sa.Text(), nullable=False),
        sa.Column("unit", sa.Text(), nullable=False),
        sa.Column("holdout", sa.Double(), nullable=False),
        sa.Column("window_s", sa.Double(), nullable=False),
        sa.Column("burn_in_s", sa.Double(), nullable=False),
        sa.Column("pairs", sa.BigInteger(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("started_by", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("sentence", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("experiment", name=op.f("pk_experiment")),
    )
    op.create_table(
        "experiment_window",
        sa.Column("id", RowId, nullable=False),
        sa.Column("experiment", sa.Text(), nullable=False),
        sa.Column("pair", sa.BigInteger(), nullable=False),
        sa.Column("arm", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("burn_in_end", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=False),
        sa.Column("policy_revision", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("windows", sa.BigInteger(), nullable=False),
        sa.Column("seconds_ns", sa.BigInteger(), nullable=False),
        sa.Column("busy_ns", sa.BigInteger(), nullable=False),
        sa.Column("machine_ns", sa.JSON(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("energy_uj", sa.BigInteger(), nullable=True),
        sa.Column("measured_tokens", sa.BigInteger(), nullable=False),
        sa.Column("energy_sources", sa.JSON(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in COUNTS),
        sa.Column("lengths", sa.JSON(), nullable=False),
        sa.Column("ttft", sa.JSON(), nullable=False),
        sa.Column("tpot", sa.JSON(), nullable=False),
        sa.Column("filled_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_experiment_window")),
        sa.UniqueConstraint("experiment", "pair", "arm", name=op.f("uq_experiment_window_experiment_pair_arm")),
    )


def downgrade() -> None:
    op.drop_table("experiment_window")
    op.drop_table("experiment")
