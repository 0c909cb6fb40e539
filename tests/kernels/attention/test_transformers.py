"""Real transformers models over the block cache: every path of a step equals the plain model's own logits.

The scenario: prompts of several lengths in one step, then a decode, a chain and a tree, ragged, in one cache. The
plain model recomputes each root-to-node text from nothing with its own attention and masks.
"""

from __future__ import annotations

import importlib
import itertools
import os
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import workers.attention
from kernels.attention import native, tree_attention, write_kv
from workers.attention import IMPLEMENTATION, SlotCache, slot_attention
from workers.kv_cache import BlockKV
from workers.model_support import cache_argument
from workers.step_layout import Rows, lay_out

VOCAB = 67
TINY = {"vocab_size": VOCAB, "hidden_size": 48, "num_hidden_layers": 2, "max_position_embeddings": 128}
HEADS = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 64}
LLAMA = TINY | HEADS
FUSED_SHAPE = {"head_dim": 64, "num_hidden_layers": 2}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", LLAMA),
    "mistral": ("Mistral", LLAMA | {"sliding_window": 5}),
    "gemma2": ("Gemma2", LLAMA | {"sliding_window": 5, "attn_logit_softcapping": 0.5, "query_pre_attn_scalar": 16}),
    "gemma3": ("Gemma3Text", LLAMA | {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}),
    "qwen2": ("Qwen2", TINY | {k: v for k, v in HEADS.items() if k != "head_dim"} | {"hidden_size": 96}),
    "gpt2": ("GPT2", {"vocab_size": VOCAB, "n_embd": 48, "n_head": 3, "n_layer": 2, "n_positions": 128}),
}
FUSED_MODEL = ("Gemma2", MODELS["gemma2"][1] | FUSED_SHAPE)
PROMPTS = (3, 21, 1)
TREE = (-1, 0, 0, 1, 1, 2, 5, 6, 6)
CHAIN = (-1, 0, 1, 2, 3)
SINGLE = (-1,)
STEPS = ((SINGLE, SINGLE, SINGLE), (CHAIN, SINGLE, TREE), (TREE, TREE[:4], CHAIN))
BLOCK = 16


def build(kind: str, settings: dict[str, Any], attention: str) -> torch.nn.Module:
    config = getattr(transformers, f"{kind}Config")(**settings)
    config._attn_implementation = attention
    name = {"GPT2": "GPT2LMHeadModel", "Gemma3Text": "Gemma3ForCausalLM"}.get(kind, f"{kind}ForCausalLM")
    torch.manual_seed(0)
    model: torch.nn.Module = getattr(transformers, name)(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)  # the default leaves attention nearly uniform
    return model


class Scene:
    """A model over block caches whose every slot starts as NaN, and the texts committed so far."""

    def __init__(self, kind: str, settings: dict[str, Any], backend: str) -> None:
        torch.manual_seed(1)
        self.plain = build(kind, settings, "eager")
        self.model = build(kind, settings, IMPLEMENTATION)
        self.operations = {
            operation.__name__: partial(operation, backend=backend) for operation in (tree_attention, write_kv)
        }
        self.texts = [torch.randint(VOCAB, (n,)).tolist() for n in PROMPTS]
        self.committed = [0] * len(PROMPTS)
        config = self.model.config
        kv_heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.kv = BlockKV(12, config.num_hidden_layers, kv_heads, head_dim, torch.float32, torch.device("cpu"))
        self.caches = [self.kv.keys, self.kv.values]
        for cache in (*self.kv.keys, *self.kv.values):
            cache.fill_(torch.nan)
        self.block_tables = torch.randperm(12).to(torch.int32).view(3, 4) + 1

    def forward(self, tokens: list[list[int]], trees: tuple[tuple[int, ...], ...] | None) -> list[torch.Tensor]:
        """Logits of each sequence's rows, as the engine has a model compute them; trees None: chains without a mask."""
        rows = [
            Rows(table.tolist(), committed, text, None if trees is None else trees[b])
            for b, (table, committed, text) in enumerate(zip(self.block_tables, self.committed, tokens, strict=True))
        ]
        layout = lay_out(rows, [0], None)
        with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
            for name, operation in self.operations.items():
                patch.setattr(workers.attention, name, operation)
            out = self.model(
                input_ids=layout.token_ids[None], position_ids=layout.positions[None], use_cache=True,
                **{cache_argument(type(self.model)): (cache := SlotCache(self.kv, layout)), "slot_cache": cache},
            )  # fmt: skip
        return [out.logits[0, a:b] for a, b in itertools.pairwise(layout.cu_rows.tolist())]

    def expected(self, text: list[int]) -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = self.plain(input_ids=torch.tensor([text]), use_cache=False).logits
        return logits[0]

    def largest_error(self) -> float:
        """Over prompts, then every row of every step; a step's committed path is that of its last row."""
        errors = []
        for text, logits in zip(self.texts, self.forward(self.texts, None), strict=True):
            errors.append((logits - self.expected(text)).abs().max())
        self.committed = [len(text) for text in self.texts]
        for trees in STEPS:
            tokens = [torch.randint(VOCAB, (len(tree),)).tolist() for tree in trees]
            found = self.forward(tokens, trees)
            for b, tree in enumerate(trees):
                paths: list[list[int]] = []
                for i, parent in enumerate(tree):
                    paths.append([*(paths[parent] if parent >= 0 else []), i])
                    text = self.texts[b] + [tokens[b][n] for n in paths[i]]
                    errors.append((found[b][i] - self.expected(text)[-1]).abs().max())
                self.commit(b, paths[-1], tokens[b])
        return float(torch.stack(errors).max())

    def commit(self, b: int, path: list[int], tokens: list[int]) -> None:
        """Move the path's keys and values to the front of the step's slots; the rest becomes garbage again."""
        at = self.committed[b]
        for cache in (*self.caches[0], *self.caches[1]):
            blocks = [(int(self.block_tables[b, (at + i) // BLOCK]), (at + i) % BLOCK) for i in range(len(tokens))]
            kept = [cache[blocks[n]].clone() for n in path]
            for place in blocks:
                cache[place] = torch.nan
            for place, row in zip(blocks, kept, strict=False):
                cache[place] = row
        self.texts[b] = self.texts[b] + [tokens[n] for n in path]
        self.committed[b] += len(path)


@pytest.mark.parametrize("backend", ["naive", "native"])
@pytest.mark.parametrize("name", MODELS)
def test_every_path_of_a_tree_gets_the_models_own_logits(name: str, backend: str) -> None:
    if backend == "native" and (reason := native.obstacle("cpu", 16)):
        pytest.skip(f"no C++ compiler works here: {reason}")
    assert Scene(*MODELS[name], backend=backend).largest_error() < 1e-4


def test_the_models_windows_and_caps_are_felt() -> None:
    # Else the models above would prove nothing about them.
    text = torch.arange(30).remainder(VOCAB)[None]
    for name, change in (
        ("mistral", {"sliding_window": 128}), ("gemma3", {"sliding_window": 128}),
        ("gemma2", {"attn_logit_softcapping": 1e3}), ("gemma2", {"sliding_window": 128}),
    ):  # fmt: skip
        kind, settings = MODELS[name]
        logits = [build(kind, s, "eager")(input_ids=text).logits for s in (settings, settings | change)]
        assert (logits[0] - logits[1]).abs().max() > 1e-2, (name, change)


def test_a_model_over_the_fused_kernels_gets_its_own_logits() -> None:
    pytest.importorskip("triton", reason="Triton is published for Linux only")
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__))], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1e-4


def call(**changes: Any) -> None:
    rows = torch.zeros(1, 2, 3, 16)
    arguments = {"module": torch.nn.Identity(), "query": rows, "key": rows, "value": rows, "attention_mask": None}
    kv = BlockKV(1, 1, 2, 16, torch.float32, torch.device("cpu"))
    cache = SlotCache(kv, lay_out([Rows([1], 0, [3, 4, 5])], [0], (64,)))
    slot_attention(**(arguments | {"slot_cache": cache} | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slot_cache": None}, "works only inside"),
        ({"s_aux": torch.zeros(2)}, "uses 's_aux'"),
        ({"position_bias": torch.zeros(2)}, "uses 'position_bias'"),
        ({"softcap": 30.0}, "uses 'softcap', which is not computed where keys are gathered"),
    ],
)
def test_what_the_attention_does_not_compute_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(**changes)


def test_a_model_that_looks_ahead_is_refused() -> None:
    module = torch.nn.Identity()
    module.is_causal = False
    with pytest.raises(ValueError, match="looks ahead"):
        call(module=module)


if __name__ == "__main__":
    warnings.simplefilter("error")
    importlib.import_module("kernels.attention.fused")
    print(Scene(*FUSED_MODEL, backend="fused").largest_error())
