"""Stage `questions`: SQuAD v1.1 questions for training and for development, as Parquet.

    python -m tasks.questions

Writes train.parquet and dev.parquet with the columns of `SCHEMA`. `demo` asks about the invented world,
`files` reads SQuAD v1.1 JSON (`questions.train_path`, `questions.dev_path`), `hub` a data set with SQuAD's
columns and splits. Every question is checked before anything is written.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks import artifacts, world
from tasks.errors import InputError, run_main
from tasks.hub_inputs import open_dataset
from tasks.params import QuestionsParams, load_params
from tasks.squad_format import Answer, Problems, Question, check_questions, read_squad, refuse_common_ids, squad_row

ANSWER = pa.struct([pa.field("text", pa.string(), False), pa.field("answer_start", pa.int32(), False)])
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("title", pa.string(), nullable=False),
        pa.field("context", pa.string(), nullable=False),
        pa.field("question", pa.string(), nullable=False),
        pa.field("answers", pa.list_(pa.field("item", ANSWER, nullable=False)), nullable=False),
    ]
)
"""answer_start counts characters (Unicode code points) of the context, from 0."""
FILES = {"train": "train.parquet", "dev": "dev.parquet"}
HUB_SPLITS = {"train": "train", "dev": "validation"}
ROW_GROUP = 4096


@dataclass(frozen=True)
class QuestionsSummary:
    """Questions and different contexts in each file."""

    train: int
    dev: int
    train_contexts: int
    dev_contexts: int


def make_questions(params: QuestionsParams, output: Path) -> QuestionsSummary:
    """Write train.parquet and dev.parquet to the folder `output`, both or none.

    Raises:
        InputError: all problems of the first file that has any (ten are shown), or ids that both files use.
    """
    train, dev = _load(params, "train"), _load(params, "dev")
    refuse_common_ids(train, dev, *_names(params))
    with artifacts.new_folder(output) as folder:
        for name, questions in (("train", train), ("dev", dev)):
            pq.write_table(_table(questions), folder / FILES[name], compression="zstd", row_group_size=ROW_GROUP)
    return QuestionsSummary(len(train), len(dev), _contexts(train), _contexts(dev))


def _names(params: QuestionsParams) -> tuple[str, str]:
    if params.source == "files":
        return params.train_path, params.dev_path
    return "the training questions", "the development questions"


def _load(params: QuestionsParams, name: str) -> list[Question]:
    if params.source == "files":
        key = f"questions.{name}_path"
        return read_squad(Path(params.train_path if name == "train" else params.dev_path), key)
    if params.source == "demo":
        count = params.demo_train if name == "train" else params.demo_dev
        split: world.Split = "train" if name == "train" else "dev"
        return [
            Question(q.id, q.title, q.context, q.question, (Answer(q.answer, q.answer_start),))
            for q in world.questions(params.seed, split, count)
        ]
    where = f"data set {params.dataset}, split {HUB_SPLITS[name]}"
    rows = open_dataset("questions", params.dataset, params.dataset_config, HUB_SPLITS[name], params.dataset_revision)
    problems = Problems(where)
    read = [squad_row(row, f"row {number}", problems) for number, row in enumerate(rows)]
    questions = [question for question in read if question is not None]
    check_questions(questions, problems)
    problems.refuse()
    if not questions:
        raise InputError(f"{where} holds no questions: set questions.dataset to a data set in SQuAD's columns")
    return questions


def _table(questions: Iterable[Question]) -> pa.Table:
    rows = [{**q._asdict(), "answers": [answer._asdict() for answer in q.answers]} for q in questions]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _contexts(questions: Iterable[Question]) -> int:
    return len({question.context for question in questions})


def main() -> None:
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    params = load_params().questions
    started_at = time.perf_counter()
    made = make_questions(params, artifacts.QUESTIONS)
    print(
        f"questions ({params.source}): train {made.train:,} on {made.train_contexts:,} contexts, dev {made.dev:,} on "
        f"{made.dev_contexts:,} contexts, {time.perf_counter() - started_at:.1f} s"
    )


if __name__ == "__main__":
    run_main(main)
