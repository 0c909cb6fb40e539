"""Who pays: two tenants of one cohort, and requests that were cancelled or failed, are billed what they computed."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from controlplane.finops.attribution import window_use
from workers.energy.base import EnergyReading
from workers.meter import Meter

LONG = list(range(3, 43)) * 4  # 160 tokens: two prefill chunks, of 128 and 32


def of(tenant, request):
    return replace(request, tenant=tenant)


@pytest.fixture
def shared(make_engine, ask, drain, clock):
    """One window of cohort default: "acme" runs to its end, "zeta" is cancelled amid its text; and both records."""
    engine = make_engine(4, "draft", eos=(), clock=clock)
    meter = engine.meter
    engine.meter = Meter(
        meter.worker, 1, meter.model, meter.drafter, meter.device, clock,
        lambda now, is_idle: EnergyReading(50_000_000, "counter", 10_000_000),
    )  # fmt: skip
    engine.submit(of("acme", ask([3, 4, 5, 6], "kept", max_tokens=30)))
    engine.submit(of("zeta", ask([7, 8, 9], "left", max_tokens=30)))
    for _ in range(5):
        engine.step()
    left = engine.cancel("left").record
    kept = drain(engine)["kept"].record
    clock.now += 60.0
    return engine.close_window(), kept, left


def test_a_cancelled_request_is_billed_to_its_tenant_for_what_it_computed(shared) -> None:
    window, kept, left = shared
    assert left.finish_reason == "cancelled"
    assert left.draft_tokens > left.accepted_tokens  # else nothing of it could be wasted
    (cohort,) = window.cohorts
    billed = {use.tenant: use for use in cohort.tenants}
    assert sorted(billed) == ["acme", "zeta"]
    for record in (kept, left):
        use = billed[record.tenant]
        assert (use.input_tokens, use.emitted_tokens) == (record.prompt_tokens, record.completion_tokens)
        assert (use.prefill_positions, use.verify_positions) == (record.prefill_positions, record.verify_positions)
        assert (use.draft_positions, use.draft_tokens) == (record.draft_positions, record.draft_tokens)
        assert (use.accepted_tokens, use.requests) == (record.accepted_tokens, 1)


def test_each_tenants_time_is_its_positions_share_of_what_was_measured(shared) -> None:
    window, *records = shared
    uses = {u[1:3]: u for u in window_use(window).uses}
    steps_s = sum(cell.seconds for cell in window.latency)
    drafting_s = sum(cell.draft_seconds for cell in window.latency)
    positions = {name: sum(getattr(r, name) for r in records) for name in ("prefill_positions", "verify_positions")}
    drafted = sum(r.draft_positions for r in records)
    for record in records:
        prefill = (window.busy_s - steps_s) * record.prefill_positions / positions["prefill_positions"]
        verifying = (steps_s - drafting_s) * record.verify_positions / positions["verify_positions"]
        drafting = drafting_s * record.draft_positions / drafted
        assert uses[record.tenant, "input"].ns == pytest.approx(1e9 * prefill, abs=3)
        assert uses[record.tenant, "output"].ns == pytest.approx(1e9 * (verifying + drafting), abs=3)


def test_the_bill_of_both_and_idle_is_the_window(shared) -> None:
    use = window_use(shared[0])
    assert sum(u.ns for u in use.uses) + use.idle_ns == 60_000_000_000
    assert (sum(u.uj for u in use.uses), use.idle_uj) == (40_000_000, 10_000_000)


def test_wasted_time_follows_from_the_rejected_drafts(shared) -> None:
    window, *records = shared
    uses = {u.tenant: u for u in window_use(window).uses if u.direction == "output"}
    for record in records:
        rejected = record.draft_tokens - record.accepted_tokens
        # Verification's share of rejected positions is less than drafting's share of tokens that were not kept.
        least, most = (Fraction(rejected, n) for n in (record.verify_positions, record.draft_tokens))
        assert least * uses[record.tenant].ns - 2 < uses[record.tenant].wasted_ns < most * uses[record.tenant].ns + 2


def test_a_request_cancelled_amid_its_prompt_is_billed_for_the_chunk_that_was_computed(make_engine, ask) -> None:
    engine = make_engine(0, "none")
    engine.submit(of("acme", ask(LONG)))
    engine.step()
    engine.cancel("r")
    (cohort,) = engine.close_window().cohorts
    (use,) = cohort.tenants
    assert (use.prefill_positions, use.input_tokens, use.emitted_tokens, use.requests) == (128, 160, 0, 1)


def test_a_prompt_counts_once_as_input_however_many_windows_it_takes(make_engine, ask) -> None:
    engine = make_engine(0, "none")
    engine.submit(of("acme", ask(LONG)))
    windows = []
    for _ in range(2):
        engine.step()
        windows.append(engine.close_window())
    assert [w.cohorts[0].tenants[0].input_tokens for w in windows] == [160, 0]
    assert [w.cohorts[0].tenants[0].prefill_positions for w in windows] == [128, 32]


def test_a_request_that_never_ran_is_billed_nothing(make_engine, ask) -> None:
    engine = make_engine(0, "none")
    engine.submit(of("acme", ask(LONG)))
    engine.cancel("r")
    window = engine.close_window()
    assert window.cohorts[0].tenants[0].requests == 1
    assert window_use(window).uses == ()


class BrokenVerifier:
    """Fails once the forward is done."""

    def verify(self, *args):
        raise RuntimeError("broken")


def test_a_failed_step_bills_the_prompt_that_it_had_computed(make_engine, ask, clock) -> None:
    engine = make_engine(0, "none", clock=clock)
    engine.verifier = BrokenVerifier()
    engine.submit(of("acme", ask([3, 4, 5])))
    with pytest.raises(RuntimeError, match="broken"):
        engine.step()
    (chunk,) = engine.fail_all("the step failed")
    clock.now += 60.0
    window = engine.close_window()
    (use,) = window.cohorts[0].tenants
    assert use.prefill_positions == chunk.record.prefill_positions == 3
    assert (use.input_tokens, use.requests) == (3, 1)
    assert window_use(window).uses[0].ns > 0


def test_the_window_has_step_times_for_all_of_its_steps(shared) -> None:
    """Without them the split would silently go by positions."""
    window, *_ = shared
    steps = sum(cell.steps * cell.sequences for cell in window.latency)
    assert steps == sum(use.steps for use in window.cohorts[0].tenants) > 0
