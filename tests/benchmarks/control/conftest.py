"""Small profiles and worlds for the control benchmark's tests."""

from __future__ import annotations

import pytest

from benchmarks.control.profile import Profile, parse_profile

SMALL = """
version: 1
name: small
ladder: [0, 1, 2, 4]
steps: 600
steps_per_second: 10
cost:
  verify_ms: {1: 10, 8: 10.5, 32: 14, 128: 40}
  padding: [1, 2, 4, 8, 16, 24, 32]
  kv_ms_per_1k_tokens: 0.1
  context: 500
  draft_share: 0.1
  on_cost_ms: 0.4
load: {median: 12, spread: 1.0, correlation_steps: 100}
cohorts:
  - {name: code, share: 2, regime_steps: 200}
  - {name: chat, regime_steps: 200}
"""


@pytest.fixture
def small_text() -> str:
    return SMALL


@pytest.fixture
def small(small_text) -> Profile:
    return parse_profile(small_text, "small.yaml")
