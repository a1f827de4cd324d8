"""Examples of GLUE from every layout, what is refused by file and line, and the rows made of them."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tasks.downstream.examples import make_examples
from tasks.downstream.packed_rows import write_rows
from tasks.downstream.texts.checks import LabelRows, TextsData
from tasks.downstream.texts.files import ValueForms, read_split
from tasks.downstream.texts.params import GlueDataParams, GlueRowsParams
from tasks.downstream.texts.rows import keep_longest_first
from tasks.downstream.texts.task_table import TASKS
from tasks.records.interpretation import Interpretation
from tasks.stage.errors import InputError
from tasks.validation.checks import format_failures
from tests.tasks.downstream.entries import task_with
from tests.tasks.downstream.texts.glue_checkout import make_glue_data, write_examples
from tests.tasks.pretraining.row_inputs import read_rows
from tests.tasks.validation.validation_data import failed_checks, source_of, validate
from tests.tasks.vocabulary.fast_tokenizers import save_fast_tokenizer


def put(folder, name, files):
    (folder / name).mkdir(parents=True)
    for file, text in files.items():
        (folder / name / file).write_text(text, encoding="utf-8")
    return folder


def read(folder, name, split="train"):
    task = task_with(f"glue-{name}", data=GlueDataParams(path=str(folder)))
    return [example[:3] for example in read_split(task, split, Interpretation(), ValueForms())]


TSV = "train.tsv"
GOOD = [("good", None, 1), ("bad", None, 0)]


@pytest.mark.parametrize(
    ("name", "file", "text", "expected"),
    [
        ("sst2", TSV, 'a "good" film\t1\nbad\t0', [('a "good" film', None, 1), ("bad", None, 0)]),
        ("sst2", TSV, "label\tsentence\npositive\tgood\nnegative\tbad\n", GOOD),
        ("cola", TSV, "gj04\t1\t\tgood\ngj04\t0\t*\tbad\n", GOOD),
        ("mrpc", TSV, "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tA.\tB.\n", [("A.", "B.", 1)]),
        ("stsb", TSV, "index\tsentence1\tsentence2\tscore\n0\tA.\tB.\t3.25\n", [("A.", "B.", 3.25)]),
        ("mnli", TSV, "index\tsentence1\tsentence2\tlabel1\tgold_label\n0\tA.\tB.\tx\tneutral\n", [("A.", "B.", 1)]),
        ("qnli", TSV, "index\tquestion\tsentence\tlabel\n0\tQ?\tS.\tnot_entailment\n", [("Q?", "S.", 1)]),
        ("wnli", TSV, "A.\tB.\t1\n", [("A.", "B.", 1)]),
        ("sst2", "train.csv", "sentence;label\ngood;1.0\nbad;0\n", GOOD),
        ("sst2", "train.json", '{"sentence": "good", "label": 1}\n{"sentence": "bad", "label": 0}\n', GOOD),
    ],
)
def test_official_files_and_tables_of_people_are_read(tmp_path, name, file, text, expected):
    folder = TASKS[name].title if file == TSV else name
    assert read(put(tmp_path, folder, {file: text}), name) == expected


def test_the_hubs_parquet_layout_is_read_in_order_of_its_parts(tmp_path):
    (tmp_path / "sst2").mkdir()
    for part, words in enumerate((["one", "two"], ["three"])):
        table = pa.table({"sentence": words, "label": [part] * len(words), "idx": list(range(len(words)))})
        pq.write_table(table, tmp_path / "sst2" / f"validation-0000{part}-of-00002.parquet")
    assert read(tmp_path, "sst2", "dev") == [("one", None, 0), ("two", None, 0), ("three", None, 1)]


BOTH = "sentence,label\na,1\n"


@pytest.mark.parametrize(
    ("name", "files", "message"),
    [
        ("sst2", {TSV: "good\t1\nbad\tnegative\n"}, r"train.tsv .*a label that is a name.*: line 2 \('negative'\)"),
        ("sst2", {TSV: "good\t1\nbad\t-1\n"}, r"-1 means no label.*: line 2 \('-1'\)"),
        ("sst2", {TSV: "good\t1\nbad\t2\nfine\t1\nworse\tx\n"},
         r"train.tsv .*2 problems:.* not one of 0 \(negative\), 1 \(positive\): line 2 \('2'\), line 4 \('x'\)$"),
        ("sst2", {TSV: "good\t1\nso\tbad\t0\n"}, "line 2 has 3 fields, but the header has 2.* sentence, label"),
        ("sst2", {TSV: "a\tb\tc\n"}, "its columns are a, b, c. Set .* without a header and with the fields sentence"),
        ("stsb", {TSV: "A.\tB.\t5.5\n"}, r"a label that is not a number from 0 to 5: line 1 \('5.5'\)"),
        ("sst2", {TSV: " \t1\n \t0\n", "dev.tsv": "good\t1\nbad\t0\n"}, "SST-2: no train example has a text"),
        ("sst2", {TSV: "good\t1\nbad\t0\n", "dev.tsv": "good\t1\nfine\t1\n"}, "dev examples have the label positive"),
        ("sst2", {TSV: "good\t1\nbad\t0\n"}, "dev.tsv or validation.tsv .*found none"),
        ("sst2", {"train.csv": BOTH, TSV: BOTH}, "found train.csv, train.tsv"),
        ("mrpc", {}, "mrpc/ or MRPC/; found neither"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_by_file_and_line(tmp_path, name, files, message):
    folder = put(tmp_path, name, files) if files else tmp_path
    with pytest.raises(InputError, match=f"(?s){message}"):
        make_examples(task_with(f"glue-{name}", "reader", data=GlueDataParams(path=str(folder))), tmp_path / "out")


def test_empty_repeated_and_contradicting_examples_are_counted(tmp_path):
    text = "good\t1\ngood\t1\ngood\t0\n\t1\nbad\t0\n"
    folder = put(tmp_path, "sst2", {"train.tsv": text, "dev.tsv": "bad\t0\n \t1\nnew\t1\n"})
    assert make_glue_data("sst2", folder, tmp_path / "out") == {"train": 4, "dev": 3}
    verdict, few = (
        validate(TextsData(task_with("glue-sst2", data=GlueDataParams(min_examples=least)), tmp_path / "out"))
        for least in (2, 4)
    )
    assert verdict["valid"], format_failures(verdict, "page")
    numbers = {figure["name"].partition(", kept")[0]: figure["value"] for figure in verdict["statistics"]["numbers"]}
    expected = {
        "train duplicate texts": 2,
        "duplicate training texts with different labels": 1,
        "dev texts also in train": 1,
        "train examples with an empty text, dropped": 1,
        "dev examples with an empty text": 1,
    }
    assert {name: numbers[name] for name in expected} == expected
    assert failed_checks(few) == ["dev_examples"]


def test_long_pairs_lose_tokens_as_in_hugging_faces_tokenizers():
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    for room in (5, 6, 9):
        tokenizer.enable_truncation(room)
        for first, second in np.ndindex(13, 13):
            ids = tokenizer.encode("a " * (1 + first), "b " * (1 + second)).ids
            kept = keep_longest_first(np.array([1 + first]), np.array([1 + second]), room)
            assert (kept[0][0], kept[1][0]) == (ids.count(0), ids.count(1)), (room, first, second)


def test_rows_of_another_tokenizer_have_its_pad_id(tmp_path):
    write_examples(tmp_path / "data", "rte", train=20, dev=20)
    make_glue_data("rte", tmp_path / "data", tmp_path / "examples")
    tokenizer, folder = save_fast_tokenizer("roberta", tmp_path / "tokenizer"), tmp_path / "rows/train"
    shape = GlueRowsParams(row_length=128, max_sequences_per_row=4, held_out_fraction=0.0)
    encoder = task_with("glue-rte", "encoder", rows=shape)
    made = write_rows(encoder, "train", tmp_path / "examples/train.parquet", tokenizer, folder)
    rows = read_rows(folder)
    assert made.manifest.pad_id == 1
    assert set(rows["input_ids"][rows["sequence_ids"] == 0].tolist()) == {1}
    assert not rows["token_type_ids"].any()
    source = source_of(folder, tokenizer, "rows", 512)
    assert failed_checks(validate(LabelRows(source))) == []
    (folder / "manifest.json").write_text(replace(made.manifest, pad_id=0).to_json())
    assert failed_checks(validate(LabelRows(source))) == ["input_ids"]
