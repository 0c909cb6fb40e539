"""What a worker refuses to be put together from."""

from __future__ import annotations

import re
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from controlplane.policy import parse_policy
from controlplane.settings import load_settings
from workers.build import DeviceError, build_engine, build_proposer, check_models, choose_dtype
from workers.compiled.background import adopt_compiled
from workers.compiled.quantization import QuantizationError
from workers.engine import Engine
from workers.model_runner import ModelRunner, UnsupportedModel
from workers.models.weights_hash import weights_sha256
from workers.proposers.base import drafter_label
from workers.proposers.drafter_folder import (
    DrafterCard,
    DrafterError,
    TargetIdentity,
    read_card,
    save_drafter,
    write_card,
)
from workers.proposers.eagle_model import EagleModel, EagleShape
from workers.proposers.medusa_model import MedusaModel
from workers.proposers.ngram import NGramProposer
from workers.proposers.none import NoProposer
from workers.proposers.student_model import student_decoder

POLICY = """
version: 1
cohorts:
  - name: default
    match: {}
    speculation: {tuner: fixed, ladder: [0, 2, 5], start: 2, fallback: 0}
"""
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
    model, drafter = (tiny_model(tmp_path / name, n) for name, n in (("model", 128), ("draft", draft_context)))
    settings = load_settings(
        model=str(model), drafter=f"draft_model:{drafter}", max_context=128, model_cache=tmp_path / "cache"
    )
    return build_proposer(settings, target, TOKENIZER, CPU, DTYPE)


def test_a_drafter_made_for_fewer_tokens_than_the_context_is_refused(tmp_path: Path, target: ModelRunner) -> None:
    with pytest.raises(UnsupportedModel, match="set max_context to 64"):
        proposer(tmp_path, target, 64)


def test_a_drafter_made_for_more_tokens_than_the_context_is_taken(tmp_path: Path, target: ModelRunner) -> None:
    assert proposer(tmp_path, target, 256).name == "draft_model"


def test_a_draft_model_is_named_by_its_weights(tmp_path: Path, target: ModelRunner) -> None:
    """Other weights in the same folder are another drafter."""
    torch.manual_seed(1)
    first = drafter_label(proposer(tmp_path, target, 128))
    again = drafter_label(proposer(tmp_path / "elsewhere", target, 128))
    torch.manual_seed(1)
    same = drafter_label(proposer(tmp_path, target, 128))
    assert re.fullmatch(r"draft_model@[0-9a-f]{12}", first)
    assert (again != first, same == first) == (True, True)


def eagle_folder(folder: Path, weights: str, hidden: int = 32) -> Path:
    shape = EagleShape(hidden, 4, 4, 8, 48, (1,), 10000.0, 1e-6)
    card = DrafterCard("eagle", TargetIdentity("tiny", weights, hidden, 48), 4, asdict(shape))
    save_drafter(folder, card, EagleModel(shape).state_dict(), torch.arange(0, 48, 3))
    return folder


def eagle(tmp_path: Path, target: ModelRunner, weights: str | None = None) -> Any:
    cache = tmp_path / "cache"
    folder = eagle_folder(tmp_path / "eagle", weights or weights_sha256(tmp_path / "target", cache))
    settings = load_settings(model=str(tmp_path / "target"), drafter=f"eagle:{folder}", model_cache=cache)
    return build_proposer(settings, target, TOKENIZER, CPU, DTYPE)


def test_an_eagle_drafter_of_this_target_is_taken_and_named_by_its_weights(tmp_path: Path, target: ModelRunner) -> None:
    made = eagle(tmp_path, target)
    assert re.fullmatch(r"eagle@[0-9a-f]{12}", drafter_label(made))
    assert made.feature_layers == (1,)


def test_medusa_heads_and_a_student_of_this_target_are_taken(tmp_path: Path, target: ModelRunner) -> None:
    cache = tmp_path / "cache"
    of = TargetIdentity("target", weights_sha256(tmp_path / "target", cache), 32, 48)
    vocabulary = torch.arange(0, 48, 3)
    student = student_decoder(target.config, [0])
    made = (("medusa", {"heads": 2}, MedusaModel(32, 2)), ("draft", {"layers": [0]}, student))
    for kind, shape, model in made:
        folder = tmp_path / f"{kind}-drafter"
        save_drafter(folder, DrafterCard(kind, of, 2, shape), model.state_dict(), vocabulary)
        settings = load_settings(model=str(tmp_path / "target"), drafter=f"{kind}:{folder}", model_cache=cache)
        check_models(settings)
        label = drafter_label(build_proposer(settings, target, TOKENIZER, CPU, DTYPE))
        assert re.fullmatch(rf"{kind}@[0-9a-f]{{12}}", label)


@pytest.mark.parametrize(("measured", "least"), [({}, 3), ({"min_match": 6}, 6)])
def test_behind_the_ngram_index_both_are_named_and_the_measured_match_is_used(
    tmp_path: Path, target: ModelRunner, measured: dict[str, Any], least: int
) -> None:
    cache = tmp_path / "cache"
    folder = eagle_folder(tmp_path / "eagle", weights_sha256(tmp_path / "target", cache))
    write_card(folder, replace(read_card(folder), ngram_first=measured))
    settings = load_settings(model=str(tmp_path / "target"), drafter=f"ngram+eagle:{folder}", model_cache=cache)
    check_models(settings)
    made = build_proposer(settings, target, TOKENIZER, CPU, DTYPE)
    assert re.fullmatch(rf"ngram\+eagle@2\.{least}\+[0-9a-f]{{12}}", drafter_label(made))
    assert made.feature_layers == (1,)


def test_a_draft_model_may_stand_behind_the_ngram_index(tmp_path: Path, target: ModelRunner) -> None:
    model, drafter = (tiny_model(tmp_path / name, 128) for name in ("model", "draft"))
    choice = f"ngram+draft_model:{drafter}"
    settings = load_settings(model=str(model), drafter=choice, max_context=128, model_cache=tmp_path / "cache")
    assert build_proposer(settings, target, TOKENIZER, CPU, DTYPE).name == "ngram+draft_model"


def test_a_shortest_match_that_is_none_is_refused(tmp_path: Path) -> None:
    folder = eagle_folder(tmp_path / "eagle", "ab" * 32)
    write_card(folder, replace(read_card(folder), ngram_first={"min_match": 0}))
    with pytest.raises(DrafterError, match=r"ngram_first\.min_match: is 0"):
        read_card(folder)


def test_an_eagle_drafter_of_another_target_is_refused(tmp_path: Path, target: ModelRunner) -> None:
    with pytest.raises(DrafterError, match="was trained for tiny"):
        eagle(tmp_path, target, "ab" * 32)


def test_drafters_without_weights_are_named_by_their_version() -> None:
    assert [drafter_label(drafter()) for drafter in (NGramProposer, NoProposer)] == ["ngram@2", "none@1"]


def built(folder: Path, **wishes: object) -> Engine:
    """An engine of a tiny model, by settings with these wishes; nothing of the process is left changed."""
    settings = load_settings(
        model=str(tiny_model(folder / "target", 128)), threads=1, max_sequences=2, max_context=128,
        energy_powercap=str(folder), **wishes,
    )  # fmt: skip
    before = torch.get_num_threads()
    try:
        engine, _ = build_engine(settings, parse_policy(POLICY), "w-1")
    finally:
        torch.set_num_threads(before)
    assert engine.energy is not None
    engine.energy.stop()
    return engine


@pytest.mark.parametrize(("tokens", "context", "blocks"), [(0, 128, 16), (100, 100, 7), (160, 128, 10)])
def test_the_kv_cache_is_as_large_as_its_setting_says(tmp_path: Path, tokens: int, context: int, blocks: int) -> None:
    engine = built(tmp_path, drafter="none", dtype="float32", kv_cache_tokens=tokens, prefix_cache=False)
    assert (engine.target.runner.context, engine.tables.num_blocks) == (context, blocks)


@pytest.mark.parametrize("rule", ["token", "block"])
def test_unseeded_chains_are_verified_by_the_rule_of_the_settings(tmp_path: Path, rule: str) -> None:
    assert built(tmp_path, drafter="ngram", dtype="float32", verification=rule).verifier.rule == rule


def test_an_engine_with_int8_weights_reports_under_their_label(tmp_path: Path) -> None:
    engine = built(tmp_path, drafter="none", quantization="int8", compile="off")
    assert engine.close_window().model == f"{tmp_path / 'target'}:int8"


def test_weights_that_cannot_be_held_so_are_refused_before_they_are_read(tmp_path: Path) -> None:
    settings = load_settings(model=str(tmp_path / "not there"), drafter="none", quantization="int8", dtype="float16")
    with pytest.raises(QuantizationError, match="set dtype: auto"):
        check_models(settings)


def test_an_engine_reports_under_its_drafters_name_and_measures_the_policys_rungs(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "target", 128)
    policy = parse_policy(POLICY)
    before = torch.get_num_threads()
    settings = load_settings(
        model=str(folder), drafter="ngram", threads=1, max_sequences=2, max_context=128, dtype="float32",
        profile_s=100.0, energy_powercap=str(tmp_path), energy_model_idle_w=10.0, energy_model_tdp_w=20.0,
    )  # fmt: skip
    try:
        engine, _ = build_engine(settings, policy, "w-1")
        assert engine.profile is not None
        while engine.profile.advance():
            pass
    finally:
        torch.set_num_threads(before)
    assert engine.energy is not None
    deadline = time.monotonic() + 5
    while engine.energy.source == "none" and time.monotonic() < deadline:
        time.sleep(0.01)
    window = engine.close_window()
    engine.energy.stop()
    assert window.energy_source == "model"
    assert window.drafter == "ngram@2"
    assert {cell[:2] for cell in window.profile} == {(n, k) for n in (1, 2) for k in (0, 2, 5)}


@pytest.mark.parametrize(
    ("dtype", "device", "has_bfloat16", "chosen"),
    [
        ("auto", "cuda", True, torch.bfloat16),
        ("auto", "cuda", False, torch.float16),
        ("auto", "cpu", False, torch.bfloat16),
        ("float16", "cuda", True, torch.float16),
        ("float32", "cuda", False, torch.float32),
        ("bfloat16", "cpu", False, torch.bfloat16),
    ],
)
def test_a_gpu_without_bfloat16_computes_in_float16(monkeypatch, dtype, device, has_bfloat16, chosen) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: has_bfloat16)
    assert choose_dtype(dtype, torch.device(device)) == chosen


def test_bfloat16_is_refused_where_a_gpu_has_none(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
    with pytest.raises(DeviceError, match=r"dtype: bfloat16 .* use float16 or auto"):
        choose_dtype("bfloat16", torch.device("cuda"))


def test_float16_on_a_cpu_says_that_it_stays_eager(capsys) -> None:
    assert adopt_compiled((object(),), Path(), lambda *_: None, CPU, torch.float16) == ()  # type: ignore[arg-type]
    assert "float16 is not compiled; use bfloat16 or float32" in capsys.readouterr().out
