"""A small checkout that looks as if every stage up to the gate had run; the model is random and tiny."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.downstream.glue.examples import schema_of
from tasks.downstream.glue.tasks import TASKS, GlueTask
from tasks.downstream.judging.gate import gate
from tasks.project import artifacts
from tasks.project.files import sha256_of, write_text
from tasks.project.params import Params, check, load_params, parameter_values
from tasks.project.strict_yaml import parse_yaml
from tasks.release.release_subject import QUESTIONS, glue_subject
from tasks.vocabulary.tokenizer_files import Vocabulary, write_tokenizer
from tests.places import ROOT as PROJECT
from tests.tasks.downstream.entries import task_with
from tests.tasks.tiny_model import SPECIAL, write_tiny_model

WORDS = ["where", "does", "the", "river", "rise", "?", "in", "northern", "hills", "and", "ends", "a", "lake", "."]


TEXT = "The river rises in the northern hills and ends in a lake."
ASKED = {"q1": ("Where does the river rise?", "northern hills"), "q2": ("Where does the river end?", "a lake")}
"""Question and answer by id; the model answers both right."""


def make_checkout(root: Path, *, seed: int = 0, accepted: bool = True) -> Path:
    """Fill `root` with model, tokenizer, questions, predictions, metrics, gate verdict, reports and parameters."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "params.yaml").write_text(params_text(), encoding="utf-8")
    (root / "dvc.lock").write_text("schema: '2.0'\n", encoding="utf-8")
    (root / artifacts.TOKENIZER).mkdir(parents=True)
    write_tokenizer(Vocabulary((*SPECIAL, *WORDS), lowercase=True), 512, root / artifacts.TOKENIZER)
    write_questions(root / artifacts.examples_folder("squad") / "dev.parquet")
    _json(root / artifacts.predictions_file("squad"), {name: answer for name, (_, answer) in ASKED.items()})
    write_text(root / artifacts.EVALUATION / "report.html", "<p>Where does the river rise?</p>")
    for name in QUESTIONS.verdicts:
        checks = [{"name": "no nulls", "ok": True}]
        _json(root / artifacts.validation_report(name), {"data": name, "valid": True, "rows": 12, "checks": checks})
    _json(
        root / artifacts.rows_folder("squad-train") / "manifest.json",
        {"rows": 40, "sequences": 100, "real_tokens": 4321, "row_length": 128},
    )
    _json(root / artifacts.BASE_MODEL / "base_model.json", {"source": "none"})
    for name in QUESTIONS.trainings:
        figures = {"steps": 500, "final_loss": 0.4321, "runtime": "cpu", "precision": "fp32", "train_seconds": 12.5}
        _json(root / artifacts.METRICS / f"{name}.json", figures)
    write_model(root, seed)
    write_gate(root, accepted=accepted)
    return root


METRICS: dict[str, Any] = {
    "exact_match": 91.2, "exact_match_low": 89.0, "exact_match_high": 93.1,
    "f1": 94.5678, "f1_low": 93.0, "f1_high": 96.0, "total": 1000,
}  # fmt: skip
"""Of a card; those of the checkout are counted."""
SLICES = [{"by": "question word", "slice": "where", "f1": 100.0}, {"by": "title", "slice": "Rivers", "f1": 100.0}]


def write_questions(path: Path) -> None:
    """The dev questions, as the stage questions writes them."""
    rows = [
        {"id": name, "title": "", "context": TEXT, "question": question,
         "answers": [{"text": answer, "answer_start": TEXT.index(answer)}]}
        for name, (question, answer) in ASKED.items()
    ]  # fmt: skip
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def write_metrics(root: Path) -> None:
    """The scores of the files that lie in `root` now."""
    files = [root / artifacts.model_folder("squad") / "model.safetensors", root / artifacts.predictions_file("squad")]
    found = [{"path": str(path.relative_to(root)), "sha256": sha256_of(path)} for path in files]
    scores = task_with("squad", "scores")
    examples = scores.read_all(root)
    counted = scores.figures(examples, scores.outcomes_of(examples, scores.read_predictions(files[1], examples)))
    _json(root / artifacts.metrics_file("squad"), {**counted, "files": found, "slices": SLICES})


def write_gate(root: Path, *, accepted: bool = True, parameters: Mapping[str, Any] | None = None) -> None:
    """Scores and verdict of the files that lie in `root` now; rejected against the evidence if `accepted` is False."""
    write_metrics(root)
    gate(parameters or parameter_values(load_params(root / "params.yaml")), root)
    if not accepted:
        verdict = json.loads((root / artifacts.metrics_file("squad", "gate")).read_text(encoding="utf-8"))
        verdict |= {"accepted": False, "reasons": ["f1 12.30 is under the floor 85.00"]}
        _json(root / artifacts.metrics_file("squad", "gate"), verdict)


def make_glue_checkout(root: Path, task: GlueTask = TASKS["sst2"]) -> Path:
    """The same for a GLUE task with two classes: 20 examples, of which one in ten is answered wrong."""
    make_checkout(root)
    subject, labels = glue_subject(task.name, task.splits), [number % 2 for number in range(20)]
    (root / artifacts.model_folder("squad")).rename(root / subject.model)
    for reference in subject.references:
        (root / reference).parent.mkdir(parents=True, exist_ok=True)
        rows = [{"first": f"text {number}", "second": None, "label": label} for number, label in enumerate(labels)]
        pq.write_table(pa.Table.from_pylist(rows, schema=schema_of(task)), root / reference)
    predicted = [1 - label if number % 10 == 0 else label for number, label in enumerate(labels)]
    _json(root / subject.predictions, dict.fromkeys(task.splits[1:], predicted))
    for name in subject.verdicts:
        _json(root / artifacts.validation_report(name), {"data": name, "valid": True, "rows": 20, "checks": []})
    for name in subject.trainings:
        _json(root / artifacts.METRICS / f"{name}.json", {"steps": 5, "final_loss": 0.5})
    write_glue_gate(root, task)
    return root


def write_glue_gate(root: Path, task: GlueTask = TASKS["sst2"]) -> None:
    """Scores and verdict of the GLUE files that lie in `root` now."""
    subject, scores = glue_subject(task.name, task.splits), task_with(f"glue-{task.name}", "scores")
    files = [root / subject.model / "model.safetensors", root / subject.predictions]
    found = [{"path": str(path.relative_to(root)), "sha256": sha256_of(path)} for path in files]
    examples = scores.read_all(root)
    counted = scores.figures(examples, scores.outcomes_of(examples, scores.read_predictions(files[1], examples)))
    _json(root / subject.metrics, {**counted, "files": found})
    gate(parameter_values(load_params(root / "params.yaml")), root, f"glue-{task.name}")


def write_model(root: Path, seed: int) -> None:
    """A two-layer model with random weights from `seed`, trained (it says) with the checkout's tokenizer."""
    folder = write_tiny_model(root / artifacts.model_folder("squad"), WORDS, seed)
    for name in ("tokenizer.json", "tokenizer_config.json"):  # a model of this project lies apart from its tokenizer
        (folder / name).unlink()
    digest = sha256_of(root / artifacts.TOKENIZER / "tokenizer.json")
    _json(folder / "podium.json", {"tokenizer_sha256": digest, "kind": "finetune", "steps": 500, "seed": 5})


def params_text() -> str:
    """The project's params.yaml with a phase 1 that tests can state."""
    head, phase = (PROJECT / "params.yaml").read_text(encoding="utf-8").split("\n  phase1:\n    steps:", 1)
    values = {"global_batch_size": "64", "learning_rate": "2.0e-3", "warmup_fraction": "0.1"}
    phase = re.sub(r"\S+", "600", phase, count=1)
    for name, value in values.items():
        phase = re.sub(rf"\b{name}: \S+", f"{name}: {value}", phase, count=1)
    return f"{head}\n  phase1:\n    steps:{phase}"


def params_with(**publish: Any) -> Params:
    """The parameters of a checkout with other publish values."""
    values = parse_yaml(params_text())
    values["publish"].update(publish)
    return check(values)


def _json(path: Path, values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values), encoding="utf-8")
