"""Families of models run over KV slots give their own text; what cannot be run is refused at load, with the reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from workers.model_runner import ModelRunner
from workers.model_support import UnsupportedModel, context_limit
from workers.proposers.draft_model import DraftModelProposer
from workers.step_layout import Rows
from workers.target import Target

VOCAB = 64
WINDOW = 16
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GPT: dict[str, Any] = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 256}


def config(name: str, **changes: Any) -> Any:
    """`name` as in LlamaConfig, without the Config."""
    return getattr(transformers, f"{name}Config")(**{**COMMON, **changes})


FAMILIES = {
    "llama": lambda: config("Llama"),
    "qwen2": lambda: config("Qwen2"),
    "qwen2_window": lambda: config("Qwen2", use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1),
    "qwen3": lambda: config("Qwen3", head_dim=16),
    "mistral_window": lambda: config("Mistral", sliding_window=WINDOW),
    "phi3_window": lambda: config("Phi3", sliding_window=WINDOW),
    "gpt2": lambda: transformers.GPT2Config(**GPT, initializer_range=0.3, bos_token_id=1, eos_token_id=2),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**{k: v for k, v in COMMON.items() if k != "num_key_value_heads"}),
    "gemma3_window": lambda: config(
        "Gemma3Text",
        head_dim=16,
        sliding_window=WINDOW,
        query_pre_attn_scalar=16,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "gemma2_window_cap": lambda: config("Gemma2", head_dim=16, sliding_window=WINDOW, attn_logit_softcapping=2.0),
    "olmo2": lambda: config("Olmo2"),
    "smollm3": lambda: config("SmolLM3"),
    "qwen3_moe": lambda: config("Qwen3Moe", head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16),
}

REFUSED = {
    "mamba": (
        lambda: transformers.MambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, state_size=8),
        "layers of kind linear_attention",
    ),
    "rwkv": (
        lambda: transformers.RwkvConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2),
        "layers of kind no attention",
    ),
    "jamba": (
        lambda: config("Jamba", attn_layer_period=2, attn_layer_offset=1, num_experts=2, use_mamba_kernels=False),
        "layers of kind linear_attention",
    ),
    "lfm2": (
        lambda: config("Lfm2", num_hidden_layers=2, layer_types=["conv", "full_attention"]),
        "layers of kind conv",
    ),
    "llama4": (
        lambda: config("Llama4Text", attention_chunk_size=WINDOW, num_local_experts=2, head_dim=8),
        "layers of kind chunked_attention",
    ),
    "gpt_oss": (lambda: config("GptOss", num_local_experts=4, sliding_window=WINDOW, head_dim=8), "'s_aux'"),
    "bloom": (
        lambda: transformers.BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4),
        "computes attention of its own",
    ),
    "gpt_neo": (
        lambda: transformers.GPTNeoConfig(
            vocab_size=VOCAB, hidden_size=32, num_layers=2, attention_types=[[["global", "local"], 1]], num_heads=4
        ),
        "computes attention of its own",
    ),
    "bert": (
        lambda: transformers.BertConfig(
            vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
        ),
        "looks ahead",
    ),
    "deepseek": (
        lambda: config(
            "DeepseekV3", num_key_value_heads=4, n_routed_experts=4, n_group=1, topk_group=1, num_experts_per_tok=2,
            kv_lora_rank=8, q_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=8,
            moe_intermediate_size=16,
        ),
        "its configuration says",
    ),
}  # fmt: skip


@pytest.fixture
def save(tmp_path):
    """A folder with a random model of a configuration."""

    def make(of: Any, **options: Any):
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(of, **options).save_pretrained(tmp_path)
        return tmp_path

    return make


def load(folder, *, context=256, dtype=torch.float32, slots=4):
    return ModelRunner.load(folder, num_slots=slots, context=context, device=torch.device("cpu"), dtype=dtype)


def own_greedy(folder, prompt, tokens):
    """The model's own greedy text by the library, without any cache."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").train(False)
    token_ids = list(prompt)
    with torch.inference_mode():
        for _ in range(tokens):
            token_ids.append(int(model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0, -1].argmax()))
    return token_ids[len(prompt) :]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_engines_greedy_text_is_the_models_own(save, make_engine, ask, drain, family) -> None:
    folder = save(FAMILIES[family]())
    engine = make_engine(4, "ngram", eos=(), vocab=VOCAB)
    engine.target = Target(load(folder))
    # Shorter and longer than the window, and a loop that the n-gram proposer gets right.
    prompts = [[5, 6, 7], [3 + 11 * i % 61 for i in range(40)], [8, 9, 10, 11] * 9]
    for i, prompt in enumerate(prompts):
        engine.submit(ask(prompt, f"{i}", max_tokens=14))
    texts = drain(engine)
    assert [texts[f"{i}"].token_ids for i in range(3)] == [own_greedy(folder, p, 14) for p in prompts]


@pytest.mark.filterwarnings("ignore")  # of the library, about kernels that are not installed
@pytest.mark.parametrize("family", REFUSED)
def test_row_28_a_state_that_cannot_be_cropped_keeps_rejected_tokens(save, family) -> None:
    make, reason = REFUSED[family]
    with pytest.raises(UnsupportedModel, match=reason) as refused:
        load(save(make()))
    assert "\n" not in str(refused.value)


def test_a_text_longer_than_the_window_is_where_a_window_matters(save) -> None:
    """Else the families with a window would prove nothing."""
    folder = save(FAMILIES["mistral_window"]())
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").train(False)
    token_ids = torch.tensor([[3 + 11 * i % 61 for i in range(40)]])
    with torch.inference_mode():
        windowed = model(input_ids=token_ids, use_cache=False).logits[0]
        model.config.sliding_window = None
        full = model(input_ids=token_ids, use_cache=False).logits[0]
    differing = [i for i in range(40) if not torch.allclose(windowed[i], full[i], atol=1e-3)]
    assert differing == list(range(WINDOW, 40))


@pytest.mark.parametrize("family", ["mistral_window", "gemma3_window", "qwen2_window"])
def test_row_32_acceptance_collapses_once_a_text_is_longer_than_the_window(
    save, make_engine, ask, drain, family
) -> None:
    """A window that target or drafter computes as the whole context: the draft model is the target, so all stand."""
    folder = save(FAMILIES[family]())
    engine = make_engine(8, DraftModelProposer(load(folder), VOCAB), eos=(), vocab=VOCAB)
    engine.target = Target(load(folder))
    engine.submit(ask([3 + 11 * i % 61 for i in range(WINDOW // 2)], max_tokens=6 * WINDOW))
    steps = drain(engine)["r"].steps
    assert {accepted - drafted for drafted, accepted in steps} == {0}
    assert len(steps) > 4


def test_in_bf16_too_a_model_is_checked_against_itself(save) -> None:
    runner = load(save(FAMILIES["llama"]()), dtype=torch.bfloat16)
    assert runner.forward([Rows(range(1, 5), 0, [3, 4])], [1]).dtype == torch.bfloat16


def test_a_missing_folder_is_named(tmp_path) -> None:
    with pytest.raises(UnsupportedModel, match="nowhere does not exist"):
        load(tmp_path / "nowhere")


def test_an_empty_folder_is_named(tmp_path) -> None:
    with pytest.raises(UnsupportedModel, match=str(tmp_path)) as refused:
        load(tmp_path)
    assert "\n" not in str(refused.value)


def test_weights_that_are_cut_off_are_one_line(save) -> None:
    folder = save(FAMILIES["llama"]())
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UnsupportedModel, match="cannot load a model from") as refused:
        load(folder)
    assert "\n" not in str(refused.value)


def test_a_context_is_at_most_what_the_model_was_made_for(save) -> None:
    assert load(save(FAMILIES["llama"]()), context=4096).context == 256


def test_longrope_stays_within_its_first_length() -> None:
    """Beyond it all angles of a forward change, of batch-mates too."""
    rope = {
        "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4,
        "original_max_position_embeddings": 64,
    }  # fmt: skip
    of = config("Phi3", original_max_position_embeddings=64, rope_parameters=rope)
    assert context_limit(of, 4096) == 64
    assert context_limit(of, 32) == 32


def test_all_end_tokens_of_a_model_are_known(save) -> None:
    folder = save(config("Llama", eos_token_id=[2, 7]))
    assert load(folder).eos_token_ids == {2, 7}
