"""What a run says of a given model before its first stage: a new or reordered head, and pairs that it cannot read."""

import json

import pytest

from flows.checks import preflight
from flows.checks.input_checks import check_files, check_hub, run_check, select_checks
from flows.runs.model_source import model_parameters
from flows.runs.run_options import RunOptions
from flows.runs.run_request import resolve_request
from tasks.downstream.texts.examples import TextsReader
from tasks.params.overlays import make_settings, resolve
from tasks.params.schema import validate_params
from tests.places import ROOT
from tests.tasks.conftest import hub_over_http  # noqa: F401 (the fixture `hub`)
from tests.tasks.downstream.inference.head_models import write_head_model

WORDS = ["word1", "word2", "word3"]
QUESTION = {"id": "1", "question": "word3", "answers": [{"text": "word1", "answer_start": 0}]}
ASKED = {"context": "word1 word2", "qas": [QUESTION]}
FILES = {
    "classes.csv": "text,label\n" + "word1,red\nword2,blue\n" * 10,
    "pairs.csv": "text,text_pair,label\n" + "word1,word2,red\nword2,word3,blue\n" * 10,
    "numbers.csv": "text,label\n" + "word1,0\nword2,1\n" * 10,
    "tags.conll": "word1 B-PER\nword2 O\n\nword3 B-LOC\nword1 O\n\n",
    "questions.json": json.dumps({"data": [{"paragraphs": [ASKED]}]}),
}
CLASSES, TAGS = "sequence_classification", "token_classification"


ON_HUB = [
    f"{section}.{key}" for section in ("base_model", "tokenizer") for key in ("source=hub", "repository=user/model")
]


def data_of(place, name="classes.csv"):
    return {"source": "files", "train_path": str(place / name), "dev_path": None}


def files_of(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def findings(place, model, kind, file, *overrides):
    """Text of each finding by name and level, of a run that fine-tunes the model on a file."""
    entry = f"downstream.own={json.dumps({'kind': kind, 'data': data_of(place, file)})}"
    settings = make_settings(model_parameters(str(model), place, ROOT))
    params = validate_params(resolve({}, "finetune", [*settings, entry, *overrides]))
    read = {params.base_model.path, str(place / file)}
    found = [finding for given in select_checks(params, read) for finding in run_check(given, params)]
    return {(one.name, one.level): one.text for one in found}


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
        (TAGS, ("O", "B-ORG", "I-ORG"), "classification", "classes.csv", ""),
    ],
)  # fmt: skip
def test_a_head_that_is_new_or_reordered_is_said(place, head, labels, kind, file, note):
    model = write_head_model(place / "model", head, labels, WORDS, 512)
    found = findings(place, model, kind, file)
    assert ("own", "problem") not in found
    assert bool(note) == (("own", "warning") in found)
    assert note in found.get(("own", "warning"), "")


def test_a_family_that_cannot_learn_a_kind_or_be_a_student_is_refused_before_the_first_stage(place):
    (place / "pairs.csv").write_text("anchor,positive\n" + "who,a town\nwhere,a river\n" * 9)
    model = write_head_model(place / "model", "pretraining", (), WORDS)
    short, other = "downstream.own.rows.row_length=64", ("model.family=deberta-v2", "packing=false")
    assert ("own", "ok") in findings(place, model, "pairs", "pairs.csv", short)
    found = findings(place, model, "pairs", "pairs.csv", short, *other)
    assert "kind pairs needs a family that Podium trains itself, found deberta-v2" in found["own", "problem"]
    student = (f"downstream.own.distill.teacher={model}", "downstream.own.distill.layers=1")
    found = findings(place, model, "classification", "classes.csv", short, *student, *other)
    assert "layers needs a family that Podium trains itself, found deberta-v2" in found["own", "problem"]


@pytest.mark.parametrize("where", ["folder", "hub"])
@pytest.mark.parametrize(
    ("kind", "labels", "words", "said"),
    [
        (CLASSES, ["no", "yes"], WORDS, "the teacher has the classes no, yes, the examples blue, red"),
        (CLASSES, ["blue", "red"], [*WORDS, "word4"], "the teacher has another tokenizer"),
        (TAGS, ["blue", "red"], WORDS, "the teacher is BertForTokenClassification, but classification needs"),
        (CLASSES, ["blue", "red"], WORDS, ""),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused_before_the_first_stage(place, hub, where, kind, labels, words, said):
    model = write_head_model(place / "model", CLASSES, ["blue", "red"], WORDS)
    teacher = write_head_model(place / "teacher", kind, labels, words)
    if where == "folder":
        short = "downstream.own.rows.row_length=64"
        own = f"downstream.own.distill.teacher={teacher}"
        found = findings(place, model, "classification", "classes.csv", own, short)
        assert said in found["teacher of own", "problem" if said else "ok"]
        return
    for folder in (model, teacher):
        hub.store.add_files(hub.store.create("model", f"user/{folder.name}"), files_of(folder))
    own = {"kind": "classification", "data": data_of(place), "distill": {"repository": "user/teacher"}}
    wanted = resolve_request(ROOT, RunOptions("finetune", [*ON_HUB, f"downstream={json.dumps({'own': own})}"]))
    [question] = preflight.probe_hub(wanted)
    [found] = [one for one in check_hub(question.request) if one.name == "teacher of own"]
    assert found.level == ("problem" if said else "ok"), found.text
    assert said in found.text


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
        ("ner", "tags.conll", False),
        ("squad", "questions.json", True),
    ],
)
def test_pairs_of_texts_are_refused_for_a_model_with_one_token_type(place, kind, file, refused):
    model = write_head_model(place / "model", "pretraining", (), WORDS, 512, types=1)
    said = findings(place, model, kind, file).get(("own", "problem"), "")
    assert ("has one token type (type_vocab_size in config.json), but own reads text pairs" in said) == refused
    again = ("pretrain.enabled=true", "corpus.source=files", f"corpus.path={place}")
    assert "pre-training reads text pairs" in findings(place, model, kind, file, *again)["base model", "problem"]


def test_the_head_of_a_model_on_the_hub_is_known_before_it_is_downloaded(place, hub):
    folder = write_head_model(place / "model", CLASSES, ("red", "blue"), WORDS, 512, types=1)
    hub.store.add_files(hub.store.create("model", "user/model"), files_of(folder))
    entries = {
        "classes": {"kind": "classification", "data": data_of(place)},
        "pairs": {"kind": "classification", "data": data_of(place, "pairs.csv")},
        "pairs_of_hub": {
            "kind": "classification",
            "data": {"source": "hub", "dataset": "user/pairs", "columns": {"text_pair": "text_pair"}},
        },
    }
    wanted = resolve_request(ROOT, RunOptions("finetune", [*ON_HUB, f"downstream={json.dumps(entries)}"]))
    [question] = preflight.probe_hub(wanted)
    found = [one for one in check_hub(question.request) if one.name in entries]
    assert [(one.name, one.level) for one in found] == [
        ("classes", "warning"), ("pairs", "warning"), ("pairs", "problem"), ("pairs_of_hub", "problem"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "labels", "said"),
    [
        ("classification", ["blue", "red"], "own: the released model is for the same task"),
        ("classification", ["no", "yes"], "has the classes no, yes, the examples blue, red; they cannot be compared"),
        ("ner", ["blue", "red"], "is for kind ner, this entry for kind classification"),
        ("", [], "own: first release, there is no model to compare with"),
    ],
)
@pytest.mark.parametrize("target", ["local", "hub"])
def test_a_release_that_cannot_be_compared_is_refused_before_the_first_stage(
    place, hub, monkeypatch, target, kind, labels, said
):
    reads, read = list[str](), TextsReader.check_files
    monkeypatch.setattr(TextsReader, "check_files", lambda task: [read(task), reads.append(task.entry.name)][0])
    model = write_head_model(place / "model", CLASSES, ["blue", "red"], WORDS, 512)
    if kind:
        release = write_head_model(place / "release", CLASSES, labels, WORDS)
        stated = {"kind": kind, "regression": False, "multilabel": False, "rows": {}, "evaluate": {}}
        (release / "provenance.json").write_text(json.dumps({"parameters": {"downstream": {"own": stated}}}))
        (release / "model.safetensors").unlink()
        repository = hub.store.create("model", "user/released")
        repository.tags[f"release-{12 * '0'}"] = hub.store.add_files(repository, files_of(release)).oid
    where = {"folder": str(place / "release"), "repository": "user/released"}
    probe, check = (preflight.probe_files, check_files) if target == "local" else (preflight.probe_hub, check_hub)

    def check_release(**gate):
        own = {"kind": "classification", "data": data_of(place), "publish": where, "gate": gate}
        settings = [f"downstream={json.dumps({'own': own})}", f"publish.target={target}"]
        given = make_settings(model_parameters(str(model), place, ROOT))
        [question] = probe(resolve_request(ROOT, RunOptions("finetune", [*given, *settings])))
        return [one for one in check(question.request) if one.name == "release"]

    if target == "local" and not kind:
        assert check_release() == [], "there is no folder"
        return
    [found] = check_release()
    assert found.level == ("ok" if said.startswith("own: ") else "problem"), found.text
    assert said in found.text
    assert len(reads) <= 1, "the files are read once for all checks"
    assert check_release(released="none") == check_release(released=str(place)) == []
