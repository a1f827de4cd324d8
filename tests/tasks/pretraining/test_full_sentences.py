"""Pre-training without next-sentence prediction: rows of full sentences, and a model trained on them."""

import csv
import dataclasses
from collections import Counter

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM

from tasks.pretraining.rows.pair_rows import fill_sequences
from tasks.rows.held_out import is_held_out
from tasks.stage import artifacts
from tasks.stage.row_folders import HELD_OUT
from tasks.vocabulary.encoding import load_tokenizer
from tests.tasks.pretraining.row_inputs import CLS, SEP, random_texts, read_rows, unmask
from tests.tasks.pretraining.small_training import SMALL, documents_of, make_rows, params_with, train_here


def filled(sentence_lengths, budget):
    """Tokens of every sequence of a document: as many sentences as fit."""
    sequences = [0]
    for length in sentence_lengths:
        if sequences[-1] and sequences[-1] + length > budget:
            sequences.append(0)
        sequences[-1] += length
    return sequences


@pytest.mark.parametrize("seed", range(3))
def test_sequences_are_the_sentences_of_a_document_as_many_as_fit(seed):
    rng = np.random.default_rng(seed)
    lengths = [rng.integers(1, 41, rng.integers(1, 31)).tolist() for _ in range(40)]
    documents = documents_of(lengths)
    (starts, tokens), (short_starts, short) = (
        fill_sequences(documents, 62, share, np.random.default_rng(seed)).segments[0] for share in (0.0, 1.0)
    )
    assert tokens.tolist() == [tokens for document in lengths for tokens in filled(document, 62)]
    assert starts.tolist() == [0, *np.cumsum(tokens)[:-1].tolist()]
    assert short_starts.tolist() == [0, *np.cumsum(short)[:-1].tolist()]
    assert {*documents.document_starts[:-1]} <= {*np.searchsorted(documents.sentence_starts, short_starts)}
    assert short.max() <= 62
    assert len(short_starts) > 1.3 * len(starts), "each document to a length of its own"


@pytest.mark.parametrize(
    ("family", "masking", "name"),
    [
        ("bert", "static", "BertForMaskedLM"),
        ("roberta", "dynamic", "RobertaForMaskedLM"),
        ("distilbert", "dynamic", "DistilBertForMaskedLM"),
        ("modernbert", "dynamic", "ModernBertForMaskedLM"),
    ],
)
def test_a_model_pre_trained_without_next_sentences_is_a_masked_lm_of_transformers(tmp_path, family, masking, name):
    shape = (f"model.family={family}", "pretrain_rows.next_sentence=false", f"pretrain.masking={masking}")
    job, rows = make_rows(tmp_path, params_with(*SMALL, *shape), random_texts(120))
    assert (job.head, job.masking) == ("masked_lm", masking)
    figures = train_here(job, "pretrain-phase1", tmp_path)[1]["held_out"]
    assert not [figure for figure in figures if "nsp" in figure]
    assert figures["loss"] == figures["mlm_loss"]
    model, report = AutoModelForMaskedLM.from_pretrained(job.output, output_loading_info=True)
    assert type(model).__name__ == name
    assert not {*report["missing_keys"], *report["unexpected_keys"]}
    assert figures["mlm_loss"] == pytest.approx(held_out_loss(model, rows, figures["rows"]), rel=1e-5)


def test_a_continued_model_is_compared_with_its_original_by_document(tmp_path):
    packed = ("pretrain.evaluate_rows=null", "pretrain_rows={held_out_fraction: 0.3, max_sequences_per_row: 4}")
    params, texts = params_with(*SMALL, *packed, "pretrain_rows.next_sentence=false"), random_texts(60)
    job, folder = make_rows(tmp_path, params, texts)
    rows, numbers = read_rows(folder / HELD_OUT), np.load(folder / HELD_OUT / "documents.npy")
    assert not rows["token_type_ids"].any()
    chosen = [text for text in texts if is_held_out(text, 0.3, params.pretrain_rows.seed)]
    tokens = [Counter() for _ in chosen]
    for (row, slot), number in np.ndenumerate(numbers):
        if number >= 0:
            sequence = unmask(rows)[row, rows["sequence_ids"][row] == slot + 1].tolist()
            assert (sequence[0], sequence[-1]) == (CLS, SEP)
            tokens[number].update(sequence[1:-1])
    loaded = load_tokenizer(tmp_path / artifacts.TOKENIZER)
    assert tokens == [Counter(loaded.encode(text, add_special_tokens=False).ids) for text in chosen]

    train_here(job, "pretrain-phase1", tmp_path)
    model = AutoModelForMaskedLM.from_pretrained(job.output)
    again = {"model": None, "init_checkpoint": job.output, "original": job.output, "output": str(tmp_path / "more")}
    result, figures = train_here(dataclasses.replace(job, **again), "pretrain-phase1", tmp_path)
    before = figures["held_out"]["before"]
    groups = result.evaluation["before"]["groups"]
    losses = [list_losses(model, rows, numbers == number) for number in range(len(chosen))]
    assert [group[0] for group in groups] == pytest.approx([loss.sum() for loss in losses], rel=1e-4)
    assert [group[2] for group in groups] == [len(loss) for loss in losses]
    assert before["documents"] == before["groups"] == len(chosen)


def held_out_loss(model, folder, count):
    rows = read_rows(folder / HELD_OUT)
    return float(list_losses(model, rows, np.arange(len(rows["input_ids"]))[:, None] < count).mean())


def list_losses(model, rows, kept):
    """The loss of a model of transformers on each masked token, one sequence at a time; `kept` is [R, S] or [R, 1]."""
    losses = []
    for row, slot in zip(*np.nonzero(kept & (rows["cls_positions"] >= 0)), strict=True):
        here = np.flatnonzero(rows["sequence_ids"][row] == slot + 1)
        ids = torch.tensor(rows["input_ids"][row][here].astype(int))[None]
        with torch.no_grad():
            logits = model.eval()(input_ids=ids).logits[0]
        for position, label in zip(rows["masked_positions"][row], rows["masked_labels"][row], strict=True):
            if label != -100 and here[0] <= position <= here[-1]:
                losses.append(-logits[position - here[0]].log_softmax(0)[label].item())
    return np.array(losses)


THREE_PHASES = (
    *("model.family=modernbert", "pretrain_rows={next_sentence: false, masked_fraction: 0.3}"),
    "pretrain.phase1={schedule: trapezoid, decay_fraction: 0.5, global_rope_theta: 1000}",
    "pretrain.phase2={schedule: constant, global_rope_theta: 20000}",
    *("pretrain_rows.phase1.row_length=32", "pretrain_rows.phase2.row_length=64"),
    "pretrain.phases=[phase1, phase2, longer]",
    *("pretrain_rows.longer.row_length=64", "pretrain.longer={steps: 4, global_batch_size: 8, micro_batch_size: 4}"),
    "pretrain.longer={schedule: 1-sqrt, warmup_fraction: 0, decay_fraction: 1}",
)


def test_three_phases_lengthen_rows_and_rotation_as_transformers_reads_them(tmp_path):
    params = params_with(*SMALL, *THREE_PHASES)
    for phase, theta in (("phase1", 1000.0), ("phase2", 20000.0), ("longer", 20000.0)):
        job, rows = make_rows(tmp_path, params, random_texts(120), phase)
        figures = train_here(job, f"pretrain-{phase}", tmp_path)[1]["held_out"]
        model = AutoModelForMaskedLM.from_pretrained(job.output)
        assert model.config.rope_parameters["full_attention"]["rope_theta"] == theta
        assert figures["mlm_loss"] == pytest.approx(held_out_loss(model, rows, figures["rows"]), rel=1e-5)
    with (tmp_path / "plots" / "pretrain-longer.csv").open() as stream:
        rates = [float(row["learning_rate"]) for row in csv.DictReader(stream)]
    assert rates[-1] == pytest.approx(params.pretrain.get_phase("longer").learning_rate * (1 - 0.75**0.5))
