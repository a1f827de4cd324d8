"""Verdicts on corpora and questions: every fault fails its own check. Rows: test_row_validation.py."""

from collections import Counter

import pyarrow as pa
import pytest

from tasks.downstream.squad.checks import QuestionData
from tasks.downstream.squad.params import SquadDataParams
from tasks.params.schema import load_params
from tasks.records.interpretation import Interpretation, write_reading
from tasks.stage.errors import InputError
from tasks.validation.checks import format_failures
from tasks.validation.pretraining_checks import CorpusData
from tests.places import ROOT
from tests.tasks.downstream.entries import task_with
from tests.tasks.validation.validation_data import (
    corpus_columns,
    failed_checks,
    question_columns,
    validate,
    write_corpus,
    write_questions,
)

LIMITS = load_params(ROOT / "params.yaml").validate_.model_copy(
    update={"min_documents": 12, "max_control_share": 0.01, "max_document_characters": 1000}
)
QUESTIONS = task_with("squad", data=SquadDataParams(min_examples=12))


def judged_corpus(folder, columns):
    return validate(CorpusData(write_corpus(folder, columns), LIMITS))


def judged_questions(folder, train, dev):
    return validate(QuestionData(QUESTIONS, write_questions(folder, train, dev)))


def change(columns, name, line, value):
    columns[name][line] = value


def cut(columns, lines):
    for name in columns:
        columns[name] = columns[name][:lines]


CORPUS_DAMAGE = {
    # check that must fail: (what is done, what the message must say)
    "documents": (lambda c: cut(c, 11), "found 11; required: at least 12 documents"),
    "ids_unique": (lambda c: change(c, "document_id", 9, "doc-1"), "doc-1 (2 times)"),
    "control_characters": (lambda c: change(c, "text", 3, "half \x00\x01\x02\x7f\x80\ufffd" * 9), "doc-3: 54 control"),
    "plain_text": (lambda c: c["text"].__setitem__(slice(3, 5), ['{"text": "Town"}', " <HTML>"]), "found 0.1667"),
    "longest_document": (lambda c: c.update(text=["Town by the river"] * 12), "found 17"),
    "ids_present": (lambda c: change(c, "document_id", 8, " "), "document number 8"),
    "titles_present": (lambda c: change(c, "title", 2, None), "doc-2"),
    "texts_present": (lambda c: change(c, "text", 11, "\n "), "doc-11"),
    "document_size": (lambda c: change(c, "text", 0, "é" * 1001), "doc-0"),
}


def test_a_sound_corpus_passes_every_check(tmp_path):
    verdict = judged_corpus(tmp_path, corpus_columns())
    assert verdict["valid"]
    assert verdict["rows"] == 12
    assert {check["name"] for check in verdict["checks"]} == {"schema", *CORPUS_DAMAGE}


@pytest.mark.parametrize("name", CORPUS_DAMAGE)
def test_each_fault_of_a_corpus_fails_its_own_check_and_no_other(tmp_path, name):
    damage, said = CORPUS_DAMAGE[name]
    columns = corpus_columns()
    damage(columns)
    verdict = judged_corpus(tmp_path, columns)
    assert failed_checks(verdict) == [name]
    assert said in format_failures(verdict, "page.html")


def test_the_limit_itself_is_allowed_and_missing_ids_are_not_equal(tmp_path):
    columns = corpus_columns()
    columns["text"][0] = "\t\r\n\x85é" * 200  # none of them counts as a control character
    assert judged_corpus(tmp_path, columns)["valid"]
    columns["text"][4], columns["document_id"][5], columns["document_id"][6] = None, None, None
    assert failed_checks(judged_corpus(tmp_path, columns)) == ["ids_present", "texts_present"]


def test_a_wrong_column_type_stops_before_anything_else_is_looked_at(tmp_path):
    columns = corpus_columns()
    columns["title"] = list(range(12))
    schema = pa.schema([("document_id", pa.string()), ("title", pa.int64()), ("text", pa.string())])
    verdict = validate(CorpusData(write_corpus(tmp_path, columns, schema), LIMITS))
    assert failed_checks(verdict) == ["schema"]
    assert "part-00000.parquet: column title is int64, not string" in format_failures(verdict, "")
    assert set(verdict["not_checked"]) == set(CORPUS_DAMAGE)


def answer(columns, line, text, start):
    columns["answers"][line] = [{"text": text, "answer_start": start}]


QUESTION_DAMAGE = {
    "train_questions": (lambda t, d: cut(t, 11), "found 11; required: at least 12 questions"),
    "dev_questions": (lambda t, d: cut(d, 2), "found 2"),
    "ids_unique": (lambda t, d: change(d, "id", 3, "train-7"), "train-7 (2 times)"),
    "dev_unseen": (
        lambda t, d: [change(d, name, 4, t[name][6]) for name in ("question", "context", "answers")],
        "When was train-6 founded?",
    ),
    "ids_present": (lambda t, d: change(d, "id", 1, ""), "dev line 1"),
    "titles_present": (lambda t, d: change(t, "title", 1, None), "train train-1"),
    "contexts_present": (lambda t, d: (change(t, "context", 2, " "), answer(t, 2, " ", 0)), "train train-2"),
    "questions_present": (lambda t, d: change(t, "question", 3, None), "train train-3"),
    "answers_present": (lambda t, d: change(d, "answers", 5, []), "dev dev-5"),
    "answers_not_empty": (lambda t, d: answer(d, 6, None, 0), "dev dev-6"),
    "answer_in_context": (lambda t, d: answer(d, 7, "ciudad", 13), "dev dev-7"),
}


def test_sound_questions_pass_every_check(tmp_path):
    verdict = judged_questions(tmp_path, question_columns("train"), question_columns("dev"))
    assert failed_checks(verdict) == []
    assert verdict["rows"] == 24
    assert {check["name"] for check in verdict["checks"]} == {"schema", *QUESTION_DAMAGE}


@pytest.mark.parametrize("name", QUESTION_DAMAGE)
def test_each_fault_of_questions_fails_its_own_check_and_no_other(tmp_path, name):
    damage, said = QUESTION_DAMAGE[name]
    train, dev = question_columns("train"), question_columns("dev")
    damage(train, dev)
    verdict = judged_questions(tmp_path, train, dev)
    with_it = {"contexts_present": ["answers_not_empty"]}  # no answer is in an empty context
    assert failed_checks(verdict) == [name, *with_it.get(name, [])]
    assert said in format_failures(verdict, "page.html")


@pytest.mark.parametrize(
    ("text", "start"),
    [("ciudad", -1), ("ciudad", None), ("ciudad", 900), ("Ciudad", 12), ("125.", 29), ("fundo", 3)],
)
def test_an_answer_that_is_not_where_it_says_is_found_beside_a_right_one(tmp_path, text, start):
    train = question_columns("train")
    train["answers"][0].append({"text": text, "answer_start": start})
    assert failed_checks(judged_questions(tmp_path, train, question_columns("dev"))) == ["answer_in_context"]


def test_missing_and_damaged_files_are_named(tmp_path):
    with pytest.raises(InputError, match="run the corpus stage first"):
        CorpusData(tmp_path, LIMITS)
    with pytest.raises(InputError, match=r"train\.parquet .*examples"):
        QuestionData(QUESTIONS, tmp_path)
    (tmp_path / "part-00000.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        CorpusData(tmp_path, LIMITS).prepare()


def test_what_the_stage_left_out_stands_in_the_verdict_and_damaged_notes_are_refused(tmp_path):
    folder = write_corpus(tmp_path, corpus_columns())
    reading = Interpretation(files=2, counts=Counter({"empty documents left out": 3}))
    write_reading(folder, "files", {"data": reading})
    numbers = {one["name"]: one["value"] for one in validate(CorpusData(folder, LIMITS))["statistics"]["numbers"]}
    assert (numbers["files read"], numbers["empty documents left out"]) == (2, 3)
    (folder / "reading.json").write_text('{"numbers": []}')
    with pytest.raises(InputError, match="reading.json is damaged"):
        CorpusData(folder, LIMITS)
