"""A tiny target, its answers to made-up prompts, and their features: seconds of training show rising acceptance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from workers.training.answers import Answer, Question
from workers.training.features import FeatureFile, store_features
from workers.training.objective import Teacher
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
