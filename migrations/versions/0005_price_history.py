"""Every price sheet that was in force, and what an hour was first reported with.

Revision: 0005.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "price_revision",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("revision", sa.Text(), nullable=False),
        sa.Column("applied_at", sa.Double(), nullable=False),
        sa.Column("applied_by", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_price_revision")),
        sa.UniqueConstraint("applied_at", "revision", name=op.f("uq_price_revision_applied_at_revision")),
    )
    op.create_table(
        "hour_price",
        sa.Column("hour", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("sku", sa.Text(), nullable=False),
        sa.Column("basis", sa.Text(), nullable=False),
        sa.Column("per_hour_nano", sa.BigInteger(), nullable=True),
        sa.Column("currency", sa.Text(), nullable=True),
        sa.Column("revision", sa.Text(), nullable=False),
        sa.Column("reported_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("hour", "sku", "basis", name=op.f("pk_hour_price")),
    )


def downgrade() -> None:
    op.drop_table("hour_price")
    op.drop_table("price_revision")
