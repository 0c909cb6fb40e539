"""Windows that cannot be true are refused, each with a reason that names the field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from controlplane.step_columns import StepColumns
from controlplane.telemetry import (
    MAX_K,
    CohortWindow,
    LatencyCell,
    LatencyHistogram,
    ProfileCell,
    RankCount,
    StepCell,
    StepCount,
    TenantUse,
    WindowId,
    WorkerWindow,
)
from controlplane.window_problems import window_problem

NAN, INF = float("nan"), float("inf")
T0 = 1000.0
CELL = StepCell(0, 2, (StepCount(2, 2, False, 60),), 1.0, (55.0, 50.0), (60, 60), (1.0, 0.5))
WINDOW = WorkerWindow(
    id=WindowId("w1", 1, 0),
    model="m",
    drafter="ngram@1",
    device="cpu",
    started_at=T0 - 1.0,
    ended_at=T0,
    busy_s=0.9,
    energy_uj=None,
    energy_source="none",
    plan_version=1,
    plan_expired=False,
    plan_age_s=0.5,
    running=1,
    waiting=0,
    kv_used=0,
    kv_total=1,
    cohorts=(CohortWindow("json", (CELL,), shadow=(CELL,)),),
    latency=(LatencyCell(1, 3, 60, 1.0, 6000, 0.2),),
    profile=(ProfileCell(1, 0, 64, 0.02, 0.0), ProfileCell(4, MAX_K, 64, 0.03, 0.01)),
)


def of_trees(tree: tuple[int, ...] = (-1, -1), ranks: tuple[RankCount, ...] = ()) -> CohortWindow:
    return CohortWindow("json", (StepCell(0, 2, (), 0.0, tree=tree, ranks=ranks),))


def of_cells(*cells: StepCell) -> dict[str, Any]:
    return {"cohorts": (CohortWindow("json", cells),)}


def of_shadows(*cells: StepCell) -> dict[str, Any]:
    return {"cohorts": (CohortWindow("json", shadow=cells),)}


def test_an_ordinary_window_has_no_problem() -> None:
    assert window_problem(WINDOW) is None


def test_nor_has_one_with_columns() -> None:
    assert window_problem(replace(WINDOW, columns=StepColumns.of(WINDOW.cohorts))) is None


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"busy_s": NAN}, "bad busy_s"),
        ({"busy_s": -1.0}, "bad busy_s"),
        ({"plan_age_s": INF}, "bad plan_age_s"),
        ({"started_at": NAN}, "bad started_at"),
        ({"started_at": T0, "ended_at": INF}, "bad ended_at"),
        ({"started_at": T0 + 1}, "bad seconds"),
        ({"ended_at": 9e14, "started_at": 9e14 - 1}, "bad ended_at"),
        ({"energy_uj": -1}, "bad energy_uj"),
        ({"energy_uj": 5.5}, "bad energy_uj: not a whole number"),
        ({"energy_uj": 5, "idle_energy_uj": 1.0}, "bad idle_energy_uj: not a whole number"),
        ({"cohorts": (CohortWindow("json", prefill_positions=7.5),)}, "bad positions, first_tokens or requests"),
        ({"energy_uj": 5, "idle_energy_uj": -1}, "bad idle_energy_uj"),
        ({"energy_uj": 5, "idle_energy_uj": 6}, "bad idle_energy_uj: more than energy_uj"),
        ({"energy_uj": None, "idle_energy_uj": 0}, "bad idle_energy_uj: more than energy_uj"),
        ({"cohorts": (CohortWindow("json", prefill_positions=-1),)}, "bad positions, first_tokens or requests"),
        ({"cohorts": (CohortWindow("json", requests_failed=-1),)}, "bad positions, first_tokens or requests"),
        ({"cohorts": (CohortWindow("json", ttft=LatencyHistogram(sum_s=-1.0)),)}, "bad latency"),
        ({"cohorts": (CohortWindow("json", tpot=LatencyHistogram(sum_s=NAN)),)}, "bad latency"),
        ({"cohorts": (CohortWindow("json"), CohortWindow("json"))}, "bad cohorts"),
        ({"cohorts": (of_trees(ranks=(RankCount(0, 0, 5, 6),)),)}, "bad ranks"),
        ({"cohorts": (of_trees(ranks=(RankCount(-1, 0, 5, 1),)),)}, "bad ranks"),
        ({"cohorts": (of_trees((-1, 1)),)}, "bad tree"),
        ({"cohorts": (of_trees((-1,) * 17),)}, "bad tree"),
        ({"profile": (ProfileCell(1, 2, 64, 0.05, 0.01, (0, 0)),)}, "bad profile"),
    ],
)
def test_numbers_of_a_window_that_cannot_be_true_are_named(changes: dict[str, Any], problem: str) -> None:
    assert window_problem(replace(WINDOW, **changes)) == problem


A, B = TenantUse("a", 3, 4, 0, 2, 1, 9, 3), TenantUse("b", 0, 3, 5, 2, 2, 0, 2, 1)
SHARED = CohortWindow(
    "json", (StepCell(0, 2, (StepCount(2, 1, False, 1), StepCount(2, 2, True, 1), StepCount(0, 0, False, 1)), 1.0),),
    prefill_positions=3, draft_positions=5, requests_failed=1,
)  # fmt: skip


@pytest.mark.parametrize("tenants", [(), (A, B), (SHARED.as_one_tenant._replace(tenant="a", input_tokens=9),)])
def test_tenants_that_add_up_to_their_cohort_are_no_problem(tenants: tuple[TenantUse, ...]) -> None:
    assert window_problem(replace(WINDOW, cohorts=(replace(SHARED, tenants=tenants),))) is None


@pytest.mark.parametrize(
    ("tenants", "problem"),
    [
        ((A,), "bad tenants: their verify_positions are not the cohort's"),
        ((A, B._replace(requests=2)), "bad tenants: their requests are not the cohort's"),
        ((A, B._replace(emitted_tokens=3)), "bad tenants: their emitted_tokens are not the cohort's"),
        ((A, B._replace(tenant="a")), "bad tenants: one is there twice"),
        ((A, B._replace(input_tokens=-1)), "bad tenants: a count is negative or too large"),
        ((A._replace(input_tokens=10**15), B), "bad tenants: a count is negative or too large"),
        ((A._replace(input_tokens=9.0), B), "bad tenants: a count is not a whole number"),
        (
            (A._replace(accepted_tokens=3), B._replace(accepted_tokens=0)),
            "bad tenants: more tokens kept than drafted, or drafted than verified",
        ),
    ],
)
def test_tenants_that_cannot_be_true_are_named(tenants: tuple[TenantUse, ...], problem: str) -> None:
    assert window_problem(replace(WINDOW, cohorts=(replace(SHARED, tenants=tenants),))) == problem


@pytest.mark.parametrize("placed", [of_cells, of_shadows])
@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"step_seconds": NAN}, "bad step_seconds"),
        ({"step_seconds": -0.1}, "bad step_seconds"),
        ({"load_bucket": 9}, "bad cell"),
        ({"load_bucket": -1}, "bad cell"),
        ({"k": -1}, "bad cell"),
        ({"counts": (StepCount(1, 2, False, 1),)}, "bad counts"),
        ({"counts": (StepCount(1, -1, False, 1),)}, "bad counts"),
        ({"counts": (StepCount(1, 1, False, -1),)}, "bad counts"),
        ({"counts": (StepCount(1, 1, False, 1.5),)}, "bad counts"),
        ({"overlap": (NAN, 1.0)}, "bad overlap"),
        ({"overlap": (-1.0, 1.0)}, "bad overlap"),
        ({"overlap": (1.0,)}, "bad overlap"),
        ({"overlap_steps": (60, -1)}, "bad overlap"),
        ({"propensity": (NAN, 0.5)}, "bad propensity"),
        ({"propensity": (1.5,)}, "bad propensity"),
        ({"propensity": (1.0, -0.5)}, "bad propensity"),
    ],
)
def test_cells_that_cannot_be_true_are_named_and_shadows_too(
    placed: Any, changes: dict[str, Any], problem: str
) -> None:
    assert window_problem(replace(WINDOW, **placed(replace(CELL, **changes)))) == problem


@pytest.mark.parametrize(
    "changes",
    [{"seconds": NAN}, {"seconds": -1.0}, {"draft_seconds": -0.1}, {"draft_seconds": INF}, {"steps": -1},
     {"sequences": -1}, {"positions": -1}, {"context": -5}],
)  # fmt: skip
def test_step_times_that_cannot_be_true_are_named(changes: dict[str, Any]) -> None:
    bad = LatencyCell(1, 3, 60, 1.0, 6000, 0.2)._replace(**changes)
    assert window_problem(replace(WINDOW, latency=(*WINDOW.latency, bad))) == "bad step times"


@pytest.mark.parametrize(
    "changes",
    [{"seconds": NAN}, {"seconds": -1.0}, {"draft_seconds": -0.1}, {"sequences": 0}, {"k": -1}, {"k": MAX_K + 1},
     {"context": -1}],
)  # fmt: skip
def test_a_profile_that_cannot_be_true_is_named(changes: dict[str, Any]) -> None:
    bad = ProfileCell(1, 2, 64, 0.02, 0.001)._replace(**changes)
    assert window_problem(replace(WINDOW, profile=(*WINDOW.profile, bad))) == "bad profile"


@pytest.mark.parametrize("name", ["step_seconds", "overlap", "tpot_sum_s", "propensity"])
@pytest.mark.parametrize("value", [NAN, -1.0])
def test_columns_that_cannot_be_true_are_named(name: str, value: float) -> None:
    columns = StepColumns.of(WINDOW.cohorts)
    bad = replace(columns, **{name: np.full_like(getattr(columns, name), value)})
    assert window_problem(replace(WINDOW, columns=bad)) == "bad columns"


def test_columns_of_other_cohorts_are_named() -> None:
    others = StepColumns.of((CohortWindow("chat", (CELL,)),))
    assert window_problem(replace(WINDOW, columns=others)) == "bad columns"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("row_cell", [2, 1]),
        ("row_cell", [-1, 1]),
        ("row_cell", [0]),
        ("cohort", [0, 1]),
        ("load_bucket", [0, 9]),
        ("k", [-1, 2]),
        ("accepted", [3, 1]),
    ],
)
def test_columns_that_point_nowhere_are_named(name: str, values: list[int]) -> None:
    """One such window would fail every tick's sums for all workers."""
    columns = StepColumns.of(WINDOW.cohorts)
    assert len(columns.row_cell) == len(columns.k) == 2
    changes: dict[str, Any] = {name: np.array(values, np.int64)}
    odd = replace(columns, **changes)
    assert window_problem(replace(WINDOW, columns=odd)) == "bad columns"


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        (replace(CELL, k=NAN), "bad cell"),  # type: ignore[arg-type]
        (replace(CELL, counts=(StepCount(2, 2, False, NAN),)), "bad counts"),  # type: ignore[arg-type]
        (replace(CELL, counts=(StepCount(2, 2, False, 10**30),)), "bad counts"),
        (replace(CELL, step_seconds=1e308), "bad step_seconds"),
    ],
)
def test_numbers_that_no_array_can_hold_are_named(cell: StepCell, problem: str) -> None:
    assert window_problem(replace(WINDOW, **of_cells(cell))) == problem


def test_a_time_histogram_of_other_bins_is_named() -> None:
    odd = CohortWindow("json", tpot=LatencyHistogram(counts=(1, 2), sum_s=0.1))
    assert window_problem(replace(WINDOW, cohorts=(odd,))) == "bad latency"


@pytest.mark.parametrize("placed", [of_cells, of_shadows])
@pytest.mark.parametrize(
    "changes",
    [
        {"counts": (StepCount(2, 1, False, 60),)},
        {"counts": (StepCount(2, 2, True, 60),)},
        {"counts": (StepCount(2, 2, False, 30), StepCount(2, 2, False, 30))},
        {"step_seconds": 2.0},
        {"k": 1},
        {"load_bucket": 1},
    ],
)
def test_columns_that_do_not_say_what_the_cells_say_are_named(placed: Any, changes: dict[str, Any]) -> None:
    """The ledger would bill the cells, and K would be decided by the columns."""
    said = replace(WINDOW, **placed(CELL, CELL))
    window = replace(said, **placed(replace(CELL, **changes), CELL), columns=StepColumns.of(said.cohorts))
    assert window_problem(window) == "bad columns: not those of the cells"


def test_columns_in_which_a_shadow_counts_as_a_step_are_named() -> None:
    columns = StepColumns.of(of_cells(CELL)["cohorts"])
    assert window_problem(replace(WINDOW, **of_shadows(CELL), columns=columns)) == "bad columns: not those of the cells"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"step_seconds": NAN}, "bad step_seconds"),
        ({"load_bucket": 9}, "bad cell"),
        ({"counts": (StepCount(1, 2, False, 1),)}, "bad counts"),
        ({"counts": (StepCount(1, 1, False, 1.0),)}, "bad counts"),
        ({"overlap": (-1.0, 1.0)}, "bad overlap"),
        ({"propensity": (1.5,)}, "bad propensity"),
    ],
)
def test_cells_that_cannot_be_true_are_named_beside_columns_too(changes: dict[str, Any], problem: str) -> None:
    cohorts = of_cells(CELL, replace(CELL, **changes))["cohorts"]
    assert window_problem(replace(WINDOW, cohorts=cohorts, columns=StepColumns.of(cohorts))) == problem


@pytest.mark.parametrize(
    ("tenants", "problem"),
    [((A, B), None), ((A, B._replace(emitted_tokens=3)), "bad tenants: their emitted_tokens are not the cohort's")],
)
def test_tenants_are_held_against_the_columns_sums_where_there_are_any(
    tenants: tuple[TenantUse, ...], problem: str | None
) -> None:
    cohorts = (CohortWindow("other", (CELL,)), replace(SHARED, tenants=tenants, shadow=(CELL,)))
    assert window_problem(replace(WINDOW, cohorts=cohorts, columns=StepColumns.of(cohorts))) == problem
