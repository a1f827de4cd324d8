"""Pairs from tables: which column is which, what is refused with its line, and that the option of a message works."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tasks.downstream.examples import make_examples
from tasks.models.sentence_modules import read_modules
from tasks.params.entries import find_entry
from tasks.params.schema import validate_params
from tasks.records.interpretation import describe_inputs, read_reading
from tasks.stage.errors import InputError, ParamsError
from tests.tasks.downstream.entries import part_of, values_with

QUESTIONS = "question,passage\nwho left?,Ada left.\nwhere to?,To Rome.\n"


def read(folder: Path, text: str, name: str = "train.csv", **stated: Any) -> list[tuple[Any, ...]]:
    """The examples of a file, used for both splits."""
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
        ("Query,Positive\na,b\nd,e\n", {}, ("a", "b", None)),
        ("query,Passage,Negative,topic,doc_id\na,b,c,x7,1\nd,e,f,x8,1\n", {}, ("a", "b", "c")),
        ("q,p,n\na,b,c\nd,e,f\n", {"anchor": "q", "positive": "p", "negative": "n"}, ("a", "b", "c")),
        ('question,passage\n"a\n  b",c\nd,e\n', {}, ("a b", "c", None)),
        ("question,answer,context\na,b,c\nd,e,f\n", {"positive": "context"}, ("a", "c", None)),
    ],
)
def test_columns_are_found_by_their_names_or_those_of_the_user(
    tmp_path: Path, text: str, columns: dict[str, str], first: tuple[Any, ...]
) -> None:
    assert read(tmp_path, text, data={"columns": columns})[0] == (*first, None)
    found = read_reading(tmp_path / "made")["inputs"]["train"]["columns"]
    reasons = {part: text.rpartition("(")[2] for part, text in found.items()}
    assert reasons == {part: "named by you)" if part in columns else "by name)" for part in found}


USE, IGNORE = {"scores": "use"}, {"scores": "ignore"}


def columns(**names: str) -> dict[str, Any]:
    return {"data": {"columns": names}}


PAIRED = "sentence1,sentence2,{}\na,b,0\nc,d,1\n"
AMBIGUOUS: list[tuple[str, str, dict[str, Any]]] = [
    ("question,answer,context\na,b,c\nd,e,f\n", "may be 'answer' or 'context'. .*--column positive=NAME",
     columns(positive="answer")),
    (PAIRED.format("score"), r"the column 'score'.* Set downstream.search.scores .*--scores", USE),
    (PAIRED.format("score"), "Set downstream.search.scores", IGNORE),
    (PAIRED.format("label"), "has the column 'label', which may say", IGNORE),
    (PAIRED.format("is_duplicate"), "'is_duplicate', which may", USE),
    ("question,passage,Label\na,b,0\nc,d,1\n", "has the column 'Label', which may say", IGNORE),
    ("question,passage,is_match\na,b,0\nc,d,1\n", "has the column 'is_match', which may",
     {**USE, **columns(score="is_match")}),
    ("question,passage,gold\na,b,0.25\nc,d,0.5\n", "has the column 'gold', which may", IGNORE),
    ("question,passage,same\na,b,true\nc,d,False\n", "has the column 'same', which may", IGNORE),
    ("question,passage,negative_1\na,b,c\nd,e,f\n", "'negative_1', which may hold texts that do not belong",
     columns(negative="negative_1")),
    ("question,passage, Answer\na,b,c\nd,e,f\n", "the positive may be 'passage' or ' Answer'",
     columns(positive="passage")),
    ("question,passage\na,nan\nc,d\n", r"1 of 2 are examples .*missing one.*line 2.*--missing-texts drop",
     {"data": {"missing_texts": "keep"}}),
    ("q,passage\na,b\nc,d\n", "no column 'anchor'; .* Set downstream.search.data.columns.anchor", columns(anchor="q")),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message", "option"), AMBIGUOUS)
def test_columns_with_two_readings_are_refused_and_the_option_decides(
    tmp_path: Path, text: str, message: str, option: dict[str, Any]
) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, text)
    assert len(read(tmp_path, text, **option)) == 2


PAIR = {"anchor": "a", "positive": "b"}
OTHER = {"anchor": "c", "positive": "d"}
UNUSABLE: list[tuple[Any, dict[str, Any], str]] = [
    ("question,passage\na,b\n,d\ne, \n", {}, "an empty text in the column 'question': line 3.*'passage': line 4"),
    ("sentence1,sentence2,score\na,b,high\nc,d,1\n", USE, r"column 'score': line 2 \('high'\)"),
    ("question,passage\n", {}, "contains no pair"),
    ('question,passage\na,"[""b"", ""c""]"\nd,e\n', {}, "a list in the column 'passage': line 2"),
    ("question,passage\na,b\nc,b\n", {}, "the positive of every pair is 'b', so .* Set .*columns.positive"),
    ("question,passage\na,b\na,c\n", {}, "the anchor of every pair is 'a'"),
    ("anchor,positive,score\na,b,1\nc,d,1.0\n", USE, "the score of every pair is 1.0"),
    ("question,passage,Split\na,b,train\nc,d,Test\n", {}, "column 'Split' says .*'train' in line 2.*'Test' in"),
    ("question,passage\na,1001\nb,1002\n", {}, "each positive is a number, .* Set .*positive"),
    ([{**PAIR, "negative": "c"}, OTHER], {}, "other columns of"),
    ([PAIR, {**OTHER, "label": 0}], {}, "column 'label', which may"),
    ([PAIR, {**OTHER, "same": True}], {}, "column 'same', which"),
    ([{**PAIR, "positive": ["b", "c"]}, {**OTHER, "positive": ["e"]}], {}, "a value that is not text"),
    ([{**PAIR, "positive": None}, OTHER], {}, "no text in the column 'positive'"),
    ([{**PAIR, "positive": 5}, OTHER], {}, "a value that is not text"),
]


@pytest.mark.parametrize(("content", "stated", "message"), UNUSABLE)
def test_unusable_pairs_are_refused_with_their_line(
    tmp_path: Path, content: Any, stated: dict[str, Any], message: str
) -> None:
    lines = isinstance(content, list)
    text = "".join(json.dumps(one) + "\n" for one in content) if lines else content
    with pytest.raises(InputError, match=f"(?s){message}"):
        read(tmp_path, text, "train.jsonl" if lines else "train.csv", **stated)


def test_scores_are_numbers_and_equal_pairs_are_counted(tmp_path: Path) -> None:
    found = read(tmp_path, "sentence1\tsentence2\tscore\na\tb\t0.25\nc\tc\t5\n", "train.tsv", scores="use")
    assert found == [("a", "b", None, 0.25), ("c", "c", None, 5.0)]
    assert read_reading(tmp_path / "made")["inputs"]["train"]["counts"]["pairs of equal texts"] == 1
    read(tmp_path, "anchor,positive,negative\na,b,b\nc,d,e\n")
    assert read_reading(tmp_path / "made")["inputs"]["train"]["counts"]["pairs whose negative is the positive"] == 1


@pytest.mark.parametrize(("sign", "remarks"), [("", 0), ("-", 1)])
def test_scores_that_fall_with_common_words_are_remarked(tmp_path: Path, sign: str, remarks: int) -> None:
    rows = [f"{' '.join('abcde'[: n % 5 + 1])} x{n},a b c d e,{sign}{n % 5}\n" for n in range(100)]
    path = tmp_path / "a.csv"
    path.write_text("anchor,positive,score\n" + "".join(rows))
    data = {"train_path": str(path), "dev_path": None}
    values = values_with({"search": {"kind": "pairs", "data": data, "scores": "use"}})
    inputs = part_of(find_entry(validate_params(values), "search"), "reader").check_files().inputs
    assert sum("fewer words in common (correlation -" in one for one in describe_inputs(inputs)) == remarks


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"device": {"runtime": "ipu"}}, "kind pairs does not run on IPUs. Set device.runtime to cpu or cuda"),
        ({"distill": {"teacher": "x"}}, "distill.teacher does not apply to embeddings"),
        ({"data": {"columns": {"score": "s"}}}, "data.columns.score needs scores: use"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(sections: dict[str, Any], message: str) -> None:
    device = {"device": sections.pop("device")} if "device" in sections else {}
    with pytest.raises(ParamsError, match=message):
        validate_params(values_with({"search": {"kind": "pairs", **sections}}, **device))


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
        ({"pooling_mode": "max"}, MODULES, "has max; only mean or first-token pooling"),
        ({"pooling_mode": ["mean", "max"]}, MODULES, "has .*; only mean or first-token pooling"),
        ({"pooling_mode": "mean"}, [*MODULES, {"type": "x.Dense", "path": "3_Dense"}], "has Dense, mean; only mean"),
        ("{", MODULES, "is damaged"),
    ],
)
def test_the_pooling_of_a_sentence_transformers_folder_is_kept(
    tmp_path: Path, pooling: Any, modules: list[dict[str, str]], expected: str
) -> None:
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
