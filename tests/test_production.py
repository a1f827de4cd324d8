"""The scripts of docs/production.md answer as Podium does, from an exported file and without Podium."""

import json
import re
import subprocess
import sys

import pytest

from ipu_model.core.files import sha256_of, write_json
from tasks.downstream.export.model_export import export_model
from tasks.downstream.export.onnx_files import load_model, write_formats
from tasks.downstream.inference.entry import infer_entry
from tasks.downstream.inference.job import InferenceOptions
from tasks.downstream.inference.model import find_model
from tasks.downstream.inference.onnx_answers import open_session
from tasks.downstream.inference.predict import PredictionOutput, predict
from tasks.params.downstream import defaults_of
from tasks.params.sections import RuntimeSpec
from tests.documented import blocks
from tests.places import ROOT
from tests.tasks.downstream.inference.head_models import write_head_model
from tests.tasks.downstream.texts.glue_checkout import WORDS
from tests.tasks.tiny_model import write_tiny_model

CLASSIFY, ANSWER = (text for language, text in blocks("docs/production.md") if language == "python")
PAGE = (ROOT / "docs" / "production.md").read_text(encoding="utf-8")


def release(folder, kind, settings, **sections):
    """A model folder with what a release has in addition: settings, provenance and an exported file."""
    values = defaults_of(kind, "reviews")
    if isinstance(settings.get("threshold"), dict):
        values["multilabel"] = True
    for name, section in sections.items():
        values[name] |= section
    (folder / "provenance.json").write_text(json.dumps({"parameters": {"downstream": {"reviews": values}}}))
    (folder / "podium.json").write_text(json.dumps(settings))
    write_formats(load_model(folder), ["onnx"], folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "podium": settings}))
    return folder


def run_script(script, *words):
    done = subprocess.run([sys.executable, "-I", "-c", script, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def predict_here(folder, records, field, run=None):
    """What Podium answers; `run`: the entry of the run that trained the model."""
    source, target = folder.parent / "asked.jsonl", folder.parent / "answers.jsonl"
    source.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    model = find_model(str(folder))
    how = InferenceOptions(RuntimeSpec("cpu", "fp32"), 4, lambda text: None)
    predict(infer_entry(model, run=run), model, source, PredictionOutput(target, "jsonl", 0, False), how)
    return [json.loads(line)[field] for line in target.read_text().splitlines()]


TEXTS = [
    *WORDS[:14],
    *(" ".join(WORDS[first : first + 5]) for first in range(4)),
    " ".join(WORDS),
    "word2 [SEP] word18",
]


@pytest.mark.parametrize(
    ("problem", "settings", "field"),
    [
        pytest.param("single_label_classification", {}, "label", marks=pytest.mark.soak),
        ("multi_label_classification", {"threshold": {"good": 0.6, "short": 0.3}}, "labels"),
    ],
)
def test_the_script_for_texts_gives_the_classes_and_labels_of_podium(tmp_path, problem, settings, field):
    folder = write_head_model(tmp_path / "model", "sequence_classification", ("good", "short"), WORDS)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "problem_type": problem}))
    release(folder, "classification", settings, rows={"row_length": 16}, evaluate=settings)
    answers = run_script(CLASSIFY, str(folder), *TEXTS)
    assert answers == predict_here(folder, [{"text": text} for text in TEXTS], field)
    assert len(set(map(json.dumps, answers))) > 1, "answers that are all the same show nothing"


def test_the_export_of_a_run_has_what_the_script_needs(tmp_path):
    model = write_head_model(tmp_path / "run/models/reviews", "sequence_classification", ("good", "short"), WORDS)
    chosen = {"threshold": 0.2, "min_probability": 0.6}
    files = [{"path": "models/reviews/model.safetensors", "sha256": sha256_of(model / "model.safetensors")}]
    write_json(tmp_path / "run/metrics/reviews.json", {**chosen, "files": files})
    entry = defaults_of("classification", "reviews") | {"kind": "classification"}
    entry["rows"]["row_length"], entry["data"]["train_path"] = 16, "private/reviews.csv"
    entry["evaluate"]["min_probability"] = 0.6
    export_model(find_model(str(model)), tmp_path / "exported", ["onnx"], entry)
    answers = run_script(CLASSIFY, str(tmp_path / "exported"), *TEXTS)
    assert answers == predict_here(model, [{"text": text} for text in TEXTS], "label", entry)
    assert None in answers, "no answer is left out"
    assert "private" not in (tmp_path / "exported/provenance.json").read_text()


def test_the_script_for_questions_finds_the_answer_of_podium_in_all_windows_or_none(tmp_path):
    words = sorted(
        ["where", "does", "the", "river", "rise", "?", "in", "northern", "hills", "and", "ends", "a", "lake", "."]
    )
    folder = write_tiny_model(tmp_path / "model", words)
    rows = {"row_length": 32, "doc_stride": 8, "max_question_length": 12}
    release(folder, "squad", {"null_threshold": -5.0}, rows=rows, evaluate={"max_answer_length": 5})
    contexts = [" ".join((words * 6)[first : first + size]) for first, size in ((0, 12), (3, 60), (5, 75), (8, 40))]
    asked = [{"question": "where does the river rise ?", "context": context} for context in contexts]
    answers = [run_script(ANSWER, str(folder), *question.values())[0] for question in asked]
    assert [answer["answer"] for answer in answers] == predict_here(folder, asked, "answer")
    assert [answer["answer"] != "" for answer in answers] == [True, True, False, False]
    assert answers[1]["start"] > 100, "no answer is from a later window"


def test_the_configuration_for_triton_has_the_inputs_and_outputs_of_an_exported_file(tmp_path):
    folder = write_head_model(tmp_path / "model", "sequence_classification", ("good", "short"), WORDS)
    session = open_session(write_formats(load_model(folder), ["onnx"], folder)["onnx"])
    types = {"TYPE_INT64": "tensor(int64)", "TYPE_FP32": "tensor(float)"}
    listed = re.findall(r'name: "(\w+)" data_type: (\w+) dims: \[ (-?\d+) \]', PAGE)
    tensors = [*session.get_inputs(), *session.get_outputs()]
    exported = [(each.name, each.type, each.shape[1] if isinstance(each.shape[1], int) else -1) for each in tensors]
    assert [(name, types[kind], int(length)) for name, kind, length in listed] == exported
