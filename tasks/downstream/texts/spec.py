"""Classification, multi-label classification and regression of texts: task properties shared by all stages."""

from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from tasks.downstream.texts.answers import AnswerForm, make_form
from tasks.downstream.texts.params import ClassificationEvaluateParams
from tasks.downstream.texts.task_table import text_task
from tasks.params.entries import Entry
from tasks.plan.kinds import DownstreamTask
from tasks.records.labels import read_row_labels
from tasks.stage.artifacts import EVALUATION, HELD_OUT
from tasks.stage.row_folders import read_manifest

PROBABILITIES = "probabilities.csv"
"""File of the evaluation with the probability of every class or label, if thresholds decide."""


class TextsSpec(DownstreamTask):
    """Class, several labels, or value of a text or a pair of texts."""

    head: ClassVar[str] = "sequence_classification"
    label_table: ClassVar[str] = "task_table.py"

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry)
        self.spec = text_task(entry.params.options)
        self.form: AnswerForm = make_form(self.spec, self.decision)
        self.has_decimals = False
        """Values that were read have decimal points, so that dots in other splits do not group digits."""

    @property
    def released_below(self) -> str:
        return self.spec.name

    @property
    def title(self) -> str:
        return self.spec.title

    @property
    def labels(self) -> tuple[str, ...]:
        return self.spec.labels

    def labels_of(self, rows: Path) -> tuple[str, ...]:
        """Return the classes of the task or of the training examples, in order."""
        return self.labels or read_row_labels(rows)

    def class_weights(self, rows: Path) -> list[float] | None:
        """Return the weights of `balanced`: all classes have the same weight in sum. Rows without files have 1."""
        if getattr(self.entry.params.finetune, "class_weights", None) is None:
            return None
        counts = np.zeros(len(self.labels_of(rows)))
        for path in filter(Path.is_file, (rows / name for name in read_manifest(rows).files)):
            with pa.memory_map(str(path)) as source:
                labels = pa.ipc.open_file(source).read_all().column("class_labels").combine_chunks().values.to_numpy()
                counts += np.bincount(labels[labels >= 0], minlength=len(counts))
        found: list[float] = (counts.sum() / (len(counts) * np.maximum(counts, 1))).tolist()
        return found if counts.any() else [1.0] * len(counts)

    @property
    def development(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.spec.dev)

    @property
    def decision(self) -> ClassificationEvaluateParams:
        """Rules that turn logits into answers; GLUE's tasks have no choice."""
        found = self.entry.params.evaluate
        return found if isinstance(found, ClassificationEvaluateParams) else ClassificationEvaluateParams()

    @property
    def predicted(self) -> tuple[str, ...]:
        """Splits to predict; includes held-out examples if they select thresholds."""
        held_out = self.decision.is_chosen and self.entry.rows.held_out_fraction > 0
        return (*self.development, *([HELD_OUT] if held_out else []))

    @property
    def decision_files(self) -> tuple[Path, ...]:
        if not self.spec.is_multilabel and self.decision == ClassificationEvaluateParams():
            return ()
        return (EVALUATION / self.entry.name / PROBABILITIES,)

    @property
    def row_kind(self) -> str:
        return self.form.row_kind

    @property
    def schema(self) -> pa.Schema:
        """Schema of the examples; `second` is null for single texts, `label` is a number of a class, a list of numbers
        of labels in ascending order, or a value."""
        return pa.schema(
            [
                pa.field("first", pa.string(), nullable=False),
                pa.field("second", pa.string()),
                pa.field("label", self.form.label_type, nullable=False),
                pa.field("id", pa.string(), nullable=False),
            ]
        )


def join_texts(batch: pa.RecordBatch) -> list[str]:
    """Return the text of each example, those of a pair with a tab between them."""
    pairs = zip(batch.column("first").to_pylist(), batch.column("second").to_pylist(), strict=True)
    return ["\t".join(part for part in pair if part is not None) for pair in pairs]
