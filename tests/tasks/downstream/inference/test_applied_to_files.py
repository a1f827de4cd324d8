"""`podium evaluate` and `podium predict` on the same examples: the figures of the stages, whatever the kind of task."""

import csv
import dataclasses
import json
import re
import shutil

import pyarrow.parquet as pq
import pytest

from ipu_model.core.files import read_json, write_json
from tasks.downstream.inference import predict
from tasks.downstream.inference.entry import infer_entry
from tasks.downstream.inference.job import InferenceOptions, read_training_columns
from tasks.downstream.inference.model import PROVENANCE, find_model
from tasks.downstream.inference.predict import PredictionOutput, evaluate
from tasks.params.sections import RuntimeSpec
from tasks.stage import artifacts
from tasks.stage.errors import InputError
from tests.tasks.downstream.generated import CLASSES
from tests.tasks.downstream.inference.applied_models import CASES, SHAPES, applied, staged
from tests.tasks.downstream.inference.head_models import write_head_model
from tests.tasks.pretraining.row_inputs import WORDS as NER_WORDS

HOW = InferenceOptions(RuntimeSpec("cpu", "fp32"), 8, lambda text: None)
pytestmark = pytest.mark.usefixtures("jobs_here")


def read_lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_table(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def unlabelled(case, file):
    if case == "squad":
        paragraphs = read_json(file)["data"][0]["paragraphs"]
        records = [{"context": p["context"], **{k: p["qas"][0][k] for k in ("id", "question")}} for p in paragraphs]
    elif case == "ner":
        sentences = [sentence.splitlines() for sentence in file.read_text().split("\n\n")]
        records = [{"tokens": [line.split("\t")[0] for line in lines if line]} for lines in sentences]
    elif file.suffix == ".csv":
        records = [{k: v for k, v in row.items() if k != "label"} for row in read_table(file)]
    else:
        names = ("sentence",) if case == "sst2" else ("sentence1", "sentence2")
        records = [dict(zip(names, line.split("\t"), strict=False)) for line in file.read_text().splitlines()]
    target = file.with_name("unlabelled.jsonl")
    target.write_text("".join(json.dumps(record) + "\n" for record in records))
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
    theirs, ours = (read_json(path) for path in (checkout / "metrics/plan.json", made / "metrics.json"))
    count = theirs["total" if "total" in theirs else "examples"]
    assert ours.pop("predict")["features"] >= count
    theirs.pop("files")
    if "baseline" in theirs:  # chosen on training questions, which a finished model comes without
        del theirs["baseline"], theirs["constant_score"]
    # Known are the entities of training sentences.
    theirs["slices"] = [record for record in theirs["slices"] if record["by"] != "known entity"]
    names = [record["path"] for record in ours.pop("files")]
    assert names == ["model.safetensors", file.name, "predictions.json"]
    assert ours == theirs
    assert (made / "predictions.json").read_bytes() == (checkout / "evaluation/plan/predictions.json").read_bytes()
    assert words.splitlines()[0].startswith(f"{count} ")
    assert read_json(made / "scores.json")["scores"]["dev"]
    wanted = read_json(made / "predictions.json")
    for name, most in (("ANSWERED_AT_ONCE", 7), ("KEPT_AT_ONCE", 11), ("KEPT_CHARACTERS", 900)):
        monkeypatch.setattr(predict, name, most)
    source, output = unlabelled(case, file), PredictionOutput(tmp_path / "out.jsonl", "jsonl")
    count, result = predict.predict(entry, model, source, output, HOW)
    records = read_lines(tmp_path / "out.jsonl")
    answers = [record[BARE[case]] for record in records]
    if case == "squad":
        assert {record["id"]: record["answer"] for record in records} == wanted
        contexts = [record["context"] for record in read_lines(source)]
        spans = [context[record["start"] : record["end"]] for context, record in zip(contexts, records, strict=True)]
        assert spans == answers
        assert result.sequences > count, "no context has several windows"
        return
    assert [record["id"] for record in records] == [f"line {number}" for number in range(1, count + 1)]
    as_predicted = {"label": lambda name: model.labels.index(name), "tags": " ".join, "value": float}[BARE[case]]
    assert [as_predicted(answer) for answer in answers] == wanted["dev"]


def test_examples_that_a_run_was_trained_on_are_counted(tmp_path, monkeypatch):
    model, dev, described = applied("mine", tmp_path)
    checkout, run = staged(tmp_path / "checkout", described, model.folder, monkeypatch), tmp_path / "run"
    shutil.copytree(model.folder, run / artifacts.model_folder("plan"))
    shutil.copytree(checkout / artifacts.EXAMPLES, run / artifacts.EXAMPLES)
    model = find_model(str(run / artifacts.model_folder("plan")))
    entry = infer_entry(model, None, {"rows": SHAPES["classification"]})
    train, dev = (
        evaluate(entry, model, file, tmp_path / file.stem, HOW)[1] for file in (dev.with_name("train.csv"), dev)
    )
    assert "\n60 of these are training examples" in train
    assert "training examples" not in dev


def test_every_format_holds_the_same_records(tmp_path):
    model, file, _ = applied("squad", tmp_path)
    entry, outs = infer_entry(model), {kind: tmp_path / f"out.{kind}" for kind in ("json", "jsonl", "csv", "parquet")}
    for kind, path in outs.items():
        predict.predict(entry, model, file, PredictionOutput(path, kind, n_best=0 if kind == "json" else 3), HOW)
    records = read_lines(outs["jsonl"])
    assert {len(record["n_best"]) for record in records} <= {1, 2, 3}
    assert max(len(record["n_best"]) for record in records) == 3
    assert all(record["n_best"][0].items() <= record.items() for record in records)
    assert read_json(outs["json"]) == {record["id"]: record["answer"] for record in records}
    assert pq.read_table(outs["parquet"]).to_pylist() == records
    rows = [{**row, "n_best": json.loads(row["n_best"])} for row in read_table(outs["csv"])]
    assert rows == [
        {key: value if key == "n_best" else str(value) for key, value in record.items()} for record in records
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
    evaluate(infer_entry(model), model, file, tmp_path / "evaluation", HOW)
    predict.predict(infer_entry(model), model, file, PredictionOutput(tmp_path / "out.jsonl", "jsonl"), HOW)
    records = {record["id"]: record for record in read_lines(tmp_path / "out.jsonl")}
    page = (tmp_path / "evaluation/report.html").read_text(encoding="utf-8")
    mistakes = read_table(tmp_path / "evaluation/mistakes.csv")
    assert mistakes
    for number, mistake in enumerate(mistakes):
        record = records[mistake["id"]]
        if case != "squad":
            line = file.read_text().splitlines()[int(mistake["id"].removeprefix("line ")) - 1]
            assert re.split("[\t, ]", line)[0] == mistake["text"].split(" ")[0]
        assert answer is None or str(record[answer]) == mistake["answer"]
        as_read = float if case == "value" else str
        assert kept is None or as_read(record[kept]) == as_read(mistake["label"])
        assert f"{mistake['id']}<" in page or number >= 25
        assert "probability" not in mistake or 0 < float(mistake["probability"]) <= 1


PAIR = "sentence1,sentence2,label"


@pytest.mark.parametrize(
    ("trained", "header", "named", "message"),
    [
        ({"text": "'review' (by name)"}, "text,review,label", {}, "text is 'review' (as in training)"),
        ({"text": "'sentence' (by name)"}, "text,review,label", {}, "text is 'text' (by name)"),
        ({}, PAIR, {}, "text_pair is 'sentence2' (by name)"),
        ({"text": "by name", "text_pair": "by name"}, PAIR, {}, "text_pair is 'sentence2'"),
        # One column in training, and two of a pair here:
        ({"text": "by name"}, PAIR, {}, None),
        ({"text": "by name"}, PAIR, {"text": "sentence1"}, "text is 'sentence1' (named by you)"),
        ({"text": "by name"}, PAIR, {"text": "sentence1", "text_pair": "sentence2"}, "text_pair is 'sentence2' (named"),
    ],
)
def test_columns_are_those_of_the_training(trained, header, named, message, tmp_path):
    folder = tmp_path / artifacts.model_folder("mine")
    folder.parent.mkdir()
    model = find_model(str(write_head_model(folder, "sequence_classification", CLASSES, NER_WORDS)))
    if trained:
        reading = {"inputs": {"train": {"columns": {**trained, "label": "'label' (by name)"}}}}
        (tmp_path / artifacts.EXAMPLES / "mine").mkdir(parents=True)
        write_json(tmp_path / artifacts.EXAMPLES / "mine" / artifacts.READING, reading)
    file, lines = tmp_path / "dev.csv", []
    file.write_text(f"{header}\n" + "".join(f"one,two,{name}\n" for name in CLASSES))
    how, entry = dataclasses.replace(HOW, say=lines.append), infer_entry(model, None, {"data": {"columns": named}})
    if message is None:
        with pytest.raises(InputError, match="--column text=sentence1 .*--column text_pair=sentence2 for pairs"):
            evaluate(entry, model, file, tmp_path / "refused", how)
        return
    evaluate(entry, model, file, tmp_path / "evaluation", how)
    predict.predict(entry, model, file, PredictionOutput(tmp_path / "out.jsonl", "jsonl"), how)
    assert sum(message in line for line in lines) == 2
    # A release records the roles of columns.
    for data, columns in (({"reading": {"train": {"columns": {"text": "by name"}}}}, {"text": ""}), ("of old", {})):
        write_json(tmp_path / PROVENANCE, {"data": data})
        assert read_training_columns(tmp_path) == columns
