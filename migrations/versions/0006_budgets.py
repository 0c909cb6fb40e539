"""What budgets have spent, and the alerts and deliveries that came of them.

Revision: 0006.
"""

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    pass
