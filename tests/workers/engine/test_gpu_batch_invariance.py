"""With the products and means that a GPU is given, a model says what it said, and no row depends on another.

As test_fused_engine.py, this file runs itself once as a program with TRITON_INTERPRET=1, in which they replace a CPU's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.workers.engine.conftest import tiny_model
from workers.batch_invariance import install, remove
from workers.kv_cache import KVSlots
from workers.model_runner import ModelRunner
from workers.step_layout import Rows

PLACES = KVSlots(4, 64)
TEXT = [7, 3, 9, 4, 11, 30, 2, 5]
MODELS: dict[str, Any] = {
    "Llama": {"num_key_value_heads": 2},
    "Qwen2": {"num_key_value_heads": 2},  # with biases
    "GPT2": {},  # with weights the other way round
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def own_logits(name: str) -> list[list[float]]:
    """Of a tiny model of that family, by the library's own attention."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(
        vocab_size=48, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, initializer_range=0.3, **MODELS[name],
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").train(False)
    logits: list[list[float]] = model(input_ids=torch.tensor([TEXT]), use_cache=False).logits[0].tolist()
    return logits


def differing(dtype: torch.dtype) -> list[str]:
    """Where rows have other bits in company than alone: behind others, before others, in a longer piece."""
    runner = ModelRunner(tiny_model(0, 2, dtype, hidden_size=64, num_attention_heads=4), 4, 64, "tiny")
    own = Rows(PLACES.blocks(0), 0, TEXT)
    whole = runner.forward([own], range(8))
    found = []
    for name, pieces in {"one by one": [1] * 8, "in halves": [3, 5]}.items():
        start, parts = 0, []
        for n in pieces:
            parts.append(runner.forward([Rows(PLACES.blocks(1), start, TEXT[start : start + n])], range(n)))
            start += n
        found += [] if torch.equal(torch.cat(parts), whole) else [name]
    mates = [Rows(PLACES.blocks(slot), 0, [5] * n) for slot, n in ((1, 1), (2, 6), (3, 11))]
    for at, first in ((0, 0), (1, 1), (2, 7), (3, 18)):
        logits = runner.forward([*mates[:at], own, *mates[at:]], range(first, first + 8))
        found += [] if torch.equal(logits, whole) else [f"as number {at} of 4"]
    return found


@torch.inference_mode()
def run_interpreted() -> None:
    from kernels.interpreter import correct_interpreter, hasten_interpreter
    from kernels.launch import Launch

    correct_interpreter()
    hasten_interpreter()
    torch.set_num_threads(1)
    assert not install(torch.device("cpu")), "on a CPU nothing is replaced unless asked for"
    assert install(torch.device("cpu"), backend="fused")
    launched: set[str] = set()
    run = Launch.run

    def noted(launch: Launch, *arguments: Any) -> None:
        launched.add(launch.kernel.fn.__name__)
        run(launch, *arguments)

    Launch.run = noted  # type: ignore[method-assign]
    differences = {name: differing(dtype) for name, dtype in DTYPES.items()}
    logits = {name: own_logits(name) for name in MODELS}
    wide = torch.arange(12.0, dtype=torch.float64).view(3, 4)
    others = [(wide @ wide.T).tolist(), wide.mean((0, 1)).item(), torch.addmm(wide, wide, wide.T @ wide).tolist()]
    ran = sorted(launched)
    remove()
    launched.clear()
    own_logits("Llama")
    print(json.dumps({
        "differing": differences, "logits": logits, "launched": ran, "others": others, "later": sorted(launched),
    }))  # fmt: skip


@pytest.fixture(scope="module")
def replaced(interpreted: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    return interpreted(Path(__file__))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_rows_bits_do_not_depend_on_the_others(replaced, dtype) -> None:
    assert replaced["differing"][dtype] == []


@pytest.mark.parametrize("name", MODELS)
def test_a_model_says_what_it_said(replaced, name) -> None:
    found, expected = torch.tensor(replaced["logits"][name]), torch.tensor(own_logits(name))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_the_products_and_means_really_were_replaced(replaced) -> None:
    assert {"linear_kernel", "mean_kernel"} <= set(replaced["launched"])


def test_the_libraries_own_come_back(replaced) -> None:
    assert replaced["later"] == []


def test_what_the_kernels_do_not_compute_is_as_it_was(replaced) -> None:
    wide = torch.arange(12.0, dtype=torch.float64).view(3, 4)
    expected = [(wide @ wide.T).tolist(), wide.mean().item(), torch.addmm(wide, wide, wide.T @ wide).tolist()]
    assert replaced["others"] == expected


if __name__ == "__main__":
    run_interpreted()
