"""The theme's colours by arithmetic: contrast after WCAG 2.2, and what a colour-blind reader can tell apart.

Contrast: (L1 + 0.05) / (L2 + 0.05) of relative luminances (WCAG 2.2, 1.4.3 and 1.4.11). Colour-blindness: the matrices
for full protanopia, deuteranopia and tritanopia of Machado, Oliveira and Fernandes, "A Physiologically-based Model for
Simulation of Color Vision Deficiency" (IEEE TVCG 15:6, 2009), on linear RGB; distances are CIE 1976 (Delta E*ab).
"""

from __future__ import annotations

import tomllib
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dashboard.serve import APP

THEME = tomllib.loads((APP.parent / ".streamlit" / "config.toml").read_text())["theme"]
SCHEMES = ("light", "dark")
TEXT, GRAPHIC = 4.5, 3.0
"""Least contrast of text (AA) and of what a chart draws."""
LEAST_DISTANCE = 12.0
"""About five times what is just noticed side by side: dots and thin lines lie apart."""
VISION = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
WHITE = np.array([0.95047, 1.0, 1.08883])


def linear(colour: str) -> NDArray[np.float64]:
    """Linear RGB of #RRGGBB."""
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    found: NDArray[np.float64] = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return found


def contrast(one: str, other: str) -> float:
    low, high = sorted(float((XYZ @ linear(colour))[1]) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    """CIE L*a*b* of linear RGB under D65."""
    ratio = XYZ @ np.clip(rgb, 0, 1) / WHITE
    root = np.where(ratio > 216 / 24389, np.cbrt(ratio), (24389 / 27 * ratio + 16) / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


def grounds(theme: dict[str, Any]) -> tuple[str, str]:
    return theme["backgroundColor"], theme["secondaryBackgroundColor"]


def test_the_arithmetic_knows_black_on_white_and_two_greens_that_look_alike_without_red_cones():
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert lab(linear("#FFFFFF")) == pytest.approx([100, 0, 0], abs=0.1)
    seen = [lab(VISION["deuteranopia"] @ linear(colour)) for colour in ("#D55E00", "#B8860B")]
    assert np.linalg.norm(seen[0] - seen[1]) < 5  # an orange and a gold: 33 apart for most people


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_and_links_have_the_contrast_of_wcag_aa(scheme):
    theme = THEME[scheme]
    for ground in grounds(theme):
        for name in ("textColor", "linkColor", "primaryColor", "codeTextColor"):
            assert contrast(theme[name], ground) >= TEXT, (name, ground)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_colour_of_a_chart_stands_out_from_what_it_is_drawn_on(scheme):
    theme = THEME[scheme]
    for ground in grounds(theme):
        assert {c: contrast(c, ground) for c in theme["chartCategoricalColors"] if contrast(c, ground) < GRAPHIC} == {}


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_any_two_colours_of_a_chart_are_told_apart(scheme, vision):
    seen = {c: lab(VISION[vision] @ linear(c)) for c in THEME[scheme]["chartCategoricalColors"]}
    distances = {(a, b): float(np.linalg.norm(seen[a] - seen[b])) for a, b in combinations(seen, 2)}
    assert {pair: d for pair, d in distances.items() if d < LEAST_DISTANCE} == {}
    assert len(seen) == 8


@pytest.mark.parametrize("scheme", SCHEMES)
def test_sequential_colours_go_one_way_in_lightness(scheme):
    lightness = [float(lab(linear(c))[0]) for c in THEME[scheme]["chartSequentialColors"]]
    steps = [b - a for a, b in pairwise(lightness)]
    assert min(abs(step) for step in steps) >= 4
    assert len({step > 0 for step in steps}) == 1
