"""A small checkout that looks as if every stage up to the gate had run; the model is random and tiny."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ipu_model.core.files import read_json, sha256_of, write_json, write_text
from tasks.downstream.gate.gate import gate
from tasks.downstream.gate.subject import ReleaseSubject, make_subject
from tasks.downstream.squad.examples import write_questions
from tasks.downstream.texts.schemas import make_schema
from tasks.params.downstream import EntryPublishParams, defaults_of
from tasks.params.entries import find_entry
from tasks.params.schema import Params, load_params, parameter_values, validate_params
from tasks.params.strict_yaml import read_yaml, value_at
from tasks.plan.dvc_records import LOCK
from tasks.plan.plan_file import make_plan
from tasks.plan.stages import define
from tasks.stage import artifacts
from tasks.vocabulary.fast_tokenizer import make_wordpiece
from tests.tasks.downstream.entries import make_question, part_of, values_with, write_parameters
from tests.tasks.tiny_model import SPECIAL, write_tiny_model

WORDS = ["where", "does", "the", "river", "rise", "?", "in", "northern", "hills", "and", "ends", "a", "lake", "."]
PHASE1 = {
    "pretrain": {"phase1": {"steps": 600, "global_batch_size": 64, "learning_rate": 2.0e-3, "warmup_fraction": 0.1}}
}
TEXT = "The river rises in the northern hills and ends in a lake."
ASKED = {"q1": ("Where does the river rise?", "northern hills"), "q2": ("Where does the river end?", "a lake")}
"""Question and answer by id; the model answers both right."""


def make_checkout(root: Path, *, seed: int = 0, accepted: bool = True) -> Path:
    """Fill `root` with model, tokenizer, questions, predictions, metrics, gate verdict, reports and parameters."""
    write_parameters(root, values_with(**PHASE1))
    (root / artifacts.TOKENIZER).mkdir(parents=True)
    make_wordpiece((*SPECIAL, *WORDS), lowercase=True).write(512, root / artifacts.TOKENIZER)
    write_entry(root, "squad", seed)
    write_gate(root, accepted=accepted)
    return root


def subject_in(root: Path, name: str = "squad") -> ReleaseSubject:
    """What a release of that entry of a checkout is about."""
    params = load_params(root / artifacts.PARAMS)
    return make_subject(find_entry(params, name), params)


def write_entry(root: Path, name: str, seed: int) -> None:
    """What the stages before the gate leave of an entry of questions, and of all before it; scores aside."""
    subject = subject_in(root, name)
    questions = [make_question(key, text, TEXT, [it], [TEXT.index(it)]) for key, (text, it) in ASKED.items()]
    (root / artifacts.examples_file(name, "dev")).parent.mkdir(parents=True, exist_ok=True)
    for split in ("train", "dev"):
        write_questions(questions, root / artifacts.examples_file(name, split))
    write_json(root / subject.predictions, {asked: answer for asked, (_, answer) in ASKED.items()})
    write_text(root / artifacts.evaluation_page(subject.name), "<p>Where does the river rise?</p>")
    write_text(root / artifacts.mistakes_file(subject.name), "line,question\n")
    write_json(
        root / artifacts.rows_folder(name, "train") / "manifest.json",
        {"rows": 40, "sequences": 100, "real_tokens": 4321, "row_length": 128},
    )
    write_reports(root, subject)
    write_model(root, seed, name)


def write_reports(root: Path, subject: ReleaseSubject) -> None:
    """What validation and training say."""
    for verdict in subject.verdicts:
        report = {"data": verdict, "valid": True, "rows": 12, "checks": [{"name": "no nulls", "ok": True}]}
        write_json(root / artifacts.validation_report(verdict), report)
    for training in subject.trainings:
        figures = {"steps": 500, "final_loss": 0.4321, "runtime": "cpu", "precision": "fp32", "packing_factor": 1.5}
        write_json(root / artifacts.METRICS / f"{training}.json", figures)


SLICES = [{"by": "question word", "slice": "where", "f1": 100.0}, {"by": "title", "slice": "Rivers", "f1": 100.0}]


def write_metrics(root: Path, name: str = "squad", params: Params | None = None) -> None:
    """The scores of the files that are in `root` now; `params` are those of the checkout, if it is not all of one."""
    entry = find_entry(params := params or load_params(root / artifacts.PARAMS), name)
    subject = make_subject(entry, params)
    files = [root / subject.model / "model.safetensors", root / subject.predictions]
    hashes = [{"path": str(path.relative_to(root)), "sha256": sha256_of(path)} for path in files]
    scores, examples = part_of(entry, "scores").read_all(root)
    rule, outcomes = scores.choose_rule(root), scores.outcomes_of(examples, scores.read_predictions(files[1], examples))
    counted = scores.figures(outcomes, scores.baseline(examples, rule))
    baseline = {"baseline": rule} if rule else {}
    slices = {"slices": SLICES} if entry.kind == "squad" else {}
    write_json(root / subject.metrics, {**counted, **baseline, "files": hashes, **slices})


def write_gate(root: Path, *, accepted: bool = True, name: str = "squad") -> None:
    """Scores, verdict and dvc.lock of what is in `root` now; rejected against the evidence if `accepted` is False."""
    params = load_params(root / artifacts.PARAMS)
    write_metrics(root, name)
    write_lock(root, params)
    gate(parameter_values(params), name, root)
    if not accepted:
        path = root / artifacts.metrics_file(name, "gate")
        write_json(path, read_json(path) | {"accepted": False, "reasons": ["f1 12.30 is under the floor 85.00"]})


def write_lock(root: Path, params: Params) -> None:
    """A dvc.lock as if every stage had run with these parameters; it says nothing of files."""
    values = {artifacts.PARAMS.name: parameter_values(params)}
    stages = {}
    for stage in make_plan(define(params)).values():
        files = {file: keys for file, keys in stage.params.items() if file in values}
        used = {file: {key: value_at(values[file], key) for key in keys} for file, keys in files.items()}
        stages[stage.name] = {"cmd": stage.cmd, "params": used}
    lock = json.dumps({"schema": "2.0", "stages": stages}, indent=1)  # JSON is YAML, and faster
    write_text(root / LOCK, lock)


def make_glue_checkout(root: Path) -> Path:
    """The same for the GLUE task sst2: 20 examples, of which one in ten is answered wrong."""
    make_checkout(root)
    name, labels = "glue-sst2", [number % 2 for number in range(20)]
    values = read_yaml(root / artifacts.PARAMS)
    values["downstream"] = {name: {**defaults_of("glue", name), "task": "sst2"}}
    schema = make_schema(find_entry(write_parameters(root, values), name).params.text_task)
    subject = subject_in(root, name)
    (root / artifacts.model_folder("squad")).rename(root / subject.model)
    texts = [{"first": f"text {n}", "second": None, "label": label} for n, label in enumerate(labels)]
    rows = [{**text, "id": str(number)} for number, text in enumerate(texts)]
    for reference in subject.references:
        (root / reference).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), root / reference)
    predicted = [1 - label if number % 10 == 0 else label for number, label in enumerate(labels)]
    write_json(root / subject.predictions, {"dev": predicted})
    write_reports(root, subject)
    write_gate(root, name=name)
    return root


def write_model(root: Path, seed: int, name: str = "squad") -> None:
    """A two-layer model with random weights from `seed`, trained (it says) with the checkout's tokenizer."""
    folder = write_tiny_model(root / artifacts.model_folder(name), WORDS, seed)
    for file in ("tokenizer.json", "tokenizer_config.json"):  # a model of this project lies apart from its tokenizer
        (folder / file).unlink()
    digest = sha256_of(root / artifacts.TOKENIZER / "tokenizer.json")
    write_json(folder / "podium.json", {"tokenizer_sha256": digest, "kind": "finetune", "steps": 500, "seed": 5})


def params_with(name: str = "squad", **publish: Any) -> Params:
    """The parameters of a checkout with other values of publishing, of all releases or of that of an entry."""
    values = values_with(**PHASE1)
    for key, value in publish.items():
        of_entry = key in EntryPublishParams.model_fields
        (values["downstream"][name] if of_entry else values)["publish"][key] = value
    return validate_params(values)
