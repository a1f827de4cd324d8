"""What a run says of a given model before its first stage: a new or reordered head, and pairs that it cannot read."""

import json

import pytest

from flows.checks import preflight
from flows.checks.input_checks import check_files, check_hub, run_check, select_checks
from flows.runs.model_source import model_parameters
from flows.runs.run_options import RunOptions
from flows.runs.run_request import resolve_request
from tasks.params.overlays import make_settings, resolve
from tasks.params.schema import validate_params
from tests.places import ROOT
from tests.tasks.conftest import hub_over_http  # noqa: F401 (the fixture `hub`)
from tests.tasks.downstream.inference.head_models import write_head_model

WORDS = ["word1", "word2", "word3"]
QUESTION = {"id": "1", "question": "word3", "answers": [{"text": "word1", "answer_start": 0}]}
FILES = {
    "classes.csv": "text,label\n" + "word1,red\nword2,blue\n" * 10,
    "pairs.csv": "text,text_pair,label\n" + "word1,word2,red\nword2,word3,blue\n" * 10,
    "positives.csv": "anchor,positive\n" + "who,a town\nwhere,a river\n" * 9,
    "numbers.csv": "text,label\n" + "word1,0\nword2,1\n" * 10,
    "tags.conll": "word1 B-PER\nword2 O\n\nword3 B-LOC\nword1 O\n\n",
    "questions.json": json.dumps({"data": [{"paragraphs": [{"context": "word1 word2", "qas": [QUESTION]}]}]}),
}
CLASSES, TAGS = "sequence_classification", "token_classification"
SHORT = "downstream.own.rows.row_length=64"


def data_of(place, name="classes.csv"):
    return {"source": "files", "train_path": str(place / name), "dev_path": None}


def findings(place, model, kind, file, *overrides):
    """Text of each finding by name and level, of a run that fine-tunes the model on a file."""
    entry = f"downstream.own={json.dumps({'kind': kind, 'data': data_of(place, file)})}"
    settings = make_settings(model_parameters(str(model), place, ROOT))
    params = validate_params(resolve({}, "finetune", [*settings, entry, *overrides]))
    checks = select_checks(params, {params.base_model.path, str(place / file)})
    return {(finding.name, finding.level): finding.text for check in checks for finding in run_check(check, params)}


def upload(hub, folder):
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    repository = hub.store.create("model", f"user/{folder.name}")
    return repository, hub.store.add_files(repository, files).oid


def findings_on_hub(hub, entries, *folders):
    """Name, level and text of each finding, of a run that fine-tunes user/model for these entries."""
    for folder in folders:
        upload(hub, folder)
    parts = ("base_model", "tokenizer")
    places = [f"{part}.{value}" for part in parts for value in ("source=hub", "repository=user/model")]
    request = resolve_request(ROOT, RunOptions("finetune", [*places, f"downstream={json.dumps(entries)}"]))
    [question] = preflight.probe_hub(request)
    return [(finding.name, finding.level, finding.text) for finding in check_hub(question.request)]


@pytest.fixture
def place(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


NEW, REORDERED = "the examples have", "its head is reordered to"


@pytest.mark.parametrize(
    ("head", "labels", "kind", "file", "note"),
    [
        (CLASSES, ("red", "blue"), "classification", "classes.csv", f"{REORDERED} blue, red"),
        (CLASSES, ("blue", "red"), "classification", "classes.csv", ""),
        (CLASSES, ("red", "blue", "x"), "classification", "classes.csv", f"x, {NEW} blue, red: the head is new"),
        (CLASSES, ("LABEL_0", "LABEL_1"), "classification", "numbers.csv", ""),
        (TAGS, ("I-PER", "B-PER", "O", "B-LOC", "I-LOC"), "ner", "tags.conll", f"{REORDERED} O, B-LOC, I-LOC"),
        (TAGS, ("O", "B-ORG", "I-ORG"), "ner", "tags.conll", "the head is new"),
    ],
)
def test_a_head_that_is_new_or_reordered_is_said(place, head, labels, kind, file, note):
    model = write_head_model(place / "model", head, labels, WORDS, 512)
    texts = findings(place, model, kind, file)
    assert ("own", "problem") not in texts
    assert bool(note) == (("own", "warning") in texts)
    assert note in texts.get(("own", "warning"), "")


def test_a_family_that_cannot_learn_a_kind_or_be_a_student_is_refused_before_the_first_stage(place):
    model = write_head_model(place / "model", "pretraining", (), WORDS)
    other = (SHORT, "model.family=deberta-v2", "packing=false")
    student = (f"downstream.own.distill.teacher={model}", "downstream.own.distill.layers=1")
    assert ("own", "ok") in findings(place, model, "pairs", "positives.csv", SHORT)
    for kind, file, more in (("pairs", "positives.csv", ()), ("classification", "classes.csv", student)):
        assert "found deberta-v2" in findings(place, model, kind, file, *more, *other)["own", "problem"]


@pytest.mark.parametrize("where", ["folder", "hub"])
@pytest.mark.parametrize(
    ("kind", "labels", "words", "reason"),
    [
        (CLASSES, ["no", "yes"], WORDS, "the classes no, yes, the examples blue, red"),
        (CLASSES, ["blue", "red"], [*WORDS, "word4"], "another tokenizer"),
        (TAGS, ["blue", "red"], WORDS, "BertForTokenClassification"),
        (CLASSES, ["blue", "red"], WORDS, ""),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused_before_the_first_stage(place, hub, where, kind, labels, words, reason):
    model = write_head_model(place / "model", CLASSES, ["blue", "red"], WORDS)
    teacher = write_head_model(place / "teacher", kind, labels, words)
    if where == "folder":
        distill = f"downstream.own.distill.teacher={teacher}"
        texts = findings(place, model, "classification", "classes.csv", distill, SHORT)
    else:
        entry = {"kind": "classification", "data": data_of(place), "distill": {"repository": "user/teacher"}}
        texts = {key[:2]: key[2] for key in findings_on_hub(hub, {"own": entry}, model, teacher)}
    assert reason in texts["teacher of own", "problem" if reason else "ok"]


def test_of_a_long_file_no_class_is_called_missing(place, monkeypatch):
    """A class that its first examples lack may come later."""
    monkeypatch.setattr("tasks.downstream.texts.examples.HEAD", 10)
    monkeypatch.setattr("tasks.downstream.reading.WHOLE_BYTES", 10)
    model = write_head_model(place / "model", CLASSES, ("red", "blue", "green"), WORDS, 512)
    assert ("own", "warning") not in findings(place, model, "classification", "classes.csv")


@pytest.mark.parametrize(
    ("kind", "file", "refused"),
    [
        ("classification", "classes.csv", False),
        ("classification", "pairs.csv", True),
        ("squad", "questions.json", True),
    ],
)
def test_pairs_of_texts_are_refused_for_a_model_with_one_token_type(place, kind, file, refused):
    model = write_head_model(place / "model", "pretraining", (), WORDS, 512, types=1)
    assert ("type_vocab_size" in findings(place, model, kind, file).get(("own", "problem"), "")) == refused
    again = ("pretrain.enabled=true", "corpus.source=files", f"corpus.path={place}")
    assert "pre-training reads text pairs" in findings(place, model, kind, file, *again)["base model", "problem"]


def test_the_head_of_a_model_on_the_hub_is_known_before_it_is_downloaded(place, hub):
    model = write_head_model(place / "model", CLASSES, ("red", "blue"), WORDS, 512, types=1)
    pairs = {"source": "hub", "dataset": "user/pairs", "columns": {"text_pair": "text_pair"}}
    data = {"classes": data_of(place), "pairs": data_of(place, "pairs.csv"), "of_hub": pairs}
    entries = {name: {"kind": "classification", "data": values} for name, values in data.items()}
    levels = [(name, level) for name, level, _ in findings_on_hub(hub, entries, model) if name in entries]
    warnings = [("classes", "warning"), ("pairs", "warning")]
    assert levels == [*warnings, ("pairs", "problem"), ("of_hub", "problem")]


@pytest.mark.parametrize(
    ("kind", "labels", "level", "text"),
    [
        ("classification", ["blue", "red"], "ok", "for the same task"),
        ("classification", ["no", "yes"], "problem", "the classes no, yes, the examples blue, red"),
        ("ner", ["blue", "red"], "problem", "is for kind ner, this entry for kind classification"),
        ("", [], "ok", "first release"),
    ],
)
@pytest.mark.parametrize("target", ["local", "hub"])
def test_a_release_that_cannot_be_compared_is_refused_before_the_first_stage(
    place, hub, target, kind, labels, level, text
):
    model = write_head_model(place / "model", CLASSES, ["blue", "red"], WORDS, 512)
    if kind:
        release = write_head_model(place / "released", CLASSES, labels, WORDS)
        entry = {"kind": kind, "regression": False, "multilabel": False, "rows": {}, "evaluate": {}}
        (release / "provenance.json").write_text(json.dumps({"parameters": {"downstream": {"own": entry}}}))
        (release / "model.safetensors").unlink()
        repository, commit = upload(hub, release)
        repository.tags[f"release-{12 * '0'}"] = commit
    publish = {"folder": str(place / "released"), "repository": "user/released"}
    probe, check = (preflight.probe_files, check_files) if target == "local" else (preflight.probe_hub, check_hub)

    def check_release(**gate):
        entry = {"kind": "classification", "data": data_of(place), "publish": publish, "gate": gate}
        settings = [f"downstream={json.dumps({'own': entry})}", f"publish.target={target}"]
        given = make_settings(model_parameters(str(model), place, ROOT))
        [question] = probe(resolve_request(ROOT, RunOptions("finetune", [*given, *settings])))
        return [finding for finding in check(question.request) if finding.name == "release"]

    results = [(finding.level, text in finding.text) for finding in check_release()]
    assert results == ([] if target == "local" and not kind else [(level, True)]), "there may be no folder"
    assert check_release(released="none") == check_release(released=str(place)) == []
