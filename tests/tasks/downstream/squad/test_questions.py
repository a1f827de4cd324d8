"""Questions from SQuAD's JSON, tables and the Hub: every form gives the same rows; every defect is named."""

import csv
import json
import re
import unicodedata
from contextlib import nullcontext

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
from tasks.records.interpretation import NUMERIC_IDS, Interpretation, read_reading
from tasks.stage import memory
from tasks.stage.errors import InputError, ParamsError
from tests.places import SHARED
from tests.tasks.downstream.entries import task_with
from tests.tasks.downstream.squad.question_files import CONTEXT, params, qa, squad, write

SQUAD = SHARED / "data/squad"
HUM = {"text": "hum", "answer_start": 20}
BARE = {"title": "Animals", "context": CONTEXT, "question": "What do bees do?", "answers": [HUM]}
ONE = {"id": "q1", **BARE}
MANY = {**ONE, "answers": [HUM, {"text": "dance", "answer_start": 34}]}
SECOND = {**ONE, "id": "q2", "question": "Which bees?"}
LOST = {"text": "wasp", "answer_start": 3}


def as_struct(row):
    return {**row, "answers": {key: [answer[key] for answer in row["answers"]] for key in ("text", "answer_start")}}


def as_json_text(row):
    return {**row, "answers": json.dumps(as_struct(row)["answers"])}


def as_flat(row):
    [answer] = row["answers"]
    flat = {"answer_text": answer["text"], "answer_start": answer["answer_start"]}
    return {**{key: value for key, value in row.items() if key != "answers"}, **flat}


def columns(**names):
    return validate_section(SquadColumnParams, {**dict.fromkeys(SquadColumnParams.model_fields), **names}, "test")


def put(path, content):
    """A file of these bytes, this value as JSON, or a table of these rows."""
    if not isinstance(content, list) or path.suffix == ".json":
        return write(path, content)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(content), path)
    elif path.suffix == ".jsonl":
        path.write_bytes(lines(content))
    else:
        with path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, list(content[0]))
            writer.writeheader()
            writer.writerows(content)
    return path


def make(folder, train, name="train.json", dev=None, **values):
    paths = {"train_path": str(put(folder / name, train))}
    paths["dev_path"] = str(put(folder / "dev.json", squad(qa("d1")) if dev is None else dev))
    return stage(folder, **paths, **values)


def stage(folder, **values):
    made = folder / "made/out"
    make_questions(params(**values), made)
    tables = {split: pq.read_table(made / f"{split}.parquet") for split in ("train", "dev")}
    assert all(table.schema.equals(questions.SCHEMA) for table in tables.values())
    return {split: table.to_pylist() for split, table in tables.items()}


def refusal(folder, train, name="train.json", **values):
    """The message of the refusal, after checking that nothing was left behind."""
    with pytest.raises(InputError) as caught:
        make(folder, train, name, **values)
    assert not list((folder / "made").glob("*"))
    return str(caught.value)


def counts(folder):
    return read_reading(folder / "made/out")["numbers"]


def lines(rows):
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


FORMS = [
    *((f"t{ending}", [form(MANY), form(SECOND)])
      for ending in (".jsonl", ".parquet") for form in (dict, as_struct, as_json_text)),
    ("t.csv", [as_json_text(MANY), as_json_text(SECOND)]),
    *(("t.json", whole([form(MANY), form(SECOND)]))
      for form in (dict, as_struct) for whole in (lambda rows: {"version": "0.1.0", "data": rows}, list, lines)),
    ("t.json", squad(qa(answers=(("hum", 20), ("dance", 34))), qa("q2", "Which bees?"))["data"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content"), FORMS)
def test_every_form_gives_the_rows_of_squads_json(tmp_path, name, content):
    assert make(tmp_path, content, name)["train"] == [MANY, SECOND]
    if name == "t.json":
        assert read_references(tmp_path / name) == [("q1", ("hum", "dance")), ("q2", ("hum",))]


BARE_TITLE = {**ONE, "title": ""}
ODD = squad(qa(is_impossible=False, note=[1]), split="new_wiki")
del ODD["data"][0]["title"]
PIPES = f"id|context|question|answer_text|answer_start\nq1|{CONTEXT}|{ONE['question']}|hum|20\n".encode()
IMPOSSIBLE = qa("b", answers=(), is_impossible=True, plausible_answers=[HUM])
PADDED = [{"text": " hum, ", "answer_start": 19}, HUM, {"text": " dance.", "answer_start": 33}]
STRIPPED = [{"text": "hum,", "answer_start": 20}, HUM, {"text": "dance.", "answer_start": 34}]
BEES = "\U0001f41d" * 5 + " caf\u00e9 hum"
"""5 bees, space, c a f e, space: "hum" is at character 11, UTF-16 code unit 16 and byte 27."""


def bees(*starts):
    return squad(*[qa(f"q{n}", f"What, {n}?", (("hum", start),)) for n, start in enumerate(starts)], context=BEES)


ON_BEES = [{**ONE, "id": f"q{n}", "question": f"What, {n}?", "context": BEES,
            "answers": [{"text": "hum", "answer_start": 11}]} for n in range(2)]  # fmt: skip
WHOLE = {**ONE, "context": "hum", "answers": [{"text": "hum", "answer_start": 0}]}
ACCEPTED = [
    ("t.json", b"\xef\xbb\xbf" + json.dumps(ODD).encode(), {}, [BARE_TITLE], {}),
    ("t.csv", [{**as_json_text(ONE), "is_impossible": "False"}], {}, [ONE], {}),
    ("t.csv", PIPES, {"separator": "pipe"}, [BARE_TITLE], {}),
    ("t.jsonl", [as_flat({**ONE, "id": 7})], {}, [{**ONE, "id": "7"}], {NUMERIC_IDS: 1}),
    ("t.json", squad(qa(), qa("q2")), {}, [ONE, {**ONE, "id": "q2"}], {questions.REPEATED: 1}),
    ("t.json", {**ONE, "id": 7}, {}, [{**ONE, "id": "7"}], {NUMERIC_IDS: 1}),  # one record
    ("t.json", squad(qa(), IMPOSSIBLE), {"unanswerable": "use"}, [ONE, {**ONE, "id": "b", "answers": []}],
     {"questions without an answer, used": 1, questions.REPEATED: 1}),
    ("t.json", squad(qa(), IMPOSSIBLE), {"unanswerable": "drop"}, [ONE], {"questions without an answer, dropped": 1}),
    ("t.json", bees(11, 11), {}, ON_BEES, {}),
    ("t.json", bees(16, 16), {}, ON_BEES, {CONVERTED: 2}),
    ("t.json", squad(qa(answers=(("hum", 0),)), context="hum"), {}, [WHOLE],
     {"answers that are the whole context": 1}),
    ("t.json", squad({**qa(), "answers": PADDED}), {}, [{**ONE, "answers": STRIPPED}], {BLANKS: 2}),
    *(("t.csv", [{**as_flat(ONE), "answer_start": start}], {}, [ONE], {})
      for start in ("20.0", " 20.", "+20", "\u0662\u0660")),
    *(("t.jsonl", [{**ONE, "answers": {"text": "hum", "answer_start": start}}], {}, [ONE], {})
      for start in (20, 20.0, "20")),
    ("t.json", squad({**qa(), "answers": {"text": "hum", "answer_start": "20"}}), {}, [ONE], {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "values", "rows", "changes"), ACCEPTED)
def test_what_can_be_meant_is_read_and_counted(tmp_path, name, content, values, rows, changes):
    assert make(tmp_path, content, name, **values)["train"] == rows
    reading = read_reading(tmp_path / "made/out")
    assert reading["numbers"] == {"files read": 2, **changes}
    units = [reading["inputs"][split]["labels"].rpartition(" counts ")[2] for split in ("train", "dev")]
    assert units[0].startswith("UTF-16" if CONVERTED in changes else "characters")
    assert units[1].startswith("characters")


def test_columns_of_other_names_are_mapped_and_those_not_used_are_reported(tmp_path):
    mapped = {"key": "q1", "passage": CONTEXT, "query": "What do bees do?", "span": "hum", "at": "20", "lang": "en"}
    names = columns(id="key", context="passage", question="query", answer_text="span", answer_start="at")
    paths = {
        f"{split}_path": str(put(tmp_path / f"{split}.csv", [{**mapped, "key": split}])) for split in ("train", "dev")
    }
    assert stage(tmp_path, **paths, columns=names)["train"] == [{**BARE_TITLE, "id": "train"}]
    reading = read_reading(tmp_path / "made/out")
    assert reading["numbers"] == {"files read": 2, "columns not used": 1}
    assert reading["inputs"]["train"]["unused_columns"] == ["lang"]
    with pytest.raises(ParamsError, match="cannot be combined"):
        columns(answers="a", answer_text="b")


def test_the_separator_holds_where_a_model_answers(tmp_path):
    table, task = put(tmp_path / "t.csv", PIPES), task_with("squad", "inference", data=params(separator="pipe"))
    [asked] = task.read_unlabelled(table, Interpretation())
    assert (asked["id"], asked["question"], asked["context"]) == ("q1", ONE["question"], CONTEXT)
    task.write_labelled(table, tmp_path / "dev.parquet", Interpretation())
    assert pq.read_table(tmp_path / "dev.parquet").num_rows == 1


@pytest.mark.skipif(not SQUAD.is_dir(), reason=f"needs {SQUAD}")
def test_the_real_questions_are_read_whole(tmp_path):
    made = stage(tmp_path, **{f"{name}_path": str(SQUAD / f"new-wiki-{name}.json") for name in ("train", "dev")})
    assert (len(made["train"]), len(made["dev"])) == (7024, 914)
    for row in made["dev"]:
        for answer in row["answers"]:
            assert row["context"][answer["answer_start"] :].startswith(answer["text"])


def test_the_demo_asks_as_many_questions_as_wanted_the_same_every_time(tmp_path):
    rows, again = (stage(tmp_path / name, source="demo") for name in ("one", "two"))
    assert rows == again
    assert (len(rows["train"]), len(rows["dev"])) == (40, 20)
    assert {row["id"] for row in rows["train"]}.isdisjoint(row["id"] for row in rows["dev"])


def without(*place):
    """SQuAD's JSON with one question, without the key at this place."""
    values = parent = squad(qa())
    for step in place[:-1]:
        parent = parent[step]
    del parent[place[-1]]
    return values


QA = ("data", 0, "paragraphs", 0, "qas", 0)
AT = "data[0].paragraphs[0].qas[0]"
USE, DROP = {"unanswerable": "use"}, {"unanswerable": "drop"}


def composed(answer_form, context_form):
    answer, context = (
        unicodedata.normalize(answer_form, "caf\u00e9"),
        unicodedata.normalize(context_form, "the caf\u00e9 hums"),
    )
    return squad(qa(answers=((answer, 4),)), context=context)


REFUSED = {
    "t.json": [
        (without("data"), {}, "no column 'context' and no column 'question'"),
        (without("data", 0, "paragraphs", 0, "qas"), {}, "qas is missing: data[0].paragraphs[0]"),
        (without(*QA, "id"), {}, f"id is missing: {AT}"),
        (without(*QA, "answers", 0, "answer_start"), {}, "answer_start is missing: "),
        (squad(qa(answers=(("hum", 20.5),))), {}, f"not an integer: {AT}.answers[0] (20.5)"),
        (squad(qa(question="half \ud800")), {}, "half a surrogate pair"),
        (squad(), {}, "contains no questions"),
        (squad(qa(question=" ")), {}, "empty"),
        (squad(qa(answers=(("ees", 0),))), {}, f"{AT}, question 'q1': 'ees' at 0 (found 'Ant'; it is at 16, 30)"),
        (squad(qa(answers=(("wasps", 0),))), {}, "the context does not contain it"),
        (squad(qa(answers=(("hum", -6),))), {}, "found nothing"),
        (squad(*[qa(f"q{n}", answers=(("hum", 0),)) for n in range(25)]), {}, " and 20 more"),
        (b'[{"id": "b"\n', {}, "record 0 (line 1) is not JSON (Expecting ',' delimiter in line 2"),
        (squad(qa()), {"dev": squad(qa("d1", answers=(("hum", 1),)))}, "dev.json (data.dev_path)"),
        (squad(qa("same"), qa("other")), {"dev": squad(qa("same"))}, "1 question id(s) are in both"),
        (squad(IMPOSSIBLE), DROP, "none of 1 questions"),
        (
            squad(qa("a", answers=(), is_impossible=False), qa("c")),
            USE,
            "false and no answer; correct one of the two: 'a'",
        ),
        (bees(11, 16), {}, "'q1': 'hum' at 16 (found nothing; it is at 11; 16 counts UTF-16"),  # not the whole file
        (bees(27), {}, "it is at 11; 27 counts bytes of UTF-8"),
        (composed("NFC", "NFD"), {}, "the answer is in NFC, the context in NFD"),
        (composed("NFD", "NFC"), {}, "the answer is in NFD, the context in NFC"),
    ],
    "t.jsonl": [
        ([{**ONE, "answers": {"text": ["hum"], "answer_start": []}}], {}, "of equal length: line 1 ([1, 0])"),
        ([{**ONE, "context": float("nan")}], {}, "context is not text: line 1 (nan)"),
        ([{**ONE, "id": None}], {}, "id is not text: line 1"),
        ([ONE, {**ONE, "question": "Again?"}], {}, "an id that is not unique: 'q1' (line 1 and line 2)"),
    ],
    "t.csv": [
        ([{**ONE, "answers": "{'text': ['hum'], 'answer_start': [20]}"}], {}, "answers is not JSON"),
        ([{**as_flat(ONE), "answer_start": "2_0"}], {}, "not an integer: line 2.answers[0] ('2_0')"),
        ([{**as_flat(ONE), "answer_text": "", "answer_start": "20"}], {}, "answer_text: line 2 ('20')"),
        ([{**as_json_text(ONE), "is_impossible": "no"}], {}, "is_impossible is not true or false: line 2 ('no')"),
    ],
    "t.parquet": [
        ([{key: value for key, value in ONE.items() if key != "answers"}], {}, "--column answers=NAME"),
        ([{**{key: value for key, value in ONE.items() if key != "context"}, "contexts": "x"}], {}, "mean contexts?"),
        ([BARE], {"columns": SquadColumnParams(id="key")}, "no column 'key'"),
    ],
    "t.xlsx": [(b"PK", {}, "has the suffix .xlsx")],
}


@pytest.mark.parametrize(
    ("name", "content", "values", "words"), [(name, *case) for name, cases in REFUSED.items() for case in cases]
)
def test_a_defect_is_refused_with_its_place(tmp_path, name, content, values, words):
    message = refusal(tmp_path, content, name, **values)
    assert words in message
    assert name in message or values


def test_parquet_that_is_damaged_is_named(tmp_path):
    good = put(tmp_path / "good.parquet", [{**ONE, "id": str(number)} for number in range(2000)]).read_bytes()
    page = good[:100] + bytes(300) + good[400:]  # the footer is whole, a page is not
    for content in (good[:-20], page):
        assert "t.parquet cannot be read" in refusal(tmp_path, content, "t.parquet")


def test_a_missing_file_and_a_folder_name_the_key(tmp_path):
    put(tmp_path / "in/a.json", squad(qa()))
    for name, words in (("absent.json", "does not exist"), ("in", r"in is a folder \(with a\.json\)")):
        with pytest.raises(InputError, match=rf"(?s)(?=.*data\.train_path).*{words}"):
            stage(tmp_path, train_path=str(tmp_path / name))


def test_json_that_needs_more_memory_than_there_is_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "memory_left", lambda: 100)
    read_question_file(put(tmp_path / "t.jsonl", [ONE]), "FILE", SquadDataParams(), Interpretation())
    put(tmp_path / "t.json", squad(qa()))
    for name, words in (("t.json", "memory"), ("absent.json", "not found|not exist")):
        with pytest.raises(InputError, match=words):
            read_question_file(tmp_path / name, "FILE", SquadDataParams(), Interpretation())


LINES = lines([ONE]) + b"no JSON\n"


@pytest.mark.parametrize(
    ("name", "content", "values", "words"),
    [
        ("good.json", b"\xef\xbb\xbf" + json.dumps(squad(qa())).encode(), {}, None),
        ("table.jsonl", LINES, {}, None),
        ("bad.json", b"[1, 2, 3, 4, 5]", {}, r"bad\.json, record 0 is int; .*\(KEY"),
        ("table.jsonl", LINES.replace(CONTEXT.encode(), b"nothing"), {}, "1 problem:"),
        ("t.csv", PIPES, {"separator": "pipe"}, None),
        ("t.csv", PIPES, {}, "no column"),
    ],
)
def test_the_beginning_of_a_large_file_is_read_before_a_run(tmp_path, monkeypatch, name, content, values, words):
    monkeypatch.setattr(questions, "WHOLE_BYTES", 10)
    monkeypatch.setattr(questions, "FIRST_RECORDS", 1)
    path = put(tmp_path / name, content)
    with nullcontext() if words is None else pytest.raises(InputError, match=words):
        questions.check_question_file(path, "KEY", params(**values), Interpretation())


def test_ids_are_made_where_no_column_holds_any_and_keys_do_not_depend_on_the_place(tmp_path):
    other, task, ids, keys = {**BARE, "question": "And another?"}, task_with("squad", "scores"), [], []
    for rows in ([BARE, other], [{**other, "question": "First?"}, BARE, other], [BARE, BARE], [BARE, BARE]):
        ids.append([row["id"] for row in make(tmp_path, rows, "t.jsonl")["train"]])
        keys.append(task.keys(task.read_examples(tmp_path / "made/out/train.parquet")))
        assert counts(tmp_path)[MADE] == len(rows)
    assert keys[0] == keys[1][1:]
    assert ids[2] == ids[3]
    assert len({*ids[2]}) == 2, "the same question twice has two ids"
    named = [task.keys([SquadQuestion(name, "", CONTEXT, "Who?", ())]) for name in "ab"]
    assert named[0] != named[1]


EMPTY = [
    ("t.jsonl", {**ONE, "answers": {"text": [], "answer_start": []}}),
    ("t.jsonl", {**ONE, "answers": []}),
    ("t.jsonl", {**ONE, "answers": None}),
    ("t.parquet", {**ONE, "answers": None}),
    ("t.csv", {**as_flat(ONE), "answer_text": "", "answer_start": ""}),
    ("t.csv", {**as_flat(ONE), "answer_text": "", "answer_start": "-1"}),
    ("t.csv", {**ONE, "answers": '{"text": [], "answer_start": []}'}),
]
CONTRADICTING = [("t.csv", {**as_json_text(ONE), "is_impossible": "True"}), ("t.jsonl", {**ONE, "is_impossible": True})]


@pytest.mark.parametrize(("name", "row"), [*EMPTY, *CONTRADICTING])
def test_questions_without_an_answer_are_alike_in_every_format(tmp_path, name, row):
    rows = [{**row, "id": "a"}, {**row, "id": "b"}]
    assert re.search(r"2 problems:\n  no answer .*--unanswerable use .*: 'a', 'b'", refusal(tmp_path, rows, name))
    if (name, row) in EMPTY:
        assert [made["answers"] for made in make(tmp_path, rows, name, **USE)["train"]] == [[], []]
        return
    for values in (USE, DROP):
        assert re.search("is_impossible: true and an answer.*: 'a', 'b'", refusal(tmp_path, rows, name, **values))


ANTS = "An ant and a bee. An ant hums; a cafe hums."
#       0         10        20        30        40
PLACES = [
    ("ant", 3, 3, None),
    (" ant ", 2, 3, BLANKS),
    (" ant ", 3, 3, BLANKS_OUTSIDE),
    ("bee", 10, 13, MOVED),
    (" bee", 15, 13, MOVED),
    ("ant", 20, 21, MOVED),  # a whole word
    ("hums", 36, 38, MOVED),
    ("t hums", 24, 23, MOVED),  # once in the context, inside a word
    ("bee", 9, None, None),
    ("ant", 0, 3, MOVED),
    ("hums", -5, None, None),  # does not count from the end
    ("a", 10, None, None),  # twice within three characters
    ("n", 25, None, None),  # inside a word, as elsewhere
    ("wasp", 3, None, None),
]


@pytest.mark.parametrize(("text", "start", "right", "change"), PLACES)
def test_an_answer_has_one_possible_place(tmp_path, text, start, right, change):
    row = {**ONE, "context": ANTS, "answers": [{"text": text, "answer_start": start}]}
    table, reading = put(tmp_path / "t.jsonl", [row]), Interpretation()
    if right is None:
        with pytest.raises(InputError, match=rf"line 1, question 'q1': '{text}' at {start} \(found"):
            read_question_file(table, "FILE", SquadDataParams(), reading)
        return
    [question] = read_question_file(table, "FILE", SquadDataParams(), reading)
    assert question.answers == ((text.strip(), right),)
    assert +reading.counts == ({} if change is None else {change: 1})
    assert reading.places == ({} if change is None else {change: "line 1, question 'q1'"})


@pytest.mark.parametrize("unanswerable", ["refuse", "use", "drop"])
def test_misplaced_answers_are_dropped_on_request(tmp_path, unanswerable):
    rows = [{**ONE, "answers": [LOST, HUM]}, {**ONE, "id": "q2", "answers": [LOST]}]
    assert "--misplaced-answers drop (data.misplaced_answers)" in refusal(tmp_path, rows, "t.jsonl")
    values = {"misplaced_answers": "drop", "unanswerable": unanswerable}
    assert make(tmp_path, rows, "t.jsonl", **values)["train"] == [ONE]
    assert (counts(tmp_path)[MISPLACED], counts(tmp_path)[WITHOUT_PLACE]) == (2, 1)
    places = {MISPLACED: "line 1, question 'q1'", WITHOUT_PLACE: "line 2, question 'q2'"}
    assert read_reading(tmp_path / "made/out")["inputs"]["train"]["places"] == places
    assert "none of 1 questions" in refusal(tmp_path / "all", rows[1:], "t.jsonl", **values)


@pytest.mark.parametrize(
    ("wrong", "remark"),
    [
        ({"answer_start": 19}, "2 of 6 answers were moved"),
        ({"answer_text": "um", "answer_start": 21}, "2 of 6 answers begin or end inside"),
    ],
)
def test_answers_out_of_place_ask_what_answer_start_counts(tmp_path, wrong, remark):
    for count in (1, 2):
        reading = Interpretation()
        rows = [{**as_flat(ONE), "id": f"q{n}", **(wrong if n < count else {})} for n in range(6)]
        read_question_file(put(tmp_path / "t.csv", rows), "FILE", SquadDataParams(), reading)
        assert [text.startswith(remark) for text in reading.remarks] == [True] * (count == 2)
