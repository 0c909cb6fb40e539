"""The price sheet: what an hour of a worker's machine costs, with source and validity dates.

A price that is not on the sheet is unpriced (None), never 0 and never a guess.
"""

from controlplane.finops.pricing.first import FirstPrice, FirstPrices
from controlplane.finops.pricing.owned import OwnedTerms
from controlplane.finops.pricing.parse import load_prices, parse_prices
from controlplane.finops.pricing.price import BASES, NANO, Basis, Price, PriceError, Prices
from controlplane.finops.pricing.sheet import PriceSheet
from controlplane.finops.pricing.text import prices_text

__all__ = [
    "BASES",
    "NANO",
    "Basis",
    "FirstPrice",
    "FirstPrices",
    "OwnedTerms",
    "Price",
    "PriceError",
    "PriceSheet",
    "Prices",
    "load_prices",
    "parse_prices",
    "prices_text",
]
