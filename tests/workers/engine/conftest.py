"""A tiny random model, a tokenizer for it, and an engine around them: a millisecond a forward."""

from __future__ import annotations

import copy
import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from controlplane.decision.plan import Plan
from controlplane.model_label import Quantization
from controlplane.telemetry import LOAD_BUCKETS, RequestRecord
from kernels.launch import Backend
from kernels.verify import Rule
from workers.attention import IMPLEMENTATION
from workers.engine import Engine
from workers.kv_cache import blocks_for
from workers.meter import Meter
from workers.model_runner import ModelRunner
from workers.penalties import TokenTally
from workers.plan_client import PlanClient, constant_plan
from workers.proposers.base import NO_TREES, NoFeatures, Proposal, Proposer, drafter_label
from workers.proposers.combined import NGramFirstProposer
from workers.proposers.draft_model import DraftModelProposer
from workers.proposers.eagle import EagleProposer, SharedWeights
from workers.proposers.eagle_model import EagleModel, EagleShape
from workers.proposers.growth import branch_all, growths_of, proposal_of
from workers.proposers.medusa import MedusaProposer
from workers.proposers.medusa_model import MedusaModel
from workers.proposers.ngram import NGramProposer
from workers.proposers.none import NoProposer
from workers.sequence import Chunk, EngineRequest, SamplingParams, TokenLogprob
from workers.shadow import ShadowDrafts
from workers.step_layout import Rows
from workers.target import Target
from workers.token_tree import TokenTree, Trees, read_trees
from workers.verifier import Verifier

VOCAB = 48
EOS = 2
CONTEXT = 256
COHORT = "default"


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """More threads only cost time on a model this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@lru_cache
def tiny_model(
    seed: int = 0,
    layers: int = 2,
    dtype: torch.dtype = torch.float32,
    vocab: int = VOCAB,
    attention: str = IMPLEMENTATION,
    nudge: float = 0.0,
    **config: Any,
) -> Any:
    """A random Llama whose logits are far from flat, so that greedy text is not one repeated token.

    nudge: standard deviation of what is added to each weight, for a model that is near another.
    """
    torch.manual_seed(seed)
    values: dict[str, Any] = {
        "vocab_size": vocab,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.35,
        "bos_token_id": 1,
        "eos_token_id": EOS,
        "attn_implementation": attention,
    }
    model: Any = LlamaForCausalLM(LlamaConfig(**{**values, **config}))
    with torch.no_grad():
        for weight in model.parameters():
            weight += nudge * torch.randn_like(weight)
    return model.to(dtype).train(False)


@pytest.fixture(scope="session")
def make_runner() -> Callable[..., ModelRunner]:
    """A tiny model over blocks of its own, by `make(seed, layers, slots=, context=, ...)`."""

    def make(*args: Any, slots: int = 8, context: int = CONTEXT, **model: Any) -> ModelRunner:
        return ModelRunner(tiny_model(*args, **model), slots, context, "tiny")

    return make


@pytest.fixture(scope="session")
def own_logits() -> Callable[..., torch.Tensor]:
    """The tiny model's logits [n, length, vocab] by the library's own attention."""

    def logits(token_ids: Sequence[Sequence[int]], **model: Any) -> torch.Tensor:
        with torch.inference_mode():
            ids = torch.tensor(token_ids)
            return tiny_model(attention="eager", **model)(input_ids=ids, use_cache=False).logits

    return logits


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """Token n is the word `tn`."""
    return word_tokenizer()


def word_tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(WordLevel({f"t{n}": n for n in range(VOCAB)}, unk_token="t0"))
    backend.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@dataclass(slots=True)
class Finished:
    """All that came out of one request."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    steps: list[tuple[int, int]] = field(default_factory=list)
    record: RequestRecord | None = None
    error: str | None = None
    chunks: int = 0
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)


def _collect(out: dict[str, Finished], chunks: Sequence[Chunk]) -> None:
    """Add chunks to what their requests gave."""
    for chunk in chunks:
        done = out.setdefault(chunk.request_id, Finished())
        done.token_ids += chunk.token_ids
        done.text += chunk.text
        done.steps += chunk.steps
        done.chunks += 1
        done.record = chunk.record or done.record
        done.error = chunk.error or done.error
        done.logprobs += chunk.logprobs
        done.prompt_logprobs += chunk.prompt_logprobs


def _drain(engine: Engine, at_most: int = 5000) -> dict[str, Finished]:
    """Step until nothing is left; what each request gave."""
    out: dict[str, Finished] = {}
    for _ in range(at_most):
        if not engine.has_work:
            return out
        _collect(out, engine.step())
    raise AssertionError("the engine did not come to an end")


def _ask(
    prompt: Sequence[int], request_id: str = "r", *, cohort: str = COHORT, max_tokens: int = 24, **sampling: Any
) -> EngineRequest:
    sampling.setdefault("temperature", 0.0)
    return EngineRequest(request_id, tuple(prompt), SamplingParams(max_tokens, **sampling), cohort, created_at=0.0)


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="session")
def collect() -> Callable[[dict[str, Finished], Sequence[Chunk]], None]:
    """Adds chunks to what each request gave, by id."""
    return _collect


@pytest.fixture(scope="session")
def drain() -> Callable[..., dict[str, Finished]]:
    """Steps an engine until nothing is left; returns what each request gave, by id."""
    return _drain


@pytest.fixture(scope="session")
def ask() -> Callable[..., EngineRequest]:
    """A request, greedy unless told otherwise."""
    return _ask


@pytest.fixture(scope="session")
def interpreted() -> Callable[[Path], dict[str, Any]]:
    """Runs a file as a program in Triton's interpreter, and reads the JSON of its last line."""

    def run(program: Path) -> dict[str, Any]:
        pytest.importorskip("triton", reason="Triton is published for Linux only")
        root = str(Path(__file__).parents[3])
        environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": root}
        done = subprocess.run(
            [sys.executable, str(program)], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    return run


MakeEngine = Callable[..., Engine]


TREES = read_trees({"2": [-1, -1], "4": [-1, -1, 0, 1], "8": [-1, -1, -1, 0, 0, 1, 3, 5]})
"""Three levels, as Medusa has heads; a node of the second level hangs on a second child."""


class PathDrafter(NoFeatures):
    """Drafts trees of what a model says behind every path, each computed from its beginning: slow, and plain to see."""

    name, version, is_deterministic = "paths", "1", False

    def __init__(self, runner: ModelRunner, trees: Trees) -> None:
        self._runner, self.trees = runner, trees

    def propose(self, batch: Sequence[Any], k: Sequence[int], trees: Sequence[TokenTree | None] = ()) -> Proposal:
        growths = growths_of(batch, k, trees, lambda _: True)
        for growth in growths:
            for node in range(-1, len(growth.tree)):
                if growth.tree.children[node + 1]:
                    path = [growth.tokens[n] for n in growth.tree.path(node)]
                    text = [*growth.sequence.token_ids, *path]
                    blocks = range(1, 1 + blocks_for(len(text)))
                    logits = self._runner.forward([Rows(blocks, 0, text)], [len(text) - 1])
                    branch_all([(growth, node, logits)])
        return proposal_of(growths, [len(growth.tokens) for growth in growths])

    def prime(self, batch: Sequence[Any]) -> None:
        pass

    def release(self, sequence: Any) -> None:
        pass


class FixedDrafter(NoFeatures):
    """Drafts what it is told, whether or not the text agrees: `drafts(emitted)` by the number of tokens emitted."""

    name, version, is_deterministic = "fixed", "1", True

    def __init__(self, drafts: Callable[[int], Sequence[int]]) -> None:
        self._drafts = drafts

    def propose(self, batch: Sequence[Any], k: Sequence[int], trees: Sequence[TokenTree | None] = ()) -> Proposal:
        return Proposal.of([self._drafts(s.completion_length)[:n] for s, n in zip(batch, k, strict=True)])

    def prime(self, batch: Sequence[Any]) -> None:
        pass

    def release(self, sequence: Any) -> None:
        pass


@pytest.fixture(scope="session")
def drafting() -> Callable[[Callable[[int], Sequence[int]]], Proposer]:
    """A proposer by what it drafts."""
    return FixedDrafter


def _eagle(model: Any, slots: int, trees: Trees = NO_TREES) -> EagleProposer:
    """EAGLE's layer with random weights, over two thirds of the vocabulary."""
    torch.manual_seed(21)
    hidden = model.config.hidden_size
    shape = EagleShape(hidden, 4, 2, hidden // 4, 48, (1, 2), 10000.0, 1e-6)
    shared = SharedWeights(model.get_input_embeddings().weight, model.get_output_embeddings().weight)
    ids = torch.arange(len(shared.head))
    layer = EagleModel(shape).to(shared.head.dtype)
    return EagleProposer(layer, ids[ids % 3 > 0], shared, slots, CONTEXT, trees=trees)


def _medusa(model: Any, trees: Trees = NO_TREES) -> MedusaProposer:
    """Three heads with random weights, over two thirds of the vocabulary."""
    torch.manual_seed(22)
    head = model.get_output_embeddings().weight
    heads = MedusaModel(head.shape[1], 3)
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.normal_()
    ids = torch.arange(len(head))
    heads = heads.to(head.dtype)
    return MedusaProposer(heads, ids[ids % 3 > 0], head, model.config.num_hidden_layers, trees=trees)


def _plan(k: int | Mapping[str, int]) -> Plan:
    """A plan that never expires: one K for all cohorts, or one for each of those named."""
    if isinstance(k, int):
        return constant_plan(k, [COHORT, "a", "b"])
    by_load = {cohort: (n,) * len(LOAD_BUCKETS) for cohort, n in k.items()}
    return Plan(0, 0, 0.0, math.inf, by_load, {}, "constant")


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still until the test moves it."""
    return Clock()


@pytest.fixture(scope="session")
def make_engine(tokenizer: PreTrainedTokenizerFast) -> MakeEngine:
    """An idle engine around tiny models.

    k: one K, or one by cohort. proposer: "none", "ngram", "eagle" or "medusa" (of random weights), or a draft model:
    "draft" is an unrelated one, mostly rejected; "close" one near the target; "target" is the target itself, always
    accepted when greedy. Behind "ngram+": where the n-gram index is silent.
    "paths" drafts trees only, near the target's own. trees: of "eagle" and "medusa" too; hidden: of the model, over
    whose heads of hidden / 4 trees need 16.
    shadow_depth: draft tokens of a shadow while K is 0; 0 is off. kv_blocks: of the target's KV; None: a whole context
    for each of `slots`. quantization: of the target, int8 with dtype bfloat16.
    """

    def make(
        k: int | Mapping[str, int] = 4,
        proposer: str | Proposer = "ngram",
        *,
        slots: int = 8,
        dtype: torch.dtype = torch.float32,
        eos: Sequence[int] = (EOS,),
        vocab: int = VOCAB,
        clock: Callable[[], float] | None = None,
        tokenizer: Any = tokenizer,
        shadow_depth: int = 0,
        kv_blocks: int | None = None,
        prefix_cache: bool = True,
        trees: Trees = NO_TREES,
        hidden: int = 32,
        nudge: float = 0.05,
        backend: Backend = "naive",
        rule: Rule = "token",
        quantization: Quantization = "none",
    ) -> Engine:
        clock = clock or Clock()

        def runner(
            seed: int = 0, layers: int = 2, nudge: float = 0.0, blocks: int | None = None, held: Quantization = "none"
        ) -> ModelRunner:
            model = tiny_model(seed, layers, dtype, vocab, nudge=nudge, hidden_size=hidden)
            if held != "none":
                model = copy.deepcopy(model)  # it is changed
            return ModelRunner(model, slots, CONTEXT, "tiny", blocks, held)

        def model() -> Any:
            return tiny_model(0, 2, dtype, vocab, hidden_size=hidden)

        named: dict[str, Callable[[], Proposer]] = {
            "none": NoProposer,
            "ngram": lambda: NGramProposer(1),
            "draft": lambda: DraftModelProposer(runner(7, 1), vocab),
            "close": lambda: DraftModelProposer(runner(nudge=0.01), vocab),
            "target": lambda: DraftModelProposer(runner(), vocab),
            "eagle": lambda: _eagle(model(), slots, trees),
            "medusa": lambda: _medusa(model(), trees),
            "paths": lambda: PathDrafter(runner(nudge=nudge), trees or TREES),
            "ngram+paths": lambda: NGramFirstProposer(PathDrafter(runner(nudge=nudge), trees or TREES), 2),
            "ngram+draft": lambda: NGramFirstProposer(DraftModelProposer(runner(7, 1), vocab), 3),
            "ngram+close": lambda: NGramFirstProposer(DraftModelProposer(runner(nudge=0.01), vocab), 2),
            "ngram+eagle": lambda: NGramFirstProposer(_eagle(model(), slots, trees), 1),
            "ngram+medusa": lambda: NGramFirstProposer(_medusa(model(), trees), 1),
        }
        if isinstance(proposer, str):
            proposer = named[proposer]()
        meter = Meter("worker", 1, "tiny", drafter_label(proposer), "cpu-test", clock)
        return Engine(
            Target(runner(blocks=kv_blocks, held=quantization), proposer.feature_layers),
            proposer,
            Verifier(list(eos), backend, rule),
            PlanClient(_plan(k), clock),
            meter,
            tokenizer,
            eos,
            clock,
            ShadowDrafts(proposer, meter.count_shadow, shadow_depth) if shadow_depth else None,
            prefix_cache=prefix_cache,
        )

    return make


@pytest.fixture
def blind_penalties(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault: penalties look at the text before the step alone, so that a row does not count the drafts before it."""
    real = TokenTally.along

    def of_the_text(tally: TokenTally, drafts: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        token_ids, occurrences = real(tally, drafts)
        return token_ids, occurrences[:1].expand_as(occurrences)

    monkeypatch.setattr(TokenTally, "along", of_the_text)


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Prompts of 1 to 150 tokens (more than one prefill chunk), some with repeats for the n-gram proposer."""
    numbers = torch.Generator().manual_seed(5)
    lengths = [1, 2, 3, 5, 8, 17, 33, 64, 100, 129, 150]
    random = [torch.randint(3, VOCAB, (n,), generator=numbers).tolist() for n in lengths]
    repeats = [list(itertools.islice(itertools.cycle(p[:4]), 20)) for p in random[5:8]]
    return random + repeats
