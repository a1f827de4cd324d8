"""The questions stage: what is read, what is written, and every way it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.downstream.squad import examples as questions
from tasks.downstream.squad.examples import make_questions
from tasks.records.answer_places import CONVERTED
from tasks.records.interpretation import Interpretation, read_reading
from tasks.stage.errors import InputError
from tests.places import SHARED
from tests.tasks.downstream.squad.question_files import CONTEXT, params, qa, squad, write, written

SQUAD = SHARED / "data/squad"


def make(tmp_path: Path, train: Any, dev: Any = None) -> dict[str, list[dict[str, Any]]]:
    paths = {
        "train_path": str(write(tmp_path / "train.json", train)),
        "dev_path": str(write(tmp_path / "dev.json", squad(qa("d1")) if dev is None else dev)),
    }
    make_questions(params(**paths), tmp_path / "made/out")
    return written(tmp_path / "made/out")


def refusal(tmp_path: Path, train: Any, dev: Any = None) -> str:
    """The message of the refusal, after checking that nothing was left behind."""
    with pytest.raises(InputError) as caught:
        make(tmp_path, train, dev)
    assert not list((tmp_path / "made").glob("*")), "nothing half-written"
    return str(caught.value)


# ------------------------------------------------------------------------------------------------ reading


def test_squad_json_becomes_rows_in_its_order_with_all_reference_answers(tmp_path: Path) -> None:
    two = qa("q2", "Who digs?", (("Ants", 0), ("Ants dig", 0)))
    assert make(tmp_path, squad(qa(), two))["train"] == [
        {
            "id": "q1",
            "title": "Animals",
            "context": CONTEXT,
            "question": "What do bees do?",
            "answers": [{"text": "hum", "answer_start": 20}],
        },
        {
            "id": "q2",
            "title": "Animals",
            "context": CONTEXT,
            "question": "Who digs?",
            "answers": [{"text": "Ants", "answer_start": 0}, {"text": "Ants dig", "answer_start": 0}],
        },
    ]


def test_other_keys_no_title_and_a_byte_order_mark_are_accepted(tmp_path: Path) -> None:
    values = squad(qa(is_impossible=False, note=[1]), split="new_wiki")
    del values["data"][0]["title"]
    text = b"\xef\xbb\xbf" + json.dumps(values).encode()
    assert make(tmp_path, text)["train"][0]["title"] == ""


BEES = "\U0001f41d" * 5 + " caf\u00e9 hum"
"""5 bees, space, c a f e, space: "hum" is at character 11, UTF-16 code unit 16 and byte 27."""


def test_answer_start_counts_characters_or_in_the_whole_file_utf16_code_units(tmp_path: Path) -> None:
    def bees(*starts: int) -> dict[str, Any]:
        return squad(*[qa(f"q{n}", answers=(("hum", start),)) for n, start in enumerate(starts)], context=BEES)

    for starts in ((11, 11), (16, 16)):
        found = make(tmp_path, bees(*starts))
        assert [row["answers"] for row in found["train"]] == [[{"text": "hum", "answer_start": 11}]] * 2
        reading = read_reading(tmp_path / "made/out")
        assert reading["numbers"].get(CONVERTED, 0) == 2 * (starts[0] == 16)
        unit = "UTF-16 code units" if starts[0] == 16 else "characters"
        assert f"answer_start counts {unit}" in reading["inputs"]["train"]["labels"]
        assert "answer_start counts characters" in reading["inputs"]["dev"]["labels"]
    both = refusal(tmp_path / "both", bees(11, 16))
    assert "question 'q1': 'hum' at 16 (found nothing; it is at 11; 16 counts UTF-16 code units, characters are" in both
    assert "it is at 11; 27 counts bytes of UTF-8, characters are" in refusal(tmp_path / "bytes", bees(27))


def test_the_real_questions_are_read_whole(tmp_path: Path) -> None:
    if not SQUAD.exists():
        pytest.skip(f"{SQUAD} is not there: real input is not part of the project")
    paths = {f"{name}_path": str(SQUAD / f"new-wiki-{name}.json") for name in ("train", "dev")}
    make_questions(params(**paths), tmp_path / "out")
    made = written(tmp_path / "out")
    assert (len(made["train"]), len(made["dev"])) == (7024, 914)
    for row in made["dev"]:
        for answer in row["answers"]:
            assert row["context"][answer["answer_start"] :].startswith(answer["text"])


def test_the_demo_asks_as_many_questions_as_wanted_the_same_every_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make_questions(params(source="demo"), tmp_path / name)
    rows = written(tmp_path / "one")
    assert (len(rows["train"]), len(rows["dev"])) == (40, 20)
    for name in ("train.parquet", "dev.parquet"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert {row["id"] for row in rows["train"]}.isdisjoint(row["id"] for row in rows["dev"])


# ----------------------------------------------------------------------------------------------- refusals


def test_a_missing_file_and_a_folder_name_the_key(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data\.train_path=.*does not exist"):
        make_questions(params(train_path=str(tmp_path / "absent.json")), tmp_path / "out")
    write(tmp_path / "in/a.json", squad(qa()))
    with pytest.raises(InputError, match=r"in is a folder \(with a\.json\): data\.train_path needs"):
        make_questions(params(train_path=str(tmp_path / "in")), tmp_path / "out")


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (("data",), "has no column 'context' and no column 'question'; its columns are version"),
        (("data", 0, "paragraphs"), "data[0] has no column 'context'"),
        (("data", 0, "paragraphs", 0, "context"), "context is missing: data[0].paragraphs[0].qas[0]"),
        (("data", 0, "paragraphs", 0, "qas"), "qas is missing: data[0].paragraphs[0]"),
        (("data", 0, "paragraphs", 0, "qas", 0, "id"), "id is missing: data[0].paragraphs[0].qas[0]"),
        (("data", 0, "paragraphs", 0, "qas", 0, "answers"), "answers is missing: data[0].paragraphs[0].qas[0]"),
        (("data", 0, "paragraphs", 0, "qas", 0, "answers", 0, "answer_start"), "answer_start is missing: "),
    ],
)
def test_a_missing_key_is_named_by_its_path(tmp_path: Path, place: tuple[Any, ...], said: str) -> None:
    values: Any = squad(qa())
    parent = values
    for step in place[:-1]:
        parent = parent[step]
    del parent[place[-1]]
    assert said in refusal(tmp_path, values)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1], "record 0 is int; a list of objects is required"),
        ({"data": {}}, "line 1 has no column 'context' and no column 'question'; its columns are data"),
        ({"data": ["x"]}, "data[0] is str; "),
        (squad(qa(name=True)), "id is not text: data[0].paragraphs[0].qas[0] (True)"),  # type: ignore[arg-type]
        (squad(qa(name=5.0)), "id is not text: data[0].paragraphs[0].qas[0] (5.0)"),  # type: ignore[arg-type]
        (squad(qa(answers=(("hum", "x20"),))), "not an integer: data[0].paragraphs[0].qas[0].answers[0] ('x20')"),
        (squad(qa(answers=(("hum", 20.5),))), "not an integer: data[0].paragraphs[0].qas[0].answers[0] (20.5)"),
        (squad(qa(question="half \ud800")), "half a surrogate pair"),
        ({"data": []}, "contains no questions"),
        (squad(), "contains no questions"),
    ],
)
def test_another_layout_is_refused_with_its_place(tmp_path: Path, values: Any, said: str) -> None:
    assert said in refusal(tmp_path, values)


def test_an_answer_at_the_wrong_place_is_refused_with_what_stands_there_and_where_it_is(tmp_path: Path) -> None:
    message = refusal(tmp_path, squad(qa(answers=(("ees", 0),))))  # Bees at 15, bees at 29
    assert ": data[0].paragraphs[0].qas[0], question 'q1': 'ees' at 0 (found 'Ant'; it is at 16, 30)" in message
    assert "the context does not contain it" in refusal(tmp_path, squad(qa(answers=(("wasps", 0),))))
    outside = squad(qa(answers=(("hum", 4000), ("dance", -6))))
    assert refusal(tmp_path, outside).count("found nothing") == 2


@pytest.mark.parametrize(
    "values", [squad(qa(question=" ")), squad(qa(answers=(("", 0),))), squad(qa("")), squad(qa(), context="  ")]
)
def test_empty_texts_are_refused(tmp_path: Path, values: Any) -> None:
    assert "empty" in refusal(tmp_path, values)


def test_repeated_ids_are_refused_within_a_file_and_between_the_two(tmp_path: Path) -> None:
    assert "an id that is not unique: 'q1'" in refusal(tmp_path, squad(qa(), qa(question="Again?")))
    message = refusal(tmp_path, squad(qa("same"), qa("other")), squad(qa("same")))
    assert "1 question id(s) are in both" in message
    assert "same" in message
    assert "Set train_path and dev_path to different questions" in message


def test_all_problems_of_a_file_are_said_at_once_five_of_each_kind_in_words(tmp_path: Path) -> None:
    message = refusal(tmp_path, squad(*[qa(f"q{number}", answers=(("hum", 0),)) for number in range(25)]))
    assert "25 problems" in message
    assert message.count("found 'Ant'") == 5
    assert message.endswith(" and 20 more")


def test_the_development_file_is_checked_as_strictly(tmp_path: Path) -> None:
    message = refusal(tmp_path, squad(qa()), squad(qa("d1", answers=(("hum", 1),))))
    assert "dev.json (data.dev_path)" in message


# ----------------------------------------------------------------------------------------------------- hub


def hub_row(name: str, start: int = 20) -> dict[str, Any]:
    return {
        "id": name,
        "title": "Animals",
        "context": CONTEXT,
        "question": "What do bees do?",
        "answers": {"text": ["hum"], "answer_start": [start]},
    }


def hub_folder(folder: Path, train: list[dict[str, Any]], dev: list[dict[str, Any]]) -> Path:
    folder.mkdir()
    for split, rows in (("train", train), ("validation", dev)):
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{split}.parquet")
    return folder


def test_a_data_set_in_squads_columns_gives_the_same_rows_as_a_file(tmp_path: Path) -> None:
    folder = hub_folder(tmp_path / "animals", [hub_row("q1")], [hub_row("d1")])
    make_questions(params(source="hub", dataset=str(folder)), tmp_path / "out")
    assert written(tmp_path / "out") == make(tmp_path, squad(qa()))


def test_a_data_set_is_checked_as_strictly(tmp_path: Path) -> None:
    folder = hub_folder(tmp_path / "animals", [hub_row("q1", 9)], [hub_row("d1")])
    with pytest.raises(InputError, match=r"split train.*1 problem:\n.*it is at 20"):
        make_questions(params(source="hub", dataset=str(folder)), tmp_path / "out")
    other = hub_folder(tmp_path / "other", [{"id": "q1", "text": "x"}], [hub_row("d1")])
    with pytest.raises(InputError, match="row 0 has no column 'context'"):
        make_questions(params(source="hub", dataset=str(other)), tmp_path / "out")


def test_of_a_large_file_the_beginning_is_looked_at_before_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "WHOLE_BYTES", 10)
    monkeypatch.setattr(questions, "FIRST_RECORDS", 1)
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text("\ufeff" + json.dumps(squad(qa())), encoding="utf-8")
    bad.write_text("[1, 2, 3, 4, 5]")
    questions.check_question_file(good, "downstream.squad.data.train_path", params(), Interpretation())
    with pytest.raises(
        InputError,
        match=r"bad\.json, record 0 is int; a list of objects is required \(downstream\.squad\.data\.train_path",
    ):
        questions.check_question_file(bad, "downstream.squad.data.train_path", params(), Interpretation())
    row = {"id": "a", "context": CONTEXT, "question": "?", "answers": [{"text": "hum", "answer_start": 20}]}
    table = tmp_path / "table.jsonl"
    table.write_text(json.dumps(row) + "\nno JSON\n")
    questions.check_question_file(table, "downstream.squad.data.train_path", params(), Interpretation())
    table.write_text(json.dumps({**row, "context": "nothing"}) + "\n")
    with pytest.raises(InputError, match="1 problem:"):
        questions.check_question_file(table, "downstream.squad.data.train_path", params(), Interpretation())


def kept(folder: Path, train: Any, unanswerable: str) -> tuple[list[tuple[str, int]], dict[str, int]]:
    """(id, number of answers) of the training questions that were written, and what was counted."""
    write(folder / "train.json", train)
    write(folder / "dev.json", squad(qa("other")))
    paths = {f"{name}_path": str(folder / f"{name}.json") for name in ("train", "dev")}
    make_questions(params(**paths, unanswerable=unanswerable), folder / "out")
    rows = pq.read_table(folder / "out" / "train.parquet").to_pylist()
    counted = json.loads((folder / "out" / "reading.json").read_text())["numbers"]
    return [(row["id"], len(row["answers"])) for row in rows], counted


V2 = squad(qa("a"), qa("b", answers=(), is_impossible=True, plausible_answers=[{"text": "hum", "answer_start": 20}]))


def test_questions_without_an_answer_are_used_or_left_out_and_counted(tmp_path: Path) -> None:
    used, counted = kept(tmp_path / "use", V2, "use")
    assert used == [("a", 1), ("b", 0)]
    assert counted["questions without an answer, used"] == 1
    dropped, counted = kept(tmp_path / "drop", V2, "drop")
    assert dropped == [("a", 1)]
    assert counted["questions without an answer, dropped"] == 1
    _, counted = kept(tmp_path / "v1", squad(qa("a")), "use")
    assert not any("without an answer" in what for what in counted)


def test_where_all_would_be_left_out_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none of 1 questions has an answer.*Set it to use"):
        kept(tmp_path, squad(qa("b", answers=(), is_impossible=True)), "drop")


@pytest.mark.parametrize("unanswerable", ["use", "drop"])
def test_questions_that_contradict_themselves_are_named(tmp_path: Path, unanswerable: str) -> None:
    two = squad(qa("a", is_impossible=True), qa("b", answers=(), is_impossible=False), qa("c", is_impossible=False))
    with pytest.raises(InputError, match="is_impossible: true and an answer, .*: 'a', 'b'"):
        kept(tmp_path, two, unanswerable)
