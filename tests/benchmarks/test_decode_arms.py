"""The decode benchmark's arms: by name, refused before any work, and each at work on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import structlog
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from typer.testing import CliRunner

from benchmarks import decode_llama_cpp
from benchmarks.command import bench_app
from benchmarks.decode_arms import OurArm, default_arms, with_compared
from benchmarks.decode_figures import BASELINE, PLAIN, BenchmarkError
from benchmarks.decode_llama_cpp import find_gguf
from benchmarks.decode_theirs import DraftVocabularyHead

VOCAB = 48


@pytest.mark.parametrize(
    ("name", "arm"),
    [
        ("kadence/ngram/4", ("ngram", 4, True)),
        ("kadence/ngram+eagle/8/chain", ("ngram+eagle", 8, False)),
        ("kadence/eagle/adaptive", ("eagle", None, True)),
        ("kadence/eagle:runs/mine/2", ("eagle:runs/mine", 2, True)),
    ],
)
def test_an_arm_of_ours_is_read_from_its_name(name, arm) -> None:
    found = OurArm.of(name)
    assert (found.drafter, found.k, found.trees) == arm


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("vllm", "must be transformers"),
        ("kadence/ngram", "must be transformers"),
        ("kadence/ngram/99", "with a K up to"),
        ("kadence/ngram/4/tree", "must be transformers"),
        ("kadence/lookahead/4", "its drafter must be auto"),
        ("kadence/none/4", "without a drafter there is K = 0 alone"),
        ("kadence/none/adaptive", "without a drafter there is K = 0 alone"),
    ],
)
def test_a_name_that_is_no_arm_is_refused_with_what_is_one(name, why) -> None:
    with pytest.raises(BenchmarkError, match=f"--arm {name}: .*{why}"):
        OurArm.of(name)


def test_all_are_compared_with_transformers_and_k_0() -> None:
    assert with_compared(["kadence/ngram/4", PLAIN]) == (BASELINE, "kadence/ngram/4", PLAIN)


def test_the_full_comparison_has_every_drafter_at_every_k_once() -> None:
    arms = default_arms("ngram+eagle", ("eagle", "medusa", "draft"), full=True, llama=True)
    ours = {tuple(arm.split("/")[1:]) for arm in arms if arm.startswith("kadence/")}
    drafters = ("ngram", "eagle", "medusa", "draft", "ngram+eagle")
    assert ours == {
        ("none", "0"), ("ngram+eagle", "0"),
        *((drafter, k) for drafter in drafters for k in ("1", "2", "4", "8", "adaptive")),
    }  # fmt: skip
    assert len(arms) == len(set(arms)) == len(ours) + 4


@pytest.mark.parametrize("full", [False, True])
def test_a_model_without_shipped_drafters_is_compared_by_the_index_alone(full) -> None:
    arms = default_arms("ngram", (), full=full, llama=False)
    assert {arm.split("/")[1] for arm in arms if arm.startswith("kadence/")} == {"none", "ngram"}
    assert len(arms) == len(set(arms))


def test_llama_cpp_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(decode_llama_cpp, "PACKAGE", "a_package_that_nobody_has")
    with pytest.raises(BenchmarkError, match=r"pip install 'kadence\[bench\]'"):
        find_gguf(None, "smollm2-135m-instruct", tmp_path)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any package that is there: what is asked comes before it is used."""
    monkeypatch.setattr(decode_llama_cpp, "PACKAGE", "json")


def test_a_gguf_file_that_is_not_there_is_named(installed, tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match=r"--gguf .*model\.gguf: there is no such file"):
        find_gguf(tmp_path / "model.gguf", "smollm2-135m-instruct", tmp_path)


def test_a_model_of_ones_own_needs_its_gguf_file_named(installed, tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match="name the GGUF file of mine with --gguf"):
        find_gguf(None, "mine", tmp_path)


def test_a_students_head_gives_nothing_to_tokens_outside_its_vocabulary() -> None:
    head = torch.nn.Linear(4, 2, bias=False)
    hidden = torch.randn(1, 3, 4)
    logits = DraftVocabularyHead(head, torch.tensor([1, 3]), 5)(hidden)
    assert torch.equal(logits[..., [1, 3]], head(hidden))
    assert torch.isneginf(logits[..., [0, 2, 4]]).all()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose text varies, with a tokenizer of words t0 to t47 and a chat template."""
    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, initializer_range=0.35, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    words = Tokenizer(WordLevel({f"t{n}": n for n in range(VOCAB)}, "t7"))
    words.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    tokenizer.chat_template = "{% for message in messages %}t3 {{ message.content }} t4{% endfor %}"
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bench(tiny: Path) -> Any:
    """`kadence bench decode` on the tiny model: exit code, stdout, stderr by its arguments."""
    before = torch.get_num_threads()

    def call(*arguments: str) -> Any:
        common = ["decode", "--model", str(tiny), "--dtype", "float32", "--prompts", "1", "--rounds", "1"]
        env = {"KADENCE_COMPILE": "off", "KADENCE_PROFILE_S": "0.2"}
        done = CliRunner(env=env).invoke(bench_app, [*common, "--max-tokens", "12", *arguments])
        structlog.reset_defaults()  # the command logs to a stderr that is gone with it
        return done

    yield call
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def ran(bench, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """All arms but llama.cpp, greedy and sampled: what was printed, and the CSV."""
    csv = tmp_path_factory.mktemp("ran") / "decode.csv"
    arms = ("transformers/prompt_lookup", "transformers/assisted", "kadence/ngram/adaptive", "kadence/ngram/0",
            "kadence/ngram/3")  # fmt: skip
    named = [word for arm in arms for word in ("--arm", arm)]
    temperatures = ("--temperature", "0", "--temperature", "0.7")
    done = bench(*named, *temperatures, "--settle-s", "0.2", "--csv", str(csv), "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout), csv


def test_every_arm_decodes_every_domain_at_every_temperature(ran) -> None:
    rows = ran[0]["rows"]
    assert len(rows) == len({(r["arm"], r["cohort"], r["temperature"]) for r in rows}) == 7 * 4 * 2
    assert all(0 < row["tokens"] <= 12 for row in rows)


def test_our_text_is_that_of_k_0_greedy_and_seeded(ran) -> None:
    assert ran[0]["greedy_equal"]
    assert ran[0]["seeded_equal"]


def test_our_greedy_text_is_transformers_own(ran) -> None:
    ours = [r for r in ran[0]["rows"] if r["arm"].startswith("kadence/") and not r["temperature"]]
    assert {row["equal_to_transformers"] for row in ours} == {1.0}


def test_an_assistant_does_not_change_transformers_greedy_text(ran) -> None:
    helped = [r for r in ran[0]["rows"] if r["arm"].startswith("transformers/") and not r["temperature"]]
    assert {row["equal_to_transformers"] for row in helped} == {1.0}


def test_the_assistant_of_a_model_without_a_shipped_one_is_some_of_its_layers(ran) -> None:
    assert ran[0]["machine"]["assistant"] == "layers 0 2"


def test_the_adaptive_arms_k_is_one_of_its_ladder(ran) -> None:
    assert all(0 <= r["mean_k"] <= 8 for r in ran[0]["rows"] if r["arm"] == "kadence/ngram/adaptive")


def test_both_promises_are_looked_at(ran) -> None:
    looked_at = {(c["arm"], c["temperature"], c["cohort"]) for c in ran[0]["checks"]}
    domains = ("code", "contract", "fiction", "json")
    assert looked_at == {
        ("kadence/ngram/adaptive" if cohort else "kadence/ngram/0", temperature, cohort)
        for temperature in (0.0, 0.7)
        for cohort in (None, *domains)
    }


def test_the_rows_are_kept_with_their_temperature(ran) -> None:
    header, first, *_ = ran[1].read_text().splitlines()
    assert dict(zip(header.split(","), first.split(","), strict=True))["temperature"] == "0.0"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--arm", "kadence/eagle/4"), "none is shipped for the weights of"),
        (("--full", "--arm", "kadence/ngram/4"), "give one of them"),
        (("--arm", "kadence/ngram/4", "--gguf", "a.gguf"), "--gguf is for the arm llama.cpp"),
        (("--prompts", "9999"), "--prompts 9999: the smallest prompt set has"),
    ],
)
def test_what_cannot_be_done_is_refused_before_any_work(bench, arguments, why) -> None:
    done = bench(*arguments)
    assert (done.exit_code, done.stdout) == (1, "")
    assert why in done.stderr


def test_what_was_measured_is_shown_even_where_it_cannot_be_kept(bench, tmp_path: Path) -> None:
    csv = tmp_path / "other.csv"
    csv.write_text("date,speed\n")
    done = bench("--arm", "kadence/ngram/2", "--csv", str(csv), "--json")
    assert (done.exit_code, len(json.loads(done.stdout)["rows"])) == (1, 3 * 4)
    assert "other columns" in done.stderr
