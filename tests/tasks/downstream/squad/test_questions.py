"""Questions from SQuAD's JSON, tables and the Hub: every form gives the same rows; every defect is named."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.downstream.squad import examples as questions
from tasks.downstream.squad.examples import make_questions
from tasks.downstream.squad.params import SquadColumnParams, SquadDataParams
from tasks.downstream.squad.questions import (
    MADE,
    MISPLACED,
    WITHOUT_PLACE,
    SquadQuestion,
    read_question_file,
    read_references,
)
from tasks.params.schema import validate_section
from tasks.records.answer_places import BLANKS, BLANKS_OUTSIDE, CONVERTED, MOVED
from tasks.records.interpretation import NUMERIC_IDS, Interpretation, describe_inputs, read_reading
from tasks.stage.errors import InputError, ParamsError
from tests.places import SHARED
from tests.tasks.downstream.entries import task_with
from tests.tasks.downstream.squad.question_files import (
    CONTEXT,
    Rows,
    as_flat,
    as_json_text,
    as_struct,
    params,
    qa,
    squad,
    write,
    write_table,
)

SQUAD = SHARED / "data/squad"
HUM = {"text": "hum", "answer_start": 20}
ONE: dict[str, Any] = {
    "id": "q1",
    "title": "Animals",
    "context": CONTEXT,
    "question": "What do bees do?",
    "answers": [HUM],
}
MANY = {**ONE, "answers": [HUM, {"text": "dance", "answer_start": 34}]}
BARE = {key: value for key, value in ONE.items() if key != "id"}
LOST = {"text": "wasp", "answer_start": 3}


def columns(**names: str) -> SquadColumnParams:
    return validate_section(SquadColumnParams, {**dict.fromkeys(SquadColumnParams.model_fields), **names}, "test")


def put(path: Path, content: Any) -> Path:
    """A file of these bytes, this value as JSON, or a table of these rows."""
    table = isinstance(content, list) and path.suffix != ".json"
    return write_table(path, content) if table else write(path, content)


def make(folder: Path, train: Any, dev: Any = None, name: str = "train.json", **values: Any) -> dict[str, Rows]:
    """What the stage makes of training questions in the file `name`, by split."""
    paths = {"train_path": str(put(folder / name, train))}
    paths["dev_path"] = str(put(folder / "dev.json", squad(qa("d1")) if dev is None else dev))
    return stage(folder, **paths, **values)


def stage(folder: Path, **values: Any) -> dict[str, Rows]:
    made = folder / "made/out"
    make_questions(params(**values), made)
    tables = {split: pq.read_table(made / f"{split}.parquet") for split in ("train", "dev")}
    assert all(table.schema.equals(questions.SCHEMA) for table in tables.values())
    return {split: table.to_pylist() for split, table in tables.items()}


def refusal(folder: Path, train: Any, dev: Any = None, name: str = "train.json", **values: Any) -> str:
    """The message of the refusal, after checking that nothing was left behind."""
    with pytest.raises(InputError) as caught:
        make(folder, train, dev, name, **values)
    assert not list((folder / "made").glob("*")), "nothing half-written"
    return str(caught.value)


def counts(folder: Path) -> dict[str, int]:
    return read_reading(folder / "made/out")["numbers"]


FORMS: list[tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]] = [
    (".jsonl", dict),
    (".jsonl", as_struct),
    (".jsonl", as_json_text),
    (".parquet", dict),
    (".parquet", as_struct),
    (".parquet", as_json_text),
    (".csv", as_json_text),
]


@pytest.mark.parametrize(("ending", "form"), FORMS, ids=lambda value: getattr(value, "__name__", value))
def test_every_form_of_answers_gives_the_rows_of_the_json_file(tmp_path: Path, ending: str, form: Any) -> None:
    found = make(tmp_path, [form(MANY), form({**ONE, "id": "q2"})], name=f"train{ending}")
    assert found["train"] == [MANY, {**ONE, "id": "q2"}]


OF_JSON: dict[str, Callable[[Rows], Any]] = {
    "data": lambda rows: {"version": "0.1.0", "data": rows},
    "list": lambda rows: rows,
    "lines": lambda rows: b"".join(json.dumps(row).encode() + b"\n" for row in rows),
    "articles": lambda rows: squad(qa(), qa("q2", "Which bees?"))["data"],
}


@pytest.mark.parametrize("form", OF_JSON)
@pytest.mark.parametrize("answers", [as_struct, dict], ids=["columns", "objects"])
def test_every_form_of_json_gives_the_rows_of_squad(
    tmp_path: Path, form: str, answers: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    rows = [answers(ONE), answers({**ONE, "id": "q2", "question": "Which bees?"})]
    wanted = make(tmp_path, squad(qa(), qa("q2", "Which bees?")))
    assert wanted["train"] == [ONE, {**ONE, "id": "q2", "question": "Which bees?"}]
    assert make(tmp_path, OF_JSON[form](rows)) == wanted
    assert read_references(tmp_path / "train.json") == [("q1", ("hum",)), ("q2", ("hum",))]


def test_other_keys_no_title_and_a_byte_order_mark_are_accepted(tmp_path: Path) -> None:
    values = squad(qa(is_impossible=False, note=[1]), split="new_wiki")
    del values["data"][0]["title"]
    assert make(tmp_path, b"\xef\xbb\xbf" + json.dumps(values).encode())["train"] == [{**ONE, "title": ""}]
    rows = [{**as_json_text(ONE), "is_impossible": "False"}]
    assert make(tmp_path, rows, name="t.csv")["train"] == [ONE]


def test_json_of_a_single_line_and_with_columns_of_other_names(tmp_path: Path) -> None:
    row = {"id": 7, "text": CONTEXT, "ask": ONE["question"], "answers": ONE["answers"]}
    data, reading = SquadDataParams(columns=columns(context="text", question="ask")), Interpretation()
    [found] = read_question_file(put(tmp_path / "one.json", row), "FILE", data, reading)
    assert (found.id, found.context, found.answers) == ("7", CONTEXT, (("hum", 20),))
    assert +reading.counts == {NUMERIC_IDS: 1}


def test_a_stated_separator_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"id|context|question|answer_text|answer_start\nq1|{CONTEXT}|{ONE['question']}|hum|20\n".encode()
    assert "no column" in refusal(tmp_path, text, name="train.csv")
    assert make(tmp_path, text, name="train.csv", separator="pipe")["train"] == [{**ONE, "title": ""}]
    table = tmp_path / "train.csv"
    monkeypatch.setattr(questions, "WHOLE_BYTES", 10)
    questions.check_question_file(table, "FILE", params(separator="pipe"), Interpretation())
    with pytest.raises(InputError, match="no column"):
        questions.check_question_file(table, "FILE", params(), Interpretation())
    task = task_with("squad", "inference", data=params(separator="pipe"))
    [found] = task.read_unlabelled(table, Interpretation())
    assert (found["id"], found["question"], found["context"]) == ("q1", ONE["question"], CONTEXT)
    task.write_labelled(table, tmp_path / "dev.parquet", Interpretation())
    assert pq.read_table(tmp_path / "dev.parquet").num_rows == 1


def test_columns_of_other_names_are_mapped_and_those_not_used_are_reported(tmp_path: Path) -> None:
    row = {"key": "q1", "passage": CONTEXT, "query": "What do bees do?", "span": "hum", "at": "20", "lang": "en"}
    names = columns(id="key", context="passage", question="query", answer_text="span", answer_start="at")
    dev = put(tmp_path / "dev.csv", [{**row, "key": "d1"}])
    found = stage(tmp_path, train_path=str(put(tmp_path / "t.csv", [row])), dev_path=str(dev), columns=names)
    assert found["train"] == [{**ONE, "title": ""}]
    reading = read_reading(tmp_path / "made/out")
    assert reading["numbers"] == {"files read": 2, "columns not used": 1}
    assert reading["inputs"]["train"]["unused_columns"] == ["lang"]
    with pytest.raises(ParamsError, match="cannot be combined"):
        columns(answers="a", answer_text="b")


@pytest.mark.parametrize(
    ("ending", "form", "said"),
    [
        (".jsonl", dict, "answers in 'answers' are [{text, answer_start}, ...]"),
        (".parquet", as_struct, "answers in 'answers' are {text: [...], answer_start: [...]}"),
        (".csv", as_json_text, "answers in 'answers' are {text: [...], answer_start: [...]} as JSON text"),
        (".csv", as_flat, "an answer is in 'answer_text' and 'answer_start'"),
        (".json", lambda row: squad(qa()), "answers are [{text, answer_start}, ...]"),
    ],
)
def test_the_interpretation_says_what_answers_are(tmp_path: Path, ending: str, form: Any, said: str) -> None:
    content, reading = form(ONE), Interpretation()
    path = put(tmp_path / f"t{ending}", content if ending == ".json" else [content])
    read_question_file(path, "FILE", SquadDataParams(), reading)
    assert said in describe_inputs({"t": reading})[1]


def test_a_data_set_of_the_hub_is_read_and_checked_like_a_file(tmp_path: Path) -> None:
    def hub(folder: Path, row: dict[str, Any]) -> dict[str, Any]:
        for split, one in (("train", row), ("validation", {**ONE, "id": "d1"})):
            put(folder / f"{split}.parquet", [as_struct(one) if "answers" in one else one])
        return {"source": "hub", "dataset": str(folder)}

    assert stage(tmp_path, **hub(tmp_path / "animals", ONE)) == make(tmp_path, squad(qa()))
    moved = {**ONE, "answers": [{**HUM, "answer_start": 9}]}
    for name, row, said in (
        ("moved", moved, r"split train.*1 problem:\n.*it is at 20"),
        ("other", {"id": "q1", "text": "x"}, "row 0 has no column 'context'"),
    ):
        with pytest.raises(InputError, match=said):
            stage(tmp_path, **hub(tmp_path / name, row))


@pytest.mark.skipif(not SQUAD.is_dir(), reason=f"needs {SQUAD}")
def test_the_real_questions_are_read_whole(tmp_path: Path) -> None:
    made = stage(tmp_path, **{f"{name}_path": str(SQUAD / f"new-wiki-{name}.json") for name in ("train", "dev")})
    assert (len(made["train"]), len(made["dev"])) == (7024, 914)
    for row in made["dev"]:
        for answer in row["answers"]:
            assert row["context"][answer["answer_start"] :].startswith(answer["text"])


def test_the_demo_asks_as_many_questions_as_wanted_the_same_every_time(tmp_path: Path) -> None:
    rows, again = (stage(tmp_path / name, source="demo") for name in ("one", "two"))
    assert rows == again
    assert (len(rows["train"]), len(rows["dev"])) == (40, 20)
    assert {row["id"] for row in rows["train"]}.isdisjoint(row["id"] for row in rows["dev"])


def without(*place: Any) -> dict[str, Any]:
    """SQuAD's JSON with one question, without the key at this place."""
    values: Any = squad(qa())
    parent = values
    for step in place[:-1]:
        parent = parent[step]
    del parent[place[-1]]
    return values


QA = ("data", 0, "paragraphs", 0, "qas", 0)
AT = "data[0].paragraphs[0].qas[0]"
REFUSED: dict[str, list[tuple[Any, str]]] = {
    "t.json": [
        (without("data"), "no column 'context' and no column 'question'; its columns are version"),
        (without("data", 0, "paragraphs"), "data[0] has no column 'context'"),
        (without("data", 0, "paragraphs", 0, "context"), f"context is missing: {AT}"),
        (without("data", 0, "paragraphs", 0, "qas"), "qas is missing: data[0].paragraphs[0]"),
        (without(*QA, "id"), f"id is missing: {AT}"),
        (without(*QA, "answers"), f"answers is missing: {AT}"),
        (without(*QA, "answers", 0, "answer_start"), "answer_start is missing: "),
        ([1], "record 0 is int; a list of objects is required"),
        ([ONE, 2], "record 1 is int"),
        ({"data": {}}, "line 1 has no column 'context'"),
        ({"data": ["x"]}, "data[0] is str; "),
        (squad(qa(name=True)), f"id is not text: {AT} (True)"),
        (squad(qa(name=5.0)), f"id is not text: {AT} (5.0)"),
        (squad(qa(answers=(("hum", "x20"),))), f"not an integer: {AT}.answers[0] ('x20')"),
        (squad(qa(answers=(("hum", 20.5),))), f"not an integer: {AT}.answers[0] (20.5)"),
        (squad(qa(question="half \ud800")), "half a surrogate pair"),
        (squad(), "contains no questions"),
        (squad(qa(question=" ")), "empty"),
        (squad(qa(answers=(("", 0),))), "empty"),
        (squad(qa("")), "empty"),
        (squad(qa(), context="  "), "empty"),
        (squad(qa(), qa(question="Again?")), "an id that is not unique: 'q1'"),
        (squad(qa(answers=(("ees", 0),))), f"{AT}, question 'q1': 'ees' at 0 (found 'Ant'; it is at 16, 30)"),
        (squad(qa(answers=(("wasps", 0),))), "the context does not contain it"),
        (squad(qa(answers=(("hum", 4000),))), "found nothing"),
        (squad(qa(answers=(("hum", -6),))), "found nothing"),
        (squad(*[qa(f"q{n}", answers=(("hum", 0),)) for n in range(25)]), " and 20 more"),
        (b'{"id": "a"}\n{"id": "b"}\n', "line 1 has no column 'context'"),
        (b'{"id":\n"a"}\n{"id": "b"}\n', "line 1 has no column 'context'"),
        (b'[{"id": "b"\n', "record 0 (line 1) is not JSON (Expecting ',' delimiter in line 2"),
        (b'{"version": "1.1",\n"data": x}', "is not JSON (Expecting value in line 2: 'x}')"),
        (b'{\n"caf\xe9": 1}', "byte 0xe9 at offset 6 (line 2)"),
        (b"[" * 200_000, "record 0 (line 1) cannot be read"),
    ],
    "t.jsonl": [
        ([{**ONE, "answers": {"text": ["hum"], "answer_start": []}}], "of equal length: line 1 ([1, 0])"),
        ([{**ONE, "answers": {"text": ["hum"], "answer_start": ["a20"]}}], "not an integer: line 1.answers[0]"),
        ([{**ONE, "context": float("nan")}], "context is not text: line 1 (nan)"),
        ([{**ONE, "id": " "}], "id is empty: line 1"),
        ([{**ONE, "id": None}], "id is not text: line 1"),
        ([{**ONE, "title": 5}], "title is not text: line 1 (5)"),
        ([ONE, {**ONE, "question": "Again?"}], "an id that is not unique: 'q1' (line 1 and line 2)"),
    ],
    "t.csv": [
        ([{**ONE, "answers": "{'text': ['hum'], 'answer_start': [20]}"}], "answers is not JSON"),
        ([{**as_flat(ONE), "answer_start": "20.5"}], "not an integer: line 2.answers[0] ('20.5')"),
        ([{**as_flat(ONE), "answer_start": "2_0"}], "not an integer: line 2.answers[0] ('2_0')"),
        ([{**as_flat(ONE), "answer_text": "", "answer_start": "20"}], "answer_text: line 2 ('20')"),
        ([{**as_json_text(ONE), "is_impossible": "no"}], "is_impossible is not true or false: line 2 ('no')"),
        (b"id,context,question,answers\n", "contains no questions"),
    ],
    "t.parquet": [
        ([{key: value for key, value in ONE.items() if key != "answers"}], "--column answers=NAME"),
        ([{**{key: value for key, value in ONE.items() if key != "context"}, "contexts": "x"}], "mean contexts?"),
    ],
    "t.xlsx": [(b"PK", "has the suffix .xlsx")],
}


@pytest.mark.parametrize(("name", "content", "said"), [(name, *one) for name, some in REFUSED.items() for one in some])
def test_a_defect_is_refused_with_its_place(tmp_path: Path, name: str, content: Any, said: str) -> None:
    message = refusal(tmp_path, content, name=name)
    assert said in message
    assert name in message


def test_parquet_that_is_damaged_is_named(tmp_path: Path) -> None:
    good = put(tmp_path / "good.parquet", [{**ONE, "id": str(number)} for number in range(2000)]).read_bytes()
    page = good[:100] + bytes(300) + good[400:]  # the footer is whole, a page is not
    for content in (good[:-20], page):
        assert "t.parquet cannot be read as Parquet from row" in refusal(tmp_path, content, name="t.parquet")
    texts = pa.array([b"fine", "caf\u00e9".encode("latin-1")], pa.binary()).view(pa.string())
    others = {name: ["x", "y"] for name in ("id", "question", "answers")}
    pq.write_table(pa.table({**others, "context": texts}), tmp_path / "u.parquet")
    with pytest.raises(InputError, match=r"u\.parquet, row 1 is damaged or not UTF-8"):
        stage(tmp_path, train_path=str(tmp_path / "u.parquet"), dev_path=str(tmp_path / "dev.json"))


def test_a_missing_file_and_a_folder_name_the_key(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data\.train_path=.*does not exist"):
        stage(tmp_path, train_path=str(tmp_path / "absent.json"))
    put(tmp_path / "in/a.json", squad(qa()))
    with pytest.raises(InputError, match=r"in is a folder \(with a\.json\): data\.train_path needs"):
        stage(tmp_path, train_path=str(tmp_path / "in"))


def test_the_development_file_is_checked_as_strictly(tmp_path: Path) -> None:
    assert "dev.json (data.dev_path)" in refusal(tmp_path, squad(qa()), squad(qa("d1", answers=(("hum", 1),))))
    both = refusal(tmp_path, squad(qa("same"), qa("other")), squad(qa("same")))
    assert "1 question id(s) are in both" in both
    assert "same" in both


def test_the_beginning_of_a_large_file_is_read_before_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "WHOLE_BYTES", 10)
    monkeypatch.setattr(questions, "FIRST_RECORDS", 1)

    def look(name: str, content: bytes) -> None:
        path = put(tmp_path / name, content)
        questions.check_question_file(path, "downstream.squad.data.train_path", params(), Interpretation())

    row = json.dumps(ONE).encode()
    look("good.json", b"\xef\xbb\xbf" + json.dumps(squad(qa())).encode())
    look("table.jsonl", row + b"\nno JSON\n")
    for name, content, said in (
        ("bad.json", b"[1, 2, 3, 4, 5]", r"bad\.json, record 0 is int; .*\(downstream\.squad\.data\.train_path"),
        ("table.jsonl", row.replace(CONTEXT.encode(), b"nothing"), "1 problem:"),
    ):
        with pytest.raises(InputError, match=said):
            look(name, content)


@pytest.mark.parametrize(("form", "name"), [("articles", "t.json"), ("flat", "t.json"), ("table", "t.jsonl")])
def test_ids_that_are_numbers_are_text_and_counted(tmp_path: Path, form: str, name: str) -> None:
    values: Any = squad(qa(7), qa(8)) if form == "articles" else [{**ONE, "id": n} for n in (7, 8)]
    assert [row["id"] for row in make(tmp_path, values, name=name)["train"]] == ["7", "8"]
    assert counts(tmp_path) == {"files read": 2, NUMERIC_IDS: 2, questions.REPEATED: 1}
    if form != "table":
        reading = Interpretation()
        assert [name for name, _ in read_references(tmp_path / name, reading)] == ["7", "8"]
        assert +reading.counts == {NUMERIC_IDS: 2}


def test_ids_are_made_where_no_column_holds_any_the_same_in_every_run_and_counted(tmp_path: Path) -> None:
    found = [make(tmp_path, [BARE, BARE], name="t.jsonl")["train"] for _ in range(2)]
    ids = [[row["id"] for row in rows] for rows in found]
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 2, "the same question twice has two ids"
    assert counts(tmp_path)[MADE] == 2
    said = refusal(tmp_path / "other", [BARE], name="t.parquet", columns=SquadColumnParams(id="key"))
    assert "no column 'key'" in said


def test_questions_without_an_id_are_those_of_an_earlier_file_wherever_they_are_in_it(tmp_path: Path) -> None:
    other = {**BARE, "question": "And another?"}
    task: Any = task_with("squad", "scores")
    keys = list[list[str]]()
    for rows in ([BARE, other], [{**other, "question": "First?"}, BARE, other]):
        make(tmp_path, rows, name="t.jsonl")
        keys.append(task.keys(task.read_examples(tmp_path / "made/out/train.parquet")))
    assert keys[0] == keys[1][1:]
    named = [task.keys([SquadQuestion(name, "", CONTEXT, "Who?", ())]) for name in "ab"]
    assert named[0] != named[1]


EMPTY = [
    ("t.jsonl", {**ONE, "answers": {"text": [], "answer_start": []}}),
    ("t.jsonl", {**ONE, "answers": []}),
    ("t.jsonl", {**ONE, "answers": None}),
    ("t.parquet", {**ONE, "answers": None}),
    ("t.csv", {**as_flat(ONE), "answer_text": "", "answer_start": ""}),
    ("t.csv", {**as_flat(ONE), "answer_text": "", "answer_start": "-1"}),
    ("t.csv", {**ONE, "answers": ""}),
    ("t.csv", {**ONE, "answers": '{"text": [], "answer_start": []}'}),
]
CONTRADICTING = [
    ("t.csv", {**as_json_text(ONE), "is_impossible": "True"}),
    ("t.jsonl", {**ONE, "is_impossible": True}),
]


@pytest.mark.parametrize(("name", "row"), [*EMPTY, *CONTRADICTING])
def test_questions_without_an_answer_are_alike_in_every_format(tmp_path: Path, name: str, row: dict[str, Any]) -> None:
    rows = [{**row, "id": "a"}, {**row, "id": "b"}]
    message = refusal(tmp_path, rows, name=name)
    assert "2 problems:\n  no answer (is_impossible: true, or an empty list), as in SQuAD 2.0; " in message
    assert "--unanswerable use (data.unanswerable)" in message
    assert ": 'a', 'b'" in message
    if (name, row) in EMPTY:
        assert [one["answers"] for one in make(tmp_path, rows, name=name, unanswerable="use")["train"]] == [[], []]
        return
    for unanswerable in ("use", "drop"):
        said = refusal(tmp_path / unanswerable, rows, name=name, unanswerable=unanswerable)
        assert "is_impossible: true and an answer" in said
        assert ": 'a', 'b'" in said


def test_questions_without_an_answer_are_used_or_left_out_and_counted(tmp_path: Path) -> None:
    impossible = qa("b", answers=(), is_impossible=True, plausible_answers=[HUM])
    for unanswerable, kept, counted in (("use", ["a", "b"], "used"), ("drop", ["a"], "dropped")):
        found = make(tmp_path, squad(qa("a"), impossible), unanswerable=unanswerable)["train"]
        assert [row["id"] for row in found] == kept
        assert [len(row["answers"]) for row in found] == [1, 0][: len(kept)]
        assert counts(tmp_path)[f"questions without an answer, {counted}"] == 1
    make(tmp_path, squad(qa("a")), unanswerable="use")
    assert not any("without an answer" in what for what in counts(tmp_path))
    assert "none of 1 questions has an answer" in refusal(tmp_path / "all", squad(impossible), unanswerable="drop")
    said = refusal(tmp_path / "x", squad(qa("a", answers=(), is_impossible=False), qa("c")), unanswerable="use")
    assert said.endswith(": 'a'")


BEES = "\U0001f41d" * 5 + " caf\u00e9 hum"
"""5 bees, space, c a f e, space: "hum" is at character 11, UTF-16 code unit 16 and byte 27."""


def test_answer_start_counts_characters_or_in_the_whole_file_utf16_code_units(tmp_path: Path) -> None:
    def bees(*starts: int) -> dict[str, Any]:
        return squad(*[qa(f"q{n}", answers=(("hum", start),)) for n, start in enumerate(starts)], context=BEES)

    for start, unit, converted in ((11, "characters", 0), (16, "UTF-16 code units", 2)):
        found = make(tmp_path, bees(start, start))
        assert [row["answers"] for row in found["train"]] == [[{"text": "hum", "answer_start": 11}]] * 2
        assert counts(tmp_path).get(CONVERTED, 0) == converted
        inputs = read_reading(tmp_path / "made/out")["inputs"]
        assert f"answer_start counts {unit}" in inputs["train"]["labels"]
        assert "answer_start counts characters" in inputs["dev"]["labels"]
    both = refusal(tmp_path / "both", bees(11, 16))
    assert "question 'q1': 'hum' at 16 (found nothing; it is at 11; 16 counts UTF-16 code units" in both
    assert "it is at 11; 27 counts bytes of UTF-8" in refusal(tmp_path / "bytes", bees(27))


@pytest.mark.parametrize("start", [20, 20.0, "20", "20.0", " 20.", "+20", "\u0662\u0660"])
def test_an_answer_start_that_is_a_whole_number_is_read(tmp_path: Path, start: Any) -> None:
    answer = {"text": "hum", "answer_start": start}
    for name, content in (
        ("flat.csv", [{**as_flat(ONE), "answer_start": start}]),
        ("flat.jsonl", [{**as_flat(ONE), "answer_start": start}]),
        ("one.jsonl", [{**ONE, "answers": answer}]),
        ("one.json", squad({**qa("q1"), "answers": answer})),
    ):
        assert make(tmp_path, content, name=name)["train"][0]["answers"] == ONE["answers"], name


@pytest.mark.parametrize("form", ["articles", "table"])
def test_blanks_at_the_edges_of_answers_are_stripped_and_counted(tmp_path: Path, form: str) -> None:
    answers = [{"text": " hum, ", "answer_start": 19}, HUM, {"text": " dance.", "answer_start": 33}]
    articles = form == "articles"
    content: Any = squad({**qa(), "answers": answers}) if articles else [{**ONE, "answers": answers}]
    found = make(tmp_path, content, name="t.json" if articles else "t.jsonl")
    stripped = [{"text": "hum,", "answer_start": 20}, HUM, {"text": "dance.", "answer_start": 34}]
    assert found["train"][0]["answers"] == stripped
    assert counts(tmp_path)[BLANKS] == 2


ANTS = "An ant and a bee. An ant hums; a cafe hums."
#       0         10        20        30        40
PLACES = [
    ("ant", 3, 3, None),
    (" ant ", 2, 3, BLANKS),
    (" ant ", 3, 3, BLANKS_OUTSIDE),
    (" hums;\n", 25, 25, BLANKS_OUTSIDE),
    ("bee", 10, 13, MOVED),
    ("bee", 16, 13, MOVED),
    (" bee", 15, 13, MOVED),
    ("ant", 20, 21, MOVED),  # a whole word
    ("a", 12, 11, MOVED),
    ("hums", 36, 38, MOVED),
    ("t hums", 24, 23, MOVED),  # once in the context, inside a word
    ("bee", 9, None, None),
    ("bee", 17, None, None),
    ("ant", 0, 3, MOVED),
    ("hums", -5, None, None),  # does not count from the end
    ("a", 10, None, None),  # twice within three characters
    ("n", 25, None, None),  # inside a word, as elsewhere
    ("wasp", 3, None, None),
]


@pytest.mark.parametrize(("text", "start", "right", "change"), PLACES)
def test_an_answer_has_one_possible_place(
    tmp_path: Path, text: str, start: int, right: int | None, change: str | None
) -> None:
    row = {**ONE, "context": ANTS, "answers": [{"text": text, "answer_start": start}]}
    table, reading = put(tmp_path / "t.jsonl", [row]), Interpretation()
    if right is None:
        with pytest.raises(InputError, match=rf"line 1, question 'q1': '{text}' at {start} \(found"):
            read_question_file(table, "FILE", SquadDataParams(), reading)
        return
    [found] = read_question_file(table, "FILE", SquadDataParams(), reading)
    assert found.answers == ((text.strip(), right),)
    assert +reading.counts == ({} if change is None else {change: 1})
    assert reading.places == ({} if change is None else {change: "line 1, question 'q1'"})


@pytest.mark.parametrize(("answer", "context"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_the_normal_forms_of_answer_and_context_are_named(tmp_path: Path, answer: str, context: str) -> None:
    stated = {"text": unicodedata.normalize(answer, "caf\u00e9"), "answer_start": 4}
    row = {**ONE, "context": unicodedata.normalize(context, "the caf\u00e9 hums"), "answers": [stated]}
    assert f"the answer is in {answer}, the context in {context}" in refusal(tmp_path, [row], name="t.jsonl")


@pytest.mark.parametrize("unanswerable", ["refuse", "use", "drop"])
def test_misplaced_answers_are_dropped_on_request(tmp_path: Path, unanswerable: str) -> None:
    rows = [{**ONE, "answers": [LOST, HUM]}, {**ONE, "id": "q2", "answers": [LOST]}]
    assert "--misplaced-answers drop (data.misplaced_answers)" in refusal(tmp_path, rows, name="t.jsonl")
    values = {"misplaced_answers": "drop", "unanswerable": unanswerable}
    assert make(tmp_path, rows, name="t.jsonl", **values)["train"] == [ONE]
    assert (counts(tmp_path)[MISPLACED], counts(tmp_path)[WITHOUT_PLACE]) == (2, 1)
    assert read_reading(tmp_path / "made/out")["inputs"]["train"]["places"] == {
        MISPLACED: "line 1, question 'q1'",
        WITHOUT_PLACE: "line 2, question 'q2'",
    }
    said = refusal(tmp_path / "all", rows[1:], name="t.jsonl", **values)
    assert "none of 1 questions has an answer at its place" in said


@pytest.mark.parametrize(
    ("wrong", "remark"),
    [
        ({"answer_start": 19}, "2 of 6 answers were moved: does answer_start count characters from 0?"),
        ({"answer_text": "um", "answer_start": 21}, "2 of 6 answers begin or end inside a word"),
        ({"answer_text": "hu", "answer_start": 20}, "2 of 6 answers begin or end inside a word"),
        ({}, "2 of 6 answers"),
    ],
)
def test_answers_out_of_place_ask_what_answer_start_counts(tmp_path: Path, wrong: dict[str, Any], remark: str) -> None:
    for count in (1, 2):
        reading = Interpretation()
        rows = [{**as_flat(ONE), "id": f"q{n}", **(wrong if n < count else {})} for n in range(6)]
        read_question_file(put(tmp_path / "t.csv", rows), "FILE", SquadDataParams(), reading)
        assert [one.startswith(remark) for one in reading.remarks] == [True] * bool(count == 2 and wrong)
