"""Models of every kind of task, applied to files."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ipu_model.core.files import write_json
from tasks.downstream import evaluate as evaluate_stage
from tasks.downstream.examples import make_examples
from tasks.downstream.inference.model import InferenceModel, find_model
from tasks.downstream.jobs import entry_jobs
from tasks.downstream.packed_rows import write_rows
from tasks.params.entries import find_entry
from tasks.stage import artifacts
from tests.tasks.downstream.entries import part_of, values_with, write_parameters
from tests.tasks.downstream.generated import CLASSES, TYPES, write_sentences, write_texts
from tests.tasks.downstream.inference.head_models import write_head_model
from tests.tasks.downstream.texts.glue_checkout import WORDS, run_stage
from tests.tasks.downstream.texts.glue_checkout import write_examples as write_glue
from tests.tasks.pretraining.row_inputs import WORDS as NER_WORDS

SPLITS = ("train", "dev")


def files(folder: Path, ending: str, write: Callable[[Path], object]) -> dict[str, str]:
    """Parameters that name a file of each split."""
    for split in SPLITS:
        write(folder / f"{split}.{ending}")
    return {f"{split}_path": str(folder / f"{split}.{ending}") for split in SPLITS}


def write_questions(path: Path) -> None:
    """Sixty questions on contexts of one window and of several."""
    paragraphs = []
    for number in range(60):
        context = " ".join(f"{WORDS[(number + i) % 40]}" for i in range(10 if number % 3 else 90))
        answer = {"text": context.split()[4], "answer_start": context.index(context.split()[4])}
        asked = {"id": f"{path.stem}{number}", "question": f"word{number % 40} ?", "answers": [answer]}
        paragraphs.append({"context": context, "qas": [asked]})
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))


def write_tagged(path: Path) -> None:
    write_sentences(path, 60, seed=len(path.stem))


def glue(task: str, folder: Path) -> dict[str, Any]:
    write_glue(folder, task)
    return {"kind": "glue", "task": task, "data": {"path": str(folder)}}


def own(folder: Path, **form: bool) -> dict[str, Any]:
    data = files(folder, "csv", lambda path: write_texts(path, 60, len(path.stem), **form))
    return {"kind": "classification", "regression": form.get("regression", False), "data": data}


TAGS = ("O", *(f"{prefix}-{name}" for name in sorted(TYPES) for prefix in "BI"))
PACKED = {"row_length": 32, "max_sequences_per_row": 4}
SHAPES: dict[str, dict[str, Any]] = {
    "squad": {"row_length": 48, "max_sequences_per_row": 2, "doc_stride": 8, "max_question_length": 16},
    "ner": {**PACKED, "overlap": 8},
    "glue": PACKED,
    "classification": PACKED,
}
CASES: dict[str, tuple[Any, str, tuple[str, ...], list[str]]] = {
    "squad": (lambda at: {"kind": "squad", "data": files(at, "json", write_questions)}, "dev.json", (), WORDS),
    "ner": (lambda at: {"kind": "ner", "data": files(at, "conll", write_tagged)}, "dev.conll", TAGS, NER_WORDS),
    "sst2": (lambda at: glue("sst2", at), "sst2/dev.tsv", ("negative", "positive"), WORDS),
    "stsb": (lambda at: glue("stsb", at), "stsb/dev.tsv", ("similarity",), WORDS),
    "mine": (own, "dev.csv", CLASSES, NER_WORDS),
    "pairs": (lambda at: own(at, pairs=True), "dev.csv", CLASSES, NER_WORDS),
    "value": (lambda at: own(at, regression=True), "dev.csv", ("value",), NER_WORDS),
}
HEADS = {"squad": "question_answering", "ner": "token_classification"}


def staged(folder: Path, entry: Mapping[str, Any], model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout in which an entry's examples and rows, which are not validated as it learns from what it is scored on,
    and the stages from predict to evaluate were made with this model; it has no words of its own."""
    plan = {**entry, "rows": SHAPES[entry["kind"]]}
    params = write_parameters(folder, values_with({"squad": None, "plan": plan}, validate={"near_duplicates": None}))
    (folder / "inputs/ipu").mkdir(parents=True)
    (folder / artifacts.MODELS).mkdir()
    (folder / artifacts.model_folder("plan")).symlink_to(model)
    (folder / artifacts.TOKENIZER).parent.mkdir(parents=True)
    (folder / artifacts.TOKENIZER).symlink_to(model)
    write_json(folder / artifacts.validation_report("plan-rows"), {"valid": True})
    monkeypatch.chdir(folder)
    task = find_entry(params, "plan")
    make_examples(part_of(task, "reader"), artifacts.EXAMPLES / "plan")
    for split in task.splits:
        write_rows(part_of(task, "encoder"), split)
    for module, stage in ((entry_jobs, "predict@plan"), (evaluate_stage, "plan")):
        run_stage(module, stage)
    return folder


def applied(case: str, folder: Path) -> tuple[InferenceModel, Path, dict[str, Any]]:
    """A model, a file with labels, and what an entry says of it."""
    write, name, labels, words = CASES[case]
    (folder / "data").mkdir()
    head = HEADS.get(case, "sequence_classification")
    model = find_model(str(write_head_model(folder / "model", head, labels, words)))
    return model, folder / "data" / name, write(folder / "data")


GOOD = {
    "questions.csv": "question,context\nword1 ?,word1 word2 word3\nword4 ?,word5 word4\n",
    "sentences.csv": "sentence\nword1 word2\nword3\n",
    "labelled.tsv": "word1 word2\t1\nword3\t0\n",
    "semicolon.csv": "Sentence;label\nword1, word2;1\nword3;0\n",
    "rows.json": '[{"id": 7, "sentence": "word1 word2", "label": 1}, {"id": 8, "sentence": "word3", "label": 0}]',
    "unknown.csv": "text,label\nword1,red\nword2,pink\nword3,green\n",
    "tagged.csv": "tokens;tags\nword1 word2;B-red O\nword3;B-pink\n",
}
