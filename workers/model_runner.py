"""A causal language model of transformers, run over a block KV cache: the target, and a draft model, are such."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from controlplane.model_label import Quantization
from workers.attention import IMPLEMENTATION, SlotCache, attention_sizes, keep_and_attend
from workers.compiled.compilable import Compilable
from workers.compiled.form import Form
from workers.compiled.graph import CompiledGraph
from workers.compiled.model_form import ModelForm
from workers.compiled.quantization import QuantizationError, in_int8
from workers.first_line import first_line
from workers.kv_budget import kv_blocks, kv_bytes, kv_heads_of
from workers.kv_cache import BlockKV, blocks_for
from workers.late_tokens import LateTokens
from workers.model_support import (
    UnsupportedModel,
    cache_argument,
    check_config,
    check_windows,
    context_limit,
    end_token_ids,
)
from workers.step_graphs import CudaGraphs, Recorder, StepGraphs, StepShape
from workers.step_layout import ROW_STEP, Rows, StepLayout, lay_out


class _Output(NamedTuple):
    """logits: [kept rows, vocab]. hidden_states: [1, rows, hidden] of the embedding and of every layer. All padded."""

    logits: torch.Tensor
    hidden_states: Seq[torch.Tensor]


class ModelRunner:
    """Weights and KV blocks of one model; who holds which block is the caller's to know.

    num_slots: sequences that it is to compute at once. num_blocks: of its KV, None for a whole context each.
    quantization: int8 changes the model that is given. `forward(rows)` computes the rows and writes their KV. Not
    thread-safe: one engine thread owns it.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        num_slots: int,
        context: int,
        name: str = "",
        num_blocks: int | None = None,
        quantization: Quantization = "none",
    ) -> None:
        config = model.config.get_text_config()
        self.name = name or str(getattr(config, "_name_or_path", "")) or config.model_type
        self.vocab_size: int = config.vocab_size
        self.context = context
        self.num_slots = num_slots
        self.device = model.device
        self.dtype = model.dtype
        heads, (kv_heads, head_dim) = config.num_attention_heads, kv_heads_of(config)
        num_blocks = num_blocks or num_slots * blocks_for(context)
        self.kv = BlockKV(num_blocks, config.num_hidden_layers, kv_heads, head_dim, model.dtype, model.device)
        self._sizes = attention_sizes(context, heads, kv_heads, head_dim, model.dtype, model.device)
        self._cache_argument = cache_argument(type(model))
        self.eos_token_ids = end_token_ids(getattr(model.generation_config, "eos_token_id", None)) | end_token_ids(
            getattr(config, "eos_token_id", None)
        )
        is_int8 = quantization == "int8"
        self._head: torch.Tensor | None = getattr(model.get_output_embeddings(), "weight", None) if is_int8 else None
        self._bank = in_int8(model, self.name) if is_int8 else None
        self._model = model.train(False)
        self._graph: CompiledGraph | None = None
        self._steps: StepGraphs | None = None
        self._recorded_layers: tuple[int, ...] = ()
        self._has_eager = True

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        num_slots: int,
        context: int,
        device: torch.device,
        dtype: torch.dtype,
        name: str = "",
        kv_tokens: int | None = None,
        quantization: Quantization = "none",
    ) -> ModelRunner:
        """Load weights from a local folder. kv_tokens: of its KV, 0 for what memory allows (workers/kv_budget.py), None
        for a whole context for each of `num_slots` sequences.

        Raises UnsupportedModel, one line with the reason, where the model cannot be served or read, and
        QuantizationError where its weights cannot be held so.
        """
        if not folder.is_dir():
            raise UnsupportedModel(f"model folder {folder} does not exist")
        try:
            config = AutoConfig.from_pretrained(folder)
            name = name or folder.name
            check_config(config, name)
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=IMPLEMENTATION)
            torch.nn.Module.to(model, device)
            shared: list[Any] = [model.get_input_embeddings(), model.get_output_embeddings()]
            for layer in shared:
                # Weights are mapped from their file, all of it for as long as one of them is there; these stay longest.
                if layer is not None:
                    layer.weight.data = layer.weight.data.clone()
            context = context_limit(config, context)
            blocks = None
            if kv_tokens is not None:
                blocks = kv_blocks(kv_tokens, num_slots, context, kv_bytes(config, dtype), device, name)
            runner = cls(model, num_slots, context, name, blocks, quantization)
            if quantization != "none":
                for weight in model.parameters():  # what is left of them: norms, which hold the file, too
                    weight.data = weight.data.clone()
            runner.check()
        except (UnsupportedModel, QuantizationError):
            raise
        except Exception as error:  # the library's own, the file system's, and those of code found in the folder
            reason = first_line(error)
            if IMPLEMENTATION in reason:
                reason = "it computes attention of its own"
            raise UnsupportedModel(f"cannot load a model from {folder}: {reason[:200]}") from error
        return runner

    @property
    def embeddings(self) -> torch.Tensor:
        """[vocab, hidden], the input embeddings, for a drafter that shares them."""
        weight: torch.Tensor = self._model.get_input_embeddings().weight
        return weight

    @property
    def config(self) -> PreTrainedConfig:
        """Of the text model."""
        config: PreTrainedConfig = self._model.config.get_text_config()
        return config

    @property
    def num_layers(self) -> int:
        """Decoder layers. The last one's features come after the final norm."""
        return int(self.config.num_hidden_layers)

    @property
    def head(self) -> torch.Tensor:
        """[vocab, hidden], the LM head as the model has it, for a drafter that shares it while it is built."""
        if self._head is not None:
            return self._head
        weight: torch.Tensor = self._model.get_output_embeddings().weight
        return weight

    @property
    def is_compiled(self) -> bool:
        return self._graph is not None

    @property
    def has_eager(self) -> bool:
        """Whether it can still compute eagerly, as it could before it was compiled."""
        return self._has_eager

    @property
    def compilables(self) -> tuple[Compilable, ...]:
        return (self,)

    def form(self) -> Form:
        return ModelForm(self._model, self._cache_argument, self._bank)

    def tried_inputs(self, numbers: Seq[int]) -> tuple[torch.Tensor, ...]:
        rows = torch.tensor(list(numbers), device=self.device)
        token_ids = (7 * rows + 3) % min(self.vocab_size, 997)
        return self._model.get_input_embeddings()(token_ids)[None], rows[None], torch.arange(len(rows))

    def adopt(self, graph: CompiledGraph) -> None:
        """Compute by `graph` from now on, but for rows that are to be eager."""
        self._graph, self._steps = graph, None

    def drop_eager(self) -> None:
        """Give up the weights that only the eager forward reads; the embeddings stay."""
        if self._graph is None or not self._has_eager:
            return
        self._has_eager = False
        kept = {id(self.embeddings)}
        if self._head is not None and self._head is not self.embeddings:
            self._head = self._head.new_empty(0)
        for module in self._model.modules():
            for name, weight in module._parameters.items():
                if weight is not None and id(weight) not in kept:
                    module._parameters[name] = torch.nn.Parameter(weight.new_empty(0), requires_grad=False)

    @torch.inference_mode()
    def record(
        self, shapes: Iterable[StepShape], layers: Seq[int] = (), trees: bool = False, recorder: Recorder | None = None
    ) -> tuple[StepShape, ...]:
        """Record steps of these shapes, to be replayed by whichever forward fits one; which there are from now on.

        layers: whose features those forwards will be asked for. trees: whether they may have any. recorder: CUDA graphs
        where None. Raises RuntimeError with the reason where a step cannot be recorded; all forwards are then eager.
        """
        self._steps, self._recorded_layers = None, tuple(layers)
        if self._sizes is not None:
            raise RuntimeError("its attention gathers keys, as many as a step's longest text needs")
        if self._graph is not None:
            raise RuntimeError("its step is compiled")

        def compute(layout: StepLayout) -> tuple[torch.Tensor, torch.Tensor | None]:
            return self._step(layout, layers)

        recorder = CudaGraphs() if recorder is None else recorder
        self._steps = StepGraphs(shapes, compute, self.context, trees, self.device, recorder)
        return self._steps.shapes

    @torch.inference_mode()
    def forward(
        self, rows: Seq[Rows], keep: Seq[int], eager: bool = False, late: LateTokens | None = None
    ) -> torch.Tensor:
        """Compute `rows`; returns the logits [len(keep), vocab] of the flattened row indices in `keep`.

        eager: though it is compiled or recorded, for a text that began so. late: tokens of rows that have stand-ins.
        """
        return self._logits_and_features(rows, keep, (), eager, late)[0]

    @torch.inference_mode()
    def forward_with_features(
        self, rows: Seq[Rows], keep: Seq[int], layers: Seq[int], eager: bool = False, late: LateTokens | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `forward`, and the outputs [rows, layers, hidden] of those decoder layers (1-based) at every row."""
        logits, features = self._logits_and_features(rows, keep, layers, eager, late)
        assert features is not None
        return logits, features

    def padded(
        self, sequences: int, deepest: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Rows that a decode step computes, see batch_choice.Padded; a recorded one those of its shape."""
        own = positions + -positions % ROW_STEP
        if self._steps is None:
            return own
        recorded = [self._steps.rows_for(sequences, k) for k in deepest[:, 0].tolist()]
        return np.stack([own[i] if rows is None else np.full_like(own[i], rows) for i, rows in enumerate(recorded)])

    def _logits_and_features(
        self, rows: Seq[Rows], keep: Seq[int], layers: Seq[int], eager: bool, late: LateTokens | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        may_replay = not eager and tuple(layers) in ((), self._recorded_layers)
        if may_replay and self._steps is not None and (shape := self._steps.fit(rows, keep)) is not None:
            return self._steps.run(rows, shape, late)
        layout = lay_out(rows, keep, self._sizes).to(self.device)
        layout.put(late)
        logits, features = self._step(layout, layers, eager)
        return logits[: len(keep)], features

    def _step(
        self, layout: StepLayout, layers: Seq[int], eager: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logits [kept, vocab] and features [rows, layers, hidden] of a forward, which are kept with the KV."""
        out = self._run(SlotCache(self.kv, layout), bool(layers), eager)
        if not layers:
            return out.logits, None
        n = layout.num_rows
        features = torch.stack([out.hidden_states[layer][0, :n] for layer in layers], dim=1)
        self.kv.write_features(layout.flat_index[:n], features)
        return out.logits, features

    def _run(self, cache: SlotCache, with_hidden: bool = False, eager: bool = False) -> _Output:
        layout = cache.layout
        if self._graph is not None and not (eager and self._has_eager):
            embedded = self._model.get_input_embeddings()(layout.token_ids)[None]
            outputs = self._graph(partial(keep_and_attend, cache), embedded, layout.positions[None], layout.kept)
            return _Output(outputs[0][0], outputs[1:])
        self._choose_bank()
        arguments: dict[str, Any] = {self._cache_argument: cache, "slot_cache": cache}
        out = self._model(
            input_ids=layout.token_ids[None],
            position_ids=layout.positions[None],
            use_cache=True,
            logits_to_keep=layout.kept,
            **({"output_hidden_states": True} if with_hidden else {}),
            **arguments,
        )
        return _Output(out.logits[0], out.hidden_states if with_hidden else ())

    @torch.inference_mode()
    def check(self) -> None:
        """Hold a short forward against the model's own attention; raises UnsupportedModel where they differ.

        It finds at load what would otherwise be wrong text: recurrent state, a cache that cannot be rolled back,
        unusual attention.
        """
        token_ids = [(7 * i + 3) % min(self.vocab_size, 997) for i in range(12)]
        expected = self._own_logits(token_ids)
        try:
            blocks = range(1, 1 + blocks_for(len(token_ids)))
            first = lay_out([Rows(blocks, 0, token_ids[:5])], [4], self._sizes)
            cache = SlotCache(self.kv, first.to(self.device))
            self._run(cache)
            self.forward([Rows(blocks, 5, [1, 2, 1, 2])], [0])  # a rejected draft, to be overwritten
            got = self.forward([Rows(blocks, 5, token_ids[5:])], range(7))
        except (ValueError, TypeError, AttributeError, NotImplementedError, RuntimeError, LookupError) as error:
            raise UnsupportedModel(
                f"model {self.name!r} cannot be driven over KV blocks ({str(error).splitlines()[0]})"
            ) from error
        check_windows(cache.windows, self._model.config, self.name)
        scale = expected[5:].float().abs().max().clamp(min=1.0)
        difference = float((got.float() - expected[5:].float()).abs().max() / scale)
        if not difference < (1e-3 if self.dtype == torch.float32 else 8e-2):
            raise UnsupportedModel(
                f"model {self.name!r} gives other logits over KV blocks than by itself (relative difference "
                f"{difference:.2g} after a rollback): its state cannot be rolled back, or its attention is special"
            )

    def _choose_bank(self) -> None:
        if self._bank is not None:
            self._bank.choose()

    def _own_logits(self, token_ids: list[int]) -> torch.Tensor:
        """Logits [len(token_ids), vocab] by the library's own attention and without a cache."""
        self._choose_bank()
        self._model.set_attn_implementation("eager")
        try:
            own: torch.Tensor = self._model(
                input_ids=torch.tensor([token_ids], device=self.device), use_cache=False
            ).logits[0]
            return own
        finally:
            self._model.set_attn_implementation(IMPLEMENTATION)
