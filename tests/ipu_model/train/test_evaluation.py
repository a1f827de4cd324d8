"""Evaluation on held-out rows: the figures, what it must not touch, which weights are kept, and resuming."""

import csv
import dataclasses
import json
import math
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny_jobs import STEADY, head_of, make_columns, make_job, output_bytes, pausing, result_of, run_here, write_rows
from tiny_torch import make_model

from ipu_model import heads
from ipu_model.core.errors import ConfigError, NonFiniteWeights, RowsError
from ipu_model.jobs.job import EvaluationConfig, ScheduleConfig
from ipu_model.rows.format import list_row_kinds
from ipu_model.rows.row_folder import Batch, RowFolder
from ipu_model.runtimes.torch_device import TorchRuntime
from ipu_model.train.evaluation import EVALUATIONS, Evaluator
from tests.optimizers import optimizer_config


def runtime_of(kind, precision="fp32"):
    return TorchRuntime(make_model(kind), head_of(kind), 10, precision, optimizer_config(learning_rate=1e-3), 7)


@pytest.mark.parametrize(("kind", "precision"), [*((kind, "fp32") for kind in list_row_kinds()), ("pretrain", "bf16")])
def test_the_loss_is_that_of_training_without_dropout(kind, precision):
    head, batch = heads.get_head(head_of(kind)), Batch(np.arange(10), make_columns(kind, 10, seed=5))
    runtime = runtime_of(kind, precision)
    parts = [batch] if kind == "sentence_embedding" else [batch.part(0, 4), batch.part(4, 10)]  # it ranks all texts
    figures = head.figures(runtime.evaluate(parts))
    trained = runtime.train_step(batch, 1e-3)
    expected = {"loss": trained.loss, **{name: trained.parts[name] for name in head.parts}}
    tolerance = 1e-5 if precision == "fp32" else 5e-3
    assert {name: figures[name] for name in expected} == pytest.approx(expected, rel=tolerance)
    if "mlm_loss" in figures:
        assert figures["perplexity"] == pytest.approx(math.exp(figures["mlm_loss"]))
    elif kind.startswith("sequence"):
        assert ("label_accuracy" in figures) == (kind != "sequence_regression"), "a value is not right or wrong"


def test_a_span_is_right_when_both_of_its_ends_are():
    columns, runtime = make_columns("question_answering", 10, seed=5), runtime_of("question_answering")
    batch, right = Batch(np.arange(10), columns), 0
    answers = runtime.predict(batch)
    for answer in answers:
        row, slot = np.argwhere(columns["feature_ids"] == answer.feature_id)[0]
        first, ends = columns["cls_positions"][row, slot], answer.columns["end_logits"]
        wrong = answer.feature_id % 3 == 0  # of every third window the label is moved off the predicted end
        columns["start_positions"][row, slot] = first + answer.columns["start_logits"].argmax()
        columns["end_positions"][row, slot] = first + (ends.argmax() + wrong) % len(ends)
        right += not wrong
    sums = runtime.evaluate([batch])
    assert (sums["spans_right"], sums["windows"]) == (right, len(answers))
    row, slot = np.argwhere(columns["feature_ids"] == 1)[0]  # a window that was right, and now has no label
    columns["start_positions"][row, slot] = columns["end_positions"][row, slot] = -100
    sums = runtime.evaluate([batch])
    assert (sums["spans_right"], sums["windows"]) == (right - 1, len(answers) - 1)


@pytest.fixture
def held_out(tmp_path):
    write_rows(tmp_path / "rows" / "held-out", "pretrain", make_columns("pretrain", 9, seed=8))
    return tmp_path / "rows" / "held-out"


def curve_of(job):
    return (Path(job.run_folder) / EVALUATIONS).read_bytes()


def summary_of(job):
    return result_of(job).evaluation


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_original_is_evaluated_first_without_a_trace_in_the_weights(tmp_path, pretrain_rows, held_out, elsewhere):
    """Both for a job that starts from it, and for a later phase; a job that was stopped keeps it."""
    optimizer = optimizer_config(learning_rate=0.05, max_grad_norm=1.0)

    def start(name, **settings):
        return make_job(tmp_path / name, "pretrain", pretrain_rows, **{"optimizer": optimizer, **settings})

    first = start("0", schedule=ScheduleConfig(steps=2))
    second = dataclasses.replace(first, run_folder=str(tmp_path / "1"), output=str(tmp_path / "other"), seed=3)
    for job in (first, second):
        run_here(job)
    original = second.output if elsewhere else first.output
    evaluation = EvaluationConfig(str(held_out), 4)
    settings = {"model": None, "init_checkpoint": first.output, "evaluation": evaluation}
    unjudged, plain = start("u", **{**settings, "evaluation": None}), start("a", **settings)
    compared, stopped = (start(name, original=original, **settings) for name in "bc")
    run_here(unjudged)
    run_here(plain)
    assert [event["after"] for event in run_here(compared).of("evaluated")] == [0, 4, 6]
    for file in ("model.safetensors", "config.json"):
        assert len({(Path(job.output) / file).read_bytes() for job in (plain, compared, unjudged)}) == 1
    alone, summary = summary_of(plain), summary_of(compared)
    assert (summary["step"], summary["rows"], summary["evaluations"], summary["stopped_early"]) == (6, 9, 3, False)
    last = list(csv.DictReader((Path(compared.run_folder) / EVALUATIONS).open()))[-1]
    assert (last["step"], float(last["mlm_loss"])) == ("6", pytest.approx(summary["mlm_loss"], rel=1e-6))
    assert summary["mlm_loss"] == pytest.approx(alone["mlm_loss"], rel=1e-6)
    assert "before" not in alone
    still = {"schedule": ScheduleConfig(steps=1), "optimizer": optimizer_config(learning_rate=1e-12)}
    untouched = start("d", **{**settings, **still, "init_checkpoint": original})
    run_here(untouched)
    before, groups = summary["before"]["figures"], np.array(summary["before"]["groups"])
    assert before["mlm_loss"] == pytest.approx(summary_of(untouched)["mlm_loss"], rel=1e-6)
    labels = groups[:, 2].sum()
    assert groups.sum(0)[:2] / labels == pytest.approx([before["mlm_loss"], summary["mlm_loss"]], rel=1e-6)
    pausing(stopped, "evaluated", after=4)
    assert [event["after"] for event in run_here(stopped).of("evaluated")] == [6]
    assert summary_of(stopped)["before"] == summary["before"]
    assert (output_bytes(stopped), curve_of(stopped)) == (output_bytes(compared), curve_of(compared))


def test_the_original_is_evaluated_with_its_own_rotation(tmp_path):
    for name, rows in (("rows", 30), ("rows/held-out", 9)):
        write_rows(tmp_path / name, "masked_lm", make_columns("masked_lm", rows, seed=8))
    config, folder = dataclasses.replace(STEADY, family="modernbert", type_vocab_size=0), str(tmp_path / "a" / "model")
    later = {"model": None, "init_checkpoint": folder, "global_rope_theta": 2.0}
    losses = []
    for name, changes in (
        ("a", {"model": config, "global_rope_theta": 20.0}),
        ("b", {**later, "original": folder}),
        ("c", {**later, "optimizer": optimizer_config(learning_rate=1e-12)}),
    ):
        evaluation = EvaluationConfig(str(tmp_path / "rows/held-out"), 6)
        job = make_job(
            tmp_path / name, "pretrain", tmp_path / "rows", head="masked_lm", evaluation=evaluation, **changes
        )
        run_here(job)
        losses.append((summary_of(job).get("before", {}).get("figures") or summary_of(job))["mlm_loss"])
    trained, before, turned = losses
    assert before == pytest.approx(trained, rel=1e-6)
    assert abs(turned - trained) > 1e-3, "the base of the rotation matters"


@pytest.mark.parametrize("patience", [None, 2])
def test_a_job_stopped_and_continued_ends_as_one_that_was_not(tmp_path, pretrain_rows, held_out, patience):
    """Weights, both curves, and the best weights so far, which only the checkpoint has; also where patience ran out."""
    # At this rate the loss on held-out rows rises again: the best weights are not the last ones.
    optimizer = optimizer_config(learning_rate=0.3, max_grad_norm=1.0)
    evaluation = EvaluationConfig(str(held_out), 1, keep="best", patience=patience)
    settings = {"evaluation": evaluation, "schedule": ScheduleConfig(steps=40 if patience else 8)}
    straight, stopped = (
        make_job(tmp_path / name, "pretrain", pretrain_rows, optimizer=optimizer, **settings) for name in "ab"
    )
    done = run_here(straight)
    best, last = result_of(straight).steps, done.of("evaluated")[-1]["after"]
    assert 0 < best < 5
    if patience:
        summary = summary_of(straight)
        assert (summary["best_step"], summary["stopped_early"], last) == (best, True, best + patience)
        assert done.of("step")[-1]["step"] == last  # the curve ends with the last update that was made
        assert json.loads((Path(straight.output) / "podium.json").read_text())["steps"] == best
    pausing(stopped, "evaluated", after=last if patience else 5)
    again = run_here(stopped).of("evaluated")
    assert [event["after"] for event in again] == ([] if patience else [6, 7, 8])
    assert result_of(stopped).steps == best
    assert (output_bytes(stopped), curve_of(stopped)) == (output_bytes(straight), curve_of(straight))


def make_evaluator(folder, spans, losses, **config):
    """An evaluator whose runtime has these right spans and losses; its weights count how often they were taken."""
    write_rows(folder / "rows", "question_answering", make_columns("question_answering", 7, seed=2))
    sums = (
        {"start_loss": loss, "end_loss": loss, "spans_right": right, "windows": 10.0}
        for right, loss in zip(spans, losses)
    )
    looks = count(1)
    runtime = SimpleNamespace(
        evaluate=lambda batches: next(sums), state_dict=lambda: {"w": torch.tensor(float(next(looks)))}
    )
    evaluation = EvaluationConfig(str(folder / "rows"), 10, **config)
    job = SimpleNamespace(head="question_answering", evaluation=evaluation, run_folder=folder)
    plan = SimpleNamespace(micro_batch_size=4, runtime="cpu", updates=60)
    return Evaluator(job, plan, RowFolder(folder / "rows", job.head, STEADY), runtime, lambda *_, **__: None)


def test_the_best_has_the_most_exact_spans_then_the_lowest_loss_then_came_first(tmp_path):
    losses = [1.0, 9.0, 8.0, 8.0, 1.0]
    evaluations = make_evaluator(tmp_path, [3.0, 5.0, 5.0, 5.0, 4.0], losses, keep="best", patience=2)
    stops = []
    for step in (10, 20, 30, 40, 50):
        evaluations.evaluate(step)
        stops.append(evaluations.should_stop)
    assert stops == [False, False, False, False, True]
    step, weights = evaluations.result(50)
    assert (step, float(weights["w"])) == (30, 3.0)
    summary = evaluations.summary()
    assert (summary["judged_by"], summary["span_accuracy"], summary["step"]) == ("span_accuracy", 0.5, 30)


def test_evaluations_fall_on_multiples_and_on_the_last_update_whatever_a_call_holds(tmp_path):
    evaluations = make_evaluator(tmp_path, [1.0], [math.nan])
    assert [done for done in range(4, 61, 4) if evaluations.is_due(done, 4)] == [12, 20, 32, 40, 52, 60]
    assert evaluations.result(50) == (50, None)  # keep: last
    with pytest.raises(NonFiniteWeights, match="after update 10"):
        evaluations.evaluate(10)


def test_evaluations_that_cannot_be_made_are_refused_before_training(tmp_path, pretrain_rows, answer_rows):
    write_rows(tmp_path / "other", "pretrain", make_columns("pretrain", 4), tokenizer="u" * 64)
    for rows, message in (
        (tmp_path / "nowhere", "nowhere"),
        (answer_rows, "question_answering rows"),
        (tmp_path / "other", "different tokenizers"),
    ):
        with pytest.raises(RowsError, match=message):
            run_here(make_job(tmp_path / "a", "pretrain", pretrain_rows, evaluation=EvaluationConfig(str(rows), 2)))
    for wrong in ({"every_updates": 0}, {"keep": "first"}, {"patience": 0}, {"max_rows": 0}):
        with pytest.raises(ConfigError, match="evaluation." + next(iter(wrong))):
            EvaluationConfig(**{"rows": "r", "every_updates": 1, **wrong})
