"""What fine-tuning starts from, and which stages and paths an entry has: entries side by side share no output."""

import dataclasses
from pathlib import Path

import pytest

from ipu_model.core.files import write_text
from ipu_model.models.config import ModelConfig
from ipu_model.rows.format import Manifest
from tasks.downstream.jobs.entry_jobs import build_finetune_job, build_predict_job
from tasks.jobs.training import fingerprint
from tasks.params.entries import find_entry, only_entry
from tasks.params.overlays import resolve
from tasks.params.schema import validate_params
from tasks.plan.plan_file import Plan, make_plan
from tasks.plan.stages import define
from tasks.stage import artifacts
from tasks.stage.errors import ParamsError
from tests.tasks.downstream.entries import values_with

VOCABULARY = 321
OFF = {"pretrain": {"enabled": False}}
GIVEN = {"base_model": {"source": "folder"}}
SECOND = {"kind": "squad", "finetune": {"learning_rate": 2e-5, "seed": 9}, "rows": {"row_length": 96, "doc_stride": 8}}


@pytest.fixture
def checkout(tmp_path):
    """The rows of an entry, of which a job needs the manifest alone, and weights that differ."""
    manifest = Manifest("question_answering", 64, 3, 0, VOCABULARY, "0", 0, 100, 150, 5000, {})
    for name in ("squad", "second"):
        for split in ("train", "dev"):
            write_text(tmp_path / artifacts.rows_folder(name, split) / "manifest.json", manifest.to_json())
    for name in ("base", "phase1", "phase2"):
        write_text(tmp_path / artifacts.MODELS / name / "model.safetensors", name)
    return tmp_path


def whole(params):
    return ModelConfig(vocab_size=VOCABULARY, **params.model.model_dump())


@pytest.mark.parametrize(
    ("start", "sections", "weights", "states_model"),
    [
        ("phase1", {}, "phase1", False),
        ("auto", {}, "phase2", False),
        ("auto", GIVEN, "phase2", False),
        ("base", GIVEN, "base", True),
        ("auto", {**GIVEN, **OFF}, "base", True),
        ("auto", OFF, None, True),
    ],
)
def test_the_job_has_the_weights_that_the_entry_starts_from(checkout, start, sections, weights, states_model):
    params = validate_params(values_with({"squad": {"start": start}}, **sections))
    task = find_entry(params, "squad")
    job = build_finetune_job(task, params, checkout)
    assert job.init_checkpoint == (None if weights is None else str(checkout / "models" / weights))
    assert job.model == (whole(params) if states_model else None), "that of a phase is the one of its weights"
    ahead = build_finetune_job(task, params, checkout, untrained=True)
    assert (ahead.init_checkpoint, ahead.model) == (None, whole(params))
    dropping = validate_params(
        values_with({"squad": {"start": start, "finetune": {"hidden_dropout": 0.25}}}, **sections)
    )
    job = build_finetune_job(find_entry(dropping, "squad"), dropping, checkout)
    assert job.model == dataclasses.replace(whole(params), hidden_dropout=0.25)
    rows = task.rows_folder("dev", checkout)
    predicted = build_predict_job(task, params, rows, checkout / "l", checkout / "r", checkout)
    assert (predicted.init_checkpoint, predicted.model) == (str(checkout / "models/squad"), None)


def test_jobs_from_other_weights_are_other_runs(checkout):
    starts = [values_with({"squad": {"start": start}}, **GIVEN) for start in ("base", "phase1", "phase2")]
    params = [validate_params(values) for values in (*starts, values_with(**OFF))]
    assert len({fingerprint(build_finetune_job(find_entry(each, "squad"), each, checkout)) for each in params}) == 4


SQUAD, NER, PAIRS, TEXTS = ({"kind": kind} for kind in ("squad", "ner", "pairs", "classification"))
USE, SEVERAL = {**SQUAD, "data": {"unanswerable": "use"}}, {**TEXTS, "multilabel": True}
BOTH = {"columns": {"label": ["new", "bad"]}}


@pytest.mark.parametrize(
    ("entry", "sections", "message"),
    [
        ({**SQUAD, "start": "base"}, {}, "own.start: base .*base_model.source"),
        ({**SQUAD, "start": "phase1"}, OFF, "own.start: phase1 .*pretrain.enabled"),
        ({**SQUAD, "start": "phase2"}, {**OFF, **GIVEN}, "own.start: phase2 .*pretrain.enabled"),
        ({**USE, "rows": {"held_out_fraction": 0.0}}, {}, "Set rows.held_out_fraction, for example to 0.1"),
        ({**SQUAD, "data": {"unanswerable": "drop"}, "evaluate": {"null_threshold": 0.0}}, {}, "null_threshold"),
        ({**SQUAD, "gate": {"min_has_answer_f1": 1.0}}, {}, "min_has_answer_f1"),
        ({**NER, "rows": {"overlap": 64}}, {}, "overlap.* 63"),
        ({**NER, "data": {"source": "hub"}}, {}, "source: hub needs dataset"),
        (PAIRS, {"device": {"runtime": "ipu"}}, "pairs does not run on IPUs"),
        ({**PAIRS, "distill": {"teacher": "x"}}, {}, "distill.teacher does not apply"),
        ({**PAIRS, "data": {"columns": {"score": "s"}}}, {}, "data.columns.score needs scores: use"),
        ({**SEVERAL, "regression": True}, {}, "regression: true excludes multilabel: true"),
        ({**TEXTS, "data": {"label_separator": "pipe"}}, {}, "or data.label_separator: set multilabel: true"),
        ({**TEXTS, "data": BOTH}, {}, "data.columns.label .* set multilabel: true"),
        ({**SEVERAL, "data": {**BOTH, "label_separator": ","}}, {}, "excludes"),
        ({**SEVERAL, "gate": {"min_accuracy": 50}}, {}, "gate.min_accuracy does not apply to multi-label"),
        ({**TEXTS, "gate": {"min_pearson": 50.0}}, {}, "gate.min_pearson does not apply to text class"),
        ({**SEVERAL, "evaluate": {"threshold": "auto"}}, {}, "Set rows.held_out_fraction"),
        ({**SEVERAL, "evaluate": {"min_probability": 0.9}}, {}, "min_probability applies to one class per text"),
        ({**TEXTS, "evaluate": {"threshold": "per_label"}}, {}, "needs several labels"),
        ({**TEXTS, "gate": {"min_coverage": 50.0}}, {}, "requires evaluate.min_probability"),
        ({**TEXTS, "regression": True, "evaluate": {"threshold": 0.5}}, {}, "but regression is true"),
        ({**TEXTS, "regression": True, "finetune": {"class_weights": "balanced"}}, {}, "finetune.class_weights needs"),
        ({**TEXTS, "gate": {"max_teacher_drop": 1}}, {}, "gate.max_teacher_drop needs a teacher"),
    ],
)
def test_parameters_that_contradict_each_other_are_refused(entry, sections, message):
    with pytest.raises(ParamsError, match=message):
        validate_params(values_with({"own": entry}, **sections))


def test_the_stages_of_two_entries_have_own_parameters_and_own_paths(checkout):
    params = validate_params(values_with({"second": SECOND}))
    for name, seed, rate in (("second", 9, 2e-5), ("squad", 5, 1e-3)):
        job = build_finetune_job(find_entry(params, name), params, checkout)
        assert (job.output, job.rows) == (str(checkout / "models" / name), str(checkout / "data/rows" / name / "train"))
        assert (job.seed, job.optimizer.learning_rate) == (seed, rate)
    plan = make_plan(define(params))
    outs = [out for stage in plan.values() for out in stage.outs]
    assert len(outs) == len(set(outs))
    first, second = (Plan(stage for stage in plan.values() if stage.item == name) for name in ("squad", "second"))
    groups = [stage.group for stage in second.values()]
    assert groups == [stage.group for stage in first.values()]
    assert {*groups} == {"examples", "rows", "finetune", "predict", "predict_released", "evaluate", "gate"}
    assert "models/phase2" in second["finetune@second"].deps
    for own, other in ((first, "second"), (second, "squad")):
        for stage in own.values():
            keys = [key for names in stage.params.values() for key in names]
            assert [key for key in keys if f"downstream.{other}." in key] == []
            written = [part for path in (*stage.deps, *stage.outs) for part in Path(path).parts if "tasks" not in path]
            assert other not in written, stage.name


def test_whoever_names_no_entry_means_the_only_one_of_a_kind():
    single, two = validate_params(values_with()), validate_params(values_with({"second": SECOND}))
    assert only_entry(single, "squad").name == only_entry(single).name == "squad"
    with pytest.raises(ParamsError, match=r"2 entries of kind squad in downstream \(squad, second\): name one"):
        only_entry(two, "squad")
    with pytest.raises(ParamsError, match="0 entries of kind glue"):
        only_entry(two, "glue")


def test_a_plan_has_a_teacher_only_if_there_is_one_and_the_student_does_not_run_it_again(tmp_path):
    def planned(*settings):
        entry = 'downstream.own={"kind": "classification"}'
        return make_plan(define(validate_params(resolve({}, "finetune", [entry, *settings]))))

    plan = planned()
    assert not any(stage.startswith("teacher") for stage in plan)
    assert not any(".distill." in key for key in plan["finetune@own"].params["params.yaml"])
    taught = planned(f"downstream.own.distill.teacher={tmp_path}")
    deps = (("teacher", str(tmp_path)), ("finetune", "data/teacher/own/train"), ("gate", "data/teacher/own"))
    assert all(dep in taught[f"{stage}@own"].deps for stage, dep in deps)
    for stage, keys in (("finetune", ["temperature", "alpha"]), ("teacher", ["repository", "revision"])):
        names = taught[f"{stage}@own"].params["params.yaml"]
        assert [key for key in names if ".distill." in key] == [f"downstream.own.distill.{key}" for key in keys]
    with pytest.raises(ParamsError, match=r"distill\.layers=13 exceeds model\.num_layers=12"):
        planned("downstream.own.distill.layers=13")
