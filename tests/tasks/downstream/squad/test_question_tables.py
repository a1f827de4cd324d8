"""Questions from CSV, JSON lines, Parquet and Hub tables: every form gives the same rows; every defect is named."""

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
from tasks.records.answer_places import BLANKS, BLANKS_OUTSIDE, MOVED
from tasks.records.interpretation import NUMERIC_IDS, Interpretation, describe_inputs, read_reading
from tasks.stage.artifacts import READING
from tasks.stage.errors import InputError, ParamsError
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
    written,
)

ONE: dict[str, Any] = {
    "id": "q1",
    "title": "Animals",
    "context": CONTEXT,
    "question": "What do bees do?",
    "answers": [{"text": "hum", "answer_start": 20}],
}
MANY = {**ONE, "answers": [{"text": "hum", "answer_start": 20}, {"text": "dance", "answer_start": 34}]}


def columns(**names: str) -> SquadColumnParams:
    return validate_section(SquadColumnParams, {**dict.fromkeys(SquadColumnParams.model_fields), **names}, "test")


def without(column: str) -> dict[str, Any]:
    return {name: value for name, value in ONE.items() if name != column}


def make(folder: Path, train: Path, dev: Path | None = None, **values: Any) -> dict[str, Rows]:
    dev = dev or write(folder / "dev.json", squad(qa("d1")))
    make_questions(params(train_path=str(train), dev_path=str(dev), **values), folder / "made/out")
    return written(folder / "made/out")


def refusal(folder: Path, name: str, rows: Rows, **values: Any) -> str:
    """The message of the refusal, after checking that nothing was left behind."""
    with pytest.raises(InputError) as caught:
        make(folder, write_table(folder / name, rows), **values)
    assert not list((folder / "made").glob("*")), "nothing half-written"
    return str(caught.value)


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
    found = make(tmp_path, write_table(tmp_path / f"train{ending}", [form(MANY), form({**ONE, "id": "q2"})]))
    assert found["train"] == [MANY, {**ONE, "id": "q2"}]


def test_a_stated_separator_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "train.csv"
    table.write_text(f"id|context|question|answer_text|answer_start\nq1|{CONTEXT}|{ONE['question']}|hum|20\n")
    with pytest.raises(InputError, match="no column"):
        make(tmp_path, table)
    assert make(tmp_path, table, separator="pipe")["train"] == [{**ONE, "title": ""}]
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
    dev = write_table(tmp_path / "dev.csv", [{**row, "key": "d1"}])
    found = make(tmp_path, write_table(tmp_path / "train.csv", [row]), dev, columns=names)
    assert found["train"] == [{**ONE, "title": ""}]
    noted = json.loads((tmp_path / "made/out" / READING).read_text())
    assert (noted["numbers"], noted["inputs"]["train"]["unused_columns"]) == (
        {"files read": 2, "columns not used": 1},
        ["lang"],
    )


def test_two_places_for_answers_are_refused_with_the_keys() -> None:
    with pytest.raises(ParamsError, match="cannot be combined"):
        columns(answers="a", answer_text="b")


def test_numbers_as_ids_become_text_and_repetitions_are_counted(tmp_path: Path) -> None:
    rows = [{**ONE, "id": 7}, {**ONE, "id": 8}]
    assert [row["id"] for row in make(tmp_path, write_table(tmp_path / "t.parquet", rows))["train"]] == ["7", "8"]
    numbers = json.loads((tmp_path / "made/out" / READING).read_text())["numbers"]
    assert numbers == {"files read": 2, NUMERIC_IDS: 2, questions.REPEATED: 1}


# ----------------------------------------------------------------------------------------------- refusals

EMPTY = [
    ("t.jsonl", {**ONE, "answers": {"text": [], "answer_start": []}}),
    ("t.jsonl", {**ONE, "answers": []}),
    ("t.jsonl", {**ONE, "answers": None}),
    ("t.parquet", {**ONE, "answers": None}),
    ("t.csv", {**as_flat(ONE), "answer_text": "", "answer_start": ""}),
    ("t.csv", {**as_flat(ONE), "answer_text": "", "answer_start": "-1"}),
    ("t.csv", {**ONE, "answers": ""}),
    ("t.csv", {**ONE, "answers": '{"text": [], "answer_start": []}'}),
    ("t.csv", {**as_json_text(ONE), "is_impossible": "True"}),
    ("t.jsonl", {**ONE, "is_impossible": True}),
]


@pytest.mark.parametrize(("name", "row"), EMPTY)
def test_squad_v2_is_refused_alike_in_every_format(tmp_path: Path, name: str, row: dict[str, Any]) -> None:
    message = refusal(tmp_path, name, [{**row, "id": "a"}, {**row, "id": "b"}])
    assert "2 problems:\n  no answer (is_impossible: true, or an empty list), as in SQuAD 2.0; " in message
    assert "--unanswerable use (data.unanswerable)" in message
    assert ": 'a', 'b'" in message


def test_is_impossible_false_is_no_squad_v2_also_as_text(tmp_path: Path) -> None:
    rows = [{**as_json_text(ONE), "is_impossible": "False"}]
    assert make(tmp_path, write_table(tmp_path / "t.csv", rows))["train"] == [ONE]
    assert "is_impossible is not true or false: line 2 ('no')" in refusal(
        tmp_path / "x", "t.csv", [{**rows[0], "is_impossible": "no"}]
    )


@pytest.mark.parametrize(
    ("name", "rows", "said"),
    [
        ("t.csv", [{**ONE, "answers": "{'text': ['hum'], 'answer_start': [20]}"}], "answers is not JSON"),
        ("t.jsonl", [{**ONE, "answers": {"text": ["hum"], "answer_start": []}}], "of equal length: line 1 ([1, 0])"),
        (
            "t.jsonl",
            [{**ONE, "answers": {"text": ["hum"], "answer_start": ["a20"]}}],
            "not an integer: line 1.answers[0]",
        ),
        ("t.csv", [{**as_flat(ONE), "answer_start": "20.5"}], "not an integer: line 2.answers[0] ('20.5')"),
        ("t.csv", [{**as_flat(ONE), "answer_start": "2_0"}], "not an integer: line 2.answers[0] ('2_0')"),
        ("t.csv", [{**as_flat(ONE), "answer_text": "", "answer_start": "20"}], "answer_text: line 2 ('20')"),
        ("t.jsonl", [{**ONE, "context": float("nan")}], "context is not text: line 1 (nan)"),
        ("t.jsonl", [{**ONE, "id": " "}], "id is empty: line 1"),
        ("t.jsonl", [{**ONE, "id": None}], "id is not text: line 1"),
        ("t.jsonl", [{**ONE, "title": 5}], "title is not text: line 1 (5)"),
        ("t.jsonl", [ONE, {**ONE, "question": "Again?"}], "an id that is not unique: 'q1' (line 1 and line 2)"),
        ("t.parquet", [{k: v for k, v in ONE.items() if k != "answers"}], "--column answers=NAME"),
        ("t.parquet", [{**{k: v for k, v in ONE.items() if k != "context"}, "contexts": "x"}], "mean contexts?"),
    ],
)
def test_a_defect_is_refused_with_its_place(tmp_path: Path, name: str, rows: Rows, said: str) -> None:
    assert said in refusal(tmp_path, name, rows)


def test_files_that_are_damaged_or_of_another_encoding_are_named(tmp_path: Path) -> None:
    good = write_table(tmp_path / "good.parquet", [{**ONE, "id": str(number)} for number in range(2000)])
    cut = bytearray(good.read_bytes())
    cut[100:400] = bytes(300)  # the footer is whole, a page is not
    for name, content, said in (
        ("cut.parquet", good.read_bytes()[:-20], "cannot be read as Parquet from row"),
        ("page.parquet", bytes(cut), "cannot be read as Parquet from row"),
        ("latin.csv", "id,context,question,answers\nq1,caf\u00e9,,\n".encode("latin-1"), "not UTF-8: found byte 0xe9"),
        ("wide.jsonl", json.dumps(ONE).encode("utf-16"), "UTF-16"),
        ("wide.json", json.dumps(squad(qa())).encode("utf-16"), "UTF-16"),
        ("twice.csv", b"id,id,context,question\n1,2,3,4\n", "column 'id' more than once"),
        ("twice.jsonl", b'{"id": "a", "id": "b"}\n', "'id' occurs twice"),
        ("lines.json", b'{"id": "a"}\n{"id": "b"}\n', "line 1 has no column 'context'"),
        ("cut.json", b'[{"id": "b"\n', "record 0 (line 1) is not JSON (Expecting ',' delimiter in line 2"),
        ("after.json", b'{"id":\n"a"}\n{"id": "b"}\n', "line 1 has no column 'context'"),
        ("broken.json", b'{"version": "1.1",\n"data": x}', "is not JSON (Expecting value in line 2: 'x}')"),
        ("latin.json", b'{\n"caf\xe9": 1}', "byte 0xe9 at offset 6 (line 2)"),
        ("deep.json", b"[" * 200_000, "record 0 (line 1) cannot be read (maximum recursion depth"),
        ("empty.csv", b"id,context,question,answers\n", "contains no questions"),
        ("a.xlsx", b"PK", "has the suffix .xlsx"),
    ):
        path = write(tmp_path / name, content)
        with pytest.raises(InputError) as caught:
            make(tmp_path, path)
        assert said in str(caught.value), name
        assert name in str(caught.value)


def test_text_of_a_parquet_file_that_is_not_utf8_is_refused_with_its_row(tmp_path: Path) -> None:
    texts = pa.array([b"fine", "caf\u00e9".encode("latin-1")], pa.binary()).view(pa.string())
    others = {name: ["x", "y"] for name in ("id", "question", "answers")}
    pq.write_table(pa.table({**others, "context": texts}), tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"t\.parquet, row 1 is damaged or not UTF-8"):
        make(tmp_path, tmp_path / "t.parquet")


@pytest.mark.parametrize(("name", "row"), EMPTY[:-2])
def test_questions_without_an_answer_are_read_alike_in_every_format(
    tmp_path: Path, name: str, row: dict[str, Any]
) -> None:
    table = write_table(tmp_path / name, [{**row, "id": "a"}, {**row, "id": "b"}])
    assert [one["answers"] for one in make(tmp_path, table, unanswerable="use")["train"]] == [[], []]


def test_questions_without_an_id_are_those_of_an_earlier_file_wherever_they_are_in_it(tmp_path: Path) -> None:
    bare = {key: value for key, value in ONE.items() if key != "id"}
    other = {**bare, "question": "And another?"}
    task: Any = task_with("squad", "scores")
    keys = list[list[str]]()
    for number, rows in enumerate(([bare, other], [{**other, "question": "First?"}, bare, other])):
        make(tmp_path / str(number), write_table(tmp_path / f"{number}.jsonl", rows))
        keys.append(task.keys(task.read_examples(tmp_path / str(number) / "made/out/train.parquet")))
    assert keys[0] == keys[1][1:]
    [named] = task.keys([SquadQuestion("a", "", CONTEXT, "Who?", ())])
    assert [named] != task.keys([SquadQuestion("b", "", CONTEXT, "Who?", ())])


def test_ids_are_made_where_no_column_holds_any_the_same_in_every_run_and_counted(tmp_path: Path) -> None:
    bare = {key: value for key, value in ONE.items() if key != "id"}
    found = [make(tmp_path, write_table(tmp_path / "t.jsonl", [bare, bare]))["train"] for _ in range(2)]
    ids = [[row["id"] for row in rows] for rows in found]
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 2, "the same question twice has two ids"
    assert read_reading(tmp_path / "made/out")["numbers"][MADE] == 2
    (tmp_path / "other").mkdir()
    assert "no column 'key'" in refusal(tmp_path / "other", "t.parquet", [bare], columns=SquadColumnParams(id="key"))


def lines(rows: Rows) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


OF_JSON: dict[str, Callable[[Rows], Any]] = {
    "data": lambda rows: {"version": "0.1.0", "data": rows},
    "list": lambda rows: rows,
    "lines": lines,
    "articles": lambda rows: squad(qa(), qa("q2", "Which bees?"))["data"],
}


@pytest.mark.parametrize("form", OF_JSON)
@pytest.mark.parametrize("answers", [as_struct, lambda row: row], ids=["columns", "objects"])
def test_json_with_an_object_for_each_question_gives_the_rows_of_squad(
    tmp_path: Path, form: str, answers: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    rows = [answers(ONE), answers({**ONE, "id": "q2", "question": "Which bees?"})]
    wanted = make(tmp_path, write(tmp_path / "articles.json", squad(qa(), qa("q2", "Which bees?"))))
    assert make(tmp_path, write(tmp_path / "flat.json", OF_JSON[form](rows))) == wanted
    assert read_references(tmp_path / "flat.json") == [("q1", ("hum",)), ("q2", ("hum",))]


def test_json_of_a_single_line_and_with_columns_of_other_names(tmp_path: Path) -> None:
    row = {"id": 7, "text": CONTEXT, "ask": ONE["question"], "answers": ONE["answers"]}
    path, reading = write(tmp_path / "one.json", lines([row])), Interpretation()
    [found] = read_question_file(
        path, "FILE", SquadDataParams(columns=columns(context="text", question="ask")), reading
    )
    assert (found.id, found.context, found.answers) == ("7", CONTEXT, (("hum", 20),))
    assert +reading.counts == {NUMERIC_IDS: 1}
    with pytest.raises(InputError, match="record 1 is int; a list of objects is required"):
        read_question_file(write(tmp_path / "two.json", [ONE, 2]), "FILE", SquadDataParams(), Interpretation())


@pytest.mark.parametrize("form", ["articles", "flat", "table"])
def test_ids_that_are_numbers_are_text_and_counted(tmp_path: Path, form: str) -> None:
    values = squad(qa(7), qa(8, "Which bees?")) if form == "articles" else [{**ONE, "id": n} for n in (7, 8)]  # type: ignore[arg-type]
    path = tmp_path / ("t.jsonl" if form == "table" else "t.json")
    write(path, lines(values) if isinstance(values, list) and form == "table" else values)
    reading = Interpretation()
    found = read_question_file(path, "FILE", SquadDataParams(), reading)
    assert ([one.id for one in found], reading.counts[NUMERIC_IDS]) == (["7", "8"], 2)
    if form != "table":
        reading = Interpretation()
        assert [name for name, _ in read_references(path, reading)] == ["7", "8"]
        assert +reading.counts == {NUMERIC_IDS: 2}


@pytest.mark.parametrize("form", ["articles", "table"])
def test_blanks_at_the_edges_of_answers_are_stripped_and_counted(tmp_path: Path, form: str) -> None:
    answers = [{"text": " hum, ", "answer_start": 19}, {"text": "hum", "answer_start": 20}]
    answers[0]["text"] = CONTEXT[19:25]
    answers.append({"text": CONTEXT[33:], "answer_start": 33})
    assert [one["text"] for one in answers] == [" hum, ", "hum", " dance."]
    values: Any = squad(qa()) if form == "articles" else lines([{**ONE, "answers": answers}])
    if form == "articles":
        values["data"][0]["paragraphs"][0]["qas"][0]["answers"] = answers
    path = write(tmp_path / ("t.json" if form == "articles" else "t.jsonl"), values)
    found = make(tmp_path, path)
    assert found["train"][0]["answers"] == [
        {"text": "hum,", "answer_start": 20},
        {"text": "hum", "answer_start": 20},
        {"text": "dance.", "answer_start": 34},
    ]
    assert read_reading(tmp_path / "made/out")["numbers"][BLANKS] == 2


@pytest.mark.parametrize("start", [20, 20.0, "20", "20.0", " 20.", "+20", "\u0662\u0660"])
def test_an_answer_start_that_is_a_whole_number_is_read(tmp_path: Path, start: Any) -> None:
    answers = {"text": "hum", "answer_start": start}
    tables = [
        write_table(tmp_path / "flat.csv", [{**as_flat(ONE), "answer_start": start}]),
        write_table(tmp_path / "flat.jsonl", [{**as_flat(ONE), "answer_start": start}]),
        write_table(tmp_path / "one.jsonl", [{**ONE, "answers": answers}]),
        write(tmp_path / "one.json", squad({**qa("q1"), "answers": answers})),
    ]
    for table in tables:
        assert make(tmp_path, table)["train"][0]["answers"] == ONE["answers"], table


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
def test_an_answer_is_taken_where_only_one_reading_is_possible(
    tmp_path: Path, text: str, start: int, right: int | None, change: str | None
) -> None:
    row = {**ONE, "context": ANTS, "answers": [{"text": text, "answer_start": start}]}
    table, reading = write_table(tmp_path / "t.jsonl", [row]), Interpretation()
    if right is None:
        with pytest.raises(InputError, match=rf"line 1, question 'q1': '{text}' at {start} \(found"):
            read_question_file(table, "FILE", SquadDataParams(), reading)
        return
    [found] = read_question_file(table, "FILE", SquadDataParams(), reading)
    assert found.answers == ((text.strip(), right),)
    assert +reading.counts == ({} if change is None else {change: 1})
    assert reading.places == ({} if change is None else {change: "line 1, question 'q1'"})


def test_the_normal_forms_of_an_answer_and_its_context_are_in_the_refusal(tmp_path: Path) -> None:
    for answer, context in (("NFC", "NFD"), ("NFD", "NFC")):
        texts = (unicodedata.normalize(answer, "caf\u00e9"), unicodedata.normalize(context, "the caf\u00e9 hums"))
        row = {**ONE, "context": texts[1], "answers": [{"text": texts[0], "answer_start": 4}]}
        message = refusal(tmp_path, "t.jsonl", [row])
        assert f"; the answer is in {answer}, the context in {context}: normalise both)" in message


@pytest.mark.parametrize("unanswerable", ["refuse", "use", "drop"])
def test_misplaced_answers_are_dropped_on_request_and_questions_without_any_other(
    tmp_path: Path, unanswerable: str
) -> None:
    lost = {"text": "wasp", "answer_start": 3}
    rows = [{**ONE, "answers": [lost, *ONE["answers"]]}, {**ONE, "id": "q2", "answers": [lost]}]
    table = write_table(tmp_path / "t.jsonl", rows)
    assert "--misplaced-answers drop (data.misplaced_answers)" in refusal(tmp_path, "t.jsonl", rows)
    values = {"misplaced_answers": "drop", "unanswerable": unanswerable}
    assert make(tmp_path, table, **values)["train"] == [ONE]
    reading = read_reading(tmp_path / "made/out")
    assert (reading["numbers"][MISPLACED], reading["numbers"][WITHOUT_PLACE]) == (2, 1)
    assert reading["inputs"]["train"]["places"] == {
        MISPLACED: "line 1, question 'q1'",
        WITHOUT_PLACE: "line 2, question 'q2'",
    }
    with pytest.raises(
        InputError, match=r"none of 1 questions has an answer at its place.*misplaced_answers drops them"
    ):
        make(tmp_path / "all", write_table(tmp_path / "all.jsonl", rows[1:]), **values)


@pytest.mark.parametrize(
    ("wrong", "remark"),
    [
        ({"answer_start": 19}, "2 of 6 answers were moved: does answer_start count characters from 0?"),
        ({"answer_text": "um"}, "2 of 6 answers begin or end inside a word"),
        ({"answer_text": "hu", "answer_start": 20}, "2 of 6 answers begin or end inside a word"),
        ({}, "2 of 6 answers"),
    ],
)
def test_a_file_of_many_answers_out_of_place_asks_what_answer_start_counts(
    tmp_path: Path, wrong: dict[str, Any], remark: str
) -> None:
    wrong = {"answer_start": 21, **wrong} if "answer_text" in wrong else wrong
    for count in (1, 2):
        reading = Interpretation()
        rows = [{**as_flat(ONE), "id": f"q{n}", **(wrong if n < count else {})} for n in range(6)]
        read_question_file(write_table(tmp_path / "t.csv", rows), "FILE", SquadDataParams(), reading)
        assert [one.startswith(remark) for one in reading.remarks] == [True] * bool(count == 2 and wrong)


@pytest.mark.parametrize(
    ("ending", "form", "said"),
    [
        (".jsonl", dict, "answers in 'answers' are [{text, answer_start}, ...]"),
        (".parquet", as_struct, "answers in 'answers' are {text: [...], answer_start: [...]}"),
        (".csv", as_json_text, "answers in 'answers' are {text: [...], answer_start: [...]} as JSON text"),
        (".csv", as_flat, "an answer is in 'answer_text' and 'answer_start'"),
        (".json", dict, "answers are [{text, answer_start}, ...]"),
    ],
)
def test_the_interpretation_says_what_answers_and_examples_are(
    tmp_path: Path, ending: str, form: Any, said: str
) -> None:
    path = tmp_path / f"t{ending}"
    reading = Interpretation()
    path = write(path, squad(qa())) if ending == ".json" else write_table(path, [form(ONE)])
    read_question_file(path, "FILE", SquadDataParams(), reading)
    meaning = f"{said}; answer_start counts characters; an example is a question about its context"
    assert describe_inputs({"t": reading})[1:] == [f"  {meaning}"]
