"""Int8 weights: what they stand for, one copy of them, and text that no draft and no batch-mate changes."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from controlplane.settings import Settings
from kernels.packed_linear import quantise
from workers.attention import IMPLEMENTATION
from workers.compiled import compiler, quantization
from workers.compiled.compilable import compiled, compiled_before
from workers.compiled.compiler import package_of
from workers.compiled.form import PackedLinear, linears, weight_of
from workers.compiled.quantization import QuantizationError, check_quantization
from workers.compiled.skeleton import strip
from workers.kv_cache import KVSlots
from workers.model_runner import ModelRunner
from workers.step_layout import Rows

BF16 = torch.bfloat16
FAMILIES = {
    "llama, tied": lambda: transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        initializer_range=0.3, tie_word_embeddings=True,
    ),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=256),
}  # fmt: skip


def model_of(family: str):
    torch.manual_seed(0)
    config = FAMILIES[family]()
    return AutoModelForCausalLM.from_config(config, attn_implementation=IMPLEMENTATION).to(BF16).train(False)


def runner_of(model, held="int8") -> ModelRunner:
    return ModelRunner(model, 2, 128, "tiny", None, held)


@pytest.fixture(scope="module")
def cache(make_engine, tmp_path_factory):
    """A folder of models in which the tiny one was compiled with int8 weights."""
    folder = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(compiler, "NICE", 0)
        compiled(make_engine(0, "none", dtype=BF16, quantization="int8").target.runner, folder)
    return folder


@pytest.fixture
def engine_of(make_engine, request):
    def make(k, proposer, is_compiled):
        engine = make_engine(k, proposer, dtype=BF16, quantization="int8")
        if is_compiled:
            graph = compiled_before(engine.target.runner, request.getfixturevalue("cache"))
            assert graph is not None
            engine.adopt(engine.target.runner, graph)
        return engine

    return make


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_computes_what_its_weights_stand_for(family) -> None:
    plain = model_of(family)
    held = runner_of(copy.deepcopy(plain))
    with torch.no_grad():
        for layer in linears(plain):
            weight, scale = quantise(weight_of(layer))
            if layer is not plain.get_output_embeddings():  # the embedding that it may be tied to is not quantised
                weight_of(layer).copy_(weight * scale[:, None])
    rows = [Rows(KVSlots(2, 128).blocks(0), 0, list(range(3, 40)))]
    _, expected = runner_of(plain, "none").forward_with_features(rows, range(37), (1, 2))
    _, got = held.forward_with_features(rows, range(37), (1, 2))
    assert float((got - expected).abs().max() / expected.abs().max()) < 0.02


@pytest.mark.filterwarnings("ignore")
def test_logits_are_those_of_an_int8_head(make_engine) -> None:
    runner = make_engine(0, "none", dtype=BF16, quantization="int8").target.runner
    rows = [Rows(KVSlots(2, 128).blocks(0), 0, list(range(3, 20)))]
    logits, features = runner.forward_with_features(rows, range(17), (2,))
    weight, scale = quantise(runner.head)
    expected = features[:, 0].float() @ (weight * scale[:, None]).T
    assert float((logits - expected).abs().max() / expected.abs().max()) < 0.01


@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 11}], ids=["greedy", "seeded"])
@pytest.mark.parametrize("drafter", ["ngram+close", "eagle"])
def test_text_does_not_depend_on_k_drafter_and_batch_mates(
    engine_of, ask, drain, prompts, drafter, sampling, is_compiled
) -> None:
    def texts(k, proposer, chosen):
        engine = engine_of(k, proposer, is_compiled)
        for i in chosen:
            engine.submit(ask(prompts[i], f"{i}", **sampling))
        return {name: done.token_ids for name, done in drain(engine).items()}

    chosen = range(4, 10)
    alone = {name: text for i in chosen for name, text in texts(0, "none", [i]).items()}
    assert texts(4, drafter, chosen) == alone


def test_a_compiled_graph_reads_the_weights_that_were_read_eagerly(engine_of) -> None:
    runner = engine_of(0, "none", True).target.runner
    assert runner._graph.bank is runner._bank


def test_nothing_of_the_linear_layers_stays_beside_their_int8_weights() -> None:
    model = model_of("llama, tied")
    embedding = model.get_input_embeddings().weight
    left = sum(weight.nbytes for weight in runner_of(model)._model.parameters())
    assert left == embedding.nbytes + sum(w.nbytes for name, w in model.named_parameters() if "norm" in name)


def test_a_head_of_its_own_goes_with_the_eager_weights(engine_of) -> None:
    assert engine_of(0, "none", True).target.runner.head.numel() == 0


def test_int8_is_another_package_than_bfloat16(make_engine, tmp_path) -> None:
    names = {
        package_of(strip(make_engine(0, "none", dtype=BF16, quantization=held).target.runner.form()), tmp_path)
        for held in ("none", "int8")
    }
    assert len(names) == 2


def test_every_linear_layer_is_replaced() -> None:
    model = runner_of(model_of("gpt2"))._model
    kinds = [type(layer) for layer in model.modules() if isinstance(layer, PackedLinear)]
    assert (len(kinds), linears(model)) == (9, [])


def test_a_model_whose_weights_are_mostly_elsewhere_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(quantization, "BAKED_BYTES_MOST", 64)
    with pytest.raises(QuantizationError, match=r"no plain products.*set quantization: none"):
        runner_of(model_of("llama, tied"))


@pytest.mark.parametrize(
    ("device", "changes", "said"),
    [("cuda", {}, "set device: cpu"), ("cpu", {"dtype": "float32"}, "set dtype: auto")],
    ids=["GPU", "float32"],
)
def test_where_it_cannot_be_the_fix_is_named(device, changes, said) -> None:
    with pytest.raises(QuantizationError, match=f"quantization: int8.*{said}"):
        check_quantization(Settings(quantization="int8", **changes), torch.device(device))


def test_without_a_compiler_it_is_refused(monkeypatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(QuantizationError, match=r"needs a C\+\+ compiler.*install g\+\+"):
        check_quantization(Settings(quantization="int8"), torch.device("cpu"))


def test_nothing_is_asked_of_a_machine_where_nothing_is_quantised(monkeypatch) -> None:
    monkeypatch.setenv("PATH", "")
    check_quantization(Settings(dtype="float32"), torch.device("cuda"))
