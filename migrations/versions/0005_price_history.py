"""Every price sheet that was in force, and what an hour was first reported with.

Revision: 0005.
"""

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    pass
