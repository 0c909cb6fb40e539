"""transformers' arms of the decode benchmark: its `generate`, alone, with prompt lookup and with an assistant model."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from benchmarks.decode_arms import ASSISTED, PROMPT_LOOKUP, Prompt
from benchmarks.decode_figures import BASELINE, Run
from controlplane.settings import Settings
from workers.build import DTYPES
from workers.models.resolve import resolve_model
from workers.proposers.drafter_folder import load_student
from workers.proposers.draws import over_target_vocabulary
from workers.proposers.shipped import shipped_for
from workers.proposers.student_model import assembled, kept_layers, start_from, student_decoder

PROMPT_LOOKUP_TOKENS = 10
"""`prompt_lookup_num_tokens`; the assistant's number is transformers' own default, 20 until it is unsure."""
PRUNED_LAYERS = 2
ATTENTION = "sdpa"
SAMPLING = ("temperature", "top_p", "top_k")


class DraftVocabularyHead(nn.Module):
    """A student's LM head for who expects logits over the target's whole vocabulary: -inf where it has no row.

    head: to logits [..., len(vocabulary)]. vocabulary: [rows] int64, the target's ids. size: of its vocabulary.
    """

    vocabulary: torch.Tensor

    def __init__(self, head: nn.Module, vocabulary: torch.Tensor, size: int) -> None:
        super().__init__()
        self.head, self.size = head, size
        self.register_buffer("vocabulary", vocabulary)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return over_target_vocabulary(self.head(hidden), self.vocabulary, self.size)


@dataclass(frozen=True, slots=True)
class Assistant:
    """model: for `assistant_model`. label: what it is."""

    model: Any
    label: str


def assistant_of(target: Any, folder: Path, cache: Path) -> Assistant:
    """The student that is shipped for these weights, as a transformers model, or some layers of the target as they are.

    target: as transformers loaded it from `folder`; its embeddings and LM head are shared. cache: of models.
    """
    embeddings, head = target.get_input_embeddings().weight, target.get_output_embeddings().weight
    shipped = shipped_for(folder, cache)
    if shipped is not None and "draft" in shipped.folders:
        decoder, vocabulary, card = load_student(shipped.folders["draft"], shipped.target, target.config)
        layers, label = card.shape["layers"], "shipped draft"
    else:
        count = target.config.get_text_config().num_hidden_layers
        layers, vocabulary = kept_layers(count, PRUNED_LAYERS), torch.arange(head.shape[0])
        decoder, label = student_decoder(target.config, layers), f"layers {' '.join(map(str, layers))}"
        start_from(decoder, target, layers)
    model: Any = assembled(target.config, layers, decoder.state_dict(), embeddings, head[vocabulary], ATTENTION)
    model.set_output_embeddings(DraftVocabularyHead(model.get_output_embeddings(), vocabulary, head.shape[0]))
    return Assistant(model.eval(), label)


class TransformersArm:
    """`generate` with `how`, the same for all requests. Sampling is by temperature alone, as ours is."""

    def __init__(self, name: str, model: Any, tokenizer: Any, how: Mapping[str, Any]) -> None:
        self._name, self._model, self._tokenizer, self._how = name, model, tokenizer, how

    def run(self, prompt: Prompt, temperature: float, round: int) -> Run:
        input_ids = torch.tensor([prompt.token_ids])
        # For a greedy text those of the model's folder would only warn that it has no use for them.
        sampling = {"temperature": temperature, "top_p": 1.0, "top_k": 0} if temperature else dict.fromkeys(SAMPLING)
        torch.manual_seed(prompt.seed)
        started = time.perf_counter()
        output = self._model.generate(
            input_ids,
            attention_mask=torch.ones_like(input_ids),
            do_sample=temperature > 0,
            **sampling,
            **self._how,
        )
        seconds = time.perf_counter() - started
        token_ids = tuple(output[0, input_ids.shape[1] :].tolist())
        text = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        where = (self._name, prompt.domain, prompt.index, round)
        return Run(*where, token_ids, text, seconds, temperature=temperature)


def load_theirs(
    arms: Sequence[str], settings: Settings, tokenizer: Any, eos_token_ids: Sequence[int], max_tokens: int
) -> tuple[dict[str, TransformersArm], str]:
    """The arms of transformers among `arms`, on one loaded model, and what the assistant is ("" where none is)."""
    folder = resolve_model(settings.model, settings.model_cache)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[settings.dtype])
    ends = {"max_new_tokens": max_tokens, "eos_token_id": list(eos_token_ids), "pad_token_id": eos_token_ids[0]}
    own: dict[str, dict[str, Any]] = {BASELINE: {}, PROMPT_LOOKUP: {"prompt_lookup_num_tokens": PROMPT_LOOKUP_TOKENS}}
    label = ""
    if ASSISTED in arms:
        assistant = assistant_of(model, folder, settings.model_cache)
        own[ASSISTED], label = {"assistant_model": assistant.model}, assistant.label
    made = {arm: TransformersArm(arm, model, tokenizer, {**ends, **own[arm]}) for arm in arms if arm in own}
    return made, label
