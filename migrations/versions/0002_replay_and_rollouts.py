"""What replay needs (ticks, the tick of a window, profiles, shadow drafts), and staged rollouts of a policy.

A rollout on replicas makes two decisions for a cohort and load bucket in one tick: the policy is part of their key.

Revision: 0002.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


OLD_KEY = "uq_decision_at_cohort_load_bucket_plan_version"
NEW_KEY = "uq_decision_at_cohort_load_bucket_plan_version_policy_revision"


def upgrade() -> None:
    op.create_table(
        "policy_rollout",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("revision", sa.Text(), nullable=False),
        sa.Column("incumbent", sa.Text(), nullable=False),
        sa.Column("unit", sa.Text(), nullable=False),
        sa.Column("share", sa.Double(), nullable=False),
        sa.Column("min_windows", sa.BigInteger(), nullable=False),
        sa.Column("max_s", sa.Double(), nullable=False),
        sa.Column("members", sa.JSON(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("started_by", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("sentence", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_policy_rollout")),
        sa.UniqueConstraint("started_at", "revision", name=op.f("uq_policy_rollout_started_at_revision")),
    )
    op.create_table(
        "tick",
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("plan_version", sa.BigInteger(), nullable=False),
        sa.Column("policy_revision", sa.Text(), nullable=False),
        sa.Column("kill_switch", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("epoch", "at", name=op.f("pk_tick")),
    )
    op.create_table(
        "control_event",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("value", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_control_event")),
        sa.UniqueConstraint("epoch", "at", "kind", name=op.f("uq_control_event_epoch_at_kind")),
    )
    with op.batch_alter_table("decision") as batch:
        batch.drop_constraint(OLD_KEY, type_="unique")
        batch.create_unique_constraint(NEW_KEY, ["at", "cohort", "load_bucket", "plan_version", "policy_revision"])
    # Added in place: rebuilding a table of windows would cascade to their cohorts on SQLite.
    op.add_column("window", sa.Column("profile", sa.JSON(), nullable=True))
    op.add_column("window", sa.Column("tick_at", sa.Double(), nullable=True))
    op.add_column("window", sa.Column("busy_s", sa.Double(), nullable=True))
    op.add_column("window_cohort", sa.Column("shadow", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("window_cohort", "shadow")
    op.drop_column("window", "busy_s")
    op.drop_column("window", "tick_at")
    op.drop_table("control_event")
    op.drop_column("window", "profile")
    # Of decisions of two policies in one tick, the older key has room for one.
    op.execute(
        "DELETE FROM decision WHERE id NOT IN"
        " (SELECT MIN(id) FROM decision GROUP BY at, cohort, load_bucket, plan_version)"
    )
    with op.batch_alter_table("decision") as batch:
        batch.drop_constraint(NEW_KEY, type_="unique")
        batch.create_unique_constraint(OLD_KEY, ["at", "cohort", "load_bucket", "plan_version"])
    op.drop_table("tick")
    op.drop_table("policy_rollout")
