"""A student of the target: a few of its decoder layers, distilled, between its own embeddings and LM head.

It stores its layers alone. Of the LM head it uses the rows of a truncated, frequency-ranked draft vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel


def kept_layers(num_layers: int, keep: int) -> tuple[int, ...]:
    """0-based layers of the target that a student of `keep` layers begins as: the first, the last, evenly between."""
    if keep < 2:
        return (0,)
    return tuple(dict.fromkeys(round(i * (num_layers - 1) / (keep - 1)) for i in range(keep)))


def student_config(config: PreTrainedConfig, layers: Sequence[int]) -> PreTrainedConfig:
    """The target's with only those layers. Raises ValueError for a layer that it does not have."""
    made = copy.deepcopy(config.get_text_config())
    if not layers or not all(0 <= layer < made.num_hidden_layers for layer in layers):
        raise ValueError(f"layers {list(layers)}: the target has layers 0 to {made.num_hidden_layers - 1}")
    types = getattr(made, "layer_types", None)
    if types:
        made.layer_types = [types[layer] for layer in layers]
    made.num_hidden_layers = len(layers)
    made.tie_word_embeddings = False
    return made


def student_decoder(config: PreTrainedConfig, layers: Sequence[int]) -> Any:
    """The untrained layers and the norm behind them, without embeddings: it takes `inputs_embeds`, fp32.

    Raises ValueError for an architecture whose decoder layers are not in a list `layers`.
    """
    model = AutoModelForCausalLM.from_config(student_config(config, layers), dtype=torch.float32)
    decoder = model.base_model
    if not isinstance(getattr(decoder, "layers", None), nn.ModuleList):
        raise ValueError(f"a student of {config.model_type} cannot be made: its decoder layers are not known here")
    decoder.set_input_embeddings(nn.Identity())
    return decoder


def start_from(decoder: Any, target: Any, layers: Sequence[int]) -> None:
    """Copy those layers of the target, and its norm, into the student's."""
    state = target.base_model.state_dict()
    own = {}
    for name in decoder.state_dict():
        head, _, rest = name.partition(".")
        number, _, parameter = rest.partition(".")
        own[name] = state[f"layers.{layers[int(number)]}.{parameter}" if head == "layers" else name]
    decoder.load_state_dict(own)


def assembled(
    config: PreTrainedConfig,
    layers: Sequence[int],
    tensors: Mapping[str, torch.Tensor],
    embeddings: torch.Tensor,
    head: torch.Tensor,
    attention: str,
) -> PreTrainedModel:
    """The student as a causal model whose logits are over the rows of `head` [draft vocabulary, hidden].

    tensors: of its decoder. embeddings: [vocab, hidden], shared with the target, as its dtype and device are.
    attention: name of the attention function.
    """
    made = student_config(config, layers)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        made, dtype=embeddings.dtype, attn_implementation=attention
    )
    decoder: Any = model.base_model
    decoder.set_input_embeddings(nn.Identity())
    decoder.load_state_dict(dict(tensors))
    decoder.set_input_embeddings(nn.Embedding.from_pretrained(embeddings.detach(), freeze=True))
    lm_head = nn.Linear(head.shape[1], head.shape[0], bias=False, device="meta")
    lm_head.weight = nn.Parameter(head.detach(), requires_grad=False)
    model.set_output_embeddings(lm_head)
    return torch.nn.Module.to(model, embeddings.device)
