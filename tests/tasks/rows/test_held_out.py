"""Rows that no training sees: which documents and questions they come from, and that nothing is lost or shared."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tasks.downstream.packed_rows import PackedSplit
from tasks.pretraining.rows.pretrain_rows import write_pretrain_rows
from tasks.records.interpretation import read_reading
from tasks.rows.held_out import choose_groups, is_held_out
from tasks.stage.errors import InputError
from tasks.stage.row_folders import HELD_OUT, find_held_out_rows, read_manifest
from tasks.validation.checks import CheckCounts, CheckOutcome, DataCheck
from tasks.validation.validate import ValidationResult
from tests.tasks.pretraining.row_inputs import (
    pretrain_params,
    random_texts,
    read_rows,
    squad_params,
    squad_questions,
    unmask,
    word_tokenizer,
    write_corpus,
    write_questions,
    write_squad_rows,
)

KEY = "downstream.squad.rows.held_out_fraction"


def test_a_document_is_held_out_by_its_text_and_the_seed_alone() -> None:
    texts = [f"document {number}" for number in range(20_000)]
    held_out = [text for text in texts if is_held_out(text, 0.02, seed=3)]
    assert 340 <= len(held_out) <= 460  # 400 on the average, standard deviation 20
    assert held_out == [text for text in texts if is_held_out(text, 0.02, seed=3)]
    other = {text for text in texts if is_held_out(text, 0.02, seed=4)}
    assert len(other & set(held_out)) < 40
    assert set(held_out) <= {text for text in texts if is_held_out(text, 0.1, seed=3)}
    assert not any(is_held_out(text, 0.0, seed=3) for text in texts)


def test_groups_are_held_out_until_the_share_is_reached_and_one_is_always_left() -> None:
    groups = {"a": 10, "b": 20, "c": 30, "d": 40}
    for fraction in (0.01, 0.2, 0.5):
        chosen = choose_groups(groups, fraction, "title", KEY)
        reached = sum(groups[name] for name in chosen)
        assert 100 * fraction <= reached <= 100 * fraction + 40
    assert choose_groups(dict(reversed(groups.items())), 0.2, "title", KEY) == choose_groups(groups, 0.2, "title", KEY)
    assert len(choose_groups({"a": 1, "b": 1000}, 0.5, "title", KEY)) == 1
    assert len(choose_groups(dict.fromkeys("abcd", 10), 0.5, "title", KEY)) == 2
    assert choose_groups(groups, 0.0, "title", KEY) == frozenset()
    with pytest.raises(InputError, match=r"held_out_fraction=0.1 .*found 1"):
        choose_groups({"a": 7}, 0.1, "title", KEY)


@pytest.fixture(scope="module")
def pretraining(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of 400 documents, a tenth held out; each document ends with a word of its own, and five come twice."""
    folder = tmp_path_factory.mktemp("held-out")
    word_tokenizer(folder / "tokenizer")
    texts = random_texts(400)
    corpus = write_corpus(folder / "corpus", [*texts, *texts[:5]])
    for phase in ("phase1", "phase2"):
        params = pretrain_params(held_out_fraction=0.1, duplicates=2)
        write_pretrain_rows(params, phase, corpus, folder / "tokenizer", folder / phase, 1)
    return folder


def pieces_in(folder: Path) -> set[bytes]:
    """Pieces of eight tokens that are in the rows where nothing is masked."""
    pieces = (tokens[at : at + 8] for tokens in unmask(read_rows(folder)) for at in range(len(tokens) - 8))
    return {piece.tobytes() for piece in pieces if piece.min() > 4}


def test_no_text_is_on_both_sides_of_the_split_in_either_phase(pretraining: Path) -> None:
    folders = [pretraining / phase for phase in ("phase1", "phase2")]
    held_out = set().union(*(pieces_in(folder / HELD_OUT) for folder in folders))
    training = set().union(*(pieces_in(folder) for folder in folders))
    assert len(held_out) > 300
    assert len(training) > 3000
    assert not held_out & training
    rows, kept = read_manifest(folders[0]), read_manifest(folders[0] / HELD_OUT)
    assert 0.02 < kept.real_tokens / rows.real_tokens < 0.09  # a ninth of the text, once instead of twice
    assert kept.tokenizer_sha256 == rows.tokenizer_sha256


@pytest.mark.parametrize(
    ("texts", "fraction", "held_out"),
    [(random_texts(60), 1e-9, 1), (["dan den din."] * 3, 1e-9, 0), (random_texts(20), 0.0, 0)],
)
def test_one_document_at_least_is_held_out_of_different_ones(
    tmp_path: Path, texts: list[str], fraction: float, held_out: int
) -> None:
    word_tokenizer(tmp_path / "tokenizer")
    corpus, params = write_corpus(tmp_path / "corpus", texts), pretrain_params(held_out_fraction=fraction)
    made = write_pretrain_rows(params, "phase1", corpus, tmp_path / "tokenizer", tmp_path / "rows", 1)
    assert (made.held_out, made.counts["documents"]) == (held_out, len(texts) - held_out)
    assert find_held_out_rows(tmp_path / "rows") == (tmp_path / "rows" / HELD_OUT if held_out else None)
    if held_out:
        assert f"none of the {len(texts)} documents" in " ".join(read_reading(tmp_path / "rows")["remarks"])


def make_rows(folder: Path, questions: list[dict[str, Any]], split: str, fraction: float) -> PackedSplit:
    source, tokenizer = write_questions(folder / "train.parquet", questions), word_tokenizer(folder / "tokenizer")
    return write_squad_rows(squad_params(held_out_fraction=fraction), split, source, tokenizer, folder / split)


def test_questions_are_held_out_by_title_and_none_is_lost(tmp_path: Path) -> None:
    questions = squad_questions("new-wiki-train.json")[:400]
    for number, question in enumerate(questions):
        question["title"] = f"article {number // 40}"
    made = make_rows(tmp_path, questions, "train", 0.15)
    assert made.held_out.examples == 80  # two articles of 40: 60 is the least
    assert made.examples == 320
    sides = [features_of(tmp_path / "train"), features_of(tmp_path / "train" / HELD_OUT)]
    titles = {q["id"]: q["title"] for q in questions}
    assert not {titles[name] for name in sides[0]} & {titles[name] for name in sides[1]}
    assert sides[0] | sides[1] == set(titles)
    labels = read_rows(tmp_path / "train" / HELD_OUT)["start_positions"]
    assert (labels >= 0).sum() == read_manifest(tmp_path / "train" / HELD_OUT).sequences


def test_questions_about_one_title_are_split_by_context_and_dev_questions_never(tmp_path: Path) -> None:
    questions = [{**question, "title": "all"} for question in squad_questions("new-wiki-train.json")[:100]]
    make_rows(tmp_path, questions, "train", 0.1)
    contexts = {q["id"]: q["context"] for q in questions}
    held_out = {contexts[name] for name in features_of(tmp_path / "train" / HELD_OUT)}
    assert held_out
    assert not held_out & {contexts[name] for name in features_of(tmp_path / "train")}
    dev = make_rows(tmp_path, questions, "dev", 0.1)
    assert (dev.held_out, dev.examples) == (None, 100)


def features_of(folder: Path) -> set[str]:
    return set(pq.read_table(folder / "features.parquet")["example_id"].to_pylist())


def test_a_verdict_is_green_only_if_the_held_out_rows_are_fit_too() -> None:
    check = DataCheck("rows", "all", "at least one row", "look", minimum=1)

    def judged(ok: bool) -> ValidationResult:
        finding = CheckOutcome(check, CheckCounts(int(not ok), 1), "3")
        return ValidationResult("phase1", "row", 3, (check,), (finding,), notes=(f"valid: {ok}",))

    both = judged(True).with_another(judged(False), "held-out").verdict
    assert both["notes"] == ["valid: True", "valid: False"]
    assert both["valid"] is False
    assert [check["name"] for check in both["checks"]] == ["rows", "held-out rows"]
    assert both["held_out_rows"] == 3
    assert judged(True).with_another(judged(True), "held-out").verdict["valid"] is True
    assert judged(False).with_another(judged(True), "held-out").verdict["valid"] is False
