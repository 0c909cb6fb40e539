"""The compiled step: the eager one's values, rows that do not depend on company, and a swap that no text notices."""

from __future__ import annotations

import copy
import random
import threading

import pytest
import structlog
import torch
import transformers
from transformers import AutoModelForCausalLM

from workers.attention import IMPLEMENTATION
from workers.compiled import compiler
from workers.compiled.background import BackgroundCompiler, adopt_compiled
from workers.compiled.compilable import compiled_before
from workers.compiled.graph import CompiledGraph, try_out
from workers.compiled.packaging import make_package
from workers.compiled.skeleton import CannotCompile, fingerprint, pack, strip
from workers.kv_cache import KVSlots
from workers.model_runner import ModelRunner
from workers.step_layout import Rows

CPU = torch.device("cpu")
VOCAB = 48
PROMPT = [5, 6, 7, 8, 9, 10]
OTHER = 3
"""Seed of another model of the same form: text that it has written is seen to be its own."""
COMMON = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.3,
}  # fmt: skip
FAMILIES = {
    "qwen3": lambda: transformers.Qwen3Config(**COMMON, head_dim=16),
    "gemma3_window": lambda: transformers.Gemma3TextConfig(
        **COMMON, head_dim=16, sliding_window=16, query_pre_attn_scalar=16,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=256),
}  # fmt: skip


def own(runner: ModelRunner) -> ModelRunner:
    """With weights of its own: a compiled runner gives those up that it no longer reads."""
    runner._model = copy.deepcopy(runner._model)
    return runner


@pytest.fixture(scope="module")
def cache(make_runner, tmp_path_factory):
    """A folder of models in which the tiny one was compiled, as a worker does it: by a process, on a thread."""
    monkeypatch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("models")
    adopted = []
    monkeypatch.setattr(compiler, "NICE", 0)
    background = BackgroundCompiler((make_runner(),), folder, lambda part, graph: adopted.append(graph))
    background.start()
    background._thread.join(280)
    monkeypatch.undo()
    assert len(adopted) == 1
    return folder


@pytest.fixture
def compiled_runner(make_runner, cache):
    def make(**options) -> ModelRunner:
        runner = own(make_runner(**options))
        runner.adopt(compiled_before(runner, cache))
        return runner

    return make


@pytest.fixture
def other_graph(make_runner, cache) -> CompiledGraph:
    """The tiny model's graph on another model's weights."""
    form = make_runner(OTHER).form()
    return CompiledGraph(compiler.package_of(strip(make_runner().form()), cache), pack(form))


@pytest.fixture
def engine_of(make_engine, cache):
    def make(k=4, proposer="ngram", *, is_compiled=False, **options):
        engine = make_engine(k, proposer, **options)
        own(engine.target.runner)
        if is_compiled:
            engine.adopt(engine.target.runner, compiled_before(engine.target.runner, cache))
        return engine

    return make


def text_of(engine, drain, *requests):
    for request in requests:
        engine.submit(request)
    return {name: done.token_ids for name, done in drain(engine).items()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_computes_what_it_computes_eagerly(family, tmp_path) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(FAMILIES[family](), attn_implementation=IMPLEMENTATION)
    runner = ModelRunner(model, 4, 256, family)
    places = KVSlots(2, 256)
    rows = [Rows(places.blocks(0), 0, list(range(3, 40))), Rows(places.blocks(1), 0, [9, 8, 7])]
    eager, eager_features = runner.forward_with_features(rows, range(40), (1, 2))
    form = runner.form()
    skeleton = strip(form)
    make_package(skeleton, tmp_path / "step.pt2")
    graph = CompiledGraph(tmp_path / "step.pt2", pack(form))
    try_out(graph, skeleton, runner.tried_inputs)
    runner.adopt(graph)
    got, features = runner.forward_with_features(rows, range(40), (1, 2))
    assert float((got - eager).abs().max() / eager.abs().max()) < 1e-4
    assert float((features - eager_features).abs().max() / eager_features.abs().max()) < 1e-4


def test_a_row_has_the_same_bits_in_any_company(compiled_runner) -> None:
    runner, places = compiled_runner(slots=8, context=256), KVSlots(8, 256)
    numbers = random.Random(0)
    prompt = [numbers.randrange(VOCAB) for _ in range(70)]
    for slot in range(8):
        runner.forward([Rows(places.blocks(slot), 0, prompt)], [0])
    later = [numbers.randrange(VOCAB) for _ in range(6)]
    alone = [runner.forward([Rows(places.blocks(0), 70 + i, later[i : i + 1])], [0])[0] for i in range(6)]
    differing = {}
    for trial in range(40):
        mates = [
            Rows(
                places.blocks(slot),
                numbers.randrange(200),
                [numbers.randrange(VOCAB) for _ in range(numbers.randrange(1, 17))],
            )
            for slot in numbers.sample(range(1, 8), numbers.randrange(8))
        ]
        at = numbers.randrange(len(mates) + 1)
        first = sum(len(mate.token_ids) for mate in mates[:at])
        got = runner.forward([*mates[:at], Rows(places.blocks(0), 70, later), *mates[at:]], range(first, first + 6))
        if bad := [i for i in range(6) if not torch.equal(got[i], alone[i])]:
            differing[trial] = bad
    assert not differing


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 11}], ids=["greedy", "seeded"])
def test_text_does_not_depend_on_k_and_batch_mates(engine_of, ask, drain, prompts, sampling) -> None:
    alone = [
        text_of(engine_of(0, "none", is_compiled=True), drain, ask(prompt, **sampling))["r"] for prompt in prompts[5:8]
    ]
    together = text_of(
        engine_of(4, "ngram+close", is_compiled=True),
        drain,
        *(ask(prompt, f"{i}", **sampling) for i, prompt in enumerate(prompts[5:8])),
    )
    assert [together[f"{i}"] for i in range(3)] == alone


def test_a_text_that_began_eagerly_ends_eagerly_and_later_ones_are_compiled(
    engine_of, ask, drain, collect, other_graph, prompts
) -> None:
    of_model = text_of(engine_of(0, "none"), drain, ask(PROMPT, max_tokens=20))["r"]
    swapped_before = engine_of(0, "none")
    swapped_before.adopt(swapped_before.target.runner, other_graph)
    by_other = text_of(swapped_before, drain, ask(PROMPT, max_tokens=20))["r"]
    engine = engine_of(4, "ngram")
    engine.submit(ask(PROMPT, "early", max_tokens=20))
    out = {}
    for _ in range(3):
        collect(out, engine.step())
    engine.adopt(engine.target.runner, other_graph)
    engine.submit(ask(PROMPT, "late", max_tokens=20))
    engine.submit(ask(prompts[10], "long", max_tokens=2))
    while engine.has_work:
        collect(out, engine.step())
    assert of_model != by_other
    assert out["early"].token_ids == of_model
    assert out["late"].token_ids == by_other


def test_what_was_computed_eagerly_serves_no_compiled_text(engine_of, ask, drain, other_graph) -> None:
    def computed(engine) -> int:
        engine.submit(ask(PROMPT * 10, max_tokens=2))
        return drain(engine)["r"].record.prefill_positions

    engine = engine_of(0, "none")
    eager = computed(engine), computed(engine)
    engine.adopt(engine.target.runner, other_graph)
    assert eager == (computed(engine), computed(engine)) == (60, 12)


def test_at_once_a_text_goes_on_compiled(engine_of, ask, drain, collect, other_graph) -> None:
    of_model = text_of(engine_of(0, "none"), drain, ask(PROMPT, max_tokens=20, ignore_eos=True))["r"]
    engine = engine_of(0, "none")
    engine.submit(ask(PROMPT, max_tokens=20, ignore_eos=True))
    out = {}
    for _ in range(3):
        collect(out, engine.step())
    engine.adopt(engine.target.runner, other_graph, at_once=True)
    while engine.has_work:
        collect(out, engine.step())
    assert out["r"].token_ids[:3] == of_model[:3]
    assert out["r"].token_ids != of_model


def test_eager_weights_stay_until_the_last_text_that_began_so_has_ended(engine_of, ask, cache) -> None:
    engine = engine_of(0, "none")
    runner = engine.target.runner
    engine.submit(ask(PROMPT, max_tokens=6, ignore_eos=True))
    engine.step()
    engine.adopt(runner, compiled_before(runner, cache))
    had_eager = []
    while engine.has_work:
        had_eager.append(runner.has_eager)
        engine.step()
    left = sum(p.nbytes for p in runner._model.parameters()) - runner.embeddings.nbytes - runner.head.nbytes
    assert all(had_eager)
    assert not runner.has_eager
    assert left < runner.embeddings.nbytes


def test_features_of_eager_and_compiled_rows_come_back_in_their_places(engine_of, ask, cache, other_graph) -> None:
    """One step of both kinds hands every sequence its own features: EAGLE drafts from them."""
    learnt: dict[str, list[torch.Tensor]] = {}
    engine = engine_of(2, "eagle")
    real = engine.proposer.learn

    def learn(sequence, start, features):
        learnt.setdefault(sequence.request.request_id, []).append(features)
        real(sequence, start, features)

    engine.proposer.learn = learn
    engine.submit(ask(PROMPT, "early", max_tokens=12, ignore_eos=True))
    engine.step()
    engine.adopt(engine.target.runner, compiled_before(engine.target.runner, cache))
    engine.submit(ask(PROMPT, "late", max_tokens=12, ignore_eos=True))
    while engine.has_work:
        engine.step()
    early, late = (torch.cat(learnt[name]) for name in ("early", "late"))
    shared = min(len(early), len(late))
    assert shared > len(PROMPT)
    assert torch.allclose(early[:shared], late[:shared], atol=1e-3)


def test_a_second_start_compiles_nothing(make_runner, cache, monkeypatch) -> None:
    monkeypatch.setattr(compiler, "_compile", None)
    adopted = []
    left = adopt_compiled((make_runner(),), cache, lambda part, graph: adopted.append(graph), CPU, torch.float32)
    assert (len(adopted), left) == (1, ())


def test_without_a_compiler_the_step_stays_eager_and_says_so(make_runner, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    runner = make_runner()
    with structlog.testing.capture_logs() as logs:
        left = adopt_compiled((runner,), tmp_path, lambda part, graph: part.adopt(graph), CPU, torch.float32)
    assert (left, runner.is_compiled) == ((), False)
    assert "no C++ compiler" in logs[-1]["reason"]


def test_a_compiler_that_fails_leaves_the_step_eager(make_runner, tmp_path, monkeypatch) -> None:
    runner = make_runner(layers=1)
    monkeypatch.setattr(compiler.sys, "executable", "/bin/false")
    with pytest.raises(CannotCompile, match="ended with 1"):
        compiler.ensure(strip(runner.form()), compiler.package_of(strip(runner.form()), tmp_path))
    assert not list((tmp_path / compiler.FOLDER).glob("*.pt2"))


def test_a_compiler_that_is_stopped_ends(make_runner, tmp_path) -> None:
    stop = threading.Event()
    skeleton = strip(make_runner(layers=1).form())
    package = compiler.package_of(skeleton, tmp_path)
    threading.Timer(0.5, stop.set).start()
    with pytest.raises(CannotCompile, match="stopped"):
        compiler.ensure(skeleton, package, stop)


class Leaning:
    """The graph with a fault: each row's values lean on how many there are."""

    def __init__(self, graph: CompiledGraph) -> None:
        self.graph = graph

    def __call__(self, attention, *inputs):
        return [output + 1e-6 * inputs[0].shape[1] for output in self.graph(attention, *inputs)]


def test_a_graph_whose_rows_depend_on_company_is_refused(compiled_runner) -> None:
    runner = compiled_runner()
    with pytest.raises(CannotCompile, match="depend on the"):
        try_out(Leaning(runner._graph), strip(runner.form()), runner.tried_inputs)


def test_a_graph_of_another_model_is_refused(make_runner, other_graph) -> None:
    runner = make_runner()
    skeleton = strip(runner.form())
    pack(runner.form()).choose()

    def swapped(attention, *inputs):
        return other_graph(attention, *(i + 1 if i.dtype.is_floating_point else i for i in inputs))

    with pytest.raises(CannotCompile, match="other values"):
        try_out(swapped, skeleton, runner.tried_inputs)


def test_a_package_is_named_by_what_it_is_made_of(make_runner) -> None:
    def name(threads=1, **model):
        torch.set_num_threads(threads)
        found = fingerprint(strip(make_runner(**model).form()))
        torch.set_num_threads(1)
        return found

    same, others = name(), [name(layers=1), name(threads=2), name(dtype=torch.bfloat16), name(rms_norm_eps=1e-3)]
    assert name() == same == name(seed=OTHER)
    assert len({same, *others}) == 5


def test_a_skeleton_is_small(make_runner) -> None:
    model = make_runner(vocab=4096, hidden_size=64)
    skeleton = strip(model.form())
    assert sum(p.nbytes for p in skeleton.parameters()) < sum(p.nbytes for p in model._model.parameters()) / 100


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("proposer", ["eagle", "medusa"])
def test_a_compiled_drafter_drafts_what_it_drafts_eagerly(make_engine, ask, drain, prompts, tmp_path, proposer) -> None:
    def run(is_compiled):
        engine = make_engine(3, proposer, eos=())
        if is_compiled:
            (part,) = engine.proposer.compilables
            form = part.form()
            skeleton = strip(form)
            make_package(skeleton, tmp_path / "drafter.pt2")
            graph = CompiledGraph(tmp_path / "drafter.pt2", pack(form))
            try_out(graph, skeleton, part.tried_inputs)
            engine.adopt(part, graph)
        for i, prompt in enumerate(prompts[4:8]):
            engine.submit(ask(prompt, f"{i}", max_tokens=16))
        return {name: (done.token_ids, done.steps) for name, done in drain(engine).items()}

    assert run(is_compiled=True) == run(is_compiled=False)
