"""Top-k, top-p and min-p as one number a row: the smallest score that stays. Shared by `verify` and `sample`.

With score = logit / temperature, a token of a row stays if its score is at least the row's threshold, and

1. top-k keeps the k largest scores of the row and whatever equals the smallest of them;
2. top-p keeps, of what top-k leaves, every token with less than top_p of the mass before it (at strictly larger
   scores), so that tokens of equal score stay or fall together and the largest always stays;
3. min-p keeps the scores of at least log(min_p) below the largest.

The order of 1 and 2 matters, that of 3 does not. Masses are sums of 64-bit integers (`weights.py`), so every backend
finds the same threshold, whatever the order of its sums. A mask of -inf stays one.
"""

from __future__ import annotations

from kernels.filters.limits import Limits

__all__ = ["Limits"]
