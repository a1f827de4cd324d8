"""Reading of questions and predictions for scoring: SQuAD v1.1 or 2.0 JSON, {id: text} JSON, Podium's Parquet files.

Scoring needs only ids and reference answers.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipu_model.files import read_json
from tasks.downstream.squad.question_tables import list_objects, read_id, read_json_questions, read_text
from tasks.records.tables import ColumnSpec, TableRow, read_table
from tasks.records.text_files import NUMERIC_IDS, ProblemList, ReadLog, refuse_empty
from tasks.stage.errors import InputError

KEY = "the file on the command line"
STAGE = "its stage examples"


@dataclass(frozen=True)
class ReferenceQuestion:
    """Question with its reference answers."""

    id: str
    question: str
    context: str
    answers: tuple[str, ...]
    answer_starts: tuple[int, ...] = ()
    """First character of each answer in the context."""
    title: str = ""
    """Title of the article."""


def read_references(path: Path, reading: ReadLog | None = None) -> list[tuple[str, tuple[str, ...]]]:
    """Read (id, reference answers) of every question from a SQuAD v1.1 or 2.0 JSON file, in order.

    As for training, the file may also have one object per question (see format.py).

    Args:
        reading: receives the number of numeric ids.

    Raises:
        InputError: file not found, not JSON, not SQuAD's format (all problems with their locations), or no questions.
    """
    try:
        refuse_empty(path, KEY)
    except OSError as error:
        what = "not found" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        raise InputError(f"{path} {what}") from None
    problems, log = ProblemList(str(path), "questions"), ReadLog()
    columns = {part: ColumnSpec((part,), KEY, False) for part in ("id", "answers")}
    rows = read_json_questions(path, KEY, log, problems, columns=columns)
    found = [_make_reference(row, problems, log) for row in rows]
    if reading is not None:
        reading.counts[NUMERIC_IDS] += log.counts[NUMERIC_IDS]
    problems.refuse()
    if not found:
        raise InputError(f"{path} contains no questions")
    return found


def _make_reference(row: TableRow, problems: ProblemList, reading: ReadLog) -> tuple[str, tuple[str, ...]]:
    values, answers = row.values, row.values.get("answers")
    if isinstance(answers, Mapping) and isinstance(texts := answers.get("text"), list):  # the format of `datasets`
        values = {**values, "answers": [{"text": text} for text in texts]}
    found = [read_text(one, "text", at, problems) for one, at in list_objects(values, "answers", row.where, problems)]
    return read_id(values, row.where, problems, reading) or "", tuple(text for text in found if text is not None)


def read_odds(path: Path) -> dict[str, float]:
    """Read {question id: odds of no answer}, the format of null_odds.json; odds are any numbers.

    Raises:
        InputError: file not found, not JSON, or not an object of numbers.
    """
    return _read_by_id(path, "odds", "a number", lambda odds: type(odds) in (int, float) and math.isfinite(odds))


def read_predictions(path: Path) -> dict[str, str]:
    """Read {question id: answer text}.

    Raises:
        InputError: file not found, not JSON, or not an object of strings.
    """
    return _read_by_id(path, "prediction", 'a string ("" for no answer)', lambda text: isinstance(text, str))


def _read_by_id(path: Path, what: str, required: str, is_valid: Callable[[Any], bool]) -> dict[str, Any]:
    try:
        values = read_json(path, encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path} not found") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder. Name the JSON file in it") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error}). Convert it first") from None
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise InputError(f"{path} must be an object of question ids, found {type(values).__name__}")
    for name, value in values.items():
        if not is_valid(value):
            raise InputError(f"{path}: the {what} of question {name!r} must be {required}, found {value!r:.40}")
    return values


def read_questions(path: Path, ids: Sequence[str] | None = None, most: int | None = None) -> list[ReferenceQuestion]:
    """Read the questions written by stage examples, in order.

    Args:
        path: for example data/examples/<entry>/dev.parquet.
        ids: ids to return; None: all.
        most: maximum number, evenly spread; None: all.

    Raises:
        InputError: the file is missing, unreadable or empty, or lacks columns.
    """
    wanted = None if ids is None else set(ids)
    found: list[ReferenceQuestion] = []
    contexts: dict[str, str] = {}
    columns = {part: ColumnSpec((part,), STAGE) for part in ("id", "title", "question", "context", "answers")}
    if not path.is_file():
        raise InputError(f"{path} not found. Run {STAGE}")
    for _, row, _ in read_table(path, [columns], STAGE, ReadLog()):
        if wanted is None or row["id"] in wanted:
            texts, starts = ([answer[key] for answer in row["answers"]] for key in ("text", "answer_start"))
            context = contexts.setdefault(row["context"], row["context"])  # the file repeats contexts
            found.append(
                ReferenceQuestion(row["id"], row["question"], context, tuple(texts), tuple(starts), row["title"])
            )
    if not contexts and wanted is None:
        raise InputError(f"{path} contains no questions. Set dev_path of section data to a file with questions")
    if most is not None and len(found) > most:
        return [found[number * len(found) // most] for number in range(most)]
    return found
