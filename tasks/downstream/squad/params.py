"""Parameters of question answering on SQuAD and data in its format."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from tasks.params.downstream import (
    EntryParams,
    EvaluateParams,
    ExpectedExamples,
    OwnDataParams,
    Points,
    ReleaseParams,
    RowsParams,
)
from tasks.params.sections import Epochs, FinetuneParams, Name, Positive, Rate, Section, Seed, left_out_as


class SquadColumnParams(Section):
    """Columns of a table of questions; `None`: SQuAD's name."""

    id: Name | None = None
    """Column of the question's id; null: SQuAD's name, as for the other columns."""
    title: Name | None = None
    """Column of the title."""
    context: Name | None = None
    """Column of the context."""
    question: Name | None = None
    """Column of the question."""
    answers: Name | None = None
    """Column of {text: [...], answer_start: [...]} or a list of {text, answer_start}, also as JSON text."""
    answer_text: Name | None = None
    """Column of the answer's text, for tables with one answer in two columns."""
    answer_start: Name | None = None
    """Column of the answer's first character in the context."""

    @model_validator(mode="after")
    def _check_one_answer_source(self) -> SquadColumnParams:
        if self.answers is not None and (self.answer_text is not None or self.answer_start is not None):
            raise ValueError("answers (one column) cannot be combined with answer_text and answer_start (two columns)")
        return self


class SquadDataParams(OwnDataParams):
    source: Literal["demo", "files", "hub"] = "files"
    """demo: generated; files: read by extension (.json is SQuAD; .csv, .jsonl, .parquet are tables); hub: a Hub data
    set."""
    train_path: Name = "inputs/questions"
    dev_path: Name | None = "inputs/questions"
    columns: SquadColumnParams = SquadColumnParams()
    """Column names of tables and Hub data sets; null: SQuAD's name."""
    unanswerable: Literal["use", "drop", "refuse"] = "refuse"
    """Questions without an answer (SQuAD 2.0): use (the model may return no answer), drop or refuse."""
    misplaced_answers: Annotated[Literal["refuse", "drop"], left_out_as("refuse")] = "refuse"
    """Answers not within 3 characters of answer_start, or several times there: refuse or drop."""
    seed: Seed = 2
    demo_train: Positive = 12000
    """Generated training questions, on towns that are not in the corpus."""
    demo_dev: Positive = 1000
    """Generated development questions, on towns, people and rivers that occur nowhere else."""


class SquadRowsParams(RowsParams):
    row_length: Annotated[int, Field(ge=16, le=32767)] = 384
    max_sequences_per_row: Annotated[int, Field(ge=1, le=255)] = 3
    doc_stride: Annotated[int, Field(ge=0)] = 128
    """Tokens shared by neighbouring windows."""
    max_question_length: Positive = 64
    """Maximum tokens of a question; longer ones are truncated."""

    @model_validator(mode="after")
    def _check_windows_advance(self) -> SquadRowsParams:
        context = self.row_length - self.max_question_length - 3
        if self.doc_stride >= context:
            raise ValueError(
                f"doc_stride={self.doc_stride} must be smaller than the context of the smallest window: row_length "
                f"{self.row_length} - max_question_length {self.max_question_length} - 3 special tokens = {context}"
            )
        return self


class SquadFinetuneParams(FinetuneParams):
    global_batch_size: Positive = 32
    learning_rate: Rate = 5e-5
    epochs: Epochs = 3.0


class SquadEvaluateParams(EvaluateParams):
    n_best: Positive = 20
    """Candidate answers kept for each question."""
    max_answer_length: Positive = 30
    """Maximum tokens of an answer."""
    null_threshold: Literal["auto"] | float = "auto"
    """Odds above which no answer is returned; auto: chosen on held-out training questions."""


class SquadGateParams(ReleaseParams):
    min_f1: Points | None = 85.0
    """Floor of F1, in percent; null: none."""
    min_exact_match: Points | None = None
    """Floor of exact match, in percent; null: none."""
    min_has_answer_f1: Points | None = None
    """Floor of F1 on questions with an answer, if data.unanswerable is use."""
    min_no_answer_exact_match: Points | None = None
    """Floor of exact match on questions without an answer."""
    max_f1_drop: Points = 0.0
    """Tolerated drop of F1 against the released model, in points."""
    max_exact_match_drop: Points = 0.0
    """Tolerated drop of exact match against the released model, in points."""
    max_has_answer_f1_drop: Points | None = None
    """Tolerated drop of F1 on questions with an answer, in points; null: any."""
    max_no_answer_exact_match_drop: Points | None = None
    """Tolerated drop of exact match on questions without an answer, in points; null: any."""


GROUP_LIMITS = (
    "min_has_answer_f1",
    "min_no_answer_exact_match",
    "max_has_answer_f1_drop",
    "max_no_answer_exact_match_drop",
)
"""Parameters for questions with and without an answer."""


PUBLISHED = {"squad": (87_599, 10_570), "squad_v2": (130_319, 11_873)}
"""Training and development questions of the Hub data sets rajpurkar/squad and rajpurkar/squad_v2 (data set cards)."""
WINDOW_TOKENS, DEMO_TOKENS = 170, 80
"""Mean tokens of a question with its paragraph: SQuAD v1.1 (2.2 fit 384 tokens in packed presets), and generated."""
QUESTION_BYTES = 346
"""Bytes per question of train-v1.1.json, which has 30,288,272."""


class SquadParams(EntryParams):
    """Entry of kind squad."""

    about: ClassVar[str] = "Extractive question answering in the format of SQuAD."
    record: ClassVar[str] = "question"
    head: ClassVar[str] = "question_answering"

    data: SquadDataParams = SquadDataParams()
    rows: SquadRowsParams = SquadRowsParams()
    finetune: SquadFinetuneParams = SquadFinetuneParams()
    evaluate: SquadEvaluateParams = SquadEvaluateParams()
    gate: SquadGateParams = SquadGateParams()

    @property
    def title(self) -> str:
        return "question answering"

    @property
    def nullable(self) -> bool:
        """True if a context may have no answer, as in SQuAD 2.0."""
        return self.data.unanswerable == "use"

    @property
    def decides_on_held_out(self) -> bool:
        return self.nullable

    @property
    def reads_pairs(self) -> bool:
        return True

    @property
    def expected(self) -> ExpectedExamples:
        data = self.data
        if data.source == "demo":
            return ExpectedExamples(data.demo_train, data.demo_dev, DEMO_TOKENS, QUESTION_BYTES)
        name = (data.dataset or "").rpartition("/")[2] if data.source == "hub" else ""
        train, dev = PUBLISHED.get(name, (None, None))
        return ExpectedExamples(train, dev, WINDOW_TOKENS, QUESTION_BYTES)

    @property
    def options(self) -> dict[str, object]:
        """Options of the kind: unanswerable, if it is use, because it affects every stage."""
        return {"unanswerable": "use"} if self.nullable else {}

    @property
    def option_names(self) -> tuple[str, ...]:
        return tuple(f"data.{name}" for name in self.options)

    @model_validator(mode="after")
    def _check_no_answer_limits(self) -> SquadParams:
        if self.nullable:
            if self.evaluate.null_threshold == "auto" and not self.rows.held_out_fraction:
                raise ValueError(
                    "evaluate.null_threshold=auto is chosen on held-out training questions, never on dev. Set "
                    "rows.held_out_fraction, for example to 0.1, or the threshold to a number (0.0 is BERT's)"
                )
            return self
        gate = (f"gate.{name}" for name in GROUP_LIMITS if getattr(self.gate, name) is not None)
        limits = [*gate, *(["evaluate.null_threshold"] if self.evaluate.null_threshold != "auto" else [])]
        if limits:
            raise ValueError(
                f"{', '.join(limits)} requires questions without an answer, but data.unanswerable is "
                f"{self.data.unanswerable}. Set it to use"
            )
        return self
