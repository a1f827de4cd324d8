import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.downstream import packed_rows as generic_rows
from tasks.downstream.squad import examples
from tasks.downstream.squad.questions import SquadQuestion, read_questions
from tasks.downstream.squad.rows import SquadEncoder
from tasks.records.answer_places import ReferenceAnswer
from tasks.stage.errors import InputError
from tasks.stage.row_folders import read_manifest
from tests.tasks.downstream.entries import task_with
from tests.tasks.downstream.squad.question_files import params as file_params
from tests.tasks.pretraining.row_inputs import (
    CLS,
    bert_tokenizer,
    random_texts,
    read_rows,
    squad_params,
    squad_questions,
    word_tokenizer,
    write_questions,
    write_squad_rows,
)

SMALL = {"row_length": 48, "doc_stride": 8, "max_question_length": 10}


def questions_on(texts: list[str]) -> list[dict[str, Any]]:
    """Two questions per text: the answer is its first word, or its last two."""
    made = []
    for number, text in enumerate(texts):
        context = text.replace("\n", " ")
        last = context[context.rindex(" ", 0, context.rindex(" ")) + 1 :]
        for part, answer in enumerate((context.split()[0], last)):
            made.append(
                {
                    "id": f"q{number}-{part}",
                    "title": "",
                    "context": context,
                    "question": f"Go {answer.lower()}?",
                    "answers": [{"text": answer, "answer_start": context.rindex(answer) if part else 0}],
                }
            )
    return made


def make(folder: Path, questions: list[dict[str, Any]], split: str = "train", **params: Any) -> Path:
    if not (folder / "tokenizer").exists():
        word_tokenizer(folder / "tokenizer")
    source = write_questions(folder / f"{split}.parquet", questions)
    write_squad_rows(squad_params(**{**SMALL, **params}), split, source, folder / "tokenizer", folder / "rows")
    return folder / "rows"


def check_rows(folder: Path, questions: list[dict[str, Any]], labelled: bool) -> tuple[int, int]:
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
def test_rows_features_and_labels_belong_together(tmp_path: Path, max_sequences: int) -> None:
    questions = questions_on(random_texts(60, sentences=(2, 12)))
    folder = make(tmp_path, questions, max_sequences_per_row=max_sequences)
    inside, exact = check_rows(folder, questions, labelled=True)
    assert inside == exact
    assert inside >= len(questions)
    manifest = read_manifest(folder)
    assert manifest.sequences == len(pq.read_table(folder / "features.parquet")) > len(questions)
    assert manifest.max_sequences == max_sequences
    assert manifest.max_predictions == 0
    if max_sequences == 1:
        assert manifest.rows == manifest.sequences


@pytest.mark.parametrize("unit", ["characters", "UTF-16"])
def test_labels_decode_to_answers_that_were_moved(tmp_path: Path, unit: str) -> None:
    questions, bees = questions_on(random_texts(30)), ("\U0001f41d" * 5 + " ") * (unit == "UTF-16")
    stated = []
    for number, question in enumerate(questions):
        [answer] = question["answers"]
        text, start = answer["text"], answer["answer_start"] + len(bees)
        question |= {"context": bees + question["context"], "answers": [{"text": text, "answer_start": start}]}
        wrong = {"text": f" {text}", "answer_start": start + (bees.count("\U0001f41d") or number % 3 + 1)}
        stated.append({**question, "answers": [wrong]})
    sources = {f"{split}_path": tmp_path / f"{split}.jsonl" for split in ("train", "dev")}
    sources["train_path"].write_text("".join(json.dumps(one) + "\n" for one in stated))
    sources["dev_path"].write_text(json.dumps({**questions[0], "id": "dev"}))
    examples.make_questions(file_params(**{key: str(path) for key, path in sources.items()}), tmp_path / "made")
    assert pq.read_table(tmp_path / "made/train.parquet").to_pylist() == questions
    made = read_questions(tmp_path / "made/train.parquet")
    rows = [{**one._asdict(), "answers": [answer._asdict() for answer in one.answers]} for one in made]
    inside, exact = check_rows(make(tmp_path, rows), questions, labelled=True)
    assert inside == exact
    assert inside >= len(questions)


def test_dev_rows_carry_no_labels(tmp_path: Path) -> None:
    questions = questions_on(random_texts(20))
    check_rows(make(tmp_path, questions, "dev"), questions, labelled=False)


def test_features_and_examples_are_numbered_across_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SquadEncoder, "chunk", 30)
    questions = questions_on(random_texts(60))
    made = make(tmp_path / "rows", questions)
    check_rows(made, questions, labelled=True)  # feature and example numbers run on from chunk to chunk


def test_chunks_do_not_depend_on_how_the_file_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SquadEncoder, "chunk", 7)
    monkeypatch.setattr(generic_rows, "READ_AT_ONCE", 4)
    table = pa.Table.from_pylist(questions_on(random_texts(10)))
    pq.write_table(table, tmp_path / "q.parquet", row_group_size=5)
    assert [
        len(chunk) for chunk in generic_rows.read_chunks(task_with("squad", "encoder"), tmp_path / "q.parquet")
    ] == [
        7,
        7,
        6,
    ]


def test_questions_on_long_texts_are_written_read_and_made_rows_of_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every question has its context with it: 20 on a text of 200 characters are 4,000."""
    monkeypatch.setattr(examples, "GROUP_CHARACTERS", 500)
    monkeypatch.setattr(generic_rows, "CHUNK_BYTES", 500)
    asked = [SquadQuestion(f"q{n}", "", "x" * 200, "Go?", (ReferenceAnswer("x", 0),)) for n in range(20)]
    examples.write_questions(asked, tmp_path / "q.parquet")
    metadata = pq.read_metadata(tmp_path / "q.parquet")
    groups = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    assert groups == [3] * 6 + [2]
    assert pq.read_table(tmp_path / "q.parquet").column("id").to_pylist() == [one.id for one in asked]
    chunks = list(generic_rows.read_chunks(task_with("squad", "encoder"), tmp_path / "q.parquet"))
    assert [len(chunk) for chunk in chunks] == groups


def test_questions_on_the_same_text_share_it_in_memory(tmp_path: Path) -> None:
    text = "a long text " * 100
    asked = [SquadQuestion(f"q{n}", "", text, "What?", (ReferenceAnswer("a", 0),)) for n in range(50)]
    examples.write_questions(asked, tmp_path / "dev.parquet")
    found = read_questions(tmp_path / "dev.parquet")
    assert len({id(question.context) for question in found}) == 1
    assert [question.id for question in read_questions(tmp_path / "dev.parquet", ["q3", "q1"])] == ["q1", "q3"]
    assert [question.id for question in read_questions(tmp_path / "dev.parquet", most=2)] == ["q0", "q25"]


def test_real_questions_make_the_rows_the_reference_predicts(tmp_path: Path) -> None:
    questions = squad_questions("new-wiki-train.json")
    source, tokenizer = write_questions(tmp_path / "train.parquet", questions), bert_tokenizer(tmp_path / "bert")
    made = write_squad_rows(squad_params(), "train", source, tokenizer, tmp_path / "rows")
    assert (made.examples, made.sequences, made.counts["holding their answer"]) == (7024, 7110, 7035)
    assert made.manifest.packing_efficiency > 0.965
    inside, exact = check_rows(tmp_path / "rows", questions, labelled=True)
    assert inside == made.counts["holding their answer"]
    assert exact / inside > 0.99


def test_missing_inputs_are_told_with_the_stage_that_makes_them(tmp_path: Path) -> None:
    tokenizer, rows = word_tokenizer(tmp_path / "tokenizer"), tmp_path / "out" / "rows"
    source = write_questions(tmp_path / "train.parquet", questions_on(random_texts(2)))
    with pytest.raises(InputError, match="dvc repro examples@squad"):
        write_squad_rows(squad_params(), "train", tmp_path / "none.parquet", tokenizer, rows)
    with pytest.raises(InputError, match="dvc repro tokenizer"):
        write_squad_rows(squad_params(), "train", source, tmp_path, rows)
    for columns, lacks in ((("id", "context"), "answers, question"), (("id", "context", "question"), "answers")):
        pq.write_table(pa.table({name: ["x"] for name in columns}), source)
        with pytest.raises(InputError, match=f"but not {lacks}: run `dvc repro examples@squad`"):
            write_squad_rows(squad_params(), "train", source, tokenizer, rows)
    write_questions(source, [])
    with pytest.raises(InputError, match="contains no question"):
        write_squad_rows(squad_params(), "train", source, tokenizer, rows)
    assert not list(rows.parent.iterdir())
