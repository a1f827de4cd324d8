"""`podium evaluate` and `podium predict` on the same examples: the figures of the stages, whatever the kind of task."""

import csv
import dataclasses
import io
import json
import re
import shutil

import pyarrow.parquet as pq
import pytest

from ipu_model.core.files import write_json
from tasks.downstream.inference import predict
from tasks.downstream.inference.entry import infer_entry
from tasks.downstream.inference.job import InferenceOptions, read_training_columns
from tasks.downstream.inference.model import PROVENANCE, find_model
from tasks.downstream.inference.predict import PredictionOutput, evaluate
from tasks.params.sections import RuntimeSpec
from tasks.stage import artifacts
from tasks.stage.errors import InputError
from tests.tasks.downstream.inference.applied_models import CASES, SHAPES, applied, staged
from tests.tasks.downstream.inference.head_models import write_head_model
from tests.tasks.downstream.texts.classification_checkout import CLASSES
from tests.tasks.pretraining.row_inputs import WORDS as NER_WORDS

HOW = InferenceOptions(RuntimeSpec("cpu", "fp32"), 8, lambda text: None)
pytestmark = pytest.mark.usefixtures("jobs_here")


def part_counted(metrics):
    return "total" if "total" in metrics else "examples"


def unlabelled(case, file):
    if case == "squad":
        paragraphs = json.loads(file.read_text())["data"][0]["paragraphs"]
        records = [{"context": p["context"], **{k: p["qas"][0][k] for k in ("id", "question")}} for p in paragraphs]
    elif case == "ner":
        sentences = [one.splitlines() for one in file.read_text().split("\n\n")]
        records = [{"tokens": [line.split("\t")[0] for line in lines if line]} for lines in sentences]
    elif file.suffix == ".csv":
        records = [{k: v for k, v in one.items() if k != "label"} for one in csv.DictReader(file.open(newline=""))]
    else:
        names = ("sentence",) if case == "sst2" else ("sentence1", "sentence2")
        records = [dict(zip(names, line.split("\t"), strict=False)) for line in file.read_text().splitlines()]
    target = file.with_name("unlabelled.jsonl")
    target.write_text("".join(json.dumps(one) + "\n" for one in records))
    return target


BARE = {
    "squad": "answer",
    "ner": "tags",
    **dict.fromkeys(("sst2", "mine", "pairs"), "label"),
    **dict.fromkeys(("stsb", "value"), "value"),
}


@pytest.mark.parametrize("case", CASES)
def test_evaluate_and_predict_give_what_stages_give(case, tmp_path, monkeypatch):
    """However few examples predict holds at a time."""
    model, file, described = applied(case, tmp_path)
    checkout = staged(tmp_path / "checkout", described, model.folder, monkeypatch)
    entry = infer_entry(model, None, {"rows": SHAPES[described["kind"]]})
    made = tmp_path / "evaluation"
    _, words = evaluate(entry, model, file, made, HOW)
    theirs, ours = (json.loads(path.read_text()) for path in (checkout / "metrics/plan.json", made / "metrics.json"))
    assert ours.pop("predict")["features"] >= theirs[part_counted(theirs)]
    theirs.pop("files")
    if "baseline" in theirs:  # chosen on training questions, which a finished model comes without
        del theirs["baseline"], theirs["constant_score"]
    # Known are the entities of training sentences.
    theirs["slices"] = [one for one in theirs["slices"] if one["by"] != "known entity"]
    assert [one["path"] for one in ours.pop("files")] == ["model.safetensors", file.name, "predictions.json"]
    assert ours == theirs
    assert (made / "predictions.json").read_bytes() == (checkout / "evaluation/plan/predictions.json").read_bytes()
    assert words.splitlines()[0].startswith(f"{theirs[part_counted(theirs)]} ")
    assert json.loads((made / "scores.json").read_text())["scores"]["dev"]
    wanted = json.loads((made / "predictions.json").read_text())
    for name, most in (("ANSWERED_AT_ONCE", 7), ("KEPT_AT_ONCE", 11), ("KEPT_CHARACTERS", 900)):
        monkeypatch.setattr(predict, name, most)
    source, output = unlabelled(case, file), PredictionOutput(tmp_path / "out.jsonl", "jsonl")
    count, result = predict.predict(entry, model, source, output, HOW)
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    answers = [one[BARE[case]] for one in records]
    if case == "squad":
        assert {one["id"]: one["answer"] for one in records} == wanted
        contexts = [json.loads(line)["context"] for line in source.read_text().splitlines()]
        assert [context[one["start"] : one["end"]] for context, one in zip(contexts, records, strict=True)] == answers
        assert result.sequences > count, "no context has several windows"
    elif BARE[case] == "label":
        assert [model.labels.index(one) for one in answers] == wanted["dev"]
    else:
        assert [" ".join(one) if case == "ner" else one for one in answers] == wanted["dev"]
    if case != "squad":
        assert [one["id"] for one in records] == [f"line {number}" for number in range(1, count + 1)]


def test_examples_that_a_run_was_trained_on_are_counted(tmp_path, monkeypatch):
    model, dev, described = applied("mine", tmp_path)
    checkout, run = staged(tmp_path / "checkout", described, model.folder, monkeypatch), tmp_path / "run"
    shutil.copytree(model.folder, run / artifacts.model_folder("plan"))
    shutil.copytree(checkout / artifacts.EXAMPLES, run / artifacts.EXAMPLES)
    own = find_model(str(run / artifacts.model_folder("plan")))
    entry = infer_entry(own, None, {"rows": SHAPES["classification"]})
    said = [evaluate(entry, own, file, tmp_path / file.stem, HOW)[1] for file in (dev.with_name("train.csv"), dev)]
    assert "\n60 of these are training examples" in said[0]
    assert "training examples" not in said[1]


def test_every_format_holds_the_same_records(tmp_path):
    model, file, _ = applied("squad", tmp_path)
    entry, outs = infer_entry(model), {kind: tmp_path / f"out.{kind}" for kind in ("json", "jsonl", "csv", "parquet")}
    for kind, path in outs.items():
        predict.predict(entry, model, file, PredictionOutput(path, kind, n_best=0 if kind == "json" else 3), HOW)
    records = [json.loads(line) for line in outs["jsonl"].read_text().splitlines()]
    assert all(1 <= len(one["n_best"]) <= 3 for one in records)
    assert max(len(one["n_best"]) for one in records) == 3
    assert all(one["n_best"][0] == {key: one[key] for key in one["n_best"][0]} for one in records)
    assert json.loads(outs["json"].read_text()) == {one["id"]: one["answer"] for one in records}
    assert pq.read_table(outs["parquet"]).to_pylist() == records
    lines = list(csv.DictReader(io.StringIO(outs["csv"].read_text())))
    assert [{**one, "n_best": json.loads(one["n_best"])} for one in lines] == [
        {key: value if key == "n_best" else str(value) for key, value in one.items()} for one in records
    ]


@pytest.mark.parametrize(
    ("case", "answer", "kept"),
    [
        ("mine", "label", "input_label"),
        ("pairs", "label", "input_label"),
        ("value", "value", "label"),
        ("squad", "answer", None),
        ("ner", None, None),
    ],
)
def test_an_example_has_one_name_everywhere(case, answer, kept, tmp_path):
    model, file, _ = applied(case, tmp_path)
    if case == "mine":  # lines that are no examples count
        file.write_text(file.read_text().replace("\n", "\n\n", 5))
    mistakes, records, page = evaluate_and_predict(infer_entry(model), model, file, tmp_path)
    assert mistakes
    for number, one in enumerate(mistakes):
        record = records[one["id"]]
        if case != "squad":
            line = file.read_text().splitlines()[int(one["id"].removeprefix("line ")) - 1]
            assert re.split("[\t, ]", line)[0] == one["text"].split(" ")[0]
        if answer is not None:
            assert str(record[answer]) == one["answer"]
        if kept is not None:
            assert float(record[kept]) == float(one["label"]) if case == "value" else record[kept] == one["label"]
        assert f"{one['id']}<" in page or number >= 25
        assert "probability" not in one or 0 < float(one["probability"]) <= 1


@pytest.mark.parametrize(
    ("trained", "header", "named", "message"),
    [
        ({"text": "'review' (by name)"}, "text,review,label", {}, "text is 'review' (as in training)"),
        ({"text": "'sentence' (by name)"}, "text,review,label", {}, "text is 'text' (by name)"),
        ({}, "sentence1,sentence2,label", {}, "text_pair is 'sentence2' (by name)"),
        ({"text": "by name", "text_pair": "by name"}, "sentence1,sentence2,label", {}, "text_pair is 'sentence2'"),
        # One column in training, and two of a pair here:
        ({"text": "by name"}, "sentence1,sentence2,label", {}, None),
        ({"text": "by name"}, "sentence1,sentence2,label", {"text": "sentence1"}, "text is 'sentence1' (named by you)"),
        ({"text": "by name"}, "sentence1,sentence2,label", {"text": "sentence1", "text_pair": "sentence2"},
         "text_pair is 'sentence2' (named by you)"),
    ],
)  # fmt: skip
def test_columns_are_those_of_the_training(trained, header, named, message, tmp_path):
    folder = tmp_path / artifacts.model_folder("mine")
    folder.parent.mkdir()
    model = find_model(str(write_head_model(folder, "sequence_classification", CLASSES, NER_WORDS)))
    if trained:
        reading = tmp_path / artifacts.EXAMPLES / "mine" / artifacts.READING
        reading.parent.mkdir(parents=True)
        write_json(reading, {"inputs": {"train": {"columns": {**trained, "label": "'label' (by name)"}}}})
    file = tmp_path / "dev.csv"
    file.write_text(f"{header}\n" + "".join(f"one,two,{name}\n" for name in CLASSES))
    lines = []
    how, entry = dataclasses.replace(HOW, say=lines.append), infer_entry(model, None, {"data": {"columns": named}})
    if message is None:
        with pytest.raises(InputError, match="--column text=sentence1 .*--column text_pair=sentence2 for pairs"):
            evaluate(entry, model, file, tmp_path / "refused", how)
        return
    evaluate(entry, model, file, tmp_path / "evaluation", how)
    predict.predict(entry, model, file, PredictionOutput(tmp_path / "out.jsonl", "jsonl"), how)
    assert sum(message in line for line in lines) == 2
    write_json(tmp_path / PROVENANCE, {"data": {"reading": {"train": {"columns": {"text": "by name"}}}}})
    assert read_training_columns(tmp_path) == {"text": ""}, "a release records the roles of columns"
    write_json(tmp_path / PROVENANCE, {"data": "of another version"})
    assert read_training_columns(tmp_path) == {}


def evaluate_and_predict(entry, model, file, folder):
    evaluate(entry, model, file, folder / "evaluation", HOW)
    predict.predict(entry, model, file, PredictionOutput(folder / "out.jsonl", "jsonl"), HOW)
    mistakes = csv.DictReader(io.StringIO((folder / "evaluation/mistakes.csv").read_text(encoding="utf-8")))
    records = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    page = (folder / "evaluation/report.html").read_text(encoding="utf-8")
    return list(mistakes), {one["id"]: one for one in records}, page
