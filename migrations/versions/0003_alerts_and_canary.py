"""What the canary found, and the alerts that an operator must look at.

Revision: 0003.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "alert",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("severity", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("first_seen", sa.Double(), nullable=False),
        sa.Column("last_seen", sa.Double(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("cleared_at", sa.Double(), nullable=True),
        sa.Column("cleared_by", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alert")),
        sa.UniqueConstraint("kind", "subject", "first_seen", name=op.f("uq_alert_kind_subject_first_seen")),
    )
    op.create_table(
        "canary_result",
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("cohort", sa.Text(), nullable=False),
        sa.Column("drafter", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("positions", sa.BigInteger(), nullable=False),
        sa.Column("near_ties", sa.BigInteger(), nullable=False),
        sa.Column("mismatches", sa.BigInteger(), nullable=False),
        sa.Column("worst_gap", sa.Double(), nullable=True),
        sa.Column("tolerance", sa.Double(), nullable=False),
        sa.Column("first_mismatch", sa.BigInteger(), nullable=True),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("request_id", name=op.f("pk_canary_result")),
    )
    op.create_index(op.f("ix_canary_result_at"), "canary_result", ["at"])


def downgrade() -> None:
    op.drop_table("canary_result")
    op.drop_table("alert")
