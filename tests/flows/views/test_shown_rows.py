"""`podium data show`: the first sequences of rows, told as what they were built from."""

import pytest

from flows.commands.data import first_sequences
from tasks.pretraining.rows.pretrain_rows import write_pretrain_rows
from tasks.stage.errors import InputError
from tests.tasks.pretraining.row_inputs import (
    WORDS,
    pretrain_params,
    random_texts,
    squad_params,
    tokenizer_of,
    word_tokenizer,
    write_corpus,
    write_questions,
    write_squad_rows,
)


@pytest.fixture
def questions(tmp_path):
    """Rows of two questions, of which the first has a context of several windows; their tokenizer."""
    long, short = " ".join(WORDS[:60]), f"{WORDS[7]} {WORDS[3]}"
    records = []
    for name, context, question in (("a", long, WORDS[1]), ("b", short, WORDS[2])):
        answers = [{"text": WORDS[3], "answer_start": context.index(WORDS[3])}]
        records.append({"id": name, "title": "", "context": context, "question": question, "answers": answers})
    tokenizer = word_tokenizer(tmp_path / "tokenizer")
    source = write_questions(tmp_path / "train.parquet", records)
    params = squad_params(row_length=40, doc_stride=8, max_question_length=16)
    write_squad_rows(params, "train", source, tokenizer, tmp_path / "rows")
    return tmp_path / "rows", tokenizer


def test_a_question_is_shown_with_its_answer_and_where_its_context_was_cut(questions):
    sequences = list(first_sequences(*questions, 100))
    cut = sorted((shown for shown in sequences if "window" in shown), key=lambda shown: shown["feature"])
    assert [shown["window"] for shown in cut] == [{"number": n + 1, "of": len(cut)} for n in range(len(cut))]
    assert len(cut) > 1
    (whole,) = (shown for shown in sequences if "window" not in shown)
    assert whole["text"] == f"[CLS] {WORDS[2]} [SEP] {WORDS[7]} {WORDS[3]} [SEP]"
    assert whole["tokens"] == len(whole["ids"]) == 6
    place = f"4: {WORDS[3]}"
    assert whole["labels"] == {"start_positions": place, "end_positions": place, "answer": WORDS[3]}


def test_masked_words_are_shown_with_what_they_were(tmp_path):
    texts = random_texts(20)
    corpus, tokenizer = write_corpus(tmp_path / "corpus", texts), word_tokenizer(tmp_path / "tokenizer")
    write_pretrain_rows(pretrain_params(), "phase1", corpus, tokenizer, tmp_path / "rows")
    entries = tokenizer_of(tokenizer)
    words = {word.strip(".").lower() for text in texts for word in text.split()} | {"."}
    for shown in first_sequences(tmp_path / "rows", tokenizer, 5):
        assert shown["labels"]["next_sentence_labels"] in ("0", "1")
        for masked in shown["labels"]["masked"]:
            place, _, change = masked.partition(": ")
            now, _, before = change.partition(" -> ")
            assert entries.id_to_token(shown["ids"][int(place)]) == now
            assert before in words


def test_no_more_than_asked_for_and_rows_that_are_not_there_are_refused(tmp_path, questions):
    assert [shown["row"] for shown in first_sequences(*questions, 1)] == [0]
    with pytest.raises(InputError, match="--to rows@squad"):
        next(first_sequences(tmp_path / "absent", questions[1], 1, made_by="rows@squad"))
