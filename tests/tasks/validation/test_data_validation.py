"""Verdicts on corpora and questions: every fault fails its own check. Rows: test_row_validation.py."""

from collections import Counter

import pyarrow as pa
import pytest

from tasks.downstream.squad.checks import QuestionData
from tasks.downstream.squad.params import SquadDataParams
from tasks.records.interpretation import Interpretation, write_reading
from tasks.stage.errors import InputError
from tasks.validation.checks import format_failures
from tasks.validation.pretraining_checks import CorpusData
from tests.tasks.downstream.entries import task_with
from tests.tasks.pretraining.row_inputs import write_questions
from tests.tasks.validation.validation_data import LIMITS, corpus_columns, failed_checks, validate, write_corpus

QUESTIONS = task_with("squad", data=SquadDataParams(min_examples=12))


def judged_corpus(folder, columns):
    return validate(CorpusData(write_corpus(folder, columns), LIMITS))


def judged_questions(folder, train, dev):
    write_questions(folder / "train.parquet", train)
    write_questions(folder / "dev.parquet", dev)
    return validate(QuestionData(QUESTIONS, folder))


def put(name, line, value):
    return lambda columns: columns[name].__setitem__(line, value)


CORPUS_DAMAGE = {
    # check that must fail: (what is done, what the message must say)
    "documents": (lambda columns: [values.pop() for values in columns.values()], "found 11"),
    "ids_unique": (put("document_id", 9, "doc-1"), "doc-1 (2 times)"),
    "control_characters": (put("text", 3, "half \x00\x01\x02\x7f\x80\ufffd" * 9), "doc-3: 54 control"),
    "plain_text": (put("text", slice(3, 5), ['{"text": "Town"}', " <HTML>"]), "found 0.1667"),
    "longest_document": (lambda columns: columns.update(text=["Town by the river"] * 12), "found 17"),
    "ids_present": (put("document_id", 8, " "), "document number 8"),
    "titles_present": (put("title", 2, None), "doc-2"),
    "texts_present": (put("text", 11, "\n "), "doc-11"),
    "document_size": (put("text", 0, "é" * 1001), "doc-0"),
}


def test_a_sound_corpus_passes_every_check(tmp_path):
    verdict = judged_corpus(tmp_path, corpus_columns())
    assert verdict["valid"]
    assert verdict["rows"] == 12
    assert {check["name"] for check in verdict["checks"]} == {"schema", *CORPUS_DAMAGE}


@pytest.mark.parametrize("name", CORPUS_DAMAGE)
def test_each_fault_of_a_corpus_fails_its_own_check_and_no_other(tmp_path, name):
    damage, message = CORPUS_DAMAGE[name]
    columns = corpus_columns()
    damage(columns)
    verdict = judged_corpus(tmp_path, columns)
    assert failed_checks(verdict) == [name]
    assert message in format_failures(verdict, "page.html")


def test_the_limit_itself_is_allowed_and_missing_ids_are_not_equal(tmp_path):
    columns = corpus_columns()
    columns["text"][0] = "\t\r\n\x85é" * 200  # none of them counts as a control character
    assert judged_corpus(tmp_path, columns)["valid"]
    columns["text"][4], columns["document_id"][5], columns["document_id"][6] = None, None, None
    assert failed_checks(judged_corpus(tmp_path, columns)) == ["ids_present", "texts_present"]


def test_a_wrong_column_type_stops_before_anything_else_is_looked_at(tmp_path):
    columns = {**corpus_columns(), "title": list(range(12))}
    schema = pa.schema([("document_id", pa.string()), ("title", pa.int64()), ("text", pa.string())])
    verdict = validate(CorpusData(write_corpus(tmp_path, columns, schema), LIMITS))
    assert failed_checks(verdict) == ["schema"]
    assert "part-00000.parquet: column title is int64" in format_failures(verdict, "")
    assert set(verdict["not_checked"]) == set(CORPUS_DAMAGE)


def questions_of(split):
    """Twelve questions with one answer, the first with two; characters outside of ASCII come before it."""
    questions = []
    for number in range(12):
        context = f"Él fundó la ciudad {split}-{number} in 1{number:03d}."
        answers = [{"text": f"1{number:03d}", "answer_start": len(context) - 5}]
        asked = {"id": f"{split}-{number}", "title": "", "question": f"When was {split}-{number} founded?"}
        questions.append({**asked, "context": context, "answers": answers})
    questions[0]["answers"].append({"text": "ciudad", "answer_start": 12})
    return questions


def answer(text, start):
    return {"answers": [{"text": text, "answer_start": start}]}


QUESTION_DAMAGE = {
    "train_questions": (lambda train, dev: train.pop(), "found 11"),
    "dev_questions": (lambda train, dev: dev.__delitem__(slice(2, None)), "found 2"),
    "ids_unique": (lambda train, dev: dev[3].update(id="train-7"), "train-7 (2 times)"),
    "dev_unseen": (lambda train, dev: dev[4].update({**train[6], "id": "dev-4"}), "When was train-6 founded?"),
    "ids_present": (lambda train, dev: dev[1].update(id=""), "dev line 1"),
    "titles_present": (lambda train, dev: train[1].update(title=None), "train train-1"),
    "contexts_present": (lambda train, dev: train[2].update(context=" ", **answer(" ", 0)), "train train-2"),
    "questions_present": (lambda train, dev: train[3].update(question=None), "train train-3"),
    "answers_present": (lambda train, dev: dev[5].update(answers=[]), "dev dev-5"),
    "answers_not_empty": (lambda train, dev: dev[6].update(answer(None, 0)), "dev dev-6"),
    "answer_in_context": (lambda train, dev: dev[7].update(answer("ciudad", 13)), "dev dev-7"),
}


def test_sound_questions_pass_every_check(tmp_path):
    verdict = judged_questions(tmp_path, questions_of("train"), questions_of("dev"))
    assert failed_checks(verdict) == []
    assert verdict["rows"] == 24
    assert {check["name"] for check in verdict["checks"]} == {"schema", *QUESTION_DAMAGE}


@pytest.mark.parametrize("name", QUESTION_DAMAGE)
def test_each_fault_of_questions_fails_its_own_check_and_no_other(tmp_path, name):
    damage, message = QUESTION_DAMAGE[name]
    train, dev = questions_of("train"), questions_of("dev")
    damage(train, dev)
    verdict = judged_questions(tmp_path, train, dev)
    with_it = {"contexts_present": ["answers_not_empty"]}  # no answer is in an empty context
    assert failed_checks(verdict) == [name, *with_it.get(name, [])]
    assert message in format_failures(verdict, "page.html")


@pytest.mark.parametrize(
    ("text", "start"),
    [("ciudad", -1), ("ciudad", None), ("ciudad", 900), ("Ciudad", 12), ("125.", 29), ("fundo", 3)],
)
def test_an_answer_that_is_not_where_it_says_is_found_beside_a_right_one(tmp_path, text, start):
    train = questions_of("train")
    train[0]["answers"] += answer(text, start)["answers"]
    assert failed_checks(judged_questions(tmp_path, train, questions_of("dev"))) == ["answer_in_context"]


def test_missing_and_damaged_files_are_named(tmp_path):
    with pytest.raises(InputError, match="run the corpus stage"):
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
    shown = validate(CorpusData(folder, LIMITS))["statistics"]["numbers"]
    assert {"name": "files read", "value": 2} in shown
    assert {"name": "empty documents left out", "value": 3} in shown
    (folder / "reading.json").write_text('{"numbers": []}')
    with pytest.raises(InputError, match="reading.json is damaged"):
        CorpusData(folder, LIMITS)
