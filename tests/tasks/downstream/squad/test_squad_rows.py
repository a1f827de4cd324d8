"""Questions as windows of tokens, and the rows made of them: nothing is lost, labels decode to the answers."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.downstream.squad import examples
from tasks.downstream.squad.checks import AnswerRows
from tasks.downstream.squad.questions import SquadQuestion, read_questions
from tasks.downstream.squad.rows import SquadEncoder, find_answers, make_features
from tasks.records.answer_places import ReferenceAnswer
from tasks.stage.errors import InputError
from tasks.validation.row_checks import SourceExamples
from tasks.vocabulary.encoding import load_tokenizer
from tests.tasks.downstream.squad.question_files import windows
from tests.tasks.pretraining.row_inputs import (
    CLS,
    SEP,
    bert_tokenizer,
    random_texts,
    read_rows,
    squad_params,
    squad_questions,
    word_tokenizer,
    write_questions,
    write_squad_rows,
)
from tests.tasks.validation.validation_data import failed_checks, source_of, validate


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load_tokenizer(word_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def test_a_question_without_room_is_refused_and_an_empty_one_has_one_feature(tokenizer):
    make_features(tokenizer, ["ba " * 10], ["go"], 16, 2, 10)  # windows of 3 move on by 1
    with pytest.raises(InputError, match="11 tokens .* 2 of 16.*max_question_length"):
        make_features(tokenizer, ["ba " * 11], ["go"], 16, 2, 11)
    features = make_features(tokenizer, ["", "Ba?"], ["go ka", ""], 16, 2, 5)
    assert features.lengths.tolist() == [5, 5]
    assert features.features["context_start"].tolist() == [2, 4]
    assert features.features["offsets"].to_pylist()[1] == []
    assert find_answers(features, np.array([0, 0]), np.array([2, 0]))[0].tolist() == [2, 0]


@pytest.mark.parametrize("row_length", [16, 17, 40])
def test_all_examples_at_once_have_the_windows_and_labels_of_each_alone(tokenizer, row_length):
    """Windows as `windows` cuts them, answers as a search through the tokens of each window finds them."""
    texts = random_texts(40)
    questions = [" ".join(text.split()[: number % 6]) for number, text in enumerate(texts)]
    starts = np.array([-1 if number % 9 == 0 else len(text) // 3 for number, text in enumerate(texts)])
    ends = starts + 1 + np.arange(len(texts)) % 20
    order = np.arange(len(texts))[::-1]  # contexts may be named by number
    features = make_features(tokenizer, questions, texts[::-1], row_length, 3, 5, order)
    (firsts, lasts), number = find_answers(features, starts, ends), 0
    tokens = np.split(features.token_ids, np.cumsum(features.lengths))
    for example, (question, text) in enumerate(zip(questions, texts, strict=True)):
        asked = tokenizer.encode(question, add_special_tokens=False).ids[:5]
        about = tokenizer.encode(text, add_special_tokens=False)
        for start, stop in windows(len(about.ids), row_length - 3 - len(asked), 3):
            assert features.features["example_index"][number] == example
            assert tokens[number].tolist() == [CLS, *asked, SEP, *about.ids[start:stop], SEP]
            offsets = about.offsets[start:stop]
            label = (0, 0)
            if starts[example] >= 0 and offsets[0][0] <= starts[example] and offsets[-1][1] >= ends[example]:
                first = max(n for n, (begin, _) in enumerate(offsets) if begin <= starts[example])
                last = min(n for n, (_, end) in enumerate(offsets) if end >= ends[example])
                label = (len(asked) + 2 + first, len(asked) + 2 + last)
            assert (int(firsts[number]), int(lasts[number])) == label
            number += 1
    assert number == len(features.lengths)
    assert 0 < (firsts > 0).sum() < number


def test_questions_are_read_whole_in_part_or_by_name(tmp_path, monkeypatch):
    asked = [SquadQuestion(f"q{n}", "", "x" * 200, "Go?", (ReferenceAnswer("x", 0),)) for n in range(20)]
    monkeypatch.setattr(examples, "GROUP_CHARACTERS", 500)
    examples.write_questions(asked, tmp_path / "q.parquet")
    questions = read_questions(tmp_path / "q.parquet")
    assert questions == asked
    assert len({id(question.context) for question in questions}) < 20, "questions on a text share it in memory"
    assert [question.id for question in read_questions(tmp_path / "q.parquet", ["q3", "q1"])] == ["q1", "q3"]
    assert [question.id for question in read_questions(tmp_path / "q.parquet", most=2)] == ["q0", "q10"]


def test_real_questions_make_the_rows_the_reference_predicts(tmp_path, monkeypatch):
    """Feature and example numbers run on from chunk to chunk."""
    monkeypatch.setattr(SquadEncoder, "chunk", 1000)
    questions, tokenizer = squad_questions("new-wiki-train.json"), bert_tokenizer(tmp_path / "bert")
    source, rows = write_questions(tmp_path / "train.parquet", questions), tmp_path / "rows"
    made = write_squad_rows(squad_params(), "train", source, tokenizer, rows)
    assert (made.examples, made.sequences, made.counts["holding their answer"]) == (7024, 7110, 7035)
    examples = SourceExamples(source, "examples@squad")
    verdict = validate(AnswerRows(source_of(rows, tokenizer, "squad_rows", 512, examples=examples)))
    assert failed_checks(verdict) == []
    [targets] = [check["found"] for check in verdict["checks"] if check["name"] == "targets"]
    wider, of, *_ = targets.split(" targets")[0].replace(",", "").split(" of ")
    assert (int(wider) < 70, int(of)) == (True, 7035)
    write_squad_rows(squad_params(), "dev", source, tokenizer, tmp_path / "dev")
    assert (read_rows(tmp_path / "dev")["start_positions"] == -100).all()


def test_missing_inputs_are_told_with_the_stage_that_makes_them(tmp_path):
    tokenizer, rows, absent = word_tokenizer(tmp_path / "tokenizer"), tmp_path / "out" / "rows", tmp_path / "none"
    asked = {
        "id": "q",
        "title": "",
        "context": "Go.",
        "question": "Go?",
        "answers": [{"text": "Go", "answer_start": 0}],
    }
    source, empty = (write_questions(tmp_path / f"{len(questions)}.parquet", questions) for questions in ([asked], []))
    bare = tmp_path / "bare.parquet"
    pq.write_table(pa.table({name: ["x"] for name in ("id", "context")}), bare)
    for path, folder, message in (
        (absent, tokenizer, "examples@squad"),
        (source, tmp_path, "dvc repro tokenizer"),
        (bare, tokenizer, "answers, question: .*examples@squad"),
        (empty, tokenizer, "contains no question"),
    ):
        with pytest.raises(InputError, match=message):
            write_squad_rows(squad_params(), "train", path, folder, rows)
    assert not list(rows.parent.iterdir())
