"""A tiny target, its answers to made-up prompts, and their features: seconds of training show rising acceptance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from workers.training.answers import Answer, Question
from workers.training.features import FeatureFile, store_features
from workers.training.loop import Recipe
from workers.training.objective import Teacher
from workers.training.prompts import Prompt
from workers.training.report import Report
from workers.training.run import Order, train_drafter
from workers.training.vocabulary import draft_vocabulary

VOCAB, HIDDEN, LENGTH, PROMPT, ANSWERS = 32, 32, 24, 6, 64
LAYERS = (1, 2)


class Lesson(NamedTuple):
    """model: the target. features: of its answers. lengths: in tokens."""

    model: Any
    answers: list[Answer]
    features: FeatureFile
    teacher: Teacher
    lengths: list[int]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tiny_target() -> Any:
    """Says after each token the next one of a random cycle through the vocabulary: something that can be learnt."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).train(False)
    cycle = torch.randperm(VOCAB)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(VOCAB, HIDDEN))
        model.lm_head.weight[cycle.roll(-1)] = 2 * torch.eye(VOCAB, HIDDEN)[cycle]
    return model


@torch.inference_mode()
def greedy(model: Any, prompts: torch.Tensor, length: int) -> torch.Tensor:
    """[answers, length]: prompts [answers, PROMPT] with what the target says next."""
    texts = prompts
    while texts.shape[1] < length:
        texts = torch.cat((texts, model(texts).logits[:, -1:].argmax(-1)), dim=1)
    return texts


@pytest.fixture(scope="session")
def lesson(tmp_path_factory: pytest.TempPathFactory) -> Lesson:
    model = tiny_target()
    prompts = torch.randint(VOCAB, (ANSWERS, PROMPT), generator=torch.Generator().manual_seed(7))
    texts = greedy(model, prompts, LENGTH).tolist()
    lengths = [LENGTH - i % 5 for i in range(ANSWERS)]
    answers = []
    for i, (text, length) in enumerate(zip(texts, lengths, strict=True)):
        question = Question("cycle", i % 4 == 0, tuple(text[:PROMPT]), 0.0, 0, LENGTH - PROMPT)
        answers.append(Answer(f"{i}", question, tuple(text[PROMPT:length])))
    features = store_features(tmp_path_factory.mktemp("features"), answers, model, LAYERS)
    return Lesson(model, answers, features, Teacher.of(model, draft_vocabulary(answers, 24, VOCAB)), lengths)


def order_in(tmp_path: Path) -> Order:
    """A tiny target in a folder, and eight prompts."""
    folder = tmp_path / "target"
    tiny_target().save_pretrained(folder)
    backend = Tokenizer(WordLevel({f"t{n}": n for n in range(VOCAB)}, unk_token="t0"))
    backend.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="t2")
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    prompts = [Prompt("cycle", f"t{n} t{n + 3}", n % 4 == 0) for n in range(3, 11)]
    recipe = Recipe(steps=6, batch_size=2)
    return Order(
        "eagle", folder, "tiny", tmp_path / "cache" / "models", tmp_path / "out", prompts, recipe, 300.0, 1, 12
    )


@pytest.fixture(scope="module")
def tiny_order(tmp_path_factory: pytest.TempPathFactory) -> Order:
    return order_in(tmp_path_factory.mktemp("order"))


@pytest.fixture(scope="module")
def trained(tiny_order: Order) -> Iterator[Order]:
    """The tiny order, carried out."""
    before = torch.get_num_threads()
    train_drafter(tiny_order, Report())
    yield tiny_order
    torch.set_num_threads(before)
