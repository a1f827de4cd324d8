"""Classification, multi-label classification and regression of texts: task properties shared by all stages."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.downstream.texts.params import ClassificationEvaluateParams, TextsFinetuneParams
from tasks.downstream.texts.task_table import text_task
from tasks.params.entries import Entry
from tasks.plan.kinds import DownstreamTask
from tasks.records.labels import read_row_labels
from tasks.stage.artifacts import HELD_OUT, evaluation_folder
from tasks.stage.row_folders import read_manifest

PROBABILITIES = "probabilities.csv"
"""File of the evaluation with the probability of every class or label, if thresholds decide."""


class TextsSpec(DownstreamTask):
    """Class, several labels, or value of a text or a pair of texts."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry)
        self.spec = text_task(entry.params.options)

    @property
    def released_below(self) -> str:
        return self.spec.name

    @property
    def title(self) -> str:
        return self.spec.title

    @property
    def is_regression(self) -> bool:
        """True if labels are values, not classes."""
        return self.spec.is_regression

    @property
    def is_multilabel(self) -> bool:
        """True if an example has any number of labels, also none; its `label` is a list of their numbers."""
        return self.spec.is_multilabel

    @property
    def labels(self) -> tuple[str, ...]:
        return self.spec.labels

    def labels_of(self, rows: Path) -> tuple[str, ...]:
        """Return the classes of the task or of the training examples, in order."""
        return self.labels or read_row_labels(rows)

    def class_weights(self, rows: Path) -> list[float] | None:
        """Return the weights of `balanced`: all classes have the same weight in sum. Rows without files have 1."""
        finetune = self.entry.params.finetune
        if not isinstance(finetune, TextsFinetuneParams) or finetune.class_weights is None:
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
        return self.spec.splits[1:]

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
        if not self.is_multilabel and self.decision == ClassificationEvaluateParams():
            return ()
        return (evaluation_folder(self.entry.name) / PROBABILITIES,)

    @property
    def head(self) -> str:
        return "sequence_classification"

    @property
    def row_kind(self) -> str:
        if self.is_multilabel:
            return "sequence_multilabel"
        return "sequence_regression" if self.is_regression else "sequence_classification"

    @property
    def schema(self) -> pa.Schema:
        """Schema of the examples; `second` is null for single texts, `label` is a number of a class, a list of numbers
        of labels in ascending order, or a value."""
        label = pa.float32() if self.is_regression else pa.int32()
        columns = [
            pa.field("first", pa.string(), nullable=False),
            pa.field("second", pa.string()),
            pa.field("label", pa.list_(label) if self.is_multilabel else label, nullable=False),
        ]
        return pa.schema(columns if self.spec.name else [*columns, pa.field("id", pa.string())])


def make_flags(labels: pa.ListArray, count: int) -> np.ndarray:
    """Return int8 [examples, count]: 1 where an example has the label; other numbers of labels are left out."""
    flags = np.zeros((len(labels), count), np.int8)
    example, number = (one.to_numpy() for one in (pc.list_parent_indices(labels), pc.list_flatten(labels)))
    known = (number >= 0) & (number < count)
    flags[example[known], number[known]] = 1
    return flags
