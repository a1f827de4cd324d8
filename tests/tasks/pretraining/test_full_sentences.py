"""Pre-training without next-sentence prediction: rows of full sentences, and a model trained on them."""

import csv
import dataclasses
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM

from tasks.jobs import training
from tasks.jobs.training import train
from tasks.pretraining.pretrain import make_pretrain_job
from tasks.pretraining.rows.pair_rows import fill_sequences
from tasks.pretraining.rows.pretrain_rows import write_pretrain_rows
from tasks.rows.held_out import is_held_out
from tasks.stage import artifacts
from tasks.stage.row_folders import HELD_OUT
from tasks.vocabulary.encoding import load_tokenizer
from tests.tasks.pretraining.row_inputs import CLS, SEP, random_texts, read_rows, word_tokenizer, write_corpus
from tests.tasks.pretraining.small_training import SMALL, documents_of, in_this_process, params_with, random_documents


def filled(sentence_lengths: list[int], budget: int) -> list[int]:
    """Tokens of every sequence of a document: as many sentences as fit."""
    sequences: list[int] = []
    for length in sentence_lengths:
        if sequences and sequences[-1] + length <= budget and sequences[-1] > 0:
            sequences[-1] += length
        else:
            sequences.append(length)
    return sequences


def unmasked_sequences(rows: dict[str, np.ndarray]) -> list[list[int]]:
    """The tokens of every sequence of rows, without special tokens and masks."""
    found = []
    for row in range(len(rows["input_ids"])):
        tokens = rows["input_ids"][row].astype(int)
        used = rows["masked_labels"][row] != -100
        tokens[rows["masked_positions"][row][used]] = rows["masked_labels"][row][used]
        for slot in range(int(rows["sequence_ids"][row].max())):
            sequence = tokens[rows["sequence_ids"][row] == slot + 1].tolist()
            assert (sequence[0], sequence[-1]) == (CLS, SEP)
            assert not {CLS, SEP} & set(sequence[1:-1])
            found.append(sequence[1:-1])
    assert not rows["token_type_ids"].any()
    return found


@pytest.mark.parametrize("seed", range(3))
def test_sequences_are_the_sentences_of_a_document_as_many_as_fit(seed: int) -> None:
    lengths = random_documents(seed, 40)
    documents = documents_of(lengths)

    def fill(short_sequence_probability: float) -> tuple[np.ndarray, np.ndarray]:
        draw = np.random.default_rng(seed)
        return fill_sequences(documents, 62, short_sequence_probability, draw).segments[0]

    starts, tokens = fill(0.0)
    assert tokens.tolist() == [tokens for document in lengths for tokens in filled(document, 62)]
    assert starts.tolist() == [0, *np.cumsum(tokens)[:-1].tolist()]
    short_starts, short = fill(1.0)  # each document to a length of its own
    assert short_starts.tolist() == [0, *np.cumsum(short)[:-1].tolist()]
    assert set(documents.document_starts) <= set(np.searchsorted(documents.sentence_starts, short_starts)) | {
        documents.document_starts[-1]
    }
    assert short.max() <= 62
    assert len(short_starts) > 1.3 * len(starts)


@pytest.fixture(autouse=True)
def _without_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "run_device_job", in_this_process)


@pytest.mark.parametrize(
    ("family", "masking", "name"),
    [
        ("bert", "static", "BertForMaskedLM"),
        ("roberta", "dynamic", "RobertaForMaskedLM"),
        ("distilbert", "dynamic", "DistilBertForMaskedLM"),
        ("modernbert", "dynamic", "ModernBertForMaskedLM"),
    ],
)
def test_a_model_pre_trained_without_next_sentences_is_a_masked_lm_of_transformers(
    tmp_path: Path, family: str, masking: str, name: str
) -> None:
    shape = (f"model.family={family}", "pretrain_rows.next_sentence=false", f"pretrain.masking={masking}")
    params = params_with(*SMALL, *shape)
    tokenizer = word_tokenizer(tmp_path / artifacts.TOKENIZER)
    rows = tmp_path / artifacts.rows_folder("phase1")
    corpus = write_corpus(tmp_path / "corpus", random_texts(120))
    write_pretrain_rows(params.pretrain_rows, "phase1", corpus, tokenizer, rows, 1)
    job = make_pretrain_job("phase1", params, tmp_path)
    assert (job.head, job.masking) == ("masked_lm", masking)
    train(job, "pretrain-phase1", tmp_path)
    figures = json.loads((tmp_path / "metrics" / "pretrain-phase1.json").read_text())["held_out"]
    assert not [figure for figure in figures if "nsp" in figure]
    assert figures["loss"] == figures["mlm_loss"]
    model, report = AutoModelForMaskedLM.from_pretrained(job.output, output_loading_info=True)
    assert type(model).__name__ == name
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert figures["mlm_loss"] == pytest.approx(held_out_loss(model, rows, figures["rows"]), rel=1e-5)


def test_a_continued_model_is_compared_with_its_original_by_document(tmp_path: Path) -> None:
    packed = (
        "pretrain.evaluate_rows=null",
        "pretrain_rows.held_out_fraction=0.3",
        "pretrain_rows.max_sequences_per_row=4",
    )
    params = params_with(*SMALL, *packed, "pretrain_rows.next_sentence=false")
    tokenizer, texts = word_tokenizer(tmp_path / artifacts.TOKENIZER), random_texts(60)
    folder = tmp_path / artifacts.rows_folder("phase1")
    write_pretrain_rows(params.pretrain_rows, "phase1", write_corpus(tmp_path / "corpus", texts), tokenizer, folder, 1)
    held_out, numbers = read_rows(folder / HELD_OUT), np.load(folder / HELD_OUT / "documents.npy")
    chosen = [text for text in texts if is_held_out(text, 0.3, params.pretrain_rows.seed)]
    tokens: list[Counter[int]] = [Counter() for _ in chosen]
    for number, sequence in zip(numbers[numbers >= 0], unmasked_sequences(held_out), strict=True):
        tokens[number].update(sequence)
    loaded = load_tokenizer(tokenizer)
    assert tokens == [Counter(loaded.encode(text, add_special_tokens=False).ids) for text in chosen]

    job = make_pretrain_job("phase1", params, tmp_path)
    train(job, "pretrain-phase1", tmp_path)
    model = AutoModelForMaskedLM.from_pretrained(job.output)
    again = {"model": None, "init_checkpoint": job.output, "original": job.output, "output": str(tmp_path / "more")}
    result = train(dataclasses.replace(job, **again), "pretrain-phase1", tmp_path)
    assert result.evaluation is not None
    before = result.evaluation["before"]
    sums = [list_losses(model, held_out, numbers == number) for number in range(len(chosen))]
    assert [one[0] for one in before["groups"]] == pytest.approx([one.sum() for one in sums], rel=1e-4)
    assert [one[2] for one in before["groups"]] == [len(one) for one in sums]
    figures = json.loads((tmp_path / "metrics/pretrain-phase1.json").read_text())["held_out"]["before"]
    assert figures["documents"] == figures["groups"] == len(chosen)


def held_out_loss(model: torch.nn.Module, folder: Path, count: int) -> float:
    held_out = read_rows(folder / HELD_OUT)
    return float(list_losses(model, held_out, np.arange(len(held_out["input_ids"]))[:, None] < count).mean())


def list_losses(model: torch.nn.Module, rows: dict[str, np.ndarray], kept: np.ndarray) -> np.ndarray:
    """The loss of a model of transformers on each masked token, one sequence at a time; `kept` is [R, S] or [R, 1]."""
    losses = []
    kept = np.broadcast_to(kept, rows["cls_positions"].shape)
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
    *("model.family=modernbert", "pretrain_rows.next_sentence=false", "pretrain_rows.masked_fraction=0.3"),
    *("pretrain.phase1.schedule=trapezoid", "pretrain.phase1.decay_fraction=0.5"),
    *("pretrain.phase1.global_rope_theta=1000", "pretrain.phase2.global_rope_theta=20000"),
    *("pretrain_rows.phase1.row_length=32", "pretrain_rows.phase2.row_length=64", "pretrain.phase2.schedule=constant"),
    "pretrain.phases=[phase1, phase2, longer]",
    *("pretrain_rows.longer.row_length=64", "pretrain.longer={steps: 4, global_batch_size: 8, micro_batch_size: 4}"),
    *("pretrain.longer.schedule=1-sqrt", "pretrain.longer.warmup_fraction=0", "pretrain.longer.decay_fraction=1"),
)


def test_three_phases_lengthen_rows_and_rotation_as_transformers_reads_them(tmp_path: Path) -> None:
    params = params_with(*SMALL, *THREE_PHASES)
    tokenizer = word_tokenizer(tmp_path / artifacts.TOKENIZER)
    corpus = write_corpus(tmp_path / "corpus", random_texts(120))
    for phase, theta in (("phase1", 1000.0), ("phase2", 20000.0), ("longer", 20000.0)):
        rows = tmp_path / artifacts.rows_folder(phase)
        write_pretrain_rows(params.pretrain_rows, phase, corpus, tokenizer, rows, 1)
        job = make_pretrain_job(phase, params, tmp_path)
        train(job, f"pretrain-{phase}", tmp_path)
        figures = json.loads((tmp_path / "metrics" / f"pretrain-{phase}.json").read_text())["held_out"]
        model = AutoModelForMaskedLM.from_pretrained(job.output)
        assert model.config.rope_parameters["full_attention"]["rope_theta"] == theta
        assert figures["mlm_loss"] == pytest.approx(held_out_loss(model, rows, figures["rows"]), rel=1e-5)
    with (tmp_path / "plots" / "pretrain-longer.csv").open() as stream:
        rates = [float(row["learning_rate"]) for row in csv.DictReader(stream)]
    assert rates[-1] == pytest.approx(params.pretrain.get_phase("longer").learning_rate * (1 - 0.75**0.5))
