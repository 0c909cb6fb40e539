"""K of the batch that a worker has, held against looking at every possible choice."""

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest

from controlplane.decision.batch_choice import BAND, BatchChoice, Counts
from controlplane.decision.charges import Charges
from controlplane.decision.plan import Plan, StagedPlan
from controlplane.telemetry import LOAD_BUCKETS, MAX_K, PRICE_LOADS, load_bucket

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

NOW, TOP = 100.0, 4
LOADS = np.array(PRICE_LOADS, np.float64)
POSITIONS = LOADS[:, None] * np.arange(1.0, MAX_K + 2.0)


def charges_of(verify: Floats, start: float = 0.0, a_pass: float = 0.5, beyond: float = 0.0) -> Charges:
    """verify: [loads, MAX_K + 1] charge of a forward."""
    ones = np.ones(len(LOADS))
    return Charges(verify[:, 0], verify, start * ones, a_pass * ones, beyond * LOADS)


FLAT = charges_of(np.full(POSITIONS.shape, 10.0))
RISING = charges_of(10.0 + 0.4 * POSITIONS)


def chance_of(hazard: float) -> tuple[float, ...]:
    return tuple(hazard ** np.arange(1, MAX_K + 1))


def plan_of(charges: Charges, ceilings: Mapping[str, int], hazards: Mapping[str, float], **changes: object) -> Plan:
    """A plan that asks for nothing: its price is that of a batch in which no position pays."""
    plan = Plan(
        epoch=1, version=1, issued_at=NOW, expires_at=NOW + 10, policy_revision="",
        k={c: (k,) * len(LOAD_BUCKETS) for c, k in ceilings.items()}, fallback=dict.fromkeys(ceilings, 1),
        survival={c: chance_of(h) for c, h in hazards.items()}, price=(1.0,) * len(PRICE_LOADS),
        depth=(0,) * len(PRICE_LOADS), charges=charges.table(),
    )  # fmt: skip
    return replace(plan, **changes)  # type: ignore[arg-type]


def goodput(charges: Charges, counts: Mapping[str, int], hazards: Mapping[str, float], k: Mapping[str, int]) -> float:
    """Tokens of a step over what it is charged."""
    n = sum(counts.values())
    at = PRICE_LOADS.index(n)
    tokens = sum(many * (1 + sum(chance_of(hazards[c])[: k[c]])) for c, many in counts.items())
    deep = sum(many * k[c] for c, many in counts.items()) / n
    if not deep:
        return tokens / float(charges.plain[at])
    forward = np.interp(deep, np.arange(MAX_K + 1), charges.going[at])
    drafting = charges.starting[at] + charges.opening[at] * max(k.values()) + charges.following[at] * deep
    return tokens / float(forward + drafting)


@pytest.mark.parametrize("seed", range(40))
def test_no_other_k_brings_the_batch_more(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = dict.fromkeys("abc", 2) if seed % 2 else {"a": 2, "b": 2}
    counts |= {"d": 8 - sum(counts.values())} if seed % 3 else {}
    counts = counts if sum(counts.values()) in PRICE_LOADS else {"a": 1, "b": 1}
    charges = charges_of(
        10.0 + np.sort(rng.uniform(0, 30, POSITIONS.shape), axis=1), rng.uniform(0, 1), rng.uniform(0, 2), 0.01
    )
    hazards = {c: float(rng.uniform(0.2, 0.95)) for c in counts}
    chosen = BatchChoice(plan_of(charges, dict.fromkeys(counts, TOP), hazards)).k_for(counts, NOW)
    best = max(
        goodput(charges, counts, hazards, dict(zip(counts, k, strict=True)))
        for k in product(range(TOP + 1), repeat=len(counts))
    )
    # Cohorts of other sizes than the rest may leave a little: positions are taken in the order of what they bring.
    assert goodput(charges, counts, hazards, chosen) >= (1 - BAND - 0.01 * (seed % 3 > 0)) * best


def test_a_cohort_beside_those_for_whom_nothing_pays_drafts_by_itself() -> None:
    hazards, charges = {"json": 0.9, "story": 0.2}, charges_of(10.0 + 0.6 * POSITIONS)
    choice = BatchChoice(plan_of(charges, dict.fromkeys(hazards, TOP), hazards))
    assert choice.k_for({"story": 8}, NOW) == {"story": 0}
    assert choice.k_for({"json": 8}, NOW)["json"] > 0


@pytest.mark.parametrize("ceiling", range(TOP + 1))
def test_the_plans_k_is_a_ceiling(ceiling: int) -> None:
    hazards = {"code": 0.95, "chat": 0.95}
    choice = BatchChoice(plan_of(FLAT, {"code": ceiling, "chat": TOP}, hazards))
    assert choice.k_for({"code": 2, "chat": 2}, NOW) == {"code": ceiling, "chat": TOP}


def test_positions_that_fit_into_rows_computed_anyway_are_drafted() -> None:
    """Of 16 rows the four sequences need 12 with two draft tokens each; a third is drafted into the four left."""
    hazards = {"code": 0.6, "chat": 0.6}
    plan = plan_of(charges_of(10.0 + 0.6 * POSITIONS, a_pass=0.05), dict.fromkeys(hazards, TOP), hazards)

    def by_sixteen(sequences: int, deepest: Ints, positions: Ints) -> Ints:
        return -(-positions // 16) * 16

    without, knowing = BatchChoice(plan), BatchChoice(plan, padded=by_sixteen)
    counts = {"code": 2, "chat": 2}
    assert sum(without.k_for(counts, NOW).values()) < 6
    assert knowing.k_for(counts, NOW) == {"code": 3, "chat": 3}


def test_where_a_step_costs_what_its_deepest_draft_says_all_draft_as_deep() -> None:
    """As a recorded step does, which computes the rows of its shape."""
    hazards = {"code": 0.95, "chat": 0.5}
    plan = plan_of(RISING, dict.fromkeys(hazards, TOP), hazards)

    def by_shape(sequences: int, deepest: Ints, positions: Ints) -> Ints:
        return np.broadcast_to(sequences * (deepest + 1), positions.shape)

    k = BatchChoice(plan, padded=by_shape).k_for({"code": 6, "chat": 2}, NOW)
    assert k["code"] == k["chat"] > 0


def test_hardly_better_k_does_not_take_the_place_of_what_the_price_says() -> None:
    hazards = {"code": 0.6, "chat": 0.6}
    price, chance = 0.0, chance_of(0.6)
    flat = charges_of(np.full(POSITIONS.shape, 10.0), a_pass=0.0)
    plan = plan_of(flat, dict.fromkeys(hazards, MAX_K), hazards, price=(price,) * len(PRICE_LOADS))
    asked = next(k for k in range(MAX_K) if sum(chance[k:]) < BAND * (1 + sum(chance[:k])))
    plan = replace(plan, depth=(asked,) * len(PRICE_LOADS))
    assert BatchChoice(plan).k_for({"code": 1, "chat": 1}, NOW) == {"code": asked, "chat": asked}


def test_a_step_without_drafts_is_charged_for_its_padding_too() -> None:
    """Sixteen sequences are 32 rows either way, so a draft token of each costs only its drafting."""
    hazards = {"code": 0.6, "chat": 0.6}
    plan = plan_of(charges_of(POSITIONS, a_pass=0.5), dict.fromkeys(hazards, 1), hazards)

    def by_thirty_two(sequences: int, deepest: Ints, positions: Ints) -> Ints:
        return -(-positions // 32) * 32

    counts = {"code": 10, "chat": 6}
    assert BatchChoice(plan).k_for(counts, NOW) == {"code": 0, "chat": 0}
    assert BatchChoice(plan, padded=by_thirty_two).k_for(counts, NOW) == {"code": 1, "chat": 1}


@pytest.mark.parametrize("k", [-3, 20])
def test_a_k_that_no_ladder_has_is_brought_into_range_and_is_nobody_elses(k: int) -> None:
    hazards = {"code": 0.9, "chat": 0.9}
    chosen = BatchChoice(plan_of(FLAT, {"code": k, "chat": 2}, hazards)).k_for({"code": 2, "chat": 2}, NOW)
    assert chosen["chat"] == 2
    assert chosen["code"] in range(MAX_K + 1)


def test_a_ceiling_beyond_what_is_said_of_positions_ends_there() -> None:
    plan = plan_of(FLAT, {"code": 4, "chat": 2}, {"code": 0.9, "chat": 0.9})
    short = replace(plan, survival={**plan.survival, "code": (0.9, 0.8, 0.7)})
    assert BatchChoice(short).k_for({"code": 2, "chat": 2}, NOW) == {"code": 3, "chat": 2}


def just_pays(charge: float) -> Plan:
    """A first draft token that pays by a hair, for a charge of 1.6 a step's beginning, or not, for a little more."""
    hazards = {"code": 0.6, "chat": 0.6}
    flat = charges_of(np.full(POSITIONS.shape, 10.0), start=charge, a_pass=0.0)
    return plan_of(flat, dict.fromkeys(hazards, 1), hazards)


@pytest.mark.parametrize(("charge", "k"), [(5.98, 1), (6.02, 0)])
def test_what_was_chosen_last_for_a_batch_stays_while_it_is_hardly_worse(charge: float, k: int) -> None:
    counts = {"code": 1, "chat": 1}
    assert BatchChoice(just_pays(5.9)).k_for(counts, NOW)["code"] == 1
    assert BatchChoice(just_pays(6.1)).k_for(counts, NOW)["code"] == 0
    standing: dict[Counts, dict[str, int]] = {}
    for first in (5.9 if k else 6.1, charge, 12.0 - charge):
        chosen = BatchChoice(just_pays(first), standing=standing).k_for(counts, NOW)
        assert chosen == {"code": k, "chat": k}


def test_what_stands_is_held_under_a_ceiling_that_was_lowered() -> None:
    hazards, counts = {"code": 0.95, "chat": 0.95}, {"code": 2, "chat": 2}
    standing: dict[Counts, dict[str, int]] = {}
    for top in (4, 1):
        choice = BatchChoice(plan_of(FLAT, dict.fromkeys(hazards, top), hazards), standing=standing)
        assert choice.k_for(counts, NOW) == {"code": top, "chat": top}


def test_no_more_batches_are_remembered_than_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.decision.batch_choice.MOST_STANDING", 3)
    standing: dict[Counts, dict[str, int]] = {}
    choice = BatchChoice(plan_of(FLAT, {"code": TOP}, {"code": 0.9}), standing=standing)
    for running in range(2, 12):
        choice.k_for({"code": running}, NOW)
        assert len(standing) <= 3


def test_one_sequence_alone_drafts_what_the_plan_says() -> None:
    plan = plan_of(FLAT, {"code": TOP}, {"code": 0.9})
    assert BatchChoice(plan).k_for({"code": 1}, NOW) == {"code": plan.k_for("code", 1, NOW)}


def test_a_probe_is_drafted_whatever_it_costs() -> None:
    hazards = {"code": 0.1, "chat": 0.1}
    plan = plan_of(RISING, {"code": 4, "chat": 4}, hazards, probing={"code": load_bucket(4)})
    choice = BatchChoice(plan)
    assert choice.k_for({"code": 2, "chat": 2}, NOW) == {"code": 4, "chat": 0}
    assert choice.k_for({"code": 4, "chat": 4}, NOW) == {"code": 0, "chat": 0}


def test_a_cohort_whose_drafts_are_not_priced_has_its_rung() -> None:
    plan = plan_of(FLAT, {"code": TOP, "plain": 2}, {"code": 0.9})
    assert BatchChoice(plan).k_for({"code": 2, "plain": 2}, NOW)["plain"] == 2


@pytest.mark.parametrize(
    ("changes", "k"),
    [
        ({"kill_switch": "zero"}, 0),
        ({"kill_switch": "fallback"}, 1),
        ({"arm": "control"}, 0),
        ({"blocked_drafters": ("eagle@1",)}, 0),
        ({"expires_at": NOW}, 1),
        ({"charges": ()}, 0),
    ],
)
def test_a_plan_that_is_not_obeyed_is_not_chosen_by(changes: dict[str, object], k: int) -> None:
    hazards = {"code": 0.9, "chat": 0.9}
    plan = replace(plan_of(FLAT, dict.fromkeys(hazards, TOP), hazards), **changes)  # type: ignore[arg-type]
    assert BatchChoice(plan, drafter="eagle@1").k_for({"code": 2, "chat": 2}, NOW) == {"code": k, "chat": k}


def test_an_unknown_cohort_drafts_nothing() -> None:
    choice = BatchChoice(plan_of(FLAT, {"code": TOP}, {"code": 0.9}))
    assert choice.k_for({"code": 1, "gone": 1}, NOW) == {"code": TOP, "gone": 0}


def test_a_worker_that_tries_a_policy_chooses_by_its_part_of_the_plan() -> None:
    plan = plan_of(FLAT, {"code": TOP}, {"code": 0.9})
    tried = StagedPlan(
        ("w1",), {"code": (2,) * len(LOAD_BUCKETS)}, {"code": 0}, "new", plan.survival, plan.price, plan.depth
    )
    staged = replace(plan, staged=replace(tried, charges=plan.charges))
    chosen = [BatchChoice(staged, worker).k_for({"code": 2}, NOW)["code"] for worker in ("w1", "w2")]
    assert chosen == [2, TOP]


def test_the_jump_to_drafts_is_charged_where_a_sequence_has_one() -> None:
    hazards = {"code": 0.9, "chat": 0.9}
    jump = charges_of(10.0 + 0.4 * POSITIONS, a_pass=0.0)
    jump = replace(jump, going=jump.going + 1.0)
    plan = plan_of(jump, dict.fromkeys(hazards, 1), hazards, drafted=dict.fromkeys(hazards, (0.02,) * MAX_K))
    assert BatchChoice(plan).k_for({"code": 2, "chat": 2}, NOW) == {"code": 1, "chat": 1}


def test_drafting_is_charged_though_the_drafter_is_silent() -> None:
    hazards = {"code": 0.9, "chat": 0.9}
    plan = plan_of(FLAT, dict.fromkeys(hazards, 1), hazards, drafted=dict.fromkeys(hazards, (0.02,) * MAX_K))
    assert BatchChoice(plan).k_for({"code": 2, "chat": 2}, NOW) == {"code": 0, "chat": 0}


@pytest.mark.parametrize("running", [2, 3, 5, 17, 256, 300])
def test_any_number_of_sequences_finds_its_charges(running: int) -> None:
    hazards = {"code": 0.9}
    k = BatchChoice(plan_of(RISING, {"code": TOP}, hazards)).k_for({"code": running}, NOW)
    assert k["code"] in range(TOP + 1)


def test_what_a_plan_says_of_charges_is_relative_to_a_plain_step_of_one() -> None:
    table = RISING.table()
    assert table[0][0] == 1.0
    again = Charges.of_table(table)
    np.testing.assert_allclose(again.going / again.plain[:1], RISING.going / RISING.plain[:1], rtol=1e-4)


def test_charges_between_two_loads_are_on_the_line_between() -> None:
    row = RISING.at(5)
    assert math.isclose(float(row.plain[0]), float((RISING.plain[3] + RISING.plain[4]) / 2))
