"""Examples of GLUE from every layout, what is refused by file and line, and the rows made of them."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from ipu_model.distributed.poprun import PopRunInstances
from ipu_model.ipu.planning import plan_ipu
from ipu_model.rows.format import Manifest
from tasks.downstream.examples import make_examples
from tasks.downstream.jobs.entry_jobs import build_finetune_job, build_predict_job
from tasks.downstream.packed_rows import write_rows
from tasks.downstream.texts.checks import LabelRows, TextsData
from tasks.downstream.texts.files import ValueForms, read_split
from tasks.downstream.texts.params import GlueDataParams, GlueRowsParams
from tasks.downstream.texts.rows import keep_longest_first
from tasks.downstream.texts.task_table import TASKS
from tasks.jobs.training import model_config
from tasks.params.entries import find_entry
from tasks.params.overlays import resolve
from tasks.params.schema import validate_params
from tasks.records.interpretation import Interpretation
from tasks.stage.errors import InputError
from tasks.validation.checks import format_failures
from tests.places import ROOT
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
    return [one[:3] for one in read_split(task, split, Interpretation(), ValueForms())]


TSV = "train.tsv"
GOOD = [("good", None, 1), ("bad", None, 0)]


@pytest.mark.parametrize(
    ("name", "file", "text", "expected"),
    [
        ("sst2", TSV, 'a "good" film\t1\nbad\t0', [('a "good" film', None, 1), ("bad", None, 0)]),
        ("sst2", TSV, "sentence\tlabel\ngood  one \t1\n", [("good one", None, 1)]),
        ("sst2", TSV, "label\tsentence\npositive\tgood\nnegative\tbad\n", GOOD),
        ("cola", TSV, "gj04\t1\t\tgood\ngj04\t0\t*\tbad\n", GOOD),
        ("mrpc", TSV, "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tA.\tB.\n", [("A.", "B.", 1)]),
        ("stsb", TSV, "index\tsentence1\tsentence2\tscore\n0\tA.\tB.\t3.25\n", [("A.", "B.", 3.25)]),
        ("mnli", TSV, "index\tsentence1\tsentence2\tlabel1\tgold_label\n0\tA.\tB.\tx\tneutral\n", [("A.", "B.", 1)]),
        ("qnli", TSV, "index\tquestion\tsentence\tlabel\n0\tQ?\tS.\tnot_entailment\n", [("Q?", "S.", 1)]),
        ("wnli", TSV, "A.\tB.\t1\n", [("A.", "B.", 1)]),
        ("sst2", "train.csv", "sentence;label\ngood;1.0\nbad;0\n", GOOD),
        ("sst2", "train.json", '[{"sentence": "good", "label": 1}, {"sentence": "bad", "label": 0.0}]', GOOD),
        ("sst2", "train.json", '{"sentence": "good", "label": 1}\n{"sentence": "bad", "label": 0}\n', GOOD),
    ],
)  # fmt: skip
def test_official_files_and_tables_of_people_are_read(tmp_path, name, file, text, expected):
    folder = TASKS[name].title if file == TSV else name
    assert read(put(tmp_path, folder, {file: text}), name) == expected


def test_the_hubs_parquet_layout_is_read_in_order_of_its_parts(tmp_path):
    (tmp_path / "sst2").mkdir()
    for part, words in enumerate((["one", "two"], ["three"])):
        table = pa.table({"sentence": words, "label": [part] * len(words), "idx": list(range(len(words)))})
        pq.write_table(table, tmp_path / "sst2" / f"validation-0000{part}-of-00002.parquet")
    assert read(tmp_path, "sst2", "dev") == [("one", None, 0), ("two", None, 0), ("three", None, 1)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("sst2", "good\t1\nbad\tnegative\n", r"train.tsv .*a label that is a name.*: line 2 \('negative'\)"),
        ("sst2", "good\t1\nbad\t2\n", r"train.tsv .* not one of 0 \(negative\), 1 \(positive\): line 2 \('2'\)"),
        ("sst2", "good\t1\nbad\t-1\n", r"-1 means no label.*: line 2 \('-1'\)"),
        ("sst2", "good\t1\nbad\t2\nfine\t1\nworse\tx\n", r"2 problems:.*: line 2 \('2'\), line 4 \('x'\)$"),
        ("sst2", "good\t1\nso\tbad\t0\n", "line 2 has 3 fields, but the header has 2.* sentence, label"),
        ("sst2", "a\tb\tc\n", "its columns are a, b, c. Set .* without a header and with the fields sentence, label"),
        ("stsb", "A.\tB.\t5.5\n", r"a label that is not a number from 0 to 5: line 1 \('5.5'\)"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_file_and_line(tmp_path, name, text, message):
    with pytest.raises(InputError, match=f"(?s){message}"):
        read(put(tmp_path, name, {"train.tsv": text}), name)


@pytest.mark.parametrize(
    ("train", "dev", "said"),
    [
        (" \t1\n \t0\n", "good\t1\nbad\t0\n", "SST-2: no train example has a text"),
        ("good\t1\nbad\t0\n", "good\t1\nfine\t1\n", "all dev examples have the label positive"),
    ],
)
def test_splits_without_a_text_or_with_one_label_are_refused(tmp_path, train, dev, said):
    folder = put(tmp_path, "sst2", {"train.tsv": train, "dev.tsv": dev})
    with pytest.raises(InputError, match=said):
        make_examples(task_with("glue-sst2", "reader", data=GlueDataParams(path=str(folder))), tmp_path / "out")


def test_missing_or_doubled_files_are_named(tmp_path):
    folder = put(tmp_path, "sst2", {})
    for name, split, said in (
        ("sst2", "dev", "dev.tsv or validation.tsv .*found none"),
        ("mrpc", "train", "mrpc/ or MRPC/; found neither"),
    ):
        with pytest.raises(InputError, match=said):
            read(folder, name, split)
    for name in ("train.csv", "train.tsv"):
        (folder / "sst2" / name).write_text("sentence,label\na,1\n")
    with pytest.raises(InputError, match="found train.csv, train.tsv"):
        read(folder, "sst2")


def test_empty_repeated_and_contradicting_examples_are_counted(tmp_path):
    text = "good\t1\ngood\t1\ngood\t0\n\t1\nbad\t0\n"
    folder = put(tmp_path, "sst2", {"train.tsv": text, "dev.tsv": "bad\t0\n \t1\nnew\t1\n"})
    assert make_glue_data("sst2", folder, tmp_path / "out") == {"train": 4, "dev": 3}
    entry = task_with("glue-sst2", data=GlueDataParams(min_examples=2))
    found = validate(TextsData(entry, tmp_path / "out"))
    assert found["valid"], format_failures(found, "page")
    numbers = {entry["name"].partition(", kept")[0]: entry["value"] for entry in found["statistics"]["numbers"]}
    expected = {
        "train duplicate texts": 2,
        "duplicate training texts with different labels": 1,
        "dev texts also in train": 1,
        "train examples with an empty text, dropped": 1,
        "dev examples with an empty text": 1,
    }
    assert {name: numbers[name] for name in expected} == expected
    entry = task_with("glue-sst2", data=GlueDataParams(min_examples=4))
    few = validate(TextsData(entry, tmp_path / "out"))
    assert failed_checks(few) == ["dev_examples"]


def test_long_pairs_lose_tokens_as_in_hugging_faces_tokenizers():
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    for room in (5, 6, 9):
        tokenizer.enable_truncation(room)
        for first in range(1, 14):
            for second in range(1, 14):
                ids = tokenizer.encode("a " * first, "b " * second).ids
                kept = keep_longest_first(np.array([first]), np.array([second]), room)
                assert (kept[0][0], kept[1][0]) == (ids.count(0), ids.count(1)), (room, first, second)


def test_the_recipe_of_the_model_card_is_what_its_preset_plans(tmp_path):
    """run_glue.py on the card of Graphcore/bert-base-uncased: batch 1 x 32 accumulated, 3 epochs, 2e-5, seed 1984."""
    values = resolve({}, "glue-sst2-ipu-base-pod4", [], ROOT / "presets")
    params = validate_params(values)
    task = find_entry(params, "glue-sst2")
    count = 67349
    manifest = Manifest("sequence_classification", 128, 1, 0, 30522, "0", 0, count, count, count, {}, num_labels=2)
    for split in task.splits:
        folder = tmp_path / "data/rows/glue-sst2" / split
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(manifest.to_json())
    (tmp_path / "inputs/ipu").mkdir(parents=True)
    job = build_finetune_job(task, params, tmp_path)
    model = model_config(params.model, manifest)
    plan = plan_ipu(job, model, 1.0, True, PopRunInstances(), lambda text: None)
    assert (plan.micro_batch_size, plan.accumulation, plan.replicas, plan.division.rows_per_update) == (1, 32, 1, 32)
    assert plan.placement.layers == (1,) * 4 + (2,) * 4 + (3,) * 4
    assert plan.placement.ipus_per_replica == 4
    assert job.labels == ["negative", "positive"]
    assert job.init_checkpoint == str(tmp_path / "models/base")
    assert (job.seed, job.optimizer.learning_rate) == (1984, 2e-5)
    assert (job.schedule.warmup_fraction, job.schedule.epochs) == (0.25, 3)
    rows = task.rows_folder("dev", tmp_path)
    prediction = build_predict_job(task, params, rows, tmp_path / "logits", tmp_path, tmp_path)
    predict = plan_ipu(prediction, model, 1.0, True, PopRunInstances(), lambda text: None)
    assert (predict.micro_batch_size, predict.pipelined_inference) == (4, True)


def test_rows_of_another_tokenizer_have_its_pad_id(tmp_path):
    write_examples(tmp_path / "data", "rte", train=20, dev=20)
    make_glue_data("rte", tmp_path / "data", tmp_path / "examples")
    tokenizer, folder = save_fast_tokenizer("roberta", tmp_path / "tokenizer"), tmp_path / "rows/train"
    shape = GlueRowsParams(row_length=128, max_sequences_per_row=4, held_out_fraction=0.0)
    encoder = task_with("glue-rte", "encoder", rows=shape)
    made = write_rows(encoder, "train", tmp_path / "examples/train.parquet", tokenizer, folder)
    rows = read_rows(folder)
    padding = rows["sequence_ids"] == 0
    assert made.manifest.pad_id == 1
    assert set(rows["input_ids"][padding].tolist()) == {1}
    assert not rows["token_type_ids"].any()
    source = source_of(folder, tokenizer, "rows", 512)
    assert failed_checks(validate(LabelRows(source))) == []
    (folder / "manifest.json").write_text(replace(made.manifest, pad_id=0).to_json())
    assert failed_checks(validate(LabelRows(source))) == ["input_ids"]
