"""Pairs from tables: which column is which, and what is refused; metrics by hand, baselines, and rows."""

import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.stats

from tasks.downstream.examples import make_examples
from tasks.downstream.packed_rows import write_rows
from tasks.downstream.pairs.examples import Pair
from tasks.downstream.pairs.schemas import SCHEMA
from tasks.downstream.pairs.scores import search_words
from tasks.models.sentence_modules import read_modules
from tasks.params.entries import find_entry
from tasks.params.schema import validate_params
from tasks.records.interpretation import describe_inputs, read_reading
from tasks.records.parquet import write_records
from tasks.rows.row_files import from_arrow
from tasks.stage.errors import InputError
from tasks.stage.row_folders import read_manifest
from tasks.vocabulary.fast_tokenizer import make_wordpiece
from tests.tasks.downstream.entries import part_of, task_with, values_with
from tests.tasks.tiny_model import SPECIAL

QUESTIONS = "question,passage\nwho left?,Ada left.\nwhere to?,To Rome.\n"


def read(folder, text, name="train.csv", **stated):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    data = {"train_path": str(path), "dev_path": str(path), **stated.pop("data", {})}
    values = values_with({"search": {"kind": "pairs", "data": data, **stated}})
    reader = part_of(find_entry(validate_params(values), "search"), "reader")
    assert reader.check_files().dev_count == (make_examples(reader, folder / "made") and 2)
    names = ("anchor", "positive", "negative", "score")
    return [tuple(one[name] for name in names) for one in pq.read_table(folder / "made/train.parquet").to_pylist()]


@pytest.mark.parametrize(
    ("text", "columns", "first"),
    [
        (QUESTIONS, {}, ("who left?", "Ada left.", None)),
        ("anchor;positive;negative\na;b;c\nd;e;f\n", {}, ("a", "b", "c")),
        ("query,Passage,Negative,topic,doc_id\na,b,c,x7,1\nd,e,f,x8,1\n", {}, ("a", "b", "c")),
        ("q,p,n\na,b,c\nd,e,f\n", {"anchor": "q", "positive": "p", "negative": "n"}, ("a", "b", "c")),
        ('question,passage\n"a\n  b",c\nd,e\n', {}, ("a b", "c", None)),
        ("question,answer,context\na,b,c\nd,e,f\n", {"positive": "context"}, ("a", "c", None)),
    ],
)
def test_columns_are_found_or_named(tmp_path, text, columns, first):
    assert read(tmp_path, text, data={"columns": columns})[0] == (*first, None)
    found = read_reading(tmp_path / "made")["inputs"]["train"]["columns"]
    reasons = {part: text.rpartition("(")[2] for part, text in found.items()}
    assert reasons == {part: "named by you)" if part in columns else "by name)" for part in found}


USE, IGNORE = {"scores": "use"}, {"scores": "ignore"}


def columns(**names):
    return {"data": {"columns": names}}


PAIRED = "sentence1,sentence2,{}\na,b,0\nc,d,1\n"
AMBIGUOUS = [
    ("question,answer,context\na,b,c\nd,e,f\n", "may be 'answer' or 'context'. .*--column positive=NAME",
     columns(positive="answer")),
    (PAIRED.format("score"), r"the column 'score'.* Set downstream.search.scores .*--scores", USE),
    (PAIRED.format("score"), "Set downstream.search.scores", IGNORE),
    ("question,passage,Label\na,b,0\nc,d,1\n", "has the column 'Label', which may say", IGNORE),
    ("question,passage,is_match\na,b,0\nc,d,1\n", "has the column 'is_match', which may",
     {**USE, **columns(score="is_match")}),
    ("question,passage,gold\na,b,0.25\nc,d,0.5\n", "has the column 'gold', which may", IGNORE),
    ("question,passage,negative_1\na,b,c\nd,e,f\n", "'negative_1', which may hold texts that do not belong",
     columns(negative="negative_1")),
    ("question,passage, Answer\na,b,c\nd,e,f\n", "the positive may be 'passage' or ' Answer'",
     columns(positive="passage")),
    ("question,passage\na,nan\nc,d\n", r"1 of 2 are examples .*missing one.*line 2.*--missing-texts drop",
     {"data": {"missing_texts": "keep"}}),
    ("q,passage\na,b\nc,d\n", "no column 'anchor'; .* Set downstream.search.data.columns.anchor", columns(anchor="q")),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message", "option"), AMBIGUOUS)
def test_of_two_readings_the_option_decides(tmp_path, text, message, option):
    with pytest.raises(InputError, match=message):
        read(tmp_path, text)
    assert len(read(tmp_path, text, **option)) == 2


PAIR = {"anchor": "a", "positive": "b"}
OTHER = {"anchor": "c", "positive": "d"}
UNUSABLE = [
    ("question,passage\na,b\n,d\ne, \n", {}, "an empty text in the column 'question': line 3.*'passage': line 4"),
    ("sentence1,sentence2,score\na,b,high\nc,d,1\n", USE, r"column 'score': line 2 \('high'\)"),
    ("question,passage\n", {}, "contains no pair"),
    ('question,passage\na,"[""b"", ""c""]"\nd,e\n', {}, "a list in the column 'passage': line 2"),
    ("question,passage\na,b\nc,b\n", {}, "the positive of every pair is 'b', so .* Set .*columns.positive"),
    ("anchor,positive,score\na,b,1\nc,d,1.0\n", USE, "the score of every pair is 1.0"),
    ("question,passage,Split\na,b,train\nc,d,Test\n", {}, "column 'Split' says .*'train' in line 2.*'Test' in"),
    ("question,passage\na,1001\nb,1002\n", {}, "each positive is a number, .* Set .*positive"),
    ([{**PAIR, "negative": "c"}, OTHER], {}, "other columns of"),
    ([PAIR, {**OTHER, "label": 0}], {}, "column 'label', which may"),
    ([PAIR, {**OTHER, "same": True}], {}, "column 'same', which"),
    ([{**PAIR, "positive": ["b", "c"]}, {**OTHER, "positive": ["e"]}], {}, "a value that is not text"),
    ([{**PAIR, "positive": 5}, OTHER], {}, "a value that is not text"),
]


@pytest.mark.parametrize(("content", "stated", "message"), UNUSABLE)
def test_unusable_pairs_are_refused(tmp_path, content, stated, message):
    lines = isinstance(content, list)
    text = "".join(json.dumps(one) + "\n" for one in content) if lines else content
    with pytest.raises(InputError, match=f"(?s){message}"):
        read(tmp_path, text, "train.jsonl" if lines else "train.csv", **stated)


def test_scores_are_numbers_and_equal_pairs_are_counted(tmp_path):
    found = read(tmp_path, "sentence1\tsentence2\tscore\na\tb\t0.25\nc\tc\t5\n", "train.tsv", scores="use")
    assert found == [("a", "b", None, 0.25), ("c", "c", None, 5.0)]
    assert read_reading(tmp_path / "made")["inputs"]["train"]["counts"]["pairs of equal texts"] == 1
    read(tmp_path, "anchor,positive,negative\na,b,b\nc,d,e\n")
    assert read_reading(tmp_path / "made")["inputs"]["train"]["counts"]["pairs whose negative is the positive"] == 1


@pytest.mark.parametrize(("sign", "remarks"), [("", 0), ("-", 1)])
def test_scores_that_fall_with_common_words_are_remarked(tmp_path, sign, remarks):
    rows = [f"{' '.join('abcde'[: n % 5 + 1])} x{n},a b c d e,{sign}{n % 5}\n" for n in range(100)]
    path = tmp_path / "a.csv"
    path.write_text("anchor,positive,score\n" + "".join(rows))
    data = {"train_path": str(path), "dev_path": None}
    values = values_with({"search": {"kind": "pairs", "data": data, "scores": "use"}})
    inputs = part_of(find_entry(validate_params(values), "search"), "reader").check_files().inputs
    assert sum("fewer words in common (correlation -" in one for one in describe_inputs(inputs)) == remarks


MODULES = [
    {"type": "sentence_transformers.models.Transformer", "path": ""},
    {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
    {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"},
]


@pytest.mark.parametrize(
    ("pooling", "modules", "expected"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, MODULES, "mean"),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}, MODULES[:2], "first"),
        ({"pooling_mode": "cls"}, MODULES, "first"),
        ({"pooling_mode": ["mean", "max"]}, MODULES, "has .*; only mean or first"),
        ({"pooling_mode": "mean"}, [*MODULES, {"type": "x.Dense", "path": "3_Dense"}], "has Dense, mean"),
        ("{", MODULES, "is damaged"),
    ],
)
def test_the_pooling_of_a_folder_is_kept(tmp_path, pooling, modules, expected):
    assert read_modules(tmp_path) == {}
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling/config.json").write_text(pooling if isinstance(pooling, str) else json.dumps(pooling))
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 128}')
    if expected in ("mean", "first"):
        assert read_modules(tmp_path) == {"pooling": expected, "rows.row_length": 128}
        return
    with pytest.raises(InputError, match=expected):
        read_modules(tmp_path)


DEV = [
    ("who left", "Ada left"),
    ("where to", "to Rome"),
    ("who left", "Ben left too"),
    ("when", "Ada left"),
    ("how", "by night train"),
]
"""The texts to find: Ada left, to Rome, Ben left too, by night train."""


@pytest.fixture
def task():
    return task_with("pairs", "scores")


def dev_set(tmp_path, task, pairs=None):
    pairs = pairs or [Pair(anchor, positive, None, None, str(n)) for n, (anchor, positive) in enumerate(DEV)]
    write_records(pairs, tmp_path / "dev.parquet", SCHEMA, 100)
    return task.read_examples(tmp_path / "dev.parquet")


def test_recall_mrr_and_ndcg_are_those_of_their_definitions(tmp_path, task):
    examples = dev_set(tmp_path, task)
    assert examples.anchors == [anchor for anchor, _ in DEV]
    assert examples.texts == ["Ada left", "to Rome", "Ben left too", "by night train"]
    assert examples.relevant == [[0, 2], [1], [0, 2], [0], [3]]
    assert [one.tolist() for one in examples.places] == [[0, 2, 4, 6, 8], [1, 3, 5, 9]]
    found = task.outcomes(examples, [[1, 2, 0, 3], [1, 0, 2, 3], [2, 1, 3], [3, 2, 1], None])
    second, third = 1 / math.log2(3), 1 / math.log2(4)
    np.testing.assert_allclose(
        found,
        [
            [0, 1, 1 / 2, (second + third) / (1 + second)],
            [1, 1, 1, 1],
            [1 / 2, 1 / 2, 1, 1 / (1 + second)],
            [0, 0, 0, 0],
            [0, 0, 0, 0],
        ],
    )
    scores = task.metrics.compute({"dev": found})
    assert (scores["recall_1"], scores["recall_10"], scores["mrr_10"]) == (30, 50, 50)
    assert all(task.is_possible(row) for row in found.tolist())
    assert not task.is_possible([0, 2, 0, 0])


def test_the_nearest_texts_are_those_with_the_largest_cosine(tmp_path, task):
    examples = dev_set(tmp_path, task)
    vectors = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    answers = task.answer(examples, vectors)
    anchors, texts = (vectors[numbers].astype(np.float64) for numbers in examples.places)
    for number, found in enumerate(answers.found):
        cosines = [float(anchors[number] @ text) for text in texts]
        assert found == sorted(range(4), key=lambda one: -cosines[one])
        assert answers.similarities[number].tolist() == pytest.approx(sorted(cosines, reverse=True), abs=1e-6)
    assert task.margin(answers, 0) == pytest.approx(answers.similarities[0, 0] - answers.similarities[0, 1], abs=1e-6)


def test_similarities_are_judged_by_the_order_of_the_scores(tmp_path):
    task, targets = task_with("pairs", "scores", scores="use"), [0.1, 0.9, 0.4, 0.4, 0.0]
    examples = dev_set(tmp_path, task, [Pair(f"a{n}", f"b{n}", None, x, str(n)) for n, x in enumerate(targets)])
    values = [0.2, 0.3, 0.5, 0.1, -0.4]
    scores = task.metrics.compute({"dev": task.outcomes(examples, values)})
    assert scores["spearman"] == pytest.approx(100 * scipy.stats.spearmanr(targets, values).statistic)
    assert scores["pearson"] == pytest.approx(100 * scipy.stats.pearsonr(targets, values).statistic, abs=1e-4)
    assert task.answer(examples, np.eye(10, 4, dtype=np.float32)).found == [0.0] * 5


@pytest.mark.parametrize("values", [[[0, 0], *[[1]] * 4], [[4], *[[1]] * 4], [0.5] * 5, [[0]] * 4])
def test_answers_that_are_none_are_refused(tmp_path, task, values):
    with pytest.raises(InputError, match="dev"):
        task.check_predictions(tmp_path / "predictions.json", "dev", dev_set(tmp_path, task), values)


def test_the_better_of_both_baselines_must_be_beaten(tmp_path, task):
    examples = {"dev": dev_set(tmp_path, task)}
    words = search_words(examples["dev"])
    assert [found[0] for found in words[:2]] == [0, 1], "the only text with the words who left, or to"
    names = [one.name for one in task.baselines(examples)]
    assert (names, task.baseline(examples).name) == (["BM25"], "BM25")
    folder = tmp_path / "evaluation/pairs"
    folder.mkdir(parents=True)
    for answers, better in (([[3]] * 5, "BM25"), ([[0], [1], [0], [0], [3]], "the model before training")):
        (folder / "before.json").write_text(json.dumps({"dev": answers}))
        known = task.know_labels(tmp_path)
        assert [one.name for one in known.baselines(examples)] == ["the model before training", "BM25"]
        assert known.baseline(examples).name == better


@pytest.mark.parametrize("negatives", [False, True])
def test_the_texts_of_an_example_share_a_row(tmp_path, negatives):
    encoder = task_with("pairs", "encoder")
    words = [f"word{number}" for number in range(40)]
    (tmp_path / "tokenizer").mkdir()
    make_wordpiece((*SPECIAL, *words), lowercase=True).write(512, tmp_path / "tokenizer")
    texts = [(" ".join(words[n : n + 3]), " ".join(words * (1 + 9 * (n == 2))), words[n]) for n in range(6)]
    pairs = [Pair(a, b, c if negatives else None, n / 8, str(n)) for n, (a, b, c) in enumerate(texts)]
    write_records(pairs, tmp_path / "train.parquet", SCHEMA, 100)
    made = write_rows(encoder, "train", tmp_path / "train.parquet", tmp_path / "tokenizer", tmp_path / "rows")
    manifest, unit = read_manifest(tmp_path / "rows"), 2 + negatives
    assert (manifest.rows, manifest.sequences, manifest.unit) == (6, 6 * unit, unit)
    assert (manifest.row_length, manifest.max_sequences) == (256 * unit, unit)
    assert made.counts["texts cut to fit"] == 1
    with pa.memory_map(str(tmp_path / "rows/rows-00000.arrow")) as source:
        batch = pa.ipc.open_file(source).get_batch(0)
    columns = {name: from_arrow(batch.column(name).values).reshape(6, -1) for name in batch.schema.names}
    assert columns["roles"].tolist() == [list(range(unit))] * 6
    assert columns["targets"][:, 0].tolist() == [n / 8 for n in range(6)]
    lengths = [[int((row == slot + 1).sum()) for slot in range(unit)] for row in columns["sequence_ids"]]
    assert lengths[2][:2] == [5, 256]


def test_texts_alone_have_no_answers(tmp_path, task):
    examples = dev_set(tmp_path, task, [Pair("a", None, None, None, name) for name in "12"])
    answers = task.answer(examples, np.eye(2, 4, dtype=np.float32))
    assert (answers.found, answers.vectors.shape, examples.names) == ([], (2, 4), ["1", "2"])
