"""What a worker refuses to be put together from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from controlplane.settings import load_settings
from workers.build import build_proposer
from workers.model_runner import ModelRunner, UnsupportedModel

CPU, DTYPE = torch.device("cpu"), torch.float32
TOKENIZER = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({f"t{n}": n for n in range(48)}, "t0")))


def tiny_model(folder: Path, context: int) -> Path:
    """A folder with a random model made for `context` tokens."""
    config = LlamaConfig(
        vocab_size=48,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=context,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


@pytest.fixture
def target(tmp_path: Path) -> ModelRunner:
    """Made for 128 tokens."""
    return ModelRunner.load(tiny_model(tmp_path / "target", 128), num_slots=1, context=128, device=CPU, dtype=DTYPE)


def proposer(tmp_path: Path, target: ModelRunner, draft_context: int) -> Any:
    drafter = tiny_model(tmp_path / "draft", draft_context)
    settings = load_settings(drafter=f"draft_model:{drafter}", max_context=128)
    return build_proposer(settings, target, TOKENIZER, CPU, DTYPE)


def test_a_drafter_made_for_fewer_tokens_than_the_context_is_refused(tmp_path: Path, target: ModelRunner) -> None:
    with pytest.raises(UnsupportedModel, match="set max_context to 64"):
        proposer(tmp_path, target, 64)


def test_a_drafter_made_for_more_tokens_than_the_context_is_taken(tmp_path: Path, target: ModelRunner) -> None:
    assert proposer(tmp_path, target, 256).name == "draft_model"
