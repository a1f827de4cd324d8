"""One preset of every family, made small, from text and questions to logits: not only parsed."""

import dataclasses
import math
from pathlib import Path

import pytest
from transformers import AutoModelForMaskedLM

from tasks.downstream.jobs.entry_jobs import build_finetune_job, build_predict_job
from tasks.jobs.device_job import Job, JobResult
from tasks.params.entries import find_entry
from tasks.params.overlays import resolve
from tasks.params.schema import Params, apply_packing, validate_params
from tasks.pretraining.base_model import write_base_model
from tasks.pretraining.pretrain import make_pretrain_job
from tasks.pretraining.rows.pretrain_rows import write_pretrain_rows
from tasks.stage import artifacts
from tasks.vocabulary.tokenizer import make_tokenizer
from tests.places import ROOT
from tests.tasks.downstream.texts.glue_checkout import device_job_here
from tests.tasks.pretraining.row_inputs import (
    WORDS,
    random_texts,
    wikitext_documents,
    write_corpus,
    write_questions,
    write_squad_rows,
)
from tests.tasks.tiny_model import HIDDEN, INTERMEDIATE, LAYERS, write_tiny_model

FAMILIES = (
    "cuda-base-optimum",
    "cuda-large-examples",
    "cuda-large-examples-packed",
    "cuda-base-tf2-512",
    "cpu-base-paddle",
    "cuda-base-popxl",
    "cuda-large-nvidia",
    "cpu-base-run-qa",
    "small-files",
)
"""On IPUs the same: tests/ipu_model/ipu compiles every job of every preset."""
SMALL = (
    "device.runtime=cpu",
    "device.precision=fp32",
    f"model.hidden_size={HIDDEN}",
    f"model.num_layers={LAYERS}",
    "model.num_heads=2",
    f"model.intermediate_size={INTERMEDIATE}",
    "pretrain_rows.phase1.duplicates=1",
    "pretrain_rows.phase2.duplicates=1",
    "pretrain.phase1.steps=3",
    "pretrain.phase2.steps=2",
    "pretrain.phase1.global_batch_size=8",
    "pretrain.phase2.global_batch_size=4",
    "pretrain.phase1.micro_batch_size=4",
    "pretrain.phase2.micro_batch_size=2",
    "downstream.squad.finetune.epochs=1",
    "downstream.squad.finetune.global_batch_size=8",
    "downstream.squad.finetune.micro_batch_size=4",
    "pretrain_rows.held_out_fraction=0",
)
VOCABULARY = [*dict.fromkeys([*"abcdefghijklmnopqrstuvwxyz", *WORDS, "."])]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text, questions, and a model with the tokenizer that all presets use here."""
    root = tmp_path_factory.mktemp("inputs")
    write_corpus(root / "corpus", random_texts(60))
    asked: list[dict[str, object]] = []
    for first, second in zip(WORDS[:24], WORDS[1:25], strict=True):
        answers = [{"text": second, "answer_start": len(first) + 1}]
        texts = {"title": "", "context": f"{first} {second}.", "question": first}
        asked.append({"id": str(len(asked)), **texts, "answers": answers})
    for split in ("train", "dev"):
        write_questions(root / f"{split}.parquet", asked)
    write_tiny_model(root / "model", VOCABULARY)
    return root


def run(job: Job, root: Path, name: str) -> JobResult:
    return device_job_here(dataclasses.replace(job, run_folder=str(root / "runs" / name)))


def make_rows(params: Params, inputs: Path, root: Path) -> None:
    tokenizer = inputs / "model"
    rows = apply_packing(params.pretrain_rows, params.packing)
    for phase in ("phase1", "phase2") if params.pretrain.enabled else ():
        folder = root / artifacts.rows_folder(phase)
        write_pretrain_rows(rows, phase, inputs / "corpus", tokenizer, folder, workers=1)
    for split in ("train", "dev"):
        folder, source = root / artifacts.rows_folder("squad", split), inputs / f"{split}.parquet"
        rows = apply_packing(params.downstream["squad"].rows, params.packing)
        write_squad_rows(rows, split, source, tokenizer, folder)


def test_the_tiny_modernbert_trains_its_three_phases_on_real_text(tmp_path: Path):
    small = [f"pretrain.phase{number}={{steps: 2, global_batch_size: 2}}" for number in (1, 2, 3)]
    held_out = ("pretrain_rows.held_out_fraction=0.1", "pretrain.evaluate_every_updates=null")
    fast = ("tokenizer.vocabulary_size=1000", "device.precision=fp32", *held_out)
    params = validate_params(resolve({}, "modernbert-tiny", [*small, *fast], ROOT / "presets"))
    corpus = write_corpus(tmp_path / "corpus", wikitext_documents()[:12])
    tokenizer = tmp_path / artifacts.TOKENIZER
    make_tokenizer(params.tokenizer, params.model.max_positions, corpus, tokenizer)
    rows, losses = apply_packing(params.pretrain_rows, params.packing), []
    for phase in params.pretrain.list_phases():
        made = write_pretrain_rows(rows, phase, corpus, tokenizer, tmp_path / artifacts.rows_folder(phase), workers=1)
        assert made.manifest.packing_efficiency > 0.85
        result = run(make_pretrain_job(phase, params, tmp_path), tmp_path, phase)
        assert result.steps == 2
        losses.append(result.final_loss)
    assert losses[-1] < losses[0] < math.log(1000) + 0.5
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / artifacts.MODELS / "phase3")
    assert (model.config.num_hidden_layers, model.config.hidden_size) == (4, 256)
    assert model.config.rope_parameters["full_attention"]["rope_theta"] == 160000


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_trains_and_predicts(name: str, inputs: Path, tmp_path: Path):
    given = ("base_model.source=folder", f"base_model.path={inputs / 'model'}") if "run-qa" in name else ()
    params = validate_params(resolve({}, name, [*SMALL, *given], ROOT / "presets"))
    make_rows(params, inputs, tmp_path)
    if given:
        write_base_model(params.base_model, params.model, inputs / "model", tmp_path / artifacts.BASE_MODEL)
    trained = [
        run(make_pretrain_job(phase, params, tmp_path, base=bool(given)), tmp_path, phase)
        for phase in (("phase1", "phase2") if params.pretrain.enabled else ())
    ]
    assert [result.steps for result in trained] == ([] if given else [3, 2])
    squad = find_entry(params, "squad")
    tuned = run(build_finetune_job(squad, params, tmp_path), tmp_path, "finetune")
    assert 24 <= tuned.sequences < 24 + 8, "whole updates, and packed rows hold as many as they hold"
    assert tuned.plan["schedule"] == params.downstream["squad"].finetune.schedule
    rows = tmp_path / artifacts.rows_folder("squad", "dev")
    job = build_predict_job(squad, params, rows, tmp_path / "logits.arrow", tmp_path, tmp_path)
    assert run(job, tmp_path, "predict").sequences == 24
