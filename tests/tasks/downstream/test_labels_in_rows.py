"""The labels in rows are those of the examples they were made from; planted defects are caught by one check."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.utils.class_weight import compute_class_weight

from tasks.downstream import packed_rows, rows
from tasks.downstream.examples import make_examples
from tasks.downstream.jobs.labels import weigh_classes
from tasks.downstream.kind import kind_of
from tasks.params.entries import find_entry
from tasks.params.schema import validate_params
from tasks.stage import artifacts
from tasks.stage.row_folders import HELD_OUT
from tests.tasks.downstream.entries import part_of, values_with
from tests.tasks.downstream.ner.ner_checkout import write_sentences
from tests.tasks.downstream.texts.classification_checkout import write_csv
from tests.tasks.pretraining.row_inputs import WORDS, read_rows, word_tokenizer
from tests.tasks.validation.validation_data import failed_checks, validate

SHAPES = {
    "squad": {"row_length": 48, "doc_stride": 8, "max_question_length": 10, "held_out_fraction": 0.2},
    "ner": {"row_length": 32, "max_sequences_per_row": 4, "overlap": 8, "held_out_fraction": 0.2},
    "classification": {"row_length": 32, "max_sequences_per_row": 4, "held_out_fraction": 0.2},
}


def write_questions(path, count, cut=0):
    """Questions whose answer is two words of the context, each followed by a full stop; of every answer `cut`
    characters are missing at its end."""
    paragraphs = []
    for number in range(count):
        words = [WORDS[(7 * number + step) % len(WORDS)] for step in range(60)]
        context, first = ". ".join(words), number % 50
        text = ". ".join(words[first : first + 2])
        start = len(". ".join([*words[:first], ""]))
        answer = {"text": text[: len(text) - cut], "answer_start": start}
        question = {"id": f"{path.stem}-{number}", "question": f"Go {words[first]}?", "answers": [answer]}
        paragraphs.append({"title": str(number), "paragraphs": [{"context": context, "qas": [question]}]})
    path.write_text(json.dumps({"version": "1.1", "data": paragraphs}), encoding="utf-8")
    return path


def write_texts(path, count, form):
    forms = {"values": lambda n: f"{n % 7 / 3:g}", "several labels": lambda n: json.dumps(list("abc"[: n % 4]))}
    labels = [forms.get(form, lambda n: "abc"[n % 3])(number) for number in range(count)]
    words = [f"{WORDS[number % len(WORDS)]} {WORDS[(number * 3 + 1) % len(WORDS)]}" for number in range(count)]
    write_csv(path, ["text", "label"], list(zip(words, labels, strict=True)))
    return path


def make_inputs(folder, kind, form):
    suffix = {"squad": "json", "ner": "csv" if form == "a word a row" else "conll", "classification": "csv"}[kind]
    found = {f"{split}_path": folder / f"{split}.{suffix}" for split in ("train", "dev")}
    for seed, path in enumerate(found.values()):
        if kind == "squad":
            write_questions(path, 40)
        elif kind == "ner":
            write_sentences(path, 40, seed)
            if form == "a word a row":
                sentences = enumerate(path.read_text(encoding="utf-8").strip().split("\n\n"))
                words = [(n, *line.split("\t")) for n, sentence in sentences for line in sentence.split("\n")]
                write_csv(path, ["sentence_id", "word", "tag"], words)
        else:
            write_texts(path, 40, form)
    return found


def judged(data, kind, form="classes", damage=None):
    """The verdicts on the rows of an entry in this folder, by their names."""
    entry = {"kind": kind, "rows": SHAPES[kind], "data": {k: str(path) for k, path in data.items()}}
    entry["data"] |= {"source": "files"} if kind == "squad" else {}
    entry |= {"values": {"regression": True}, "several labels": {"multilabel": True}}.get(form, {})
    params = validate_params(values_with({"squad": None, "mine": entry}))
    word_tokenizer(artifacts.TOKENIZER)
    found = find_entry(params, "mine")
    make_examples(part_of(found, "reader"), artifacts.EXAMPLES / "mine")
    encoder = kind_of(found).encoder(found)
    for split in found.splits:
        packed_rows.write_rows(encoder, split)
    if damage is not None:
        damage_rows(found.rows_folder("train"), damage)
    return {one.name: validate(one) for one in rows.row_data_sets(encoder, params, artifacts.rows_folder("mine"))}


def damage_rows(folder, damage):
    [path] = folder.glob("rows-*.arrow")
    table = pa.ipc.open_file(path).read_all()
    for place, name in enumerate(table.column_names):
        column = table.column(name).combine_chunks()
        values = np.array(column.flatten()).reshape(len(column), -1)
        changed = pa.array(damage(name, values).reshape(-1), column.type.value_type)
        field = table.schema.field(place)
        table = table.set_column(place, field, pa.FixedSizeListArray.from_arrays(changed, type=field.type))
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


def shift_spans(name, values):
    return np.where(values > 0, values + 2, values) if name in ("start_positions", "end_positions") else values


def shift_tags(name, values):
    return np.roll(values, 1, axis=1) if name == "token_labels" else values


def permute_labels(name, values):
    return np.where(values >= 0, (values + 1) % 3, values) if name in ("class_labels", "token_labels") else values


def name_another_class(name, values):
    return np.where(values == 2, 3, values) if name == "class_labels" else values


def change_one(name, values):
    if name in ("label_flags", "targets"):
        values[0, 0] = 1 - values[0, 0] if name == "label_flags" else values[0, 0] + 0.5
    return values


@pytest.mark.parametrize(
    ("kind", "form", "damage", "failed"),
    [
        ("squad", "", None, None),
        ("ner", "", None, None),
        ("ner", "a word a row", None, None),
        *(("classification", form, None, None) for form in ("classes", "several labels", "values")),
        ("squad", "", shift_spans, "targets"),
        ("ner", "", shift_tags, "labels_as_in_examples"),
        ("ner", "", permute_labels, "labels_as_in_examples"),
        ("classification", "classes", permute_labels, "labels_as_in_examples"),
        ("classification", "classes", name_another_class, "class_labels"),
        ("classification", "several labels", change_one, "labels_as_in_examples"),
        ("classification", "values", change_one, "labels_as_in_examples"),
    ],
)
def test_rows_decode_to_labels_and_those_of_another_token_or_number_fail(
    tmp_path, monkeypatch, kind, form, damage, failed
):
    monkeypatch.chdir(tmp_path)
    verdicts = judged(make_inputs(tmp_path, kind, form), kind, form, damage)
    assert failed_checks(verdicts["dev"]) == []
    if failed is not None:
        assert failed in failed_checks(verdicts["train"])
        return
    assert failed_checks(verdicts["train"]) == failed_checks(verdicts[HELD_OUT]) == []
    required = {name: {check["name"]: check["required"] for check in one["checks"]} for name, one in verdicts.items()}
    assert ("targets" if kind == "squad" else "labels_as_in_examples") in required["train"]
    if kind == "squad":
        assert "targets" not in required["dev"]
        assert required["train"]["answers"] == required[HELD_OUT]["answers"] != required["dev"]["answers"]


def test_balanced_weights_are_those_of_scikit_learn(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = {"train_path": tmp_path / "a.csv", "dev_path": tmp_path / "b.csv"}
    labels = [number % 10 // 7 + number % 2 for number in range(40)]
    for path in data.values():
        write_csv(path, ["text", "label"], [(f"{WORDS[7 + n]} {WORDS[n]}", label) for n, label in enumerate(labels)])
    judged(data, "classification")
    entry = {"kind": "classification", "rows": SHAPES["classification"], "finetune": {"class_weights": "balanced"}}
    task = find_entry(validate_params(values_with({"squad": None, "mine": entry})), "mine")
    learned = read_rows(task.rows_folder("train"))["class_labels"]
    expected = compute_class_weight("balanced", classes=np.arange(3), y=learned[learned >= 0])
    np.testing.assert_allclose(weigh_classes(task, task.rows_folder("train")), expected)


def test_classes_of_rows_in_another_order_fail(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    original = packed_rows.write_rows

    def write_other_names(*arguments):
        summary = original(*arguments)
        path = arguments[0].entry.rows_folder("dev") / artifacts.FEATURES
        if path.is_file():
            table = pq.read_table(path)
            table = table.replace_schema_metadata({**table.schema.metadata, b"labels": json.dumps(["c", "a", "b"])})
            pq.write_table(table, path)
        return summary

    monkeypatch.setattr(packed_rows, "write_rows", write_other_names)
    verdicts = judged(make_inputs(tmp_path, "classification", "classes"), "classification")
    assert "schema" in failed_checks(verdicts["dev"])


def test_too_many_targets_wider_than_their_answers_fail(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = {f"{split}_path": write_questions(tmp_path / f"{split}.json", 40) for split in ("train", "dev")}
    values = json.loads(data["train_path"].read_text(encoding="utf-8"))
    for article in values["data"][:3]:
        answer = article["paragraphs"][0]["qas"][0]["answers"][0]
        answer["text"] = answer["text"][:-1]
    data["train_path"].write_text(json.dumps(values), encoding="utf-8")
    verdicts = judged(data, "squad")
    assert failed_checks(verdicts["train"]) == []
    notes = verdicts["train"]["notes"] + verdicts[HELD_OUT]["notes"]
    assert sum(int(note.split(" rows: ")[1].split(" of ")[0]) for note in notes) == 3
    write_questions(data["train_path"], 40, cut=1)
    verdicts = judged(data, "squad")
    assert failed_checks(verdicts["train"]) == ["targets"]
