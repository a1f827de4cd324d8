"""Questions as windows of tokens, and the rows made of them: nothing is lost, labels decode to the answers."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.downstream import packed_rows as generic_rows
from tasks.downstream.squad import examples
from tasks.downstream.squad.questions import SquadQuestion, read_questions
from tasks.downstream.squad.rows import SquadEncoder, find_answers, make_features
from tasks.records.answer_places import ReferenceAnswer
from tasks.stage.errors import InputError
from tasks.stage.row_folders import read_manifest
from tasks.vocabulary.encoding import load_tokenizer
from tests.tasks.downstream.entries import task_with
from tests.tasks.downstream.squad.question_files import windows
from tests.tasks.pretraining.row_inputs import (
    CLS,
    SEP,
    bert_tokenizer,
    random_texts,
    read_rows,
    squad_params,
    squad_questions,
    tokenizer_of,
    word_tokenizer,
    write_questions,
    write_squad_rows,
)

SMALL = {"row_length": 48, "doc_stride": 8, "max_question_length": 10}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load_tokenizer(word_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def test_a_question_that_leaves_no_room_is_refused_with_the_knobs(tokenizer):
    make_features(tokenizer, ["ba " * 10], ["go"], 16, 2, 10)  # windows of 3 move on by 1
    with pytest.raises(InputError, match="11 tokens .* 2 of 16.*max_question_length"):
        make_features(tokenizer, ["ba " * 11], ["go"], 16, 2, 11)


def test_empty_questions_and_contexts_have_one_feature_each(tokenizer):
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


def questions_on(texts):
    """Two questions per text: the answer is its first word, or its last two."""
    made = []
    for number, text in enumerate(texts):
        context = text.replace("\n", " ")
        last = context[context.rindex(" ", 0, context.rindex(" ")) + 1 :]
        for part, answer in enumerate((context.split()[0], last)):
            answers = [{"text": answer, "answer_start": context.rindex(answer) if part else 0}]
            asked = {"id": f"q{number}-{part}", "title": "", "context": context, "question": f"Go {answer.lower()}?"}
            made.append({**asked, "answers": answers})
    return made


def make(folder, questions, split="train", **params):
    if not (folder / "tokenizer").exists():
        word_tokenizer(folder / "tokenizer")
    source = write_questions(folder / f"{split}.parquet", questions)
    write_squad_rows(squad_params(**{**SMALL, **params}), split, source, folder / "tokenizer", folder / "rows")
    return folder / "rows"


def check_rows(folder, questions, labelled):
    """Holds every row against features.parquet and the questions; returns (answers inside, answers exact)."""
    rows, table = read_rows(folder), pq.read_table(folder / "features.parquet").to_pylist()
    seen, inside, exact = [], 0, 0
    for row in range(len(rows["input_ids"])):
        ids, used = rows["sequence_ids"][row], 0
        for slot, feature in enumerate(rows["feature_ids"][row].tolist()):
            start, end = int(rows["start_positions"][row, slot]), int(rows["end_positions"][row, slot])
            if feature < 0:
                assert (start, end, rows["cls_positions"][row, slot]) == (-100, -100, -1)
                continue
            line = table[feature]
            question = questions[line["example_index"]]
            assert line["example_id"] == question["id"]
            assert rows["cls_positions"][row, slot] == used
            stop = used + line["n_tokens"]
            assert (ids[used:stop] == slot + 1).all()
            tokens = rows["input_ids"][row, used:stop]
            assert tokens[0] == CLS or tokens[0] == 101
            assert tokens[line["context_start"] - 1] == tokens[-1]  # both [SEP]
            assert rows["position_ids"][row, used:stop].tolist() == list(range(line["n_tokens"]))
            types = [0] * line["context_start"] + [1] * (line["n_tokens"] - line["context_start"])
            assert rows["token_type_ids"][row, used:stop].tolist() == types
            offsets = np.array(line["offsets"]).reshape(-1, 2)
            assert len(offsets) == line["n_tokens"] - line["context_start"] - 1
            if not labelled:
                assert (start, end) == (-100, -100)
            elif start == used:
                assert end == used
            else:
                first = used + line["context_start"]
                answer = question["answers"][0]["text"].strip()
                text = question["context"][offsets[start - first, 0] : offsets[end - first, 1]]
                assert answer in text
                inside, exact = inside + 1, exact + (text == answer)
            seen.append(feature)
            used = stop
        assert not ids[used:].any()
        assert not rows["input_ids"][row, used:].any()
    assert sorted(seen) == list(range(len(table))) == [line["feature_id"] for line in table]
    assert [line["example_index"] for line in table] == sorted(line["example_index"] for line in table)
    assert {line["example_index"] for line in table} == set(range(len(questions)))
    return inside, exact


@pytest.mark.parametrize("max_sequences", [1, 3])
def test_rows_and_labels_belong_together(tmp_path, monkeypatch, max_sequences):
    """Feature and example numbers run on from chunk to chunk."""
    monkeypatch.setattr(SquadEncoder, "chunk", 30)
    questions = questions_on(random_texts(60, sentences=(2, 12)))
    folder = make(tmp_path, questions, max_sequences_per_row=max_sequences)
    inside, exact = check_rows(folder, questions, labelled=True)
    assert inside == exact
    assert inside >= len(questions)
    manifest = read_manifest(folder)
    assert manifest.sequences == len(pq.read_table(folder / "features.parquet")) > len(questions)
    assert (manifest.max_sequences, manifest.max_predictions) == (max_sequences, 0)
    assert (manifest.rows == manifest.sequences) == (max_sequences == 1)
    check_rows(make(tmp_path / "dev", questions, "dev"), questions, labelled=False)


def test_chunks_do_not_depend_on_how_the_file_is_cut(tmp_path, monkeypatch):
    """Every question has its context with it: 20 on a text of 200 characters are 4,000."""
    asked = [SquadQuestion(f"q{n}", "", "x" * 200, "Go?", (ReferenceAnswer("x", 0),)) for n in range(20)]
    path, task = tmp_path / "q.parquet", task_with("squad", "encoder")

    def chunks():
        return [len(chunk) for chunk in generic_rows.read_chunks(task, path)]

    monkeypatch.setattr(examples, "GROUP_CHARACTERS", 500)
    examples.write_questions(asked, path)
    monkeypatch.setattr(SquadEncoder, "chunk", 7)
    monkeypatch.setattr(generic_rows, "READ_AT_ONCE", 4)
    assert chunks() == [7, 7, 6]
    monkeypatch.setattr(generic_rows, "CHUNK_BYTES", 500)
    assert chunks() == [3] * 6 + [2], "the groups of the file"
    found = read_questions(path)
    assert [one.id for one in found] == [one.id for one in asked]
    assert len({id(one.context) for one in found}) < 20, "questions on the same text share it in memory"
    assert [one.id for one in read_questions(path, ["q3", "q1"])] == ["q1", "q3"]
    assert [one.id for one in read_questions(path, most=2)] == ["q0", "q10"]


def test_real_questions_make_the_rows_the_reference_predicts(tmp_path):
    questions, tokenizer = squad_questions("new-wiki-train.json"), bert_tokenizer(tmp_path / "bert")
    source = write_questions(tmp_path / "train.parquet", questions)
    made = write_squad_rows(squad_params(), "train", source, tokenizer, tmp_path / "rows")
    assert (made.examples, made.sequences, made.counts["holding their answer"]) == (7024, 7110, 7035)
    assert made.manifest.packing_efficiency > 0.965
    inside, exact = check_rows(tmp_path / "rows", questions, labelled=True)
    assert inside == made.counts["holding their answer"]
    assert exact / inside > 0.99
    # As the tokenizer's own truncation of pairs has them.
    features, plain = pq.read_table(tmp_path / "rows/features.parquet").to_pylist(), tokenizer_of(tokenizer)
    plain.enable_truncation(squad_params().row_length, stride=squad_params().doc_stride, strategy="only_second")
    for feature in features[::50]:
        question = questions[feature["example_index"]]
        encoding = plain.encode(question["question"], question["context"])
        windows_of = [
            [place for place, part in zip(one.offsets, one.sequence_ids, strict=True) if part == 1]
            for one in (encoding, *encoding.overflowing)
        ]
        assert list(zip(*[iter(feature["offsets"])] * 2, strict=True)) in windows_of


def test_missing_inputs_are_told_with_the_stage_that_makes_them(tmp_path):
    tokenizer, rows = word_tokenizer(tmp_path / "tokenizer"), tmp_path / "out" / "rows"
    source, absent = write_questions(tmp_path / "train.parquet", questions_on(random_texts(2))), tmp_path / "none"
    bare = tmp_path / "bare.parquet"
    pq.write_table(pa.table({name: ["x"] for name in ("id", "context")}), bare)
    empty = write_questions(tmp_path / "empty.parquet", [])
    for path, folder, said in (
        (absent, tokenizer, "examples@squad"),
        (source, tmp_path, "dvc repro tokenizer"),
        (bare, tokenizer, "answers, question: .*examples@squad"),
        (empty, tokenizer, "contains no question"),
    ):
        with pytest.raises(InputError, match=said):
            write_squad_rows(squad_params(), "train", path, folder, rows)
    assert not list(rows.parent.iterdir())
