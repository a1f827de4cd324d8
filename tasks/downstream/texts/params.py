"""Parameters of text classification and regression: your own texts, and the tasks of GLUE."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from tasks.downstream.texts.task_table import OWN_TASKS, TASKS, TextTask, text_task
from tasks.params.downstream import (
    DataParams,
    EntryParams,
    EvaluateParams,
    ExpectedExamples,
    LabelledDataParams,
    MissingTexts,
    Points,
    ReleaseParams,
    RowsParams,
    require_dataset,
)
from tasks.params.sections import (
    Distinct,
    Epochs,
    FinetuneParams,
    Name,
    Positive,
    Rate,
    Section,
    Separator,
    left_out_as,
)

Floor = Annotated[float, Field(ge=-100, le=100)]
LabelForm = Literal["auto", "names", "lists", "decimal-point", "decimal-comma"]
Probability = Annotated[float, Field(ge=0, le=1)]
SELECTIVE_FLOORS = ("min_coverage", "min_answered_accuracy")
"""Floors for answers with a minimum probability."""


class ClassificationColumnParams(Section):
    """Columns of a table of texts; `None`: usual names, see docs/classification.md."""

    text: Name | None = None
    """Column of the text; null: usual names (docs/classification.md)."""
    text_pair: Name | None = None
    """Column of the second text of a pair; null: usual names."""
    label: Name | list[Name] | None = None
    """Column of the class, labels or value, or a list of columns that are 0 or 1, one per label; null: usual names."""
    id: Name | None = None
    """Column of the example's id; null: usual names, else its number."""


class ClassificationDataParams(LabelledDataParams):
    source: Literal["files", "hub"] = "files"
    train_path: Name = "inputs/classification"
    dev_path: Name | None = "inputs/classification"
    columns: ClassificationColumnParams = ClassificationColumnParams()
    """Column names of tables and Hub data sets."""
    label_separator: Separator | None = None
    """Character between the labels of a text that names several, such as pipe or comma; null: labels are lists."""
    labels: Annotated[Annotated[list[Name], Distinct] | None, left_out_as(None)] = None
    """Names of the classes or labels, by number for data with numbers or flags; null: those in the data."""
    label_form: Annotated[LabelForm, left_out_as("auto")] = "auto"
    """Meaning of labels that look like something else: names (each is a class), lists (of labels by number), values
    with a decimal-point (1.213 is below 2) or a decimal-comma (1.213,5 is above 1000), or auto: refuse them."""
    missing_labels: Annotated[Literal["refuse", "drop", "keep"], left_out_as("refuse")] = "refuse"
    """Examples whose label is missing, or a text such as nan or None: refuse, drop, or keep such texts as classes."""
    missing_texts: MissingTexts = "refuse"
    """Examples with a text such as nan or None, which may stand for a missing one: refuse if they are more than 1 %,
    drop, or keep such texts."""


class GlueDataParams(DataParams):
    source: Literal["files", "hub"] = "files"
    """files: GLUE's files in `path`; hub: `dataset`."""
    path: Name = "inputs/glue"
    """Folder with a subfolder for each task, named like it (docs/glue.md)."""
    dataset: str | None = "nyu-mll/glue"
    """Name of a Hub data set, for source: hub."""
    dataset_revision: str | None = None
    """Commit, branch or tag of that data set; a commit makes the run reproducible."""

    _the_hub_needs_a_name = model_validator(mode="after")(require_dataset)


class ClassificationRowsParams(RowsParams):
    row_length: Annotated[int, Field(ge=16, le=32767)] = 128
    max_sequences_per_row: Annotated[int, Field(ge=1, le=255)] = 8


class GlueRowsParams(ClassificationRowsParams):
    max_sequences_per_row: Annotated[int, Field(ge=1, le=255)] = 6


class TextsFinetuneParams(FinetuneParams):
    global_batch_size: Positive = 32
    learning_rate: Rate = 3e-5
    epochs: Epochs = 3.0
    class_weights: Literal["balanced"] | None = None
    """Weights of classes in the loss: balanced (the rarer the class, the larger) or null (all equal)."""


class ClassificationEvaluateParams(EvaluateParams):
    threshold: Literal["auto", "per_label"] | Probability | dict[Name, Probability] | None = None
    """Probability above which a label, or the second of two classes, is predicted: a number, a number per label, auto
    (chosen on held-out training examples), per_label (one chosen per label); null: 0.5 for labels, for classes the most
    probable."""
    min_probability: Probability | None = None
    """Probability of the predicted class below which no class is predicted; null: a class is always predicted."""

    @property
    def is_chosen(self) -> bool:
        """True if thresholds are chosen on held-out examples."""
        return isinstance(self.threshold, str)


NO_CHOICE = ClassificationEvaluateParams()
"""The most probable class, or labels above 0.5."""


class ClassificationGateParams(ReleaseParams):
    min_accuracy: Points | None = None
    """Floor of the accuracy, in percent; null: none."""
    min_macro_f1: Points | None = None
    """Floor of macro F1, in percent; null: none."""
    min_micro_f1: Points | None = None
    """Floor of micro F1, in percent, for several labels; null: none."""
    min_pearson: Floor | None = None
    """Floor of Pearson's correlation times 100, for regression; null: none."""
    min_spearman: Floor | None = None
    """Floor of Spearman's correlation times 100, for regression; null: none."""
    min_f1_by_class: dict[Name, Points] | None = None
    """Floors of F1 of single classes or labels, in percent, by name; null: none."""
    min_coverage: Points | None = None
    """Floor of the share of texts with an answer, in percent, for evaluate.min_probability; null: none."""
    min_answered_accuracy: Points | None = None
    """Floor of the accuracy of the answers alone, in percent, for evaluate.min_probability; null: none."""
    max_drop: Points = 0.0
    """Tolerated drop against the released model, in points."""


class GlueGateParams(ReleaseParams):
    min_score: Floor | None = None
    """Floor of the task's score, times 100; null: none."""
    max_drop: Points = 0.0
    """Tolerated drop against the released model, in points."""


PROBABILITIES = "probabilities.csv"
"""File of the evaluation with the probability of every class or label, if thresholds decide."""


class TextsParams(EntryParams):
    """Entry of texts."""

    head: ClassVar[str] = "sequence_classification"
    has_labels: ClassVar[bool] = True
    label_table: ClassVar[str] = "task_table.py"

    data: ClassificationDataParams | GlueDataParams

    @model_validator(mode="after")
    def _check_class_weights(self) -> TextsParams:
        weighted = getattr(self.finetune, "class_weights", None) is not None
        if weighted and (self.text_task.is_regression or self.text_task.is_multilabel):
            raise ValueError("finetune.class_weights needs texts with one class each. Set it to null")
        return self

    @property
    def text_task(self) -> TextTask:
        """GLUE task, or task on your own texts."""
        return text_task(self.options)

    @property
    def decision(self) -> ClassificationEvaluateParams:
        """Rules that turn logits into answers; GLUE's tasks have no choice."""
        return self.evaluate if isinstance(self.evaluate, ClassificationEvaluateParams) else NO_CHOICE

    @property
    def title(self) -> str:
        return self.text_task.title

    @property
    def row_kind(self) -> str:
        if self.text_task.is_regression:
            return "sequence_regression"
        return "sequence_multilabel" if self.text_task.is_multilabel else "sequence_classification"

    @property
    def labels(self) -> tuple[str, ...]:
        return self.text_task.labels

    @property
    def development(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.text_task.dev)

    @property
    def decides_on_held_out(self) -> bool:
        return self.decision.is_chosen

    @property
    def decision_files(self) -> tuple[str, ...]:
        return () if not self.text_task.is_multilabel and self.decision == NO_CHOICE else (PROBABILITIES,)

    @property
    def released_below(self) -> str:
        return self.text_task.name

    @property
    def reads_pairs(self) -> bool:
        columns = getattr(self.data, "columns", None)
        return len(self.text_task.columns) > 1 or (columns is not None and columns.text_pair is not None)


class ClassificationParams(TextsParams):
    """Entry of kind classification."""

    about: ClassVar[str] = "Classification or regression of your own texts."

    regression: bool = False
    """Labels are values, not classes."""
    multilabel: bool = False
    """A text has any number of labels; podium finetune detects it where labels are lists or columns of 0 and 1."""
    data: ClassificationDataParams = ClassificationDataParams()
    rows: ClassificationRowsParams = ClassificationRowsParams()
    finetune: TextsFinetuneParams = TextsFinetuneParams()
    evaluate: ClassificationEvaluateParams = ClassificationEvaluateParams()
    gate: ClassificationGateParams = ClassificationGateParams()

    @model_validator(mode="after")
    def _check_label_forms(self) -> ClassificationParams:
        how, task, columns = self.evaluate, self.text_task, self.data.columns.label
        listed, separates = isinstance(columns, list), self.data.label_separator is not None
        if self.regression and self.multilabel:
            raise ValueError("regression: true excludes multilabel: true. Remove one of them")
        if (listed or separates) and not self.multilabel:
            raise ValueError("data.columns.label with several columns, or data.label_separator: set multilabel: true")
        if listed and separates:
            raise ValueError(
                "data.columns.label with several columns excludes data.label_separator. Remove one of them"
            )
        if isinstance(columns, list) and len(set(columns)) < max(2, len(columns)):
            raise ValueError("data.columns.label must list two or more different columns")
        if task.is_regression and (how != NO_CHOICE or self.gate.min_f1_by_class):
            raise ValueError("evaluate and gate.min_f1_by_class apply to classes and labels, but regression is true")
        if (how.threshold == "per_label" or isinstance(how.threshold, dict)) and not task.is_multilabel:
            raise ValueError("evaluate.threshold per label needs several labels: pass --multilabel, or one number")
        if how.is_chosen and not self.rows.held_out_fraction:
            raise ValueError(
                f"evaluate.threshold={how.threshold} is chosen on held-out training examples, never on dev. Set "
                "rows.held_out_fraction, for example to 0.1, or a number"
            )
        if how.min_probability is not None and task.is_multilabel:
            raise ValueError("evaluate.min_probability applies to one class per text. Set evaluate.threshold")
        floors = {name for name in type(self.gate).model_fields if getattr(self.gate, name) is not None}
        for name in SELECTIVE_FLOORS:
            if how.min_probability is None and name in floors:
                raise ValueError(f"gate.{name} requires evaluate.min_probability. Set it, for example to 0.9")
        if others := floors.intersection(name for own_task in OWN_TASKS for name in own_task.floors) - set(task.floors):
            raise ValueError(f"gate.{min(others)} does not apply to {task.title}. Set {' or '.join(task.floors)}")
        return self


SINGLE_TOKENS, PAIR_TOKENS = 16, 44
"""Estimated tokens of a GLUE sentence and of a pair, with special tokens."""


class GlueParams(TextsParams):
    """Entry of kind glue."""

    about: ClassVar[str] = "One of the nine tasks of GLUE."

    task: Literal["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"]
    """Task of GLUE."""
    data: GlueDataParams = GlueDataParams()
    rows: GlueRowsParams = GlueRowsParams()
    finetune: TextsFinetuneParams = TextsFinetuneParams()
    gate: GlueGateParams = GlueGateParams()

    @property
    def expected(self) -> ExpectedExamples:
        task = TASKS[self.task]
        return ExpectedExamples(*task.examples, SINGLE_TOKENS if len(task.columns) == 1 else PAIR_TOKENS)
