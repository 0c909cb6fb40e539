"""Cost by hour and by day, by tenant and direction, and which windows were pruned.

Revision: 0004.
"""

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    pass
