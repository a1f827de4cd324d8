"""The labels in rows are those of the examples they were made from; planted defects are caught by one check."""

import json
from pathlib import Path

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
from tests.tasks.downstream.generated import write_csv, write_sentences
from tests.tasks.pretraining.row_inputs import WORDS, read_rows, word_tokenizer
from tests.tasks.validation.validation_data import failed_checks, validate

SHAPES = {
    "squad": {"row_length": 48, "doc_stride": 8, "max_question_length": 10},
    "ner": {"row_length": 32, "max_sequences_per_row": 4, "overlap": 8},
    "classification": {"row_length": 32, "max_sequences_per_row": 4},
}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write_questions(path, cut=lambda number: 0):
    """Questions whose answer is two words of the context, each followed by a full stop; of every answer `cut`
    characters are missing at its end."""
    articles = []
    for number in range(40):
        words = [WORDS[(7 * number + step) % len(WORDS)] for step in range(60)]
        text = ". ".join(words[number : number + 2])
        answer = {"text": text[: len(text) - cut(number)], "answer_start": len(". ".join([*words[:number], ""]))}
        question = {"id": f"{path.stem}-{number}", "question": f"Go {words[number]}?", "answers": [answer]}
        articles.append({"title": str(number), "paragraphs": [{"context": ". ".join(words), "qas": [question]}]})
    path.write_text(json.dumps({"version": "1.1", "data": articles}), encoding="utf-8")


SUFFIXES = {"squad": ".json", "ner": ".conll", "classification": ".csv"}
LABELS = {
    "classes": lambda n: "abc"[n % 3],
    "uneven": lambda n: n % 10 // 7 + n % 2,
    "values": lambda n: f"{n % 7 / 3:g}",
    "several labels": lambda n: json.dumps(list("abc"[: n % 4])),
}
FORMS = {"values": {"regression": True}, "several labels": {"multilabel": True}}


def judged(kind, form="", damage=(), damaged="train", cut=lambda number: 0, **sections):
    """The entry, and the verdicts on its rows by their names."""
    data = {}
    for seed, split in enumerate(("train", "dev")):
        path = Path(f"{split}{SUFFIXES[kind]}").absolute()
        data[f"{split}_path"] = str(path)
        if kind == "squad":
            write_questions(path, cut if split == "train" else lambda number: 0)
        elif kind == "ner":
            write_sentences(path, 40, seed)
        else:
            texts = [f"{WORDS[n % len(WORDS)]} {WORDS[(n * 3 + 1) % len(WORDS)]}" for n in range(40)]
            write_csv(path, ["text", "label"], [(text, LABELS[form](n)) for n, text in enumerate(texts)])
    shape = {**SHAPES[kind], "held_out_fraction": 0.2}
    entry = {"kind": kind, "rows": shape, "data": data, **FORMS.get(form, {}), **sections}
    params = validate_params(values_with({"squad": None, "mine": entry}))
    word_tokenizer(artifacts.TOKENIZER)
    task = find_entry(params, "mine")
    make_examples(part_of(task, "reader"), artifacts.EXAMPLES / "mine")
    encoder = kind_of(task).encoder(task)
    for split in task.splits:
        packed_rows.write_rows(encoder, split)
    damage_rows(task.rows_folder(damaged), dict(damage))
    data_sets = rows.row_data_sets(encoder, params, artifacts.rows_folder("mine"))
    return task, {data_set.name: validate(data_set) for data_set in data_sets}


def damage_rows(folder, damage):
    [path] = folder.glob("rows-*.arrow")
    table = pa.ipc.open_file(path).read_all()
    for name, change in damage.items():
        place, column = table.column_names.index(name), table.column(name).combine_chunks()
        values = change(np.array(column.flatten()).reshape(len(column), -1)).reshape(-1)
        changed = pa.FixedSizeListArray.from_arrays(pa.array(values, column.type.value_type), type=column.type)
        table = table.set_column(place, table.schema.field(place), changed)
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


def put(value, where):
    """This value at the first place."""

    def change(values):
        changed = values.copy()
        changed.flat[np.flatnonzero(where(values))[0]] = value
        return changed

    return change


WRONG_CLASS, NO_CLASS = put(99, lambda labels: labels >= 0), put(-1, lambda labels: labels >= 0)
LOST, INVENTED = put(-100, lambda labels: labels >= 0), put(1, lambda labels: labels < 0)


def shift(values):
    return np.where(values > 0, values + 2, values)


def permute(values):
    return np.where(values >= 0, (values + 1) % 3, values)


def name_another(values):
    return np.where(values == 2, 3, values)


def change_first(values):
    return np.where(np.arange(values.size).reshape(values.shape) == 0, 1 - values, values)


@pytest.mark.parametrize(
    ("kind", "form", "damage", "failed"),
    [
        ("squad", "", {}, None),
        ("ner", "", {}, None),
        *(("classification", form, {}, None) for form in ("classes", "several labels", "values")),
        ("squad", "", {"start_positions": shift, "end_positions": shift}, "targets"),
        ("ner", "", {"token_labels": lambda values: np.roll(values, 1, axis=1)}, "labels_as_in_examples"),
        ("ner", "", {"token_labels": permute}, "labels_as_in_examples"),
        *(("ner", "", {"token_labels": change}, "token_labels") for change in (WRONG_CLASS, NO_CLASS)),
        ("ner", "", {"token_labels": LOST}, "labels"),
        ("ner", "", {"token_labels": INVENTED}, "labels_at_words"),
        ("ner", "", {"feature_ids": put(1, lambda numbers: numbers == 0)}, "features_once"),
        ("classification", "classes", {"class_labels": permute}, "labels_as_in_examples"),
        ("classification", "classes", {"class_labels": name_another}, "class_labels"),
        ("classification", "several labels", {"label_flags": change_first}, "labels_as_in_examples"),
        ("classification", "values", {"targets": change_first}, "labels_as_in_examples"),
    ],
)
def test_rows_decode_to_labels_and_those_of_another_token_or_number_fail(kind, form, damage, failed):
    _, verdicts = judged(kind, form, damage)
    assert failed_checks(verdicts["dev"]) == []
    if failed is not None:
        assert failed in failed_checks(verdicts["train"])
        return
    assert failed_checks(verdicts["train"]) == failed_checks(verdicts[HELD_OUT]) == []
    checks = {name: verdict["checks"] for name, verdict in verdicts.items()}
    required = {name: {check["name"]: check["required"] for check in checks[name]} for name in checks}
    assert ("targets" if kind == "squad" else "labels_as_in_examples") in required["train"]
    if kind == "squad":
        assert "targets" not in required["dev"]
        assert required["train"]["answers"] == required[HELD_OUT]["answers"] != required["dev"]["answers"]


def test_rows_to_predict_may_lack_labels_of_types_that_train_has_not():
    _, verdicts = judged("ner", damage={"token_labels": LOST}, damaged="dev")
    assert failed_checks(verdicts["dev"]) == ["labels_as_in_examples"]


def test_balanced_weights_are_those_of_scikit_learn():
    task, _ = judged("classification", "uneven", finetune={"class_weights": "balanced"})
    learned = read_rows(task.rows_folder("train"))["class_labels"]
    expected = compute_class_weight("balanced", classes=np.arange(3), y=learned[learned >= 0])
    np.testing.assert_allclose(weigh_classes(task, task.rows_folder("train")), expected)


def test_classes_of_rows_in_another_order_fail(monkeypatch):
    original = packed_rows.write_rows

    def write_other_names(encoder, split):
        summary = original(encoder, split)
        path = encoder.entry.rows_folder(split) / artifacts.FEATURES
        if split == "dev":
            table = pq.read_table(path)
            table = table.replace_schema_metadata({**table.schema.metadata, b"labels": json.dumps(["c", "a", "b"])})
            pq.write_table(table, path)
        return summary

    monkeypatch.setattr(packed_rows, "write_rows", write_other_names)
    assert "schema" in failed_checks(judged("classification", "classes")[1]["dev"])


def test_too_many_targets_wider_than_their_answers_fail():
    _, verdicts = judged("squad", cut=lambda number: number < 3)
    assert failed_checks(verdicts["train"]) == []
    notes = verdicts["train"]["notes"] + verdicts[HELD_OUT]["notes"]
    assert sum(int(note.split(" rows: ")[1].split(" of ")[0]) for note in notes) == 3
    assert failed_checks(judged("squad", cut=lambda number: 1)[1]["train"]) == ["targets"]
