"""Pairs from tables: which column is which, and what is refused; metrics by hand, baselines, and rows."""

import json
import math

import numpy as np
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
from tasks.stage.errors import InputError
from tasks.stage.row_folders import read_manifest
from tasks.vocabulary.fast_tokenizer import make_wordpiece
from tests.tasks.downstream.entries import part_of, task_with, values_with
from tests.tasks.pretraining.row_inputs import read_rows
from tests.tasks.tiny_model import SPECIAL

QUESTIONS = "question,passage\nwho left?,Ada left.\nwhere to?,To Rome.\n"


def reader_of(path, dev_path, data=None, **sections):
    data = {"train_path": str(path), "dev_path": dev_path, **(data or {})}
    values = values_with({"search": {"kind": "pairs", "data": data, **sections}})
    return part_of(find_entry(validate_params(values), "search"), "reader")


def read(folder, content, **sections):
    """Anchor, positive, negative and score of these rows of a table, or objects."""
    path = folder / ("train.csv" if isinstance(content, str) else "train.jsonl")
    text = content if isinstance(content, str) else "".join(json.dumps(record) + "\n" for record in content)
    path.write_text(text, encoding="utf-8")
    reader = reader_of(path, str(path), **sections)
    assert reader.check_files().dev_count == (make_examples(reader, folder / "made") and 2)
    names = ("anchor", "positive", "negative", "score")
    return [tuple(row[name] for name in names) for row in pq.read_table(folder / "made/train.parquet").to_pylist()]


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
    used = read_reading(tmp_path / "made")["inputs"]["train"]["columns"]
    reasons = {part: text.rpartition("(")[2] for part, text in used.items()}
    assert reasons == {part: "named by you)" if part in columns else "by name)" for part in used}


USE, IGNORE = {"scores": "use"}, {"scores": "ignore"}


def columns(**names):
    return {"data": {"columns": names}}


PAIRED = "sentence1,sentence2,{}\na,b,0\nc,d,1\n"
PAIR, OTHER = {"anchor": "a", "positive": "b"}, {"anchor": "c", "positive": "d"}
REFUSED = [
    # The options read it:
    ("question,answer,context\na,b,c\nd,e,f\n", {}, "may be 'answer' or 'context'. .*--column positive=NAME",
     columns(positive="answer")),
    (PAIRED.format("score"), {}, r"the column 'score'.* Set downstream.search.scores .*--scores", USE),
    (PAIRED.format("score"), {}, "Set downstream.search.scores", IGNORE),
    ("question,passage,Label\na,b,0\nc,d,1\n", {}, "has the column 'Label', which may say", IGNORE),
    ("question,passage,is_match\na,b,0\nc,d,1\n", {}, "has the column 'is_match', which may",
     {**USE, **columns(score="is_match")}),
    ("question,passage,negative_1\na,b,c\nd,e,f\n", {}, "'negative_1', which may hold texts that do not belong",
     columns(negative="negative_1")),
    ("question,passage\na,nan\nc,d\n", {}, r"1 of 2 are examples .*missing one.*line 2.*--missing-texts drop",
     {"data": {"missing_texts": "keep"}}),
    ("q,passage\na,b\nc,d\n", {}, "no column 'anchor'; .* Set downstream.search.data.columns.anchor",
     columns(anchor="q")),
    # Nothing does:
    ("question,passage\na,b\n,d\ne, \n", {}, "an empty text in the column 'question': line 3.*'passage': line 4", None),
    ("sentence1,sentence2,score\na,b,high\nc,d,1\n", USE, r"column 'score': line 2 \('high'\)", None),
    ("question,passage\n", {}, "contains no pair", None),
    ('question,passage\na,"[""b"", ""c""]"\nd,e\n', {}, "a list in the column 'passage': line 2", None),
    ("question,passage\na,b\nc,b\n", {}, "the positive of every pair is 'b', so .* Set .*columns.positive", None),
    ("anchor,positive,score\na,b,1\nc,d,1.0\n", USE, "the score of every pair is 1.0", None),
    ("question,passage,Split\na,b,train\nc,d,Test\n", {}, "column 'Split' says .*'train' in line 2.*'Test' in", None),
    ("question,passage\na,1001\nb,1002\n", {}, "each positive is a number, .* Set .*positive", None),
    ([{**PAIR, "negative": "c"}, OTHER], {}, "other columns of", None),
    ([PAIR, {**OTHER, "label": 0}], {}, "column 'label', which may", None),
    ([{**PAIR, "positive": ["b", "c"]}, {**OTHER, "positive": ["e"]}], {}, "a value that is not text", None),
]  # fmt: skip


@pytest.mark.parametrize(("content", "sections", "message", "option"), REFUSED)
def test_unusable_pairs_are_refused_and_of_two_readings_the_option_decides(
    tmp_path, content, sections, message, option
):
    with pytest.raises(InputError, match=f"(?s){message}"):
        read(tmp_path, content, **sections)
    assert option is None or len(read(tmp_path, content, **option)) == 2


def test_scores_are_numbers_and_equal_pairs_are_counted(tmp_path):
    pairs = read(tmp_path, "sentence1\tsentence2\tscore\na\tb\t0.25\nc\tc\t5\n", **USE, data={"separator": "tab"})
    assert pairs == [("a", "b", None, 0.25), ("c", "c", None, 5.0)]
    assert read_reading(tmp_path / "made")["inputs"]["train"]["counts"]["pairs of equal texts"] == 1
    read(tmp_path, "anchor,positive,negative\na,b,b\nc,d,e\n")
    assert read_reading(tmp_path / "made")["inputs"]["train"]["counts"]["pairs whose negative is the positive"] == 1


@pytest.mark.parametrize(("sign", "remarks"), [("", 0), ("-", 1)])
def test_scores_that_fall_with_common_words_are_remarked(tmp_path, sign, remarks):
    rows = [f"{' '.join('abcde'[: n % 5 + 1])} x{n},a b c d e,{sign}{n % 5}\n" for n in range(100)]
    path = tmp_path / "a.csv"
    path.write_text("anchor,positive,score\n" + "".join(rows))
    inputs = reader_of(path, None, **USE).check_files().inputs
    assert sum("fewer words in common (correlation -" in line for line in describe_inputs(inputs)) == remarks


MODULES = [
    {"type": f"sentence_transformers.models.{name}", "path": path}
    for name, path in (("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))
]
DENSE = [*MODULES, {"type": "x.Dense", "path": "3_Dense"}]


@pytest.mark.parametrize(
    ("pooling", "modules", "expected"),
    [
        ('{"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false}', MODULES, "mean"),
        ('{"pooling_mode_mean_tokens": false, "pooling_mode_cls_token": true}', MODULES[:2], "first"),
        ('{"pooling_mode": "cls"}', MODULES, "first"),
        ('{"pooling_mode": ["mean", "max"]}', MODULES, "has .*; only mean or first"),
        ('{"pooling_mode": "mean"}', DENSE, "has Dense, mean"),
        ("{", MODULES, "is damaged"),
    ],
)
def test_the_pooling_of_a_folder_is_kept(tmp_path, pooling, modules, expected):
    assert read_modules(tmp_path) == {}
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling/config.json").write_text(pooling)
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 128}')
    if expected in ("mean", "first"):
        assert read_modules(tmp_path) == {"pooling": expected, "rows.row_length": 128}
        return
    with pytest.raises(InputError, match=expected):
        read_modules(tmp_path)


TASK = task_with("pairs", "scores")
TEXTS = ["Ada left", "to Rome", "Ben left too", "by night train"]
DEV = [
    ("who left", "Ada left"),
    ("where to", "to Rome"),
    ("who left", "Ben left too"),
    ("when", "Ada left"),
    ("how", "by night train"),
]


def dev_set(tmp_path, task=TASK, pairs=DEV, scores=(None,) * 5):
    rows = [Pair(*pair, None, score, str(n)) for n, (pair, score) in enumerate(zip(pairs, scores, strict=False))]
    write_records(rows, tmp_path / "dev.parquet", SCHEMA, 100)
    return task.read_examples(tmp_path / "dev.parquet")


def test_recall_mrr_and_ndcg_are_those_of_their_definitions(tmp_path):
    examples = dev_set(tmp_path)
    assert (examples.anchors, examples.texts) == ([anchor for anchor, _ in DEV], TEXTS)
    assert examples.relevant == [[0, 2], [1], [0, 2], [0], [3]]
    assert [part.tolist() for part in examples.places] == [[0, 2, 4, 6, 8], [1, 3, 5, 9]]
    outcomes = TASK.outcomes(examples, [[1, 2, 0, 3], [1, 0, 2, 3], [2, 1, 3], [3, 2, 1], None])
    second, third = 1 / math.log2(3), 1 / math.log2(4)
    expected = [[0, 1, 1 / 2, (second + third) / (1 + second)], [1, 1, 1, 1], [1 / 2, 1 / 2, 1, 1 / (1 + second)]]
    np.testing.assert_allclose(outcomes, [*expected, [0, 0, 0, 0], [0, 0, 0, 0]])
    scores = TASK.metrics.compute({"dev": outcomes})
    assert (scores["recall_1"], scores["recall_10"], scores["mrr_10"]) == (30, 50, 50)
    assert all(TASK.is_possible(row) for row in outcomes.tolist())
    assert not TASK.is_possible([0, 2, 0, 0])


def test_the_nearest_texts_are_those_with_the_largest_cosine(tmp_path):
    examples = dev_set(tmp_path)
    vectors = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    answers = TASK.answer(examples, vectors)
    anchors, texts = (vectors[numbers].astype(np.float64) for numbers in examples.places)
    for cosines, nearest, similarities in zip(anchors @ texts.T, answers.found, answers.similarities, strict=True):
        assert nearest == np.argsort(-cosines).tolist()
        assert similarities.tolist() == pytest.approx(sorted(cosines, reverse=True), abs=1e-6)
    assert TASK.margin(answers, 0) == pytest.approx(answers.similarities[0, 0] - answers.similarities[0, 1], abs=1e-6)
    alone = dev_set(tmp_path, TASK, [("a", None)] * 2)
    answers = TASK.answer(alone, np.eye(2, 4, dtype=np.float32))
    assert (answers.found, answers.vectors.shape, alone.names) == ([], (2, 4), ["0", "1"])


def test_similarities_are_judged_by_the_order_of_the_scores(tmp_path):
    task, targets = task_with("pairs", "scores", **USE), [0.1, 0.9, 0.4, 0.4, 0.0]
    examples = dev_set(tmp_path, task, [(f"a{n}", f"b{n}") for n in range(5)], targets)
    values = [0.2, 0.3, 0.5, 0.1, -0.4]
    scores = task.metrics.compute({"dev": task.outcomes(examples, values)})
    assert scores["spearman"] == pytest.approx(100 * scipy.stats.spearmanr(targets, values).statistic)
    assert scores["pearson"] == pytest.approx(100 * scipy.stats.pearsonr(targets, values).statistic, abs=1e-4)
    assert task.answer(examples, np.eye(10, 4, dtype=np.float32)).found == [0.0] * 5


@pytest.mark.parametrize("values", [[[0, 0], *[[1]] * 4], [[4], *[[1]] * 4], [0.5] * 5, [[0]] * 4])
def test_answers_that_are_none_are_refused(tmp_path, values):
    with pytest.raises(InputError, match="dev"):
        TASK.check_predictions(tmp_path / "predictions.json", "dev", dev_set(tmp_path), values)


def test_the_better_of_both_baselines_must_be_beaten(tmp_path):
    examples = {"dev": dev_set(tmp_path)}
    nearest = [answers[0] for answers in search_words(examples["dev"])[:2]]
    assert nearest == [0, 1], "the only text with the words who left, or to"
    names = [baseline.name for baseline in TASK.baselines(examples)]
    assert (names, TASK.baseline(examples).name) == (["BM25"], "BM25")
    folder = tmp_path / "evaluation/pairs"
    folder.mkdir(parents=True)
    for answers, better in (([[3]] * 5, "BM25"), ([[0], [1], [0], [0], [3]], "the model before training")):
        (folder / "before.json").write_text(json.dumps({"dev": answers}))
        known = TASK.know_labels(tmp_path)
        assert [baseline.name for baseline in known.baselines(examples)] == ["the model before training", "BM25"]
        assert known.baseline(examples).name == better


@pytest.mark.parametrize("negatives", [False, True])
def test_the_texts_of_an_example_share_a_row(tmp_path, negatives):
    words, unit = [f"word{number}" for number in range(40)], 2 + negatives
    (tmp_path / "tokenizer").mkdir()
    make_wordpiece((*SPECIAL, *words), lowercase=True).write(512, tmp_path / "tokenizer")
    texts = [(" ".join(words[n : n + 3]), " ".join(words * (1 + 9 * (n == 2))), words[n]) for n in range(6)]
    pairs = [Pair(a, b, c if negatives else None, n / 8, str(n)) for n, (a, b, c) in enumerate(texts)]
    write_records(pairs, tmp_path / "train.parquet", SCHEMA, 100)
    places = (tmp_path / "train.parquet", tmp_path / "tokenizer", tmp_path / "rows")
    made = write_rows(task_with("pairs", "encoder"), "train", *places)
    manifest = read_manifest(tmp_path / "rows")
    assert (manifest.rows, manifest.sequences, manifest.unit) == (6, 6 * unit, unit)
    assert (manifest.row_length, manifest.max_sequences) == (256 * unit, unit)
    assert made.counts["texts cut to fit"] == 1
    columns = read_rows(tmp_path / "rows")
    assert columns["roles"].tolist() == [list(range(unit))] * 6
    assert columns["targets"][:, 0].tolist() == [n / 8 for n in range(6)]
    lengths = [int((columns["sequence_ids"][2] == slot).sum()) for slot in (1, 2)]
    assert lengths == [5, 256]
