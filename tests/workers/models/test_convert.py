from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from workers.models.convert import convert_gguf
from workers.models.registry import ModelError

HIDDEN, HEADS, INNER, LAYERS = 64, 2, 128, 2
WORDS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def write_tiny_llama(path: Path) -> np.ndarray:
    """A random two-layer llama as Q4_1 GGUF; returns one of its matrices as it was quantised, [INNER, HIDDEN]."""
    tokens = [*WORDS, *(chr(code) for code in range(33, 127)), "ab"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(WORDS) + [1] * (len(tokens) - len(WORDS)))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    rng = np.random.default_rng(0)
    q4_1 = gguf.GGMLQuantizationType.Q4_1

    def add(name: str, *shape: int) -> np.ndarray:
        packed = gguf.quantize(rng.standard_normal(shape, dtype=np.float32) / 8, q4_1)
        writer.add_tensor(name, packed, raw_dtype=q4_1)
        return gguf.dequantize(packed, q4_1)

    add("token_embd.weight", len(tokens), HIDDEN)
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    seen = []
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{name}.weight", HIDDEN, HIDDEN)
        seen.append(add(f"blk.{layer}.ffn_up.weight", INNER, HIDDEN))
        add(f"blk.{layer}.ffn_gate.weight", INNER, HIDDEN)
        add(f"blk.{layer}.ffn_down.weight", HIDDEN, INNER)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(HIDDEN, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return seen[1]


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    folder = tmp_path_factory.mktemp("converted")
    matrix = write_tiny_llama(folder.parent / "tiny.gguf")
    convert_gguf(folder.parent / "tiny.gguf", folder)
    return folder, matrix


def test_every_weight_is_dense_bf16(converted: tuple[Path, np.ndarray]) -> None:
    model = AutoModelForCausalLM.from_pretrained(converted[0])
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}


def test_a_converted_weight_is_the_quantised_one_rounded_to_bf16(converted: tuple[Path, np.ndarray]) -> None:
    folder, matrix = converted
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(model.model.layers[1].mlp.up_proj.weight, torch.from_numpy(matrix).to(torch.bfloat16))


def test_the_converted_folder_is_not_called_quantised(converted: tuple[Path, np.ndarray]) -> None:
    assert "quantization_config" not in (converted[0] / "config.json").read_text()


def test_the_tokenizer_comes_along(converted: tuple[Path, np.ndarray]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(converted[0])
    assert tokenizer.decode(tokenizer("ab!")["input_ids"]).replace(" ", "") == "ab!"


def test_a_file_that_is_no_gguf_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"not a model")
    (tmp_path / "out").mkdir()
    with pytest.raises(ModelError, match=r"^cannot convert x\.gguf: .+$"):
        convert_gguf(tmp_path / "x.gguf", tmp_path / "out")
