"""SQuAD questions for training and development, written as Parquet.

Writes train.parquet and dev.parquet with the columns of `spec.SCHEMA`. Source `demo` generates questions about an
invented world, `files` reads SQuAD JSON, CSV, JSON lines or Parquet by file extension (`train_path`, `dev_path` of
section data), `hub` reads a data set with SQuAD's splits. Every question is checked before anything is written; changes
and oddities are counted in reading.json.
"""

import mmap
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from tasks.corpus import world
from tasks.downstream.reading import WHOLE_BYTES, CheckedFiles, Reader, count_dev, source_splits
from tasks.downstream.squad.params import SquadDataParams, SquadParams
from tasks.downstream.squad.questions import (
    MADE,
    SECTION,
    QuestionParser,
    ReferenceAnswer,
    SquadQuestion,
    question_spec,
    read_question_file,
)
from tasks.downstream.squad.schemas import SCHEMA
from tasks.records.interpretation import Interpretation, write_reading
from tasks.records.parquet import write_records
from tasks.records.tables import open_split
from tasks.stage.errors import InputError

IMPOSSIBLE = re.compile(rb'"is_impossible"\s*:\s*true')
ROW_GROUP, GROUP_CHARACTERS = 4096, 8 << 20
"""Maximum questions, and characters of their contexts, in a row group: readers decode a whole group, and each question
includes its context."""
SHOWN_IDS = 10
FIRST_RECORDS = 100
"""Records of a larger table that are checked before a run starts."""
REPEATED = "duplicate questions on the same context, kept"


def recipe_for(train: Path) -> dict[str, object]:
    """Return the SQuAD 2.0 recipe of Devlin et al. 2019 (BERT, section 4.3) for a JSON file with unanswerable
    questions.

    A tenth of the questions is held out to choose the no-answer threshold.
    """
    if train.suffix != ".json" or not _says_impossible(train):
        return {}
    tuning = {"finetune.global_batch_size": 48, "finetune.epochs": 2.0}
    return {"data.unanswerable": "use", "rows.held_out_fraction": 0.1, **tuning}


class SquadReader(Reader):
    """Questions from files, the Hub or the generated world."""

    groups = (("title", ("title",)), ("context", ("context",)))

    def write_examples(self, folder: Path) -> str:
        return make_questions(self.entry.params_as(SquadParams).data, folder)

    def check_files(self) -> CheckedFiles:
        """Check both files of questions, completely if they are small."""
        params = self.entry.params_as(SquadParams).data
        inputs = {split: Interpretation() for split in source_splits(self.entry)}
        for split, reading in inputs.items():
            path = params.path_of(split)
            count = check_question_file(path, self.entry.key("data", f"{split}_path"), params, reading)
        return CheckedFiles(
            f"{params.train_path} and {params.dev_path or 'a part of it'}",
            inputs,
            has_pairs=True,
            # The last file has the development questions.
            dev_count=None if count is None else count_dev(self.entry, count),
        )


def make_questions(params: SquadDataParams, folder: Path) -> str:
    """Write train.parquet and dev.parquet to a folder; only train.parquet without a dev set. Return a summary.

    Raises:
        InputError: all problems of the first invalid file (ten are shown), or ids used in both files.
    """
    splits = ("train",) if params.dev_is_apart else ("train", "dev")
    inputs = {split: Interpretation() for split in splits}
    sets = {split: _load(params, split, inputs[split]) for split in splits}
    if not params.dev_is_apart and not any(interpretation.counts[MADE] for interpretation in inputs.values()):
        _refuse_common_ids(params, **sets)
    folder.mkdir(parents=True, exist_ok=True)
    for split, questions in sets.items():
        write_questions(questions, folder / f"{split}.parquet")
        inputs[split].counts[REPEATED] += len(questions) - len(
            {(question.question, question.context) for question in questions}
        )
    reading = write_reading(folder, params.source, inputs)
    counts = [f"{split} {len(part):,} on {len({q.context for q in part}):,} contexts" for split, part in sets.items()]
    return ", ".join([f"questions ({params.source}): {', '.join(counts)}", *reading.summary()])


def _load(params: SquadDataParams, split: str, reading: Interpretation) -> list[SquadQuestion]:
    if params.source == "demo":
        count = params.demo_train if split == "train" else params.demo_dev
        return [
            SquadQuestion(q.id, q.title, q.context, q.question, (ReferenceAnswer(q.answer, q.answer_start),))
            for q in world.make_questions(params.seed, "train" if split == "train" else "dev", count)
        ]
    records = open_split(params, SECTION, split, question_spec(params.columns), reading)
    return QuestionParser(records, params, reading).parse()


def _refuse_common_ids(params: SquadDataParams, train: Sequence[SquadQuestion], dev: Sequence[SquadQuestion]) -> None:
    known = {question.id for question in train}
    if common := [question.id for question in dev if question.id in known]:
        names = params.train_path, params.dev_path
        first, second = names if params.source == "files" else ("the training questions", "the development questions")
        raise InputError(
            f"{len(common)} question id(s) are in both {first} and {second}: {', '.join(common[:SHOWN_IDS])}. "
            "Set train_path and dev_path to different questions"
        )


def check_question_file(path: Path, key: str, params: SquadDataParams, reading: Interpretation) -> int | None:
    """Check a file of questions before a run: all of a small file, the beginning of a large one.

    Returns:
        The number of questions of a small file.

    Raises:
        InputError: file not found, unknown extension, or invalid questions (all problems).
    """
    is_large = path.is_file() and path.stat().st_size > WHOLE_BYTES
    questions = read_question_file(path, key, params, reading, most=FIRST_RECORDS if is_large else None)
    return None if is_large else len(questions)


def write_questions(questions: Iterable[SquadQuestion], path: Path) -> None:
    """Write questions to a Parquet file of the stage."""
    write_records(questions, path, SCHEMA, ROW_GROUP, lambda question: len(question.context), GROUP_CHARACTERS)


def _says_impossible(file: Path) -> bool:
    if not file.is_file() or not file.stat().st_size:
        return False
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as text:
        return IMPOSSIBLE.search(text) is not None
