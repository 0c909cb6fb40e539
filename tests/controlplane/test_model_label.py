"""Weights that are held otherwise have another name in the ledger, which leads back to the one that clients use."""

from __future__ import annotations

import pytest

from controlplane.model_label import asked_for, labelled
from controlplane.settings import Settings


@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("model", ["smollm2-135m-instruct", "org/name", "/models/a:b"])
def test_a_label_leads_back_to_the_name(model, quantization) -> None:
    assert asked_for(labelled(model, quantization)) == model


def test_int8_has_a_label_of_its_own() -> None:
    assert Settings(model="m", quantization="int8").model_label == "m:int8"


def test_weights_as_they_came_are_called_by_the_name_alone() -> None:
    assert Settings(model="m").model_label == "m"
