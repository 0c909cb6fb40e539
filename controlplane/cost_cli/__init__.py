"""`kadence cost`: what serving cost, its prices, and what is handed to finance."""

from controlplane.cost_cli.app import cost_app
from controlplane.cost_cli.options import price_sheet

__all__ = ["cost_app", "price_sheet"]
