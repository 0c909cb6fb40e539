"""Create the ledger: windows and their cohorts, requests, decisions, plans, policy revisions and prices.

Revision: 0001, the first.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "decision",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("cohort", sa.Text(), nullable=False),
        sa.Column("load_bucket", sa.BigInteger(), nullable=False),
        sa.Column("old_k", sa.BigInteger(), nullable=False),
        sa.Column("new_k", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("sentence", sa.Text(), nullable=False),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("accept_at", sa.JSON(), nullable=False),
        sa.Column("plan_version", sa.BigInteger(), nullable=False),
        sa.Column("policy_revision", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_decision")),
        sa.UniqueConstraint(
            "at", "cohort", "load_bucket", "plan_version", name=op.f("uq_decision_at_cohort_load_bucket_plan_version")
        ),
    )
    op.create_table(
        "plan",
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("issued_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("k", sa.JSON(), nullable=False),
        sa.Column("fallback", sa.JSON(), nullable=False),
        sa.Column("policy_revision", sa.Text(), nullable=False),
        sa.Column("kill_switch", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("version", "epoch", name=op.f("pk_plan")),
    )
    op.create_table(
        "policy_revision",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("revision", sa.Text(), nullable=False),
        sa.Column("applied_at", sa.Double(), nullable=False),
        sa.Column("applied_by", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_policy_revision")),
        sa.UniqueConstraint("applied_at", "revision", name=op.f("uq_policy_revision_applied_at_revision")),
    )
    op.create_table(
        "price",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("sku", sa.Text(), nullable=False),
        sa.Column("basis", sa.Text(), nullable=False),
        sa.Column("currency", sa.Text(), nullable=False),
        sa.Column("per_hour_nano", sa.BigInteger(), nullable=False),
        sa.Column("region", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("as_of", sa.Text(), nullable=False),
        sa.Column("effective_from", sa.Double(), nullable=False),
        sa.Column("effective_to", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_price")),
        sa.UniqueConstraint("sku", "basis", "effective_from", name=op.f("uq_price_sku_basis_effective_from")),
    )
    op.create_table(
        "request",
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("drafter", sa.Text(), nullable=False),
        sa.Column("cohort", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=True),
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("stream", sa.Boolean(), nullable=False),
        sa.Column("hour", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("spec_steps", sa.BigInteger(), nullable=False),
        sa.Column("plain_steps", sa.BigInteger(), nullable=False),
        sa.Column("draft_tokens", sa.BigInteger(), nullable=False),
        sa.Column("accepted_tokens", sa.BigInteger(), nullable=False),
        sa.Column("prefill_positions", sa.BigInteger(), nullable=False),
        sa.Column("verify_positions", sa.BigInteger(), nullable=False),
        sa.Column("draft_positions", sa.BigInteger(), nullable=False),
        sa.Column("max_k", sa.BigInteger(), nullable=False),
        sa.Column("ttft_s", sa.Double(), nullable=True),
        sa.Column("tpot_s", sa.Double(), nullable=True),
        sa.Column("finish_reason", sa.Text(), nullable=False),
        sa.Column("plan_version", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("request_id", name=op.f("pk_request")),
    )
    with op.batch_alter_table("request", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_request_finished_at"), ["finished_at"], unique=False)

    op.create_table(
        "window",
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("drafter", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("hour", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=False),
        sa.Column("seconds_ns", sa.BigInteger(), nullable=False),
        sa.Column("busy_ns", sa.BigInteger(), nullable=False),
        sa.Column("idle_ns", sa.BigInteger(), nullable=False),
        sa.Column("energy_uj", sa.BigInteger(), nullable=True),
        sa.Column("idle_uj", sa.BigInteger(), nullable=True),
        sa.Column("energy_source", sa.Text(), nullable=False),
        sa.Column("plan_version", sa.BigInteger(), nullable=False),
        sa.Column("plan_expired", sa.Boolean(), nullable=False),
        sa.Column("plan_age_s", sa.Double(), nullable=False),
        sa.Column("running", sa.BigInteger(), nullable=False),
        sa.Column("waiting", sa.BigInteger(), nullable=False),
        sa.Column("kv_used", sa.BigInteger(), nullable=False),
        sa.Column("kv_total", sa.BigInteger(), nullable=False),
        sa.Column("latency", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("worker", "epoch", "sequence", name=op.f("pk_window")),
    )
    with op.batch_alter_table("window", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_window_started_at"), ["started_at"], unique=False)

    op.create_table(
        "window_cohort",
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("cohort", sa.Text(), nullable=False),
        sa.Column("attributed_ns", sa.BigInteger(), nullable=False),
        sa.Column("wasted_ns", sa.BigInteger(), nullable=False),
        sa.Column("attributed_uj", sa.BigInteger(), nullable=True),
        sa.Column("wasted_uj", sa.BigInteger(), nullable=True),
        sa.Column("prefill_positions", sa.BigInteger(), nullable=False),
        sa.Column("verify_positions", sa.BigInteger(), nullable=False),
        sa.Column("draft_positions", sa.BigInteger(), nullable=False),
        sa.Column("first_tokens", sa.BigInteger(), nullable=False),
        sa.Column("emitted_tokens", sa.BigInteger(), nullable=False),
        sa.Column("spec_steps", sa.BigInteger(), nullable=False),
        sa.Column("plain_steps", sa.BigInteger(), nullable=False),
        sa.Column("draft_tokens", sa.BigInteger(), nullable=False),
        sa.Column("accepted_tokens", sa.BigInteger(), nullable=False),
        sa.Column("planned_k_steps", sa.BigInteger(), nullable=False),
        sa.Column("step_seconds", sa.Double(), nullable=False),
        sa.Column("requests_started", sa.BigInteger(), nullable=False),
        sa.Column("requests_finished", sa.BigInteger(), nullable=False),
        sa.Column("requests_failed", sa.BigInteger(), nullable=False),
        sa.Column("cells", sa.JSON(), nullable=False),
        sa.Column("ttft", sa.JSON(), nullable=False),
        sa.Column("tpot", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["worker", "epoch", "sequence"],
            ["window.worker", "window.epoch", "window.sequence"],
            name=op.f("fk_window_cohort_worker_epoch_sequence_window"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("worker", "epoch", "sequence", "cohort", name=op.f("pk_window_cohort")),
    )


def downgrade() -> None:
    op.drop_table("window_cohort")
    with op.batch_alter_table("window", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_window_started_at"))

    op.drop_table("window")
    with op.batch_alter_table("request", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_request_finished_at"))

    op.drop_table("request")
    op.drop_table("price")
    op.drop_table("policy_revision")
    op.drop_table("plan")
    op.drop_table("decision")
