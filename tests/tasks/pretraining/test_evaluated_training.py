"""What the training stages make of held-out rows: metrics, plots, lines, kept weights; real jobs on tiny models."""

import csv
import shutil

import pytest
import torch

from ipu_model.core.files import read_json
from tasks.downstream.jobs.entry_jobs import build_finetune_job
from tasks.jobs import training
from tasks.jobs.training import fingerprint, summary
from tasks.params.entries import find_entry
from tasks.pretraining.pretrain import make_pretrain_job
from tasks.stage import artifacts
from tasks.stage.row_folders import HELD_OUT
from tests.tasks.pretraining.row_inputs import random_texts, write_questions, write_squad_rows
from tests.tasks.pretraining.small_training import SMALL, make_rows, params_with, train_here

CODE = {"revision": "f" * 40, "dirty": False, "changed": []}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """Rows of phase 1 and of 60 questions about six titles, each with a held-out part."""
    root, params, texts = tmp_path_factory.mktemp("checkout"), params_with(*SMALL), random_texts(120)
    make_rows(root, params, texts)
    questions = []
    for number, text in enumerate(texts[:60]):
        words = text.split()[:3]
        answers = [{"text": words[1], "answer_start": text.index(words[1])}]
        asked = {"id": str(number), "title": f"title {number % 6}", "context": text, "question": " ".join(words)}
        questions.append({**asked, "answers": answers})
    source, rows = write_questions(root / "train.parquet", questions), root / artifacts.rows_folder("squad", "train")
    write_squad_rows(params.downstream["squad"].rows, "train", source, root / artifacts.TOKENIZER, rows)
    return root


def finetune_job(checkout, *overrides):
    params = params_with(*SMALL, *overrides)
    return build_finetune_job(find_entry(params, "squad"), params, checkout, untrained=True)


def read_plot(checkout, name):
    with (checkout / artifacts.held_out_plot(name)).open() as stream:
        return list(csv.DictReader(stream))


def test_pretraining_files_its_held_out_figures_and_the_code_that_it_began_with(checkout, monkeypatch):
    states = iter([CODE])
    monkeypatch.setattr(training, "git_state", lambda root: next(states))
    job = make_pretrain_job("phase1", params_with(*SMALL), checkout)
    result, figures = train_here(job, "pretrain-phase1", checkout)
    assert figures["code"] == CODE
    assert figures["versions"]["torch"] == torch.__version__
    measured = read_json(checkout / "measurements/pretrain-phase1.json")
    assert min(measured[name] for name in ("train_seconds", "held_out_seconds", "peak_memory_mb")) > 0
    held_out, lines = figures["held_out"], read_plot(checkout, "pretrain-phase1")
    assert not {*figures, *held_out} & {*measured, "seconds"}
    assert [line["step"] for line in lines] == ["10", "20", "25"]
    assert held_out["mlm_loss"] == pytest.approx(float(lines[-1]["mlm_loss"]), rel=1e-5)
    assert float(lines[-1]["mlm_loss"]) < float(lines[0]["mlm_loss"])  # it learns
    assert 0 < held_out["rows"] <= 20
    assert f"held out: loss {held_out['loss']:.4f}, mlm accuracy " in summary("pretrain phase1", result)


def test_fine_tuning_keeps_the_best_weights_and_says_after_which_update(checkout):
    result, figures = train_here(finetune_job(checkout), "squad-finetune", checkout)
    lines = read_plot(checkout, "squad-finetune")
    best = max(lines, key=lambda line: (float(line["span_accuracy"]), -float(line["loss"])))
    assert figures["steps"] == figures["held_out"]["step"] == figures["held_out"]["best_step"] == int(best["step"])
    assert result.evaluation["evaluations"] == len(lines)


def test_what_is_evaluated_and_how_decides_the_run_folder(checkout):
    changes = [f"downstream.squad.finetune.{change}" for change in ("patience=4", "keep=last", "patience=null")]
    names = [fingerprint(finetune_job(checkout, *change)) for change in ((), *((change,) for change in changes))]
    assert len({*names}) == 4
    assert fingerprint(finetune_job(checkout, "checkpoint.remote=/elsewhere")) == names[0]


def test_without_held_out_rows_nothing_is_evaluated(checkout, tmp_path):
    rows = artifacts.rows_folder("phase1")
    shutil.copytree(checkout / rows, tmp_path / rows, ignore=shutil.ignore_patterns(HELD_OUT))
    assert make_pretrain_job("phase1", params_with(*SMALL), tmp_path).evaluation is None
    evaluation = make_pretrain_job("phase1", params_with(*SMALL), checkout).evaluation
    assert evaluation.rows.endswith(f"phase1/{HELD_OUT}")
    off = params_with(*SMALL, "pretrain.evaluate_every_updates=null")
    assert make_pretrain_job("phase1", off, checkout).evaluation is None
