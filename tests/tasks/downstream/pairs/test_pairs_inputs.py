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


REFUSED: list[tuple[str, str, dict[str, Any]]] = [
    (
        "question,answer,context\na,b,c\nd,e,f\n",
        "may be 'answer' or 'context'. Set downstream.search.data.columns.positive .*--column positive=NAME",
        {"data": {"columns": {"positive": "answer"}}},
    ),
    (
        "sentence1,sentence2,score\na,b,0.5\nc,d,1\n",
        r"the column 'score'.* Set downstream.search.scores .*--scores",
        {"scores": "use"},
    ),
    ("sentence1,sentence2,label\na,b,0\nc,d,1\n", "has the column 'label', which may say", {"scores": "ignore"}),
    ("sentence1,sentence2,is_duplicate\na,b,0\nc,d,1\n", "'is_duplicate', which may", {"scores": "use"}),
    ("sentence1,sentence2,score\na,b,0.5\nc,d,1\n", "Set downstream.search.scores", {"scores": "ignore"}),
    ("question,passage,Label\na,b,0\nc,d,1\n", "has the column 'Label', which may say", {"scores": "ignore"}),
    ("question,passage,is_match\na,b,0\nc,d,1\n", "has the column 'is_match', which may", {
        "scores": "use", "data": {"columns": {"score": "is_match"}},
    }),
    ("question,passage,gold\na,b,0.25\nc,d,0.5\n", "has the column 'gold', which may", {"scores": "ignore"}),
    ("question,passage,same\na,b,true\nc,d,False\n", "has the column 'same', which may", {"scores": "ignore"}),
    ("question,passage,negative_1\na,b,c\nd,e,f\n", "'negative_1', which may hold texts that do not belong", {
        "data": {"columns": {"negative": "negative_1"}},
    }),
    ("question,passage, Answer\na,b,c\nd,e,f\n", "the positive may be 'passage' or ' Answer'", {
        "data": {"columns": {"positive": "passage"}},
    }),
    ("question,passage\na,nan\nc,d\n", r"1 of 2 are examples .*stand for a missing one.*line 2.*--missing-texts drop", {
        "data": {"missing_texts": "keep"},
    }),
    ("q,passage\na,b\nc,d\n", "no column 'anchor'; .* Set downstream.search.data.columns.anchor", {
        "data": {"columns": {"anchor": "q"}},
    }),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message", "option"), REFUSED)
def test_columns_with_two_readings_are_refused_and_the_option_decides(
    tmp_path: Path, text: str, message: str, option: dict[str, Any]
) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, text)
    assert len(read(tmp_path, text, **option)) == 2


@pytest.mark.parametrize(
    ("text", "stated", "message"),
    [
        ("question,passage\na,b\n,d\ne, \n", {}, "an empty text in the column 'question': line 3.*'passage': line 4"),
        ("sentence1,sentence2,score\na,b,high\nc,d,1\n", {"scores": "use"}, r"column 'score': line 2 \('high'\)"),
        ("question,passage\n", {}, "contains no pair"),
        ('question,passage\na,"[""b"", ""c""]"\nd,e\n', {}, "a list in the column 'passage': line 2"),
        ("question,passage\na,b\nc,b\n", {}, "the positive of every pair is 'b', so .* Set .*columns.positive"),
        ("question,passage\na,b\na,c\n", {}, "the anchor of every pair is 'a'"),
        ("anchor,positive,score\na,b,1\nc,d,1.0\n", {"scores": "use"}, "the score of every pair is 1.0"),
        ("question,passage,Split\na,b,train\nc,d,Test\n", {}, "column 'Split' says .*'train' in line 2.*'Test' in"),
        ("question,passage\na,1001\nb,1002\n", {}, "each positive is a number, .* Set .*positive"),
    ],
)  # fmt: skip
def test_unusable_pairs_are_refused_with_their_line(
    tmp_path: Path, text: str, stated: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=f"(?s){message}"):
        read(tmp_path, text, **stated)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([{"anchor": "a", "positive": "b", "negative": "c"}, {"anchor": "d", "positive": "e"}], "other columns of"),
        ([{"anchor": "a", "positive": "b"}, {"anchor": "c", "positive": "d", "label": 0}], "column 'label', which may"),
        ([{"anchor": "a", "positive": "b"}, {"anchor": "c", "positive": "d", "same": True}], "column 'same', which"),
        ([{"anchor": "a", "positive": ["b", "c"]}, {"anchor": "d", "positive": ["e"]}], "a value that is not text"),
        ([{"anchor": "a", "positive": None}, {"anchor": "d", "positive": "e"}], "no text in the column 'positive'"),
        ([{"anchor": "a", "positive": 5}, {"anchor": "d", "positive": "e"}], "a value that is not text"),
    ],
)  # fmt: skip
def test_unusable_objects_are_refused_with_their_line(
    tmp_path: Path, lines: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, "".join(json.dumps(one) + "\n" for one in lines), "train.jsonl")


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
