"""Parameters of question answering: SQuAD, and whatever has its form."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from tasks.project.param_downstream import (
    EntryParams,
    EvaluateParams,
    Expected,
    OwnDataParams,
    Points,
    ReleaseParams,
    RowsParams,
)
from tasks.project.param_sections import Name, Positive, Section, Seed
from tasks.project.param_training import Epochs, FinetuneParams, Rate

IMPOSSIBLE = re.compile(rb'"is_impossible"\s*:\s*true')


class ColumnParams(Section):
    """Columns of a table of questions; `None` is SQuAD's own name."""

    id: Name | None = None
    title: Name | None = None
    context: Name | None = None
    question: Name | None = None
    answers: Name | None = None
    answer_text: Name | None = None
    answer_start: Name | None = None

    @model_validator(mode="after")
    def _answers_stand_in_one_place(self) -> ColumnParams:
        if self.answers is not None and (self.answer_text is not None or self.answer_start is not None):
            raise ValueError("answers (one column) and answer_text, answer_start (two columns) exclude each other")
        return self


class QuestionsParams(OwnDataParams):
    source: Literal["demo", "files", "hub"] = "files"
    train_path: Name = "inputs/questions"
    dev_path: Name | None = "inputs/questions"
    columns: ColumnParams = ColumnParams()
    unanswerable: Literal["use", "drop", "refuse"] = "refuse"
    seed: Seed = 2
    demo_train: Positive = 12000
    demo_dev: Positive = 1000


class WindowParams(RowsParams):
    row_length: Annotated[int, Field(ge=16, le=32767)] = 384
    max_sequences_per_row: Annotated[int, Field(ge=1, le=255)] = 3
    doc_stride: Annotated[int, Field(ge=0)] = 128
    max_question_length: Positive = 64

    @model_validator(mode="after")
    def _a_window_moves_on(self) -> WindowParams:
        context = self.row_length - self.max_question_length - 3
        if self.doc_stride >= context:
            raise ValueError(
                f"doc_stride={self.doc_stride} must be smaller than the context of the smallest window: row_length "
                f"{self.row_length} - max_question_length {self.max_question_length} - 3 special tokens = {context}"
            )
        return self


class TuningParams(FinetuneParams):
    global_batch_size: Positive = 32
    learning_rate: Rate = 5e-5
    epochs: Epochs = 3.0


class AnswerParams(EvaluateParams):
    n_best: Positive = 20
    max_answer_length: Positive = 30
    null_threshold: Literal["auto"] | float = "auto"


class GateParams(ReleaseParams):
    min_f1: Points | None = 85.0
    min_exact_match: Points | None = None
    min_has_answer_f1: Points | None = None
    min_no_answer_exact_match: Points | None = None
    max_f1_drop: Points = 0.0
    max_exact_match_drop: Points = 0.0
    max_has_answer_f1_drop: Points | None = None
    max_no_answer_exact_match_drop: Points | None = None


GROUP_LIMITS = (
    "min_has_answer_f1",
    "min_no_answer_exact_match",
    "max_has_answer_f1_drop",
    "max_no_answer_exact_match_drop",
)
"""Of the questions with an answer, and of those without."""


PUBLISHED = {"squad": (87_599, 10_570), "squad_v2": (130_319, 11_873)}
"""Training and development questions of the Hub data sets rajpurkar/squad and rajpurkar/squad_v2 (their cards)."""
WINDOW_TOKENS, DEMO_TOKENS = 170, 80
"""Of a question and its paragraph: SQuAD v1.1, of which 2.2 share 384 tokens (packed presets); an invented one."""
QUESTION_BYTES = 346
"""Of train-v1.1.json: 30,288,272 for its questions."""


class Params(EntryParams):
    """An entry that answers questions."""

    data: QuestionsParams = QuestionsParams()
    rows: WindowParams = WindowParams()
    finetune: TuningParams = TuningParams()
    evaluate: AnswerParams = AnswerParams()
    gate: GateParams = GateParams()

    @property
    def expected(self) -> Expected:
        data = self.data
        if data.source == "demo":
            return Expected(data.demo_train, data.demo_dev, DEMO_TOKENS, QUESTION_BYTES)
        name = (data.dataset or "").rpartition("/")[2] if data.source == "hub" else ""
        train, dev = PUBLISHED.get(name, (None, None))
        return Expected(train, dev, WINDOW_TOKENS, QUESTION_BYTES)

    @property
    def options(self) -> dict[str, Any]:
        """That questions may have no answer, where they may: it changes what every stage does."""
        return {"unanswerable": "use"} if self.data.unanswerable == "use" else {}

    @model_validator(mode="after")
    def _what_is_of_no_answer_has_its_questions(self) -> Params:
        if self.data.unanswerable == "use":
            if self.evaluate.null_threshold == "auto" and not self.rows.held_out_fraction:
                raise ValueError(
                    "evaluate.null_threshold=auto is chosen on training questions that training does not see, never on "
                    "dev: set rows.held_out_fraction, for example to 0.1, or the threshold to a number (0.0 is BERT's)"
                )
            return self
        gate = (f"gate.{name}" for name in GROUP_LIMITS if getattr(self.gate, name) is not None)
        stated = [*gate, *(["evaluate.null_threshold"] if self.evaluate.null_threshold != "auto" else [])]
        if stated:
            raise ValueError(
                f"{', '.join(stated)} needs questions without an answer, which data.unanswerable="
                f"{self.data.unanswerable} leaves out: set it to use"
            )
        return self

    @classmethod
    def recipe_for(cls, train: Path) -> dict[str, Any]:
        """SQuAD 2.0 as Devlin et al. 2019 (BERT, section 4.3) train for it, where a JSON file holds such questions.

        A tenth of the questions is held out: the threshold of giving no answer is chosen on it.
        """
        if train.suffix != ".json" or not _says_impossible(train):
            return {}
        tuning = {"finetune.global_batch_size": 48, "finetune.epochs": 2.0}
        return {"data.unanswerable": "use", "rows.held_out_fraction": 0.1, **tuning}


def _says_impossible(file: Path) -> bool:
    """Whether some question of a file is marked as having no answer; nothing is parsed, as files may be large."""
    import mmap  # a part of Python that every stage would load otherwise

    if not file.is_file() or not file.stat().st_size:
        return False
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as text:
        return IMPOSSIBLE.search(text) is not None
