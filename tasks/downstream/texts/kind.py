"""Texts as two kinds of task: your own, and those of GLUE."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.downstream.kind_parts import Kind
from tasks.downstream.texts.params import ClassificationParams, GlueParams
from tasks.downstream.texts.task_table import TASKS
from tasks.params.entries import Entry

if TYPE_CHECKING:
    from tasks.downstream.card import CardFacts
    from tasks.downstream.texts.checks import LabelRows, TextsData
    from tasks.downstream.texts.examples import TextsReader
    from tasks.downstream.texts.inference import TextsInference
    from tasks.downstream.texts.page import TextsReport
    from tasks.downstream.texts.rows import TextsEncoder
    from tasks.downstream.texts.scores import TextsScores
    from tasks.validation.row_checks import RowSource

SEVERAL = "multi_label_classification"
"""problem_type of a model for several labels."""


class Texts(Kind):
    """Parts of both kinds; see `Kind`."""

    suffix = "ForSequenceClassification"

    def read_params(self, folder: Path) -> dict[str, object]:
        """Return the thresholds that were recorded with the model."""
        from tasks.downstream.scoring.thresholds import read_recorded
        from tasks.downstream.texts.scores import select_thresholds

        thresholds = select_thresholds(read_recorded(folder))
        return {"evaluate": thresholds} if thresholds else {}

    def recipe_for(self, train: Path, options: Mapping[str, object]) -> dict[str, object]:
        from tasks.downstream.texts.examples import recipe_for

        return recipe_for(train, options)

    def reader(self, entry: Entry) -> TextsReader:
        from tasks.downstream.texts.examples import TextsReader

        return TextsReader(entry)

    def example_data(self, entry: Entry, folder: Path) -> TextsData:
        from tasks.downstream.texts.checks import TextsData

        return TextsData(entry, folder)

    def encoder(self, entry: Entry) -> TextsEncoder:
        from tasks.downstream.texts.rows import TextsEncoder

        return TextsEncoder(entry)

    def row_data(self, source: RowSource) -> LabelRows:
        from tasks.downstream.texts.checks import LabelRows

        return LabelRows(source)

    def scores(self, entry: Entry) -> TextsScores:
        from tasks.downstream.texts.scores import TextsScores

        return TextsScores(entry)

    def report(self, entry: Entry) -> TextsReport:
        from tasks.downstream.texts.page import TextsReport

        return TextsReport(self.scores(entry))

    def inference(self, entry: Entry) -> TextsInference:
        from tasks.downstream.texts.inference import TextsInference

        return TextsInference(self.scores(entry))

    def card(self, facts: CardFacts) -> str:
        from tasks.downstream.texts.card import make_card

        return make_card(self.scores(facts.entry), facts)


class Classification(Texts):
    """Kind `classification`: your own texts."""

    params, is_fallback = ClassificationParams, True

    def match_tasks(self, labels: tuple[str, ...], problem: str | None) -> dict[str, dict[str, object]]:
        options = {"multilabel": True} if problem == SEVERAL else {"regression": len(labels) == 1}
        return {"classification": {"kind": "classification", **options}}


class Glue(Texts):
    """Kind `glue`: the tasks of GLUE."""

    params = GlueParams

    def match_tasks(self, labels: tuple[str, ...], problem: str | None) -> dict[str, dict[str, object]]:
        """Match the names of the classes, or their number if they are unnamed."""
        unnamed = tuple(f"LABEL_{number}" for number in range(len(labels)))
        return {
            name: {"kind": "glue", "task": name}
            for name, task in TASKS.items()
            if problem != SEVERAL and (task.labels == labels or (labels == unnamed and len(task.labels) == len(labels)))
        }
