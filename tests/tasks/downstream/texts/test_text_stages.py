"""GLUE and labels of a user from files to a published model with the same logits in transformers."""

import copy
import json
import re
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from scipy.stats import pearsonr
from transformers import pipeline

from flows.cli import cli
from ipu_model.core.files import PARTIAL, read_json, write_json
from tasks.downstream import evaluate, examples, parity, rows
from tasks.downstream.jobs import entry_jobs
from tasks.downstream.texts.task_table import TASKS
from tasks.params.entries import only_entry
from tasks.params.schema import validate_params
from tasks.params.strict_yaml import read_yaml
from tasks.plan.plan_file import make_plan
from tasks.plan.stages import define
from tasks.release import publish
from tasks.stage import artifacts
from tasks.stage.errors import DataInvalid, ParityLost
from tasks.vocabulary.fast_tokenizer import make_wordpiece
from tests.places import ROOT
from tests.tasks.downstream.entries import change_parameters, values_with, write_parameters
from tests.tasks.downstream.generated import CLASSES, NAME, require_published_logits, values_of, write_csv, write_texts
from tests.tasks.downstream.texts.glue_checkout import SIZE, own_logits, run_entry, run_stage, write_examples
from tests.tasks.pretraining.row_inputs import SPECIAL, WORDS
from tests.tasks.trained_checkout import write_lock

pytestmark = pytest.mark.usefixtures("jobs_here")


def write_checkout(folder, values):
    """params.yaml of these values, its plan, a dvc.lock as if all had run, and a tokenizer of WORDS."""
    values["tokenizer"] |= {"source": "file", "path": str(folder / "vocab.txt")}
    params = write_parameters(folder, values)
    write_lock(folder, params)
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in [*SPECIAL, *WORDS]))
    (folder / "inputs/ipu").mkdir(parents=True)
    (folder / artifacts.TOKENIZER).mkdir(parents=True)
    made = make_wordpiece((*SPECIAL, *WORDS), lowercase=True)
    made.write(params.model.max_positions, folder / artifacts.TOKENIZER)
    return folder


def make_glue_checkout(folder, task, finetune, counts, entry=None, **sections):
    """A checkout with generated examples of a task, whose words are all unknown to its tokenizer."""
    write_examples(folder / "data", task, **counts)
    shape = {"row_length": 64, "max_sequences_per_row": 4}
    parts = {"kind": "glue", "task": task, "data": {"path": str(folder / "data")}, "finetune": finetune, "rows": shape}
    sections |= {"validate": {"max_unknown_share": 1.0}, "pretrain": {"enabled": False}, "model": SIZE}
    values = values_with({"squad": None, task: {**parts, **(entry or {})}}, **sections)
    return write_checkout(folder / "checkout", values)


def test_two_places_are_compared_on_both_development_sets(tmp_path, monkeypatch):
    tuning = {"epochs": 1, "learning_rate": 5e-3, "checkpoint_every_updates": 0}
    folder = make_glue_checkout(tmp_path, "mnli", tuning, {"train": 40})
    metrics = run_entry(folder, "mnli", monkeypatch)
    both = [metrics[f"accuracy_{name}"] for name in ("matched", "mismatched")]
    assert metrics["score"] == pytest.approx(np.mean(both), abs=1e-3)
    predictions = read_json(folder / "evaluation/mnli/predictions.json")
    assert {split: len(values) for split, values in predictions.items()} == dict.fromkeys(dict(TASKS["mnli"].dev), 60)
    run_stage(parity, "mnli", "cpu:bf16")
    record = read_json(folder / "metrics/mnli-parity-cpu:bf16.json")
    assert record["examples"] == 120
    assert 0 < record["max_logit_difference"] < record["max_logit"]
    assert {"accuracy_matched_first", "accuracy_mismatched_second", "score_difference"} <= set(record)
    assert (record["first"]["precision"], record["second"]) == ("fp32", {"runtime": "cpu", "precision": "bf16"})
    limit = {"max_logit_difference": record["max_logit_difference"] / 2}
    change_parameters(folder, {"downstream": {"mnli": {"parity": limit}}})
    with pytest.raises(ParityLost, match="mnli.parity.max_logit_difference"):
        run_stage(parity, "mnli", "cpu:bf16")


@pytest.fixture
def _poptorch_double(monkeypatch):
    """The double of tests/ipu_model, for one test; what it left is put away, as other tests have no PopTorch."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "doubles" / "poptorch_double"))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "poptorch" and name not in before]:
        del sys.modules[name]


@pytest.mark.usefixtures("_poptorch_double")
def test_on_ipus_programs_are_built_ahead_and_found(tmp_path, monkeypatch):
    """A layer on the second of two IPUs, classes of a pair, packed."""
    monkeypatch.setattr(entry_jobs.training, "require_verdict", lambda *words, **named: None)
    programs = {"layers_per_ipu": [0, 1], "inference_layers_per_ipu": [0, 1], "inference_device_iterations": 3}
    folder = make_glue_checkout(
        tmp_path,
        "rte",
        {"epochs": 1, "micro_batch_size": 1, "global_batch_size": 16, "max_grad_norm": None},
        {"train": 60, "dev": 20},
        entry={"ipu": {"finetune": programs, "predict": programs}},
        device={"runtime": "ipu", "precision": "fp32", "micro_batch_size": 1},
    )
    monkeypatch.chdir(folder)
    jobs = ((entry_jobs, f"{job}@") for job in ("compile", "finetune", "predict"))
    for module, stage in ((examples, ""), (rows, ""), *jobs, (evaluate, "")):
        run_stage(module, f"{stage}rte")
    assert read_json(folder / "reports/compile-rte-finetune.json")["parts"]["labels"] == 2
    for kind in ("finetune", "predict"):
        assert read_json(folder / f"measurements/rte-{kind}.json")["program"] == "loaded from the cache", kind
    assert read_json(folder / "metrics/rte.json")["examples"] == 20


def write_splits(folder, train=240, dev=60):
    """The parameters that name two files of texts, and the rows of dev."""
    write_texts(folder / "train.csv", train, seed=0)
    texts = write_texts(folder / "dev.csv", dev, seed=1)
    return {"train_path": str(folder / "train.csv"), "dev_path": str(folder / "dev.csv")}, texts


def make_checkout(folder, data, **sections):
    return write_checkout(folder / "checkout", values_of(data, **sections))


def release(folder):
    """The folder that is published after the gate accepted the entry."""
    verdict = read_json(folder / f"metrics/{NAME}-gate.json")
    assert verdict["accepted"], verdict["reasons"]
    run_stage(publish, NAME)
    return folder / "published" / NAME


@pytest.mark.parametrize(
    ("module", "changes", "page", "failed"),
    [
        (examples, {"downstream": {NAME: {"data": {"min_examples": 500}}}}, NAME, "lower min_examples"),
        (examples, {"downstream": {NAME: {"data": {"max_common_share": 0.9}}}}, NAME, "dev_unseen .*found 241 of 241"),
        (rows, {"validate": {"max_cut_share": 0.0}}, f"{NAME}-rows", "cut_share"),
    ],
)
def test_of_data_that_are_not_valid_the_page_alone_stays(tmp_path, monkeypatch, module, changes, page, failed):
    path = tmp_path / "texts.csv"
    texts = write_texts(path, 240, seed=0)
    write_csv(path, ["text", "label"], [*texts, [" ".join(WORDS[:40]), "sad"]])
    folder = make_checkout(tmp_path, {"train_path": str(path), "dev_path": str(path)})
    write_lock(folder, change_parameters(folder, changes))
    monkeypatch.chdir(folder)
    if module is rows:
        run_stage(examples, NAME)
    before = {path for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(DataInvalid, match=rf"(?s)see reports/validation/{page}\.html.*{failed}"):
        run_stage(module, NAME)
    made = {path for path in folder.rglob("*") if path.is_file()} - before
    assert made == {folder / f"reports/validation/{page}.html"}


def test_an_entry_is_compared_in_pairs_with_another_one(tmp_path, monkeypatch):
    data, dev = write_splits(tmp_path)
    folder = make_checkout(tmp_path, data)
    alone = run_entry(folder, NAME, monkeypatch)
    values = read_yaml(folder / "params.yaml")
    values["downstream"]["other"] = copy.deepcopy(values["downstream"][NAME])
    values["downstream"]["other"]["publish"]["folder"] = "published/other"
    values["downstream"][NAME]["against"] = "other"
    plan = make_plan(define(write_parameters(folder, values)))
    assert "evaluate@other" in plan.needs[f"evaluate@{NAME}"]
    assert not {"gate@other", "predict_released@other"} & set(plan)
    assert only_entry(validate_params(values)).name == NAME
    guesses = read_json(folder / f"evaluation/{NAME}/predictions.json")
    wrong = [CLASSES.index(label) == 0 for *_, label in dev]
    guesses["dev"] = [1 if is_wrong else guess for guess, is_wrong in zip(guesses["dev"], wrong, strict=True)]
    write_json(folder / "evaluation/other/predictions.json", guesses)
    run_stage(evaluate, f"evaluate@{NAME}")
    metrics = read_json(folder / f"metrics/{NAME}.json")
    accuracy, macro_f1 = metrics.pop("against")
    assert metrics == alone
    assert (accuracy["metric"], macro_f1["metric"]) == ("accuracy", "macro_f1")
    assert (accuracy["entry"], accuracy["score"], accuracy["verdict"]) == ("other", metrics["accuracy"], "better")
    assert accuracy["mean"] == pytest.approx(100 * sum(wrong) / len(dev), abs=2)
    assert accuracy["before"] == pytest.approx(accuracy["score"] - accuracy["mean"], abs=1e-3)
    assert 0 < accuracy["low"] < accuracy["mean"] < accuracy["high"]


@pytest.mark.parametrize("threshold", ["auto", "per_label"])
def test_several_labels_are_the_same_in_a_pipeline(tmp_path, monkeypatch, threshold):
    data, dev = write_splits(tmp_path, 300)
    # Happy texts are good news, angry and sad ones are none; sad ones are also long.
    more = {"happy": "happy|good", "sad": "sad|long", "angry": ""}
    for name, texts in (("train", write_texts(tmp_path / "train.csv", 300, seed=0)), ("dev", dev)):
        write_csv(tmp_path / f"{name}.csv", ["text", "labels"], [(text, more[label]) for text, label in texts])
    sections = {"evaluate": {"threshold": threshold}, "rows": {"held_out_fraction": 0.2}}
    sections["gate"] = {"min_micro_f1": 90.0, "min_f1_by_class": {"good": 80.0}}
    folder = make_checkout(tmp_path, {**data, "label_separator": "pipe"}, multilabel=True, **sections)
    metrics = run_entry(folder, NAME, monkeypatch)
    published = release(folder)
    limits = read_json(published / "podium.json")["threshold"]
    assert read_json(published / "config.json")["podium"] == {"threshold": limits}
    card = (published / "README.md").read_text(encoding="utf-8")
    classify = pipeline("text-classification", model=str(published), top_k=None)
    texts = pq.read_table(folder / f"data/examples/{NAME}/dev.parquet")["first"].to_pylist()
    theirs = [{score["label"]: score["score"] for score in scores} for scores in classify(texts)]
    shares = 1 / (1 + np.exp(-np.array(own_logits(folder, NAME))))
    names = sorted(theirs[0])
    np.testing.assert_allclose(shares, [[scores[name] for name in names] for scores in theirs], rtol=1e-4, atol=1e-5)
    guesses = read_json(folder / f"evaluation/{NAME}/predictions.json")["dev"]
    above = shares > np.array([limits[name] if isinstance(limits, dict) else limits for name in names])
    assert guesses == [np.flatnonzero(row).tolist() for row in above]
    [code] = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    monkeypatch.chdir(published)
    exec(code.replace("A text like the training texts.", texts[0]), {})
    assert metrics["micro_f1_low"] > 80
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["predict", str(published), "dev.csv", "out.jsonl", "--column", "text=text"])
    assert result.exit_code == 0, result.output
    records = [json.loads(line) for line in Path("out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [[names.index(label) for label in record["labels"]] for record in records] == guesses
    result = CliRunner().invoke(cli, ["evaluate", str(published), "dev.csv", "--label-separator", "pipe", "--json"])
    assert result.exit_code == 0, result.output
    again = json.loads(result.stdout)
    assert (again["micro_f1"], again["exact_match"]) == (metrics["micro_f1"], metrics["exact_match"])


def test_values_are_learnt_from_a_part_of_a_file(tmp_path, monkeypatch):
    write_texts(tmp_path / "train.csv", 300, seed=0, regression=True)
    data = {"train_path": str(tmp_path / "train.csv"), "dev_path": None, "dev_fraction": 0.2, "seed": 4}
    folder = make_checkout(tmp_path, data, regression=True, gate={"min_pearson": 80.0, "min_spearman": 80.0})
    metrics = run_entry(folder, NAME, monkeypatch)
    dev = pq.read_table(folder / f"data/examples/{NAME}/dev.parquet").to_pydict()
    assert metrics["examples"] == len(dev["label"]) == 60
    guesses = read_json(folder / f"evaluation/{NAME}/predictions.json")["dev"]
    assert metrics["pearson"] == pytest.approx(100 * pearsonr(dev["label"], guesses).statistic, abs=1e-3)
    published = release(folder)
    recorded = read_json(published / "provenance.json")["parameters"]["downstream"][NAME]["data"]
    assert (recorded["dev_path"], recorded["dev_fraction"], recorded["seed"]) == (None, 0.2, 4)
    _, config = require_published_logits(folder, [[text] for text in dev["first"]])
    assert config.num_labels == 1


def test_a_class_that_only_dev_has_is_told_everywhere(tmp_path, monkeypatch):
    data, dev = write_splits(tmp_path, 120, 30)
    write_csv(tmp_path / "dev.csv", ["text", "label"], [*dev[:25], *([text, "bored"] for text, _ in dev[25:])])
    folder = make_checkout(tmp_path, data)
    metrics = run_entry(folder, NAME, monkeypatch)
    assert (metrics["examples"], metrics["accuracy"] <= 100 * 25 / 30) == (30, True)
    [bored] = [part for part in metrics["slices"] if part["slice"] == "bored"]
    assert (bored["examples"], bored["found"], bored["f1"], bored["learnt"]) == (5, 0, 0.0, False)
    assert "not in train" in (folder / f"evaluation/{NAME}/report.html").read_text(encoding="utf-8")
    assert "class bored (not in train)" in (folder / f"reports/validation/{NAME}.json").read_text(encoding="utf-8")
    assert read_json(folder / f"data/rows/{NAME}/dev/manifest.json")["num_labels"] == 3
    written = [path.read_text() for path in (folder / "reports").rglob("*") if path.is_file()]
    assert not [text for text in written if PARTIAL in text], "no verdict, page or suite names a temporary folder"
