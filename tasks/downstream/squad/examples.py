"""SQuAD questions for training and for development, as Parquet.

Writes train.parquet and dev.parquet with the columns of `about.SCHEMA`. `demo` asks about the invented world,
`files` reads SQuAD JSON, CSV, JSON lines or Parquet by the ending of the name (`train_path`, `dev_path` of
the section data), `hub` a data set with SQuAD's splits. Every question is checked before anything is written;
what was changed or looks odd is counted in reading.json.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from ipu_model.files import new_folder
from tasks.downstream.examples import ExamplesTask
from tasks.downstream.squad import about
from tasks.downstream.squad.about import SCHEMA
from tasks.downstream.squad.format import (
    UNANSWERABLE,
    Answer,
    Problems,
    Question,
    refuse_common_ids,
    require_room_for_file,
)
from tasks.downstream.squad.params import QuestionsParams
from tasks.downstream.squad.question_tables import questions_of, read_question_file, wanted_columns
from tasks.inputs import world
from tasks.inputs.splits import Groups
from tasks.inputs.tables import ENDINGS, checked, hub_lines, read_table
from tasks.project.errors import InputError
from tasks.project.given import require_readable
from tasks.reading.parquet import row_groups
from tasks.reading.text_files import Reading, ending_of, first_bytes, write_reading

ROW_GROUP, GROUP_CHARACTERS = 4096, 8 << 20
"""Questions, and characters of their contexts, from which on a row group is full: a reader decodes one at a time, and
each question has its context with it."""
WHOLE_BYTES = 16 << 20
"""A file up to this size is read whole before a run starts: two seconds or so."""
FIRST_RECORDS = 100
"""Records of a larger table that are looked at."""
REPEATED = "questions asked more than once of the same context, kept"
USED, DROPPED = "questions without an answer, used", "questions without an answer, left out"


class Task(about.Task, ExamplesTask):
    """Questions of files, of the Hub, or on the generated world."""

    has_pairs = True
    groups: ClassVar[Groups] = (("title", ("title",)), ("context", ("context",)))

    def write_examples(self, folder: Path) -> str:
        params = self.entry.params.data
        assert isinstance(params, QuestionsParams)
        made = make_questions(params, folder)
        noted = "".join(f", {part}" for part in made.reading.summary())
        return (
            f"questions ({params.source}): train {made.train:,} on {made.train_contexts:,} contexts, dev {made.dev:,} "
            f"on {made.dev_contexts:,} contexts{noted}"
        )

    def check_files(self) -> str:
        """Both files of questions: whole where they are small."""
        params = self.entry.params.data
        assert isinstance(params, QuestionsParams)
        for key in (f"{split}_path" for split in self.read_splits):
            check_question_file(Path(getattr(params, key)), self.entry.key("data", key), params)
        return f"{params.train_path} and {params.dev_path or 'a part of it'}"


@dataclass(frozen=True)
class QuestionsSummary:
    """Questions and different contexts in each file."""

    train: int
    dev: int
    train_contexts: int
    dev_contexts: int
    reading: Reading


def make_questions(params: QuestionsParams, output: Path) -> QuestionsSummary:
    """Write train.parquet and dev.parquet to the folder `output`, both or none; the first alone where no dev is given.

    Raises:
        InputError: all problems of the first file that has any (ten are shown), or ids that both files use.
    """
    reading = Reading()
    train, dev = (
        [] if split == "dev" and params.dev_is_apart else _wanted(_load(params, split, reading), params, reading)
        for split in ("train", "dev")
    )
    names = ("the training questions", "the development questions")
    refuse_common_ids(train, dev, *((params.train_path, params.dev_path or "") if params.source == "files" else names))
    with new_folder(output) as folder:
        for name, questions in (("train", train), *([] if params.dev_is_apart else [("dev", dev)])):
            write_questions(questions, folder / f"{name}.parquet")
            reading.counts[REPEATED] += len(questions) - len({(one.question, one.context) for one in questions})
        write_reading(folder, params.source, reading)
    return QuestionsSummary(len(train), len(dev), _contexts(train), _contexts(dev), reading)


def _wanted(questions: list[Question], params: QuestionsParams, reading: Reading) -> list[Question]:
    """Without those that have no answer, where they are to be dropped; what became of them is counted."""
    if bare := sum(not question.answers for question in questions):
        reading.counts[USED if params.unanswerable == "use" else DROPPED] += bare
    kept = [question for question in questions if question.answers or params.unanswerable == "use"]
    if not kept:
        raise InputError(f"none of {bare:,} questions has an answer, and {UNANSWERABLE} drops them: set it to use")
    return kept


def _load(params: QuestionsParams, name: str, reading: Reading) -> list[Question]:
    if params.source == "files":
        path = Path(params.train_path if name == "train" else str(params.dev_path))
        return _read_file(path, f"downstream.*.data.{name}_path", params, reading)
    if params.source == "demo":
        count = params.demo_train if name == "train" else params.demo_dev
        split: world.Split = "train" if name == "train" else "dev"
        return [
            Question(q.id, q.title, q.context, q.question, (Answer(q.answer, q.answer_start),))
            for q in world.questions(params.seed, split, count)
        ]
    where, _, lines = hub_lines(params, "downstream.*.data", name, ())
    wanted = list(wanted_columns(params.columns).values())
    read = checked(lines, wanted, where, reading)
    return questions_of(read, params.columns, Problems(where, params.unanswerable, reading=reading))


def _read_file(path: Path, key: str, params: QuestionsParams, reading: Reading) -> list[Question]:
    """The questions of a file that the parameter `key` names, with what was counted on the way."""
    _known_ending(path, key)
    reading.files += 1
    return read_question_file(path, key, params, reading)


def check_question_file(path: Path, key: str, params: QuestionsParams) -> None:
    """What can be known of a file of questions at once: all of a small one, how a large one begins.

    Raises:
        InputError: no such file, an ending of none that is read, or questions that cannot be used: all problems.
    """
    ending = _known_ending(path, key)
    if path.stat().st_size <= WHOLE_BYTES:
        _read_file(path, key, params, Reading())
    elif ending == ".json":
        _check_start(path, key)
    else:
        lines = read_table(path, list(wanted_columns(params.columns).values()), key, Reading(), params.separator)
        first = itertools.islice(lines, FIRST_RECORDS)
        problems = Problems(f"{path} ({key})", params.unanswerable)
        questions_of(first, params.columns, problems, numbers_are_text=ending == ".csv")


def _check_start(path: Path, key: str) -> None:
    require_room_for_file(path, key, path.stat().st_size)
    start = first_bytes(path, 64)
    if not start.removeprefix(b"[").lstrip().startswith(b"{"):
        raise InputError(f"{path} begins with {start[:8]!r}, SQuAD JSON with an object: set {key} to such a file")


def _known_ending(path: Path, key: str) -> str:
    endings = (".json", *ENDINGS)
    require_readable(path, key)
    if path.is_dir():
        inside = sorted(p.name for p in path.iterdir() if ending_of(p) in endings)
        raise InputError(
            f"{key}={path} is a folder: name one file of questions"
            + (f" of it ({', '.join(inside[:5])})" if inside else f" (it holds none ending in {', '.join(endings)})")
        )
    ending = ending_of(path)
    if ending not in endings:
        raise InputError(
            f"{path} ends in {ending or 'nothing'!r}: {key} needs .json (SQuAD) or a table ({', '.join(ENDINGS)})"
        )
    return ending


def write_questions(questions: Iterable[Question], path: Path) -> None:
    """Write questions to a Parquet file, as the stage keeps them."""
    with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
        for group in row_groups(questions, lambda question: len(question.context), ROW_GROUP, GROUP_CHARACTERS):
            rows = [{**q._asdict(), "answers": [answer._asdict() for answer in q.answers]} for q in group]
            writer.write_table(pa.Table.from_pylist(rows, schema=SCHEMA))


def _contexts(questions: Iterable[Question]) -> int:
    return len({question.context for question in questions})
