"""What `drafter` says is read in one place, and said again as it was."""

from __future__ import annotations

import os

import pytest

from controlplane.drafter_choice import CHOICES, MODELS, TRAINED, DrafterChoice, parse_drafter


@pytest.mark.parametrize("kind", MODELS)
def test_each_kind_that_computes_stands_alone_or_behind_the_ngram_index(kind: str) -> None:
    alone = parse_drafter(f"{kind}:/drafters/one")
    assert alone == DrafterChoice(kind, "/drafters/one")
    assert parse_drafter(f"ngram+{kind}:/drafters/one") == DrafterChoice(kind, "/drafters/one", ngram_first=True)


@pytest.mark.parametrize(
    "text",
    ["auto", "ngram", "none", "medusa", "ngram+eagle", "eagle:/e", "ngram+draft_model:org/small", "ngram+medusa:/m:1"],
)
def test_a_choice_is_written_as_it_was_read(text: str) -> None:
    assert str(parse_drafter(text)) == text


def test_a_trained_drafters_folder_is_absolute_and_a_hub_id_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert parse_drafter("ngram+eagle:~/e").where == "/home/me/e"
    assert parse_drafter("draft:d").where == os.path.abspath("d")
    assert parse_drafter("draft_model:org/small").where == "org/small"


@pytest.mark.parametrize("kind", TRAINED)
def test_a_trained_kind_without_a_folder_is_the_shipped_one(kind: str) -> None:
    assert parse_drafter(kind).is_shipped
    assert parse_drafter(f"ngram+{kind}") == DrafterChoice(kind, ngram_first=True)
    assert not parse_drafter(f"{kind}:/drafters/one").is_shipped


def test_auto_is_told_by_the_model_and_ngram_is_not() -> None:
    assert [parse_drafter(text).is_shipped for text in ("auto", "ngram", "none")] == [True, False, False]


def test_without_the_ngram_index_it_is_the_same_drafter() -> None:
    assert parse_drafter("ngram+eagle:/e").alone == parse_drafter("eagle:/e")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ngram+",
        "ngram+ngram",
        "ngram+none",
        "ngram+auto",
        "auto:/x",
        "eagle:",
        "draft_model",
        "none:/x",
        "eagle+ngram:/x",
        "NGRAM",
    ],
)
def test_anything_else_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match="must be auto, ngram, none") as error:
        parse_drafter(text)
    assert str(error.value) == CHOICES
