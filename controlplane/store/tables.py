"""Every table of the ledger. Importing this module fills Base.metadata: migrations and tests read it here."""

from __future__ import annotations

from controlplane.store.api_keys import ApiKeyEntry, ApiKeyEvent
from controlplane.store.budgets import BudgetStateEntry
from controlplane.store.cost_models import CostDay, CostHour, CostMonth, MachineHour, PrunedWindow
from controlplane.store.experiment_models import ExperimentEntry, ExperimentWindow
from controlplane.store.models import (
    AlertEntry,
    Base,
    CanaryResult,
    ControlEvent,
    DecisionEntry,
    PlanEntry,
    PolicyRevision,
    PolicyRollout,
    PriceEntry,
    Request,
    Tick,
    Window,
    WindowCohort,
)
from controlplane.store.price_models import HourPrice, PriceRevision
from controlplane.store.webhooks import WebhookDelivery

TABLES: tuple[type[Base], ...] = (
    Window,
    WindowCohort,
    Request,
    CostHour,
    CostDay,
    CostMonth,
    MachineHour,
    PrunedWindow,
    DecisionEntry,
    PlanEntry,
    PolicyRevision,
    PolicyRollout,
    PriceEntry,
    PriceRevision,
    HourPrice,
    Tick,
    ControlEvent,
    CanaryResult,
    AlertEntry,
    ExperimentEntry,
    ExperimentWindow,
    BudgetStateEntry,
    WebhookDelivery,
    ApiKeyEntry,
    ApiKeyEvent,
)
"""As `kadence db verify` counts them."""

__all__ = ["TABLES", "Base"]
