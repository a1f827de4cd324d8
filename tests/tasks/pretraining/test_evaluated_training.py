"""What the training stages make of held-out rows: metrics, plots, lines, kept weights; real jobs on tiny models."""

import csv
import json
from pathlib import Path

import pytest
import torch

from tasks.downstream.jobs.entry_jobs import build_finetune_job
from tasks.jobs import training
from tasks.jobs.training import fingerprint, summary, train
from tasks.params.entries import find_entry
from tasks.pretraining.pretrain import make_pretrain_job
from tasks.pretraining.rows.pretrain_rows import write_pretrain_rows
from tasks.stage import artifacts
from tasks.stage.row_folders import HELD_OUT
from tests.tasks.pretraining.row_inputs import (
    random_texts,
    word_tokenizer,
    write_corpus,
    write_questions,
    write_squad_rows,
)
from tests.tasks.pretraining.small_training import SMALL, in_this_process, params_with


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of phase 1 and of 60 questions about six titles, each with a held-out part."""
    root, params = tmp_path_factory.mktemp("checkout"), params_with(*SMALL)
    tokenizer = word_tokenizer(root / artifacts.TOKENIZER)
    texts = random_texts(120)
    rows = root / artifacts.rows_folder("phase1")
    write_pretrain_rows(params.pretrain_rows, "phase1", write_corpus(root / "corpus", texts), tokenizer, rows, 1)
    questions = [
        {
            "id": str(i),
            "title": f"title {i % 6}",
            "context": text,
            "question": " ".join(text.split()[:3]),
            "answers": [{"text": text.split()[1], "answer_start": text.index(text.split()[1])}],
        }
        for i, text in enumerate(texts[:60])
    ]
    source = write_questions(root / "train.parquet", questions)
    rows = root / artifacts.rows_folder("squad", "train")
    write_squad_rows(params.downstream["squad"].rows, "train", source, tokenizer, rows)
    return root


@pytest.fixture
def without_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "run_device_job", in_this_process)


@pytest.mark.usefixtures("without_processes")
def test_pretraining_files_its_held_out_figures_and_the_code_that_it_began_with(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = params_with(*SMALL)
    states = iter([{"revision": "f" * 40, "dirty": False, "changed": []}])
    monkeypatch.setattr(training, "git_state", lambda root: next(states))
    job = make_pretrain_job("phase1", params, checkout)
    result = train(job, "pretrain-phase1", checkout)
    figures = json.loads((checkout / "metrics" / "pretrain-phase1.json").read_text())
    assert figures["code"] == {"revision": "f" * 40, "dirty": False, "changed": []}
    assert figures["versions"]["torch"] == torch.__version__
    measured = json.loads((checkout / "measurements" / "pretrain-phase1.json").read_text())
    assert min(measured[name] for name in ("train_seconds", "held_out_seconds", "peak_memory_mb")) > 0
    assert not {*figures, *figures["held_out"]} & {*measured, "seconds"}
    held_out = figures["held_out"]
    with (checkout / artifacts.held_out_plot("pretrain-phase1")).open() as stream:
        lines = list(csv.DictReader(stream))
    assert [line["step"] for line in lines] == ["10", "20", "25"]
    assert held_out["mlm_loss"] == pytest.approx(float(lines[-1]["mlm_loss"]), rel=1e-5)
    assert float(lines[-1]["mlm_loss"]) < float(lines[0]["mlm_loss"])  # it learns
    assert 0 < held_out["rows"] <= 20
    assert f"held out: loss {held_out['loss']:.4f}, mlm accuracy " in summary("pretrain phase1", result)


@pytest.mark.usefixtures("without_processes")
def test_fine_tuning_keeps_the_best_weights_and_says_after_which_update(checkout: Path) -> None:
    params = params_with(*SMALL)
    job = build_finetune_job(find_entry(params, "squad"), params, checkout, untrained=True)
    result = train(job, "squad-finetune", checkout)
    figures = json.loads((checkout / "metrics" / "squad-finetune.json").read_text())
    with (checkout / artifacts.held_out_plot("squad-finetune")).open() as stream:
        lines = list(csv.DictReader(stream))
    best = max(lines, key=lambda line: (float(line["span_accuracy"]), -float(line["loss"])))
    assert figures["steps"] == figures["held_out"]["step"] == figures["held_out"]["best_step"] == int(best["step"])
    assert result.evaluation is not None
    assert result.evaluation["evaluations"] == len(lines)


def test_what_is_evaluated_and_how_decides_the_run_folder(checkout: Path) -> None:
    def name(*overrides: str) -> str:
        params = params_with(*SMALL, *overrides)
        return fingerprint(build_finetune_job(find_entry(params, "squad"), params, checkout, untrained=True))

    assert name() == name("checkpoint.remote=/elsewhere")
    others = ("patience=4", "keep=last", "patience=null")
    assert len({name(), *(name(f"downstream.squad.finetune.{other}") for other in others)}) == 4


def test_without_held_out_rows_nothing_is_evaluated(checkout: Path, tmp_path: Path) -> None:
    params = params_with(*SMALL)
    rows = tmp_path / artifacts.rows_folder("phase1")
    rows.mkdir(parents=True)
    for path in (checkout / artifacts.rows_folder("phase1")).iterdir():
        if path.name != HELD_OUT:
            (rows / path.name).write_bytes(path.read_bytes())
    assert make_pretrain_job("phase1", params, tmp_path).evaluation is None
    job = make_pretrain_job("phase1", params, checkout)
    assert job.evaluation is not None
    assert job.evaluation.rows.endswith(f"phase1/{HELD_OUT}")
    off = params_with(*SMALL, "pretrain.evaluate_every_updates=null")
    assert make_pretrain_job("phase1", off, checkout).evaluation is None
