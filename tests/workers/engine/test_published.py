"""Checkpoints in the layouts that people have are taken over, or refused with the field that does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

from workers.proposers.drafter_folder import DrafterError, TargetIdentity, load_eagle, load_medusa, save_drafter
from workers.proposers.published import read_published

HIDDEN, VOCAB, LAYERS = 16, 40, 12
TARGET = TargetIdentity("tiny", "ab" * 32, HIDDEN, VOCAB)
DRAFTED = [3, 4, 9, 17, 30]


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def write(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor], name: str) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    if name.endswith(".safetensors"):
        save_file(tensors, folder / name)
    else:
        torch.save(tensors, folder / name)
    return folder


def medusa(own: bool) -> dict[str, torch.Tensor]:
    tensors = {}
    for head in range(3):
        tensors[f"{head}.0.linear.weight"], tensors[f"{head}.0.linear.bias"] = noise(HIDDEN, HIDDEN), noise(HIDDEN)
        if own:
            tensors[f"{head}.1.weight"] = noise(VOCAB, HIDDEN)
    return tensors


EAGLE_CONFIG = {
    "hidden_size": HIDDEN,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "draft_vocab_size": len(DRAFTED),
}
SPECULATORS_CONFIG = {
    "speculators_model_type": "eagle3",
    "draft_vocab_size": len(DRAFTED),
    "eagle_aux_hidden_state_layer_ids": [1, 5, 8],
    "transformer_layer_config": EAGLE_CONFIG,
}


def eagle(layer: str = "midlayer") -> dict[str, torch.Tensor]:
    q, kv = HIDDEN, 2 * 4
    return {
        "fc.weight": noise(HIDDEN, 3 * HIDDEN),
        "norm.weight": noise(HIDDEN),
        "lm_head.weight": noise(len(DRAFTED), HIDDEN),
        "d2t": torch.tensor(DRAFTED) - torch.arange(len(DRAFTED)),
        "t2d": torch.isin(torch.arange(VOCAB), torch.tensor(DRAFTED)),
        f"{layer}.input_layernorm.weight": noise(HIDDEN),
        f"{layer}.hidden_norm.weight": noise(HIDDEN) + 1,
        f"{layer}.post_attention_layernorm.weight": noise(HIDDEN) + 2,
        f"{layer}.self_attn.q_proj.weight": noise(q, 2 * HIDDEN),
        f"{layer}.self_attn.k_proj.weight": noise(kv, 2 * HIDDEN),
        f"{layer}.self_attn.v_proj.weight": noise(kv, 2 * HIDDEN) + 1,
        f"{layer}.self_attn.o_proj.weight": noise(HIDDEN, q),
        f"{layer}.mlp.gate_proj.weight": noise(24, HIDDEN),
        f"{layer}.mlp.up_proj.weight": noise(24, HIDDEN) + 1,
        f"{layer}.mlp.down_proj.weight": noise(HIDDEN, 24),
    }


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("name", ["medusa_lm_head.pt", "medusa_lm_head.safetensors"])
def test_medusas_heads_say_what_its_repository_computes(tmp_path: Path, own: bool, name: str) -> None:
    theirs = medusa(own)
    found = read_published(write(tmp_path / "in", {"medusa_num_heads": 3}, theirs, name), TARGET, LAYERS)
    save_drafter(tmp_path / "out", found.card, found.tensors, found.vocabulary)
    model, vocabulary, _ = load_medusa(tmp_path / "out", TARGET)
    assert vocabulary.tolist() == list(range(VOCAB))
    x, shared = noise(HIDDEN), noise(VOCAB, HIDDEN) / 2
    got = model.float().logits(x, shared, 3)
    for head in range(3):
        weight, bias = (theirs[f"{head}.0.linear.{part}"] for part in ("weight", "bias"))
        output = x + functional.silu(functional.linear(x, weight, bias))
        expected = (theirs[f"{head}.1.weight"] if own else shared) @ output
        torch.testing.assert_close(got[head], expected, atol=0.5, rtol=0.05)


@pytest.mark.parametrize(("config", "layer"), [(EAGLE_CONFIG, "midlayer"), (SPECULATORS_CONFIG, "layers.0")])
def test_eagles_layer_and_its_vocabulary_are_taken_over(tmp_path: Path, config: dict[str, Any], layer: str) -> None:
    theirs = eagle(layer)
    found = read_published(write(tmp_path / "in", config, theirs, "model.safetensors"), TARGET, LAYERS)
    save_drafter(tmp_path / "out", found.card, found.tensors, found.vocabulary)
    model, vocabulary, card = load_eagle(tmp_path / "out", TARGET)
    assert vocabulary.tolist() == DRAFTED
    assert card.shape["features"] == ([1, 5, 8] if layer == "layers.0" else [2, 6, 9])
    torch.testing.assert_close(model.v.weight.float(), theirs[f"{layer}.self_attn.v_proj.weight"], atol=0.02, rtol=0.01)
    torch.testing.assert_close(
        model.feature_norm.weight.float(), theirs[f"{layer}.hidden_norm.weight"], atol=0.02, rtol=0.01
    )
    torch.testing.assert_close(model.head.weight.float(), theirs["lm_head.weight"], atol=0.02, rtol=0.01)


def test_rows_that_stand_in_another_order_are_sorted_with_their_ids(tmp_path: Path) -> None:
    theirs = eagle()
    order = torch.tensor([4, 0, 3, 1, 2])
    theirs["d2t"] = torch.tensor(DRAFTED)[order] - torch.arange(len(DRAFTED))
    rows = theirs["lm_head.weight"].clone()
    theirs["lm_head.weight"] = rows[order]
    found = read_published(write(tmp_path / "in", EAGLE_CONFIG, theirs, "model.safetensors"), TARGET, LAYERS)
    assert found.vocabulary.tolist() == DRAFTED
    assert torch.equal(found.tensors["head.weight"], rows)


@pytest.mark.parametrize(
    ("config", "change", "reason"),
    [
        ({"num_hidden_layers": 2}, {}, "num_hidden_layers: is 2, must be 1"),
        ({"hidden_size": 32}, {}, "hidden_size: is 32, must be 16"),
        ({"rope_scaling": {"type": "yarn"}}, {}, "rope_scaling: is .* must be off"),
        ({"norm_before_residual": True}, {}, "norm_before_residual"),
        ({}, {"fc.weight": noise(HIDDEN, 2 * HIDDEN)}, r"fc\.weight: is that of EAGLE-1"),
        ({}, {"fc.weight": noise(HIDDEN, 4 * HIDDEN)}, r"fc\.weight: is \[16, 64\], must be \[16, 48\]"),
        ({}, {"midlayer.self_attn.q_proj.bias": noise(HIDDEN)}, r"q_proj\.bias: is not known"),
        ({}, {"norm.weight": None}, r"norm\.weight: is missing"),
        ({}, {"d2t": None}, "d2t: is missing"),
        ({}, {"d2t": torch.zeros(5, dtype=torch.int64) + 38}, "d2t: must name 5 different ids under 40"),
    ],
)
def test_what_would_compute_something_else_is_refused(
    tmp_path: Path, config: dict[str, Any], change: dict[str, Any], reason: str
) -> None:
    tensors = {name: tensor for name, tensor in {**eagle(), **change}.items() if tensor is not None}
    folder = write(tmp_path / "in", {**EAGLE_CONFIG, **config}, tensors, "model.safetensors")
    with pytest.raises(DrafterError, match=reason):
        read_published(folder, TARGET, LAYERS)


@pytest.mark.parametrize(
    ("config", "change", "reason"),
    [
        ({"medusa_num_layers": 2}, {}, "medusa_num_layers: is 2"),
        ({}, {"0.0.linear.weight": noise(8, 8)}, r"blocks\.0\.weight: is \[8, 8\]"),
        ({}, {"1.0.linear.bias": None}, r"blocks\.1\.bias: is missing"),
        ({}, {"1.1.weight": noise(VOCAB, HIDDEN)}, r"0\.1\.weight: is missing"),
        ({}, {"0.2.weight": noise(HIDDEN)}, r"0\.2\.weight: is not known"),
    ],
)
def test_heads_that_are_not_medusas_are_refused(
    tmp_path: Path, config: dict[str, Any], change: dict[str, Any], reason: str
) -> None:
    tensors = {name: tensor for name, tensor in {**medusa(False), **change}.items() if tensor is not None}
    with pytest.raises(DrafterError, match=reason):
        read_published(write(tmp_path / "in", config, tensors, "medusa_lm_head.pt"), TARGET, LAYERS)


def test_weights_of_something_else_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DrafterError, match="neither Medusa's heads"):
        read_published(write(tmp_path / "in", {}, {"a": noise(2)}, "model.safetensors"), TARGET, LAYERS)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", EAGLE_CONFIG, eagle(), "model.safetensors")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(DrafterError, match=r"model\.safetensors cannot be read"):
        read_published(folder, TARGET, LAYERS)


def test_a_pickle_that_would_run_code_is_not_run(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", {}, {}, "medusa_lm_head.pt")
    (folder / "medusa_lm_head.pt").write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path / "ran").encode() + b"'\ntR.")
    with pytest.raises(DrafterError, match="cannot be read"):
        read_published(folder, TARGET, LAYERS)
    assert not (tmp_path / "ran").exists()
